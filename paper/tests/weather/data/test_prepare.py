from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import smoe_paper.weather.data.prepare as prepare_module
from memory_source import MemorySource, Silent, contents
from smoe.errors import DataError
from smoe_paper.atmosphere.grid import Grid
from smoe_paper.weather.data.prepare import prepare
from smoe_paper.weather.data.prepare_plan import Preparation
from smoe_paper.weather.data.samples import WeatherSamples
from smoe_paper.weather.data.store import WeatherStore

SOURCE = MemorySource()
WANTED = Preparation((2000, 2002), (2000, 2001), SOURCE.names)


@dataclass
class KilledSource(MemorySource):
    """Ends its process without a warning at a read."""

    last_read: int = 0

    def read(self, channel: str, year: int) -> np.ndarray:
        values = super().read(channel, year)
        if self.num_reads == self.last_read:
            os.kill(os.getpid(), signal.SIGKILL)
        return values


def in_killed_process(run: Callable[[], object]) -> None:
    process = os.fork()
    if process == 0:
        try:
            run()
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prepare") / "whole"
    prepare(SOURCE, path, WANTED, Silent())
    return path


# A store takes 2 reads for the beginning of tp and tisr, 10 for the statistics of 2000 and 2001, 15 to be written.
@pytest.mark.parametrize("last_read", [1, 4, 8, 13, 14, 17, 18, 23, 27])
def test_a_killed_preparation_goes_on_to_the_same_bytes(tmp_path: Path, whole: Path, last_read: int) -> None:
    path = tmp_path / "store"
    in_killed_process(lambda: prepare(KilledSource(last_read=last_read), path, WANTED, Silent()))
    with pytest.raises(DataError, match=r"not finished: \d of 3 years|there is no weather store"):
        WeatherStore.open(path)
    reporter = Silent()
    source = MemorySource()
    prepare(source, path, WANTED, reporter)
    assert contents(path) == contents(whole)
    # Whole years are not read again.
    done = max(0, (last_read - 3) // 5)
    assert len(reporter.steps) == reporter.total == source.num_reads - 2 == 25 - 5 * done


def test_a_preparation_killed_again_and_again_ends(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "store"
    for _ in range(4):
        in_killed_process(lambda: prepare(KilledSource(last_read=2 + 7), path, WANTED, Silent()))
    prepare(SOURCE, path, WANTED, Silent())
    assert contents(path) == contents(whole)


@pytest.mark.parametrize("moment", ["before the metadata", "before the journal is removed", "before the year counts"])
def test_a_kill_at_the_worst_moments(tmp_path: Path, whole: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        if moment == "before the metadata":
            patch.setattr(prepare_module.Metadata, "write", die)
        elif moment == "before the journal is removed":
            patch.setattr(Path, "unlink", lambda self, **_: die() if self.name == "preparation.json" else None)
        else:
            patch.setattr(prepare_module.Journal, "add_year", die)
        in_killed_process(lambda: prepare(SOURCE, path, WANTED, Silent()))
    if moment == "before the journal is removed":
        assert len(WeatherStore.open(path).times) == 2964
        # The journal that was left does not stand in the way of further years either.
        longer = MemorySource(all_years=(2000, 2001, 2002, 2003), days=5)
        longer_store = Path(shutil.copytree(path, tmp_path / "longer"))
        assert prepare(longer, longer_store, replace(WANTED, years=(2003, 2003)), Silent()).years()[-1] == 2003
    prepare(SOURCE, path, WANTED, Silent())
    ours = {name: content for name, content in contents(path).items() if not name.endswith(".tmp")}
    assert ours == contents(whole)


def test_later_years_are_added(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "store"
    prepare(SOURCE, path, replace(WANTED, years=(2000, 2001)), Silent())
    in_killed_process(
        lambda: prepare(KilledSource(last_read=3), path, replace(WANTED, statistics_years=None), Silent())
    )
    # While years are added, and after a kill, the store is what it was.
    assert WeatherStore.open(path).years() == (2000, 2001)
    reporter = Silent()
    store = prepare(SOURCE, path, WANTED, reporter)
    assert contents(path) == contents(whole)
    assert len(reporter.steps) == 5 and store.years() == (2000, 2001, 2002)
    again = Silent()
    prepare(SOURCE, path, WANTED, again)
    assert again.steps == [] and "holds these years already" in again.lines[-1]
    assert contents(path) == contents(whole)


def test_years_with_a_gap_before_them_can_be_added(tmp_path: Path) -> None:
    source = MemorySource(all_years=(2000, 2003))
    prepare(source, tmp_path, replace(WANTED, years=(2000, 2000), statistics_years=(2000, 2000)), Silent())
    store = prepare(source, tmp_path, replace(WANTED, years=(2003, 2003), statistics_years=None), Silent())
    assert store.years() == (2000, 2003)
    assert store.times[40] == np.datetime64("2003-01-01T00")


def test_a_preparation_given_up_leaves_no_bytes(tmp_path: Path) -> None:
    in_killed_process(lambda: prepare(KilledSource(last_read=20), tmp_path, WANTED, Silent()))
    smaller = replace(WANTED, years=(2002, 2002))
    with pytest.raises(DataError, match="beginning of another preparation, which differs in years: run that one"):
        prepare(SOURCE, tmp_path, smaller, Silent())
    (tmp_path / "preparation.json").unlink()
    assert len(prepare(SOURCE, tmp_path, smaller, Silent()).times) == 40


def test_statistics_do_not_change_on_the_way(tmp_path: Path, whole: Path) -> None:
    wanted = replace(WANTED, statistics_years=None)
    killed = KilledSource(last_read=12)
    in_killed_process(lambda: prepare(killed, tmp_path, wanted, Silent(), WeatherStore.open(whole)))
    with pytest.raises(DataError, match="differs in statistics_from, statistics_spans: run that one to its end"):
        prepare(SOURCE, tmp_path, WANTED, Silent())


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(DataError, match=r"holds other files, such as thesis\.tex: choose an empty folder"):
        prepare(SOURCE, tmp_path, WANTED, Silent())
    with pytest.raises(DataError, match=r"thesis\.tex is a file: choose a folder"):
        prepare(SOURCE, tmp_path / "thesis.tex", WANTED, Silent())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_processes_do_not_write_one_store(tmp_path: Path) -> None:
    class Meddling(Silent):
        def advance(self, text: str | None = None) -> None:
            super().advance(text)
            if len(self.steps) == 3:
                with pytest.raises(DataError, match=r"process [0-9]+ is preparing"):
                    prepare(SOURCE, tmp_path, WANTED, Silent())

    prepare(SOURCE, tmp_path, WANTED, Meddling())
    assert len(WeatherStore.open(tmp_path).times) == 2964


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"channels": SOURCE.names[:2]}, "was prepared with --channels z_500 t_850 t2m tisr tp, not z_500 t_850"),
        ({"constants": ("lsm",)}, "was prepared with --constants lsm orography lat2d, not lsm"),
        ({"step_hours": 12}, "was prepared with --step-hours 6, not 12"),
        ({"on_nan": "zero"}, "was prepared with --on-nan refuse, not zero"),
        ({"statistics_years": (2000, 2000)}, "are of 2000 to 2001, not of --statistics-years 2000 2000"),
        ({"years": (1999, 2002)}, "ends with 2002, and only later years can be added, not 1999"),
    ],
)
def test_years_are_added_with_the_same_options_only(
    tmp_path: Path, whole: Path, changed: dict[str, object], text: str
) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "copy"))
    wanted = replace(WANTED, **{"years": (2000, 2003), **changed})  # type: ignore[arg-type]
    with pytest.raises(DataError) as caught:
        prepare(MemorySource(all_years=(1999, 2000, 2001, 2002, 2003)), path, wanted, Silent())
    assert text in str(caught.value)
    assert contents(path) == contents(whole)


