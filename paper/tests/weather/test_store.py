"""Stores made from fields in memory: their values, resuming, adding years, missing values, refusals."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from memory_source import CONSTANTS, MemorySource, Silent, contents
from smoe.errors import DataError
from smoe_paper.atmosphere.axes import Grid
from smoe_paper.weather.commands import Preparation
from smoe_paper.weather.prepare import prepare
from smoe_paper.weather.samples import WeatherSamples
from smoe_paper.weather.store import NaNPolicy, WeatherStore

SOURCE = MemorySource()
WANTED = Preparation((2000, 2002), (2000, 2001), SOURCE.names, CONSTANTS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "whole"
    prepare(SOURCE, path, WANTED, Silent())
    return path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def transformed(channel: str, years: tuple[int, ...]) -> np.ndarray:
    values = np.concatenate([SOURCE.read(channel, year) for year in years]).astype(np.float64)
    return np.log(values + 0.001) - np.log(0.001) if channel == "tp" else values


def test_fields_are_normalised_by_the_training_years_and_go_back_to_physical_units(whole: Path) -> None:
    store = WeatherStore.open(whole)
    assert store.statistics_years == (2000, 2001)
    assert store.fields.shape == (len(store.times), 5, 4, 5)
    np.testing.assert_array_equal(store.times, np.concatenate([SOURCE.times(year) for year in (2000, 2001, 2002)]))
    for index, channel in enumerate(store.channels):
        training = transformed(channel, (2000, 2001))
        assert store.mean[index] == pytest.approx(0.0 if channel == "tp" else training.mean(), rel=1e-12, abs=1e-12)
        assert store.std[index] == pytest.approx(training.std(), rel=1e-10)
        fields = np.asarray(store.fields)[:, index]
        normalised = (transformed(channel, (2000, 2001, 2002)) - store.mean[index]) / store.std[index]
        np.testing.assert_array_equal(fields, normalised.astype(np.float32))
        physical = np.concatenate([SOURCE.read(channel, year) for year in (2000, 2001, 2002)])
        scale = np.abs(physical).max()
        np.testing.assert_allclose(store.to_physical(channel, fields), physical, atol=1e-6 * scale)
        np.testing.assert_allclose(
            store.to_physical(channel, torch.tensor(fields[:9])).numpy(), physical[:9], atol=1e-6 * scale
        )
    # No rain is 0, in both units.
    index = store.channels.index("tp")
    assert np.asarray(store.fields)[:, index].min() == 0 and store.to_physical("tp", np.zeros(1, np.float32))[0] == 0


def test_zarr_reads_what_is_mapped(whole: Path) -> None:
    store, group = WeatherStore.open(whole), zarr.open_group(whole, mode="r")
    years = [np.asarray(group[f"fields/{year}"]) for year in (2000, 2001, 2002)]
    np.testing.assert_array_equal(np.concatenate(years), np.asarray(store.fields))
    np.testing.assert_array_equal(np.asarray(group["constants"]), store.raw_constants)


def test_constants(whole: Path, tmp_path: Path) -> None:
    store = WeatherStore.open(whole)
    assert store.constant_names == ("lsm", "orography", "lat2d")
    for index, name in enumerate(store.constant_names):
        raw = SOURCE.read_constant(name)
        np.testing.assert_array_equal(store.raw_constant(name), raw)
        expected = (raw.astype(np.float64) - raw.mean(dtype=np.float64)) / raw.astype(np.float64).std()
        np.testing.assert_allclose(store.constants[index], expected, rtol=1e-5)
    assert prepare(SOURCE, tmp_path, replace(WANTED, constants=()), Silent()).constants.shape == (0, 4, 5)


def test_preparing_needs_no_torch_and_a_store_is_sent_as_a_path(whole: Path) -> None:
    program = "import sys, smoe_paper.weather.prepare; assert not {'torch', 'xarray', 'zarr'} & set(sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    store = WeatherStore.open(whole)
    content = pickle.dumps(store)
    assert len(content) < store.num_bytes / 20
    np.testing.assert_array_equal(pickle.loads(content).fields[7], store.fields[7])


def test_a_flipped_byte_is_found(copy: Path) -> None:
    checksum = WeatherStore.open(copy).checksum
    assert list(WeatherStore.open(copy).verify()) == [2000, 2001, 2002]
    (chunk,) = (copy / "fields" / "2001" / "c").rglob("0/0/0/0")
    content = bytearray(chunk.read_bytes())
    content[11] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(DataError, match=r"fields/2001/c/0/0/0/0 is not as it was written"):
        list(WeatherStore.open(copy).verify())
    content[-1] ^= 1
    chunk.write_bytes(content)
    assert WeatherStore.open(copy).checksum != checksum


def cut(name: str, num_bytes: int) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:num_bytes])


def edit(text: str, other: str, name: str = "zarr.json") -> Callable[[Path], object]:
    def apply(path: Path) -> None:
        content = (path / name).read_text()
        assert text in content
        (path / name).write_text(content.replace(text, other))

    return apply


def without_mean(path: Path) -> None:
    from smoe_paper.atmosphere.store import checksum

    whole = json.loads((path / "zarr.json").read_text())
    del whole["attributes"]["content"]["finished"]["mean"]
    whole["attributes"]["checksum"] = checksum(whole["attributes"]["content"])
    (path / "zarr.json").write_text(json.dumps(whole))


CHUNK = "fields/2001/c/0/0/0/0"


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (shutil.rmtree, "there is no weather store in"),
        (cut(CHUNK, -1), "has 584,003 bytes, but 584,004 are needed"),
        (lambda path: (path / CHUNK).unlink(), f"{CHUNK} is missing, but 584,004 are needed"),
        (lambda path: shutil.rmtree(path / "fields" / "2001"), "fields/2001 is missing or damaged"),
        (edit('"little"', '"big"', "fields/2001/zarr.json"), "is no array of plain float32 rows"),
        (edit("1460", "999999", "fields/2001/zarr.json"), "bytes, but"),
        (lambda path: (path / "constants/c/0/0/0").write_bytes(b"\1" * 244), "is not as it was written"),
        (lambda path: (path / "zarr.json").write_text("{}"), "is not a smoe weather store"),
        (edit("smoe weather store", "smoe ensemble store"), "is not a smoe weather store"),
        (edit('"version": 2', '"version": 9'), "has version 9 of the format, expected 2"),
        (edit("t_850", "t_500"), "was edited or damaged: its checksum does not fit"),
        (without_mean, "does not hold what version 2 holds"),
    ],
)
def test_a_store_that_is_not_whole_is_refused(copy: Path, damage: Callable[[Path], object], text: str) -> None:
    WeatherStore.open(copy)
    damage(copy)
    with pytest.raises(DataError) as caught:
        WeatherStore.open(copy)
    assert text in str(caught.value) and "\n" not in str(caught.value)


@dataclass
class KilledSource(MemorySource):
    """Ends its process without a warning at a read."""

    last_read: int = 0

    def read(self, channel: str, year: int) -> np.ndarray:
        values = super().read(channel, year)
        if self.num_reads == self.last_read:
            os.kill(os.getpid(), signal.SIGKILL)
        return values


def killed(path: Path, last_read: int, wanted: Preparation = WANTED, other: WeatherStore | None = None) -> None:
    process = os.fork()
    if process == 0:
        try:
            prepare(KilledSource(last_read=last_read), path, wanted, Silent(), other)
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


# A store takes 2 reads for the beginning of tp and tisr, 10 for the statistics of 2000 and 2001, 15 to be written.
@pytest.mark.parametrize("last_read", [1, 8, 13, 18, 27])
def test_a_killed_preparation_goes_on_to_the_same_bytes(tmp_path: Path, whole: Path, last_read: int) -> None:
    path = tmp_path / "store"
    killed(path, last_read)
    with pytest.raises(DataError, match=r"is not finished|there is no weather store"):
        WeatherStore.open(path)
    reporter, source = Silent(), MemorySource()
    prepare(source, path, WANTED, reporter)
    assert contents(path) == contents(whole)
    # Whole years are not read again.
    done = max(0, (last_read - 3) // 5)
    assert len(reporter.steps) == reporter.total == source.num_reads - 2 == 25 - 5 * done


def test_later_years_are_added(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "store"
    prepare(SOURCE, path, replace(WANTED, years=(2000, 2001)), Silent())
    killed(path, 3, replace(WANTED, statistics_years=None))
    # While years are added, and after a kill, the store is what it was.
    assert WeatherStore.open(path).years() == (2000, 2001)
    reporter = Silent()
    store = prepare(SOURCE, path, WANTED, reporter)
    assert contents(path) == contents(whole)
    assert len(reporter.steps) == 5 and store.years() == (2000, 2001, 2002)
    again = Silent()
    prepare(SOURCE, path, WANTED, again)
    assert again.steps == [] and "holds these years already" in again.lines[-1]
    # A year may be missing in between.
    gap = MemorySource(all_years=(2000, 2001, 2002, 2004))
    store = prepare(gap, path, replace(WANTED, years=(2004, 2004), statistics_years=None), Silent())
    assert store.years()[-1] == 2004 and store.times[2964] == np.datetime64("2004-01-01T00")


def test_a_preparation_goes_on_with_the_same_options_only(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "store"
    killed(path, 12, replace(WANTED, statistics_years=None), WeatherStore.open(whole))
    with pytest.raises(DataError, match=r"another preparation, which differs in statistics_from: run that one"):
        prepare(SOURCE, path, WANTED, Silent())
    # Other years have the same fields.
    fewer = replace(WANTED, years=(2002, 2002), statistics_years=None)
    assert prepare(SOURCE, path, fewer, Silent(), WeatherStore.open(whole)).years() == (2002,)


def test_other_files_are_left_alone_and_two_processes_do_not_write_one_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(DataError, match=r"holds other files, such as thesis\.tex: choose an empty folder"):
        prepare(SOURCE, tmp_path, WANTED, Silent())
    with pytest.raises(DataError, match=r"thesis\.tex is a file: choose a folder"):
        prepare(SOURCE, tmp_path / "thesis.tex", WANTED, Silent())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    class Meddling(Silent):
        def advance(self, text: str | None = None) -> None:
            super().advance(text)
            if len(self.steps) == 3:
                with pytest.raises(DataError, match="another process is preparing"):
                    prepare(SOURCE, tmp_path / "store", WANTED, Silent())

    assert len(prepare(SOURCE, tmp_path / "store", WANTED, Meddling()).times) == 2964


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
    copy: Path, whole: Path, changed: dict[str, object], text: str
) -> None:
    wanted = replace(WANTED, **{"years": (2000, 2003), **changed})  # type: ignore[arg-type]
    with pytest.raises(DataError) as caught:
        prepare(MemorySource(all_years=(1999, 2000, 2001, 2002, 2003)), copy, wanted, Silent())
    assert text in str(caught.value)
    other = MemorySource(all_years=(2003,), grid=Grid((-45.0, -15.0, 15.0, 45.0), (0.0, 72.0, 144.0, 216.0, 288.0)))
    with pytest.raises(DataError, match=r"has a grid of \(4, 5\), the data one of \(4, 5\) or with other coordinates"):
        prepare(other, copy, replace(WANTED, years=(2003, 2003)), Silent())
    assert contents(copy) == contents(whole)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"years": (1979, 2018)}, "the data lack 1979-1999, 2003-2018, which --years or --statistics-years ask for"),
        ({"years": (2002, 2000)}, "--years goes from the first to the last year, got 2002 2000"),
        ({"statistics_years": None}, "the data lack 1979-1999, 2003-2015, which --years or --statistics-years ask for"),
        ({"channels": ("z_500", "q_50")}, "the data lack the channels q_50; there are z_500, t_850, t2m, tisr, tp"),
        ({"channels": ("z_500", "zz_500")}, "no weather channel is named 'zz_500'"),
        ({"channels": ("z_500", "z_500")}, "--channels names z_500 more than once"),
        ({"channels": ()}, "--channels must name at least one channel"),
        ({"constants": ("lsm", "slt")}, "the data lack the constants slt; there are lsm, orography, lat2d"),
        ({"step_hours": 3}, "--step-hours 3 must divide 24 and be a multiple of the 6 hours"),
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


def test_a_disk_that_is_too_small(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_180_000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(DataError, match=r"the store takes .* has 1.2 MB free: choose another disk, fewer --years"):
            prepare(MemorySource(), tmp_path / "store", WANTED, Silent())
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left on device"):
            prepare(SOURCE, tmp_path / "store", WANTED, Silent())
    reporter = Silent()
    prepare(SOURCE, tmp_path / "store", WANTED, reporter)
    assert reporter.lines[:2] == ["2002 has 40 of its 1,460 times", reporter.lines[1]]
    assert reporter.lines[1].startswith("2,964 steps of 5 channels in 3 years; the store takes 1.2 MB")
    assert contents(tmp_path / "store") == contents(whole)


def test_every_sixth_hour_of_hourly_data(tmp_path: Path) -> None:
    source = MemorySource(all_years=(2000,), step_hours=1)
    # The record begins at 7 h: 7 hours without a value, as in WeatherBench's 1979.
    source.changes["tisr", 2000] = np.full((7, 4, 5), np.nan)
    source.changes["tp", 2000] = np.full((12, 4, 5), np.nan)
    wanted = Preparation((2000, 2000), (2000, 2000), source.names, CONSTANTS)
    hourly = prepare(source, tmp_path / "hourly", wanted, Silent())
    assert hourly.times[0] == np.datetime64("2000-01-01T12") and hourly.stored_years[0].num_dropped == 12
    assert np.isfinite(np.asarray(hourly.fields)).all()
    assert "2000: 12 steps left out at the beginning" in hourly.describe()
    six = prepare(source, tmp_path / "six", replace(wanted, step_hours=6), Silent())
    assert six.step_hours == 6 and six.times[0] == np.datetime64("2000-01-01T12") and len(six.times) == 38
    values = source.read("t2m", 2000)[12::6].astype(np.float64)
    assert six.mean[2] == pytest.approx(values.mean(), rel=1e-12)
    expected = ((values - six.mean[2]) / six.std[2]).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(six.fields)[:, 2], expected)
    # Without the channels that are sums, nothing is left out.
    plain = prepare(source, tmp_path / "z", replace(wanted, channels=("z_500",)), Silent())
    assert plain.times[0] == np.datetime64("2000-01-01T00")


def test_statistics_from_another_store(tmp_path: Path, whole: Path) -> None:
    reference = WeatherStore.open(whole)
    source = MemorySource(all_years=(1850, 1851), names=("t2m", "z_500", "tp"))
    wanted = Preparation((1850, 1851), None, source.names, constants=("lat2d",))
    store = prepare(source, tmp_path / "store", wanted, Silent(), reference)
    assert store.statistics_years == (2000, 2001)
    assert store.metadata.statistics_from == reference.checksum
    for channel in source.names:
        ours, theirs = store.channels.index(channel), reference.channels.index(channel)
        assert (store.mean[ours], store.std[ours]) == (reference.mean[theirs], reference.std[theirs])
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
        prepare(other, tmp_path / "other", Preparation((1850, 1850), None, other.names, CONSTANTS), Silent(), reference)


def test_memory_stays_at_one_channel_of_one_year(tmp_path: Path) -> None:
    import tracemalloc

    source = MemorySource(days=366, all_years=(2000,), step_hours=1)
    one = source.read("z_500", 2000).nbytes
    import google_crc32c  # noqa: F401 - so that imports do not count
    import zarr.codecs  # noqa: F401

    tracemalloc.start()
    prepare(source, tmp_path, Preparation((2000, 2000), (2000, 2000), source.names, CONSTANTS), Silent())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The made-up fields take five times their size (noise in float64, scaled, and rounded): nothing is held besides.
    assert peak < 6.5 * one


def with_nans() -> MemorySource:
    source = MemorySource()
    for channel, year in (("tisr", 2001), ("t_850", 2002)):
        values = SOURCE.read(channel, year)[:30].copy()
        values[20, 1, 2] = np.nan
        values[21, 3] = np.nan
        source.changes[channel, year] = values
    return source


def test_after_a_refusal_a_policy_can_be_chosen(tmp_path: Path) -> None:
    where = r"tisr holds 6 NaN in 2001, 0\.02% of its values, the first at 2001-01-06T00 h, latitude -20, longitude 144"
    with pytest.raises(DataError, match=where):
        prepare(with_nans(), tmp_path / "one", WANTED, Silent())
    with pytest.raises(DataError, match=r"t_850 holds 6 NaN in 2002, 0\.75% .* choose what replaces them with"):
        prepare(with_nans(), tmp_path / "one", replace(WANTED, on_nan="zero-tisr"), Silent())
    # What was filled with zeros is not taken for the mean.
    with pytest.raises(DataError, match="differs in on_nan"):
        prepare(with_nans(), tmp_path / "one", replace(WANTED, on_nan="mean"), Silent())
    reporter = Silent()
    store = prepare(with_nans(), tmp_path / "one", replace(WANTED, on_nan="zero"), reporter)
    assert "resuming: 2 of 3 years are written" in reporter.lines
    prepare(with_nans(), tmp_path / "two", replace(WANTED, on_nan="zero"), Silent())
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    # Zeros count in the statistics.
    values = np.concatenate([np.nan_to_num(with_nans().read("tisr", year), nan=0.0) for year in (2000, 2001)])
    index = store.channels.index("tisr")
    assert store.mean[index] == pytest.approx(values.mean(dtype=np.float64), rel=1e-9)
    assert [year.num_filled for year in store.stored_years] == [{}, {"tisr": 6}, {"t_850": 6}]
    row = len(SOURCE.times(2000)) + 20
    assert abs(store.to_physical("tisr", store.fields[row][index, 1, 2].astype(np.float64)[None])[0]) < 1.0


def test_mean_replaces_nans_after_the_statistics(tmp_path: Path) -> None:
    store = prepare(with_nans(), tmp_path, replace(WANTED, on_nan="mean"), Silent())
    values = np.concatenate([with_nans().read("tisr", year).astype(np.float64) for year in (2000, 2001)])
    index = store.channels.index("tisr")
    assert store.mean[index] == pytest.approx(np.nanmean(values), rel=1e-12)
    assert store.std[index] == pytest.approx(np.nanstd(values), rel=1e-10)
    assert store.fields[len(SOURCE.times(2000)) + 20][index, 1, 2] == 0
    assert store.stored_years[1].num_filled == {"tisr": 6}


@pytest.mark.parametrize(
    ("channel", "year", "values", "on_nan", "text"),
    [
        ("t2m", 2000, np.full((1, 4, 5), np.inf), "mean",
         "t2m is inf at 2000-01-01T00 h, latitude -60, longitude 0, which no policy covers"),
        ("tp", 2000, np.full((1, 4, 5), -0.0011), "mean", "tp is -0.0011 at 2000-01-01T00 h"),
        # Only the beginning of a record is left out, and no more than a day of it.
        ("tp", 2001, np.full((1, 4, 5), np.nan), "refuse", "tp holds 20 NaN in 2001"),
        ("tp", 2000, np.full((6, 4, 5), np.nan), "refuse", "tp holds 120 NaN in 2000"),
        ("t_850", 2000, np.full((1464, 4, 5), 273.15), "refuse",
         "channel t_850 has the value 273.15 everywhere in the statistics years"),
    ],
)  # fmt: skip
def test_values_that_no_policy_covers(
    tmp_path: Path, channel: str, year: int, values: np.ndarray, on_nan: NaNPolicy, text: str
) -> None:
    source = MemorySource()
    source.changes[channel, year] = values
    with pytest.raises(DataError) as caught:
        prepare(source, tmp_path, replace(WANTED, statistics_years=(2000, 2000), on_nan=on_nan), Silent())
    assert text in str(caught.value)