def test_years_of_another_grid_are_not_added(tmp_path: Path, whole: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "copy"))
    other = MemorySource(all_years=(2003,), grid=Grid((-45.0, -15.0, 15.0, 45.0), (0.0, 72.0, 144.0, 216.0, 288.0)))
    with pytest.raises(DataError, match=r"has a grid of \(4, 5\), the data one of \(4, 5\) or with other coordinates"):
        prepare(other, path, replace(WANTED, years=(2003, 2003)), Silent())


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"years": (1979, 2018)}, "the data lack 1979-1999, 2003-2018, which --years or --statistics-years ask for"),
        ({"years": (2002, 2000)}, "--years goes from the first to the last year, got 2002 2000"),
        (
            {"statistics_years": None},
            "the data lack 1979-1999, 2003-2015, which --years or --statistics-years ask for; there are 2000-2002",
        ),
        ({"statistics_years": (2001, 2003)}, "the data lack 2003, which"),
        ({"channels": ("z_500", "q_50")}, "the data lack the channels q_50; there are z_500, t_850, t2m, tisr, tp"),
        ({"channels": ("z_500", "zz_500")}, "no weather channel is named 'zz_500'"),
        ({"channels": ("z_500", "z_500")}, "--channels names z_500 more than once"),
        ({"channels": ()}, "--channels must name at least one channel"),
        ({"constants": ("lsm", "slt")}, "the data lack the constants slt; there are lsm, orography, lat2d"),
        ({"step_hours": 3}, "--step-hours 3 must divide 24 and be a multiple of the 6 hours"),
        ({"step_hours": 18}, "--step-hours 18 must divide 24"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_read(
    tmp_path: Path, changed: dict[str, object], text: str
) -> None:
    source = MemorySource()
    with pytest.raises(DataError) as caught:
        prepare(source, tmp_path / "store", replace(WANTED, **changed), Silent())  # type: ignore[arg-type]
    assert text in str(caught.value)
    assert source.num_reads == 0


def test_the_disk_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = Silent()
    prepare(SOURCE, tmp_path / "one", WANTED, reporter)
    assert reporter.lines[0] == "2002 has 40 of its 1,460 times"
    assert reporter.lines[1].startswith("2,964 steps of 5 channels in 3 years; the store takes 1.2 MB")
    usage = shutil.disk_usage(tmp_path)._replace(free=1_185_599)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    source = MemorySource()
    with pytest.raises(DataError, match=r"the store takes .* has 1.2 MB free: choose another disk, fewer --years"):
        prepare(source, tmp_path / "two", WANTED, Silent())
    assert not (tmp_path / "two" / "fields.f32").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_185_600))
    prepare(source, tmp_path / "two", WANTED, Silent())


def test_a_full_disk_is_one_line_and_can_be_resumed(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(DataError, match=r"no room for 2000 in .*: No space left on device; run again to resume"):
            prepare(SOURCE, tmp_path, WANTED, Silent())
    prepare(SOURCE, tmp_path, WANTED, Silent())
    assert contents(tmp_path) == contents(whole)


def test_every_sixth_hour_of_hourly_data(tmp_path: Path) -> None:
    source = MemorySource(all_years=(2000,), step_hours=1)
    # The record begins at 7 h: 7 hours without a value, as in WeatherBench's 1979.
    source.changes["tisr", 2000] = np.full((7, 4, 5), np.nan)
    source.changes["tp", 2000] = np.full((12, 4, 5), np.nan)
    wanted = Preparation((2000, 2000), (2000, 2000), source.names)
    hourly = prepare(source, tmp_path / "hourly", wanted, Silent())
    assert hourly.times[0] == np.datetime64("2000-01-01T12") and hourly.metadata.years[0].num_dropped == 12
    assert np.isfinite(hourly.fields).all()
    six = prepare(source, tmp_path / "six", replace(wanted, step_hours=6), Silent())
    assert six.step_hours == 6 and six.times[0] == np.datetime64("2000-01-01T12") and len(six.times) == 38
    values = source.read("t2m", 2000)[12::6].astype(np.float64)
    assert six.mean[2] == pytest.approx(values.mean(), rel=1e-12)
    np.testing.assert_array_equal(six.fields[:, 2], ((values - six.mean[2]) / six.std[2]).astype(np.float32))
    # Steps stay at 0, 6, 12 and 18 h, wherever the data begin.
    late = prepare(source, tmp_path / "late", replace(wanted, channels=("tisr",), step_hours=6), Silent())
    assert late.times[0] == np.datetime64("2000-01-01T12") and late.metadata.years[0].num_dropped == 12
    # Without the channels that are sums, nothing is left out.
    assert prepare(source, tmp_path / "z", replace(wanted, channels=("z_500",)), Silent()).times[0] == np.datetime64(
        "2000-01-01T00"
    )


def test_a_channel_that_does_not_vary_is_refused(tmp_path: Path) -> None:
    source = MemorySource()
    for year in (2000, 2001):
        source.changes["t_850", year] = np.full((len(source.times(year)), 4, 5), 273.15)
    with pytest.raises(DataError, match=r"channel t_850 has the value 273\.15 everywhere in the statistics years"):
        prepare(source, tmp_path, WANTED, Silent())


def test_statistics_from_another_store(tmp_path: Path, whole: Path) -> None:
    reference = WeatherStore.open(whole)
    source = MemorySource(all_years=(1850, 1851), names=("t2m", "z_500", "tp"))
    wanted = Preparation((1850, 1851), None, source.names, constants=("lat2d",))
    store = prepare(source, tmp_path / "store", wanted, Silent(), reference)
    assert store.statistics_years == (2000, 2001)
    assert store.metadata.statistics_from == reference.metadata.checksum
    for channel in source.names:
        ours, theirs = store.channels.index(channel), reference.channels.index(channel)
        assert (store.mean[ours], store.std[ours]) == (reference.mean[theirs], reference.std[theirs])
    values = source.read("t2m", 1850).astype(np.float64)
    np.testing.assert_array_equal(
        store.fields[: len(values), 0], ((values - store.mean[0]) / store.std[0]).astype(np.float32)
    )
    assert len(WeatherSamples(store, (1850, 1851), targets=("t2m",))) == len(store.times) - 14
    # Named again, or left out, they are used for further years too; others are refused.
    longer = MemorySource(all_years=(1850, 1851, 1852), names=source.names)
    wanted = replace(wanted, years=(1850, 1852))
    other_statistics = prepare(longer, tmp_path / "own", replace(wanted, statistics_years=(1850, 1850)), Silent())
    with pytest.raises(DataError, match=r"was not normalised with the statistics of .*own: leave out"):
        prepare(longer, tmp_path / "store", wanted, Silent(), other_statistics)
    store = prepare(longer, tmp_path / "store", wanted, Silent(), reference)
    assert store.years() == (1850, 1851, 1852) and store.mean[0] == reference.mean[2]
    other = MemorySource(all_years=(1850,), names=("u_500",))
    with pytest.raises(DataError, match="has no channel 'u_500'"):
        prepare(other, tmp_path / "other", Preparation((1850, 1850), None, other.names), Silent(), reference)


def test_memory_stays_at_one_channel_of_one_year(tmp_path: Path) -> None:
    import tracemalloc

    source = MemorySource(days=366, all_years=(2000,), step_hours=1)
    one = source.read("z_500", 2000).nbytes
    tracemalloc.start()
    prepare(source, tmp_path, Preparation((2000, 2000), (2000, 2000), source.names), Silent())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The made-up fields take five times their size (noise in float64, scaled, and rounded): nothing is held besides.
    assert peak < 6.5 * one
