"""Stores made from fields in memory and from files: their values, resuming, missing values, refusals."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from memory_source import CONSTANTS, MemorySource, Silent, contents
from smoe.cli.main import main
from smoe.errors import DataError
from smoe_paper.atmosphere import store as stores
from smoe_paper.atmosphere.fields import GRIDS
from smoe_paper.weather.commands import Preparation
from smoe_paper.weather.prepare import prepare
from smoe_paper.weather.samples import WeatherSamples
from smoe_paper.weather.store import NaNPolicy, WeatherStore
from weather_files import constant_field, hourly_precipitation, times_of_year, weather_field, write_weatherbench

SOURCE = MemorySource()
YEARS = (2000, 2001, 2002)
WANTED = Preparation((2000, 2002), (2000, 2001), SOURCE.names, CONSTANTS)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven blocks: the last is not full."""
    monkeypatch.setattr(stores, "_CHUNK_BYTES", 4 * 5 * 20 * 500)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "_CHUNK_BYTES", 4 * 5 * 20 * 500)
        prepare(SOURCE, path, WANTED, Silent())
    return path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def physical(channel: str, years: tuple[int, ...] = YEARS, source: MemorySource = SOURCE) -> np.ndarray:
    return np.concatenate([source.read_year(channel, year) for year in years])


def transformed(channel: str, years: tuple[int, ...] = YEARS) -> np.ndarray:
    values = physical(channel, years).astype(np.float64)
    return np.log(values + 0.001) - np.log(0.001) if channel == "tp" else values


def test_fields_are_normalised_by_the_training_years_and_go_back_to_physical_units(whole: Path) -> None:
    store = WeatherStore.open(whole)
    assert store.statistics_years == (2000, 2001) and store.years() == [2000, 2001, 2002]
    np.testing.assert_array_equal(store.times, np.concatenate([SOURCE.times(year) for year in YEARS]))
    for index, channel in enumerate(store.channels):
        training = transformed(channel, (2000, 2001))
        assert store.mean[index] == pytest.approx(0.0 if channel == "tp" else training.mean(), rel=1e-12, abs=1e-12)
        assert store.std[index] == pytest.approx(training.std(), rel=1e-10)
        fields = np.asarray(store.fields)[:, index]
        np.testing.assert_array_equal(
            fields, ((transformed(channel) - store.mean[index]) / store.std[index]).astype(np.float32)
        )
        scale = np.abs(physical(channel)).max()
        np.testing.assert_allclose(store.to_physical(channel, fields), physical(channel), atol=1e-6 * scale)
        np.testing.assert_allclose(
            store.to_physical(channel, torch.tensor(fields[:9])).numpy(), physical(channel)[:9], atol=1e-6 * scale
        )
    # No rain is 0, in both units.
    assert np.asarray(store.fields)[:, store.channels.index("tp")].min() == 0
    assert store.to_physical("tp", np.zeros(1, np.float32))[0] == 0


def test_zarr_reads_what_is_mapped_and_a_store_is_sent_as_a_path(whole: Path) -> None:
    store, group = WeatherStore.open(whole), zarr.open_group(whole, mode="r")
    np.testing.assert_array_equal(np.asarray(group["fields"]), np.asarray(store.fields))
    np.testing.assert_array_equal(np.asarray(group["constants"]), store.raw_constants)
    content = pickle.dumps(store)
    assert len(content) < 5_000
    np.testing.assert_array_equal(pickle.loads(content).fields[7], store.fields[7])


def test_constants(whole: Path, tmp_path: Path) -> None:
    store = WeatherStore.open(whole)
    assert store.constant_names == ("lsm", "orography", "lat2d")
    for index, name in enumerate(store.constant_names):
        raw = SOURCE.read_constant(name)
        np.testing.assert_array_equal(store.raw_constant(name), raw)
        expected = (raw.astype(np.float64) - raw.mean(dtype=np.float64)) / raw.astype(np.float64).std()
        np.testing.assert_allclose(store.constants[index], expected, rtol=1e-5)
    assert prepare(SOURCE, tmp_path, replace(WANTED, constants=()), Silent()).constants.shape == (0, 4, 5)


CHUNK = "fields/c/1/0/0/0"


def edit(text: str, other: str, name: str = "zarr.json") -> Callable[[Path], object]:
    return lambda path: (path / name).write_text((path / name).read_text().replace(text, other))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (shutil.rmtree, "there is no smoe weather store in"),
        (lambda path: (path / CHUNK).write_bytes((path / CHUNK).read_bytes()[:-1]), "lacks the rows 500 to 999"),
        (lambda path: (path / CHUNK).unlink(), "lacks the rows 500 to 999"),
        (lambda path: shutil.rmtree(path / "fields"), "fields is missing or damaged"),
        (lambda path: shutil.rmtree(path / "time"), "time is missing or damaged"),
        (edit("crc32c", "gzip", "fields/zarr.json"), "fields"),
        (edit("2964", "2963", "fields/zarr.json"), "is of (2963, 5, 4, 5), expected (2964, 5, 4, 5)"),
        (lambda path: (path / "zarr.json").write_text("{"), "is damaged"),
        (edit("smoe weather store", "smoe ensemble store"), "is not a smoe weather store"),
        (edit('"step_hours"', '"step"'), "is damaged"),
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

    def read(self, channel: str, times: np.ndarray) -> np.ndarray:
        values = super().read(channel, times)
        if self.num_reads == self.last_read:
            os.kill(os.getpid(), signal.SIGKILL)
        return values


# A store takes 2 reads for the beginning of tp and tisr, twice, 30 for the statistics in six blocks, 30 to be written.
@pytest.mark.parametrize("last_read", [1, 20, 36, 55])
def test_a_killed_preparation_goes_on_to_the_same_bytes(tmp_path: Path, whole: Path, last_read: int) -> None:
    path = tmp_path / "store"
    process = os.fork()
    if process == 0:
        try:
            prepare(KilledSource(last_read=last_read), path, WANTED, Silent())
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(process, 0)[1])
    with pytest.raises(DataError, match=r"is not finished|there is no smoe weather store"):
        WeatherStore.open(path)
    source = MemorySource()
    prepare(source, path, WANTED, Silent())
    assert contents(path) == contents(whole)
    # Neither statistics that are known nor whole blocks are read again.
    assert source.num_reads == {1: 64, 20: 64, 36: 32, 55: 12}[last_read]


def test_a_finished_store_is_left_alone_and_one_writer_is_let_in(copy: Path, whole: Path, tmp_path: Path) -> None:
    listener = Silent()
    prepare(MemorySource(), copy, WANTED, listener)
    assert "nothing to do" in listener.lines[-1] and contents(copy) == contents(whole)
    for changed, text in (({"channels": SOURCE.names[:2]}, "channels"), ({"on_nan": "zero"}, "on_nan")):
        with pytest.raises(DataError, match=f"holds another store, which differs in {text}"):
            prepare(SOURCE, copy, replace(WANTED, **changed), Silent())

    class Meddling(Silent):
        def advance(self, text: str | None = None) -> None:
            super().advance(text)
            if len(self.steps) == 3:
                with pytest.raises(DataError, match="another process is preparing"):
                    prepare(SOURCE, tmp_path / "store", WANTED, Silent())

    prepare(SOURCE, tmp_path / "store", WANTED, Meddling())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(DataError, match=r"holds other files, such as notes.txt"):
        prepare(SOURCE, tmp_path / "other", WANTED, Silent())


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"years": (1979, 2018)}, "the data lack 1979-1999, 2003-2018, which --years or --statistics-years ask for"),
        ({"years": (2002, 2000)}, "--years goes from the first to the last year, got 2002 2000"),
        ({"statistics_years": None}, "the data lack 1979-1999, 2003-2015, which --years or --statistics-years ask for"),
        ({"channels": ("z_500", "q_50")}, "must name some of z_500, t_850, t2m, tisr, tp, each once; got q_50"),
        ({"channels": ("z_500", "z_500")}, "each once; got z_500, z_500"),
        ({"channels": ()}, "each once; got none"),
        ({"constants": ("lsm", "slt")}, "--constants must name some of lsm, orography, lat2d, each once; got slt"),
        ({"step_hours": 3}, "--step-hours 3 must divide 24 and be a multiple of the 6 hours"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_read(
    tmp_path: Path, changed: dict[str, object], text: str
) -> None:
    source = MemorySource()
    with pytest.raises(DataError) as caught:
        prepare(source, tmp_path / "store", replace(WANTED, **changed), Silent())  # type: ignore[arg-type]
    assert text in str(caught.value) and source.num_reads == 0


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_180_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match=r"the store takes 0.00119 GB \(0.00118 GB are free\): choose another disk"):
        prepare(MemorySource(), tmp_path / "store", WANTED, Silent())


def test_every_sixth_hour_of_hourly_data(tmp_path: Path) -> None:
    source = MemorySource(all_years=(2000,), step_hours=1)
    # The record begins at 7 h: 7 hours without a value, as in WeatherBench's 1979.
    source.changes["tisr", 2000] = np.full((7, 4, 5), np.nan)
    source.changes["tp", 2000] = np.full((12, 4, 5), np.nan)
    wanted = Preparation((2000, 2000), (2000, 2000), source.names, CONSTANTS)
    hourly = prepare(source, tmp_path / "hourly", wanted, Silent())
    assert hourly.times[0] == np.datetime64("2000-01-01T12") and "12 steps are left out" in hourly.describe()
    assert np.isfinite(np.asarray(hourly.fields)).all()
    six = prepare(source, tmp_path / "six", replace(wanted, step_hours=6), Silent())
    assert six.step_hours == 6 and six.times[0] == np.datetime64("2000-01-01T12") and len(six.times) == 38
    values = source.read_year("t2m", 2000)[12::6].astype(np.float64)
    assert six.mean[2] == pytest.approx(values.mean(), rel=1e-12)
    np.testing.assert_array_equal(
        np.asarray(six.fields)[:, 2], ((values - six.mean[2]) / six.std[2]).astype(np.float32)
    )
    # Without the channels that are sums, nothing is left out.
    plain = prepare(source, tmp_path / "z", replace(wanted, channels=("z_500",)), Silent())
    assert plain.times[0] == np.datetime64("2000-01-01T00")


def test_statistics_from_another_store(tmp_path: Path, whole: Path) -> None:
    reference = WeatherStore.open(whole)
    source = MemorySource(all_years=(1850, 1851), names=("t2m", "z_500", "tp"))
    wanted = Preparation((1850, 1851), None, source.names, constants=("lat2d",))
    store = prepare(source, tmp_path / "store", wanted, Silent(), reference)
    assert store.statistics_years == (2000, 2001) and store.plan.statistics_from == reference.checksum
    for channel in source.names:
        ours, theirs = store.channels.index(channel), reference.channels.index(channel)
        assert (store.mean[ours], store.std[ours]) == (reference.mean[theirs], reference.std[theirs])
    assert len(WeatherSamples(store, (1850, 1851), targets=("t2m",))) == len(store.times) - 14
    other = MemorySource(all_years=(1850,), names=("u_500",))
    with pytest.raises(DataError, match="has no channel 'u_500'"):
        prepare(other, tmp_path / "other", Preparation((1850, 1850), None, other.names, CONSTANTS), Silent(), reference)


def with_nans() -> MemorySource:
    source = MemorySource()
    for channel, year in (("tisr", 2001), ("t_850", 2002)):
        values = SOURCE.read_year(channel, year)[:30].copy()
        values[20, 1, 2] = np.nan
        values[21, 3] = np.nan
        source.changes[channel, year] = values
    return source


def test_nans_are_refused_or_replaced_by_a_policy(tmp_path: Path) -> None:
    where = r"tisr holds 6 NaN, first at 2001-01-06T00 h, latitude -20, longitude 144"
    with pytest.raises(DataError, match=where):
        prepare(with_nans(), tmp_path / "refuse", WANTED, Silent())
    with pytest.raises(DataError, match=r"t_850 holds 6 NaN, .* choose what replaces them with"):
        prepare(with_nans(), tmp_path / "tisr", replace(WANTED, on_nan="zero-tisr"), Silent())
    index, row = SOURCE.names.index("tisr"), len(SOURCE.times(2000)) + 20
    values = physical("tisr", (2000, 2001), with_nans()).astype(np.float64)
    # Zeros count in the statistics; the mean is of the others.
    zero = prepare(with_nans(), tmp_path / "zero", replace(WANTED, on_nan="zero"), Silent())
    assert zero.mean[index] == pytest.approx(np.nan_to_num(values).mean(), rel=1e-12)
    assert abs(zero.to_physical("tisr", zero.fields[row][index, 1, 2].astype(np.float64)[None])[0]) < 1.0
    mean = prepare(with_nans(), tmp_path / "mean", replace(WANTED, on_nan="mean"), Silent())
    assert mean.mean[index] == pytest.approx(np.nanmean(values), rel=1e-12)
    assert mean.std[index] == pytest.approx(np.nanstd(values), rel=1e-10)
    assert mean.fields[row][index, 1, 2] == 0


@pytest.mark.parametrize(
    ("channel", "values", "on_nan", "text"),
    [
        ("t2m", np.full((1, 4, 5), np.inf), "mean", "t2m is inf at 2000-01-01T00 h, latitude -60, longitude 0"),
        ("tp", np.full((1, 4, 5), -0.0011), "mean", "tp is -0.0011 at 2000-01-01T00 h"),
        # Only the beginning of a record is left out, and no more than a day of it.
        ("tp", np.full((6, 4, 5), np.nan), "refuse", "tp holds 120 NaN"),
        ("t_850", np.full((1464, 4, 5), 273.15), "refuse", "channel t_850 has the value 273.15 everywhere"),
    ],
)
def test_values_that_no_policy_covers(
    tmp_path: Path, channel: str, values: np.ndarray, on_nan: NaNPolicy, text: str
) -> None:
    source = MemorySource()
    source.changes[channel, 2000] = values
    with pytest.raises(DataError) as caught:
        prepare(source, tmp_path, replace(WANTED, statistics_years=(2000, 2000), on_nan=on_nan), Silent())
    assert text in str(caught.value)


GRID = GRIDS["5.625deg"]
CHANNELS = ("z_500", "t_850", "t2m", "tisr", "tp")
TIMES = {1979: times_of_year(1979, 72, 1, "1979-12-29T00"), 1980: times_of_year(1980, 60, 1)}
ALL_TIMES = np.concatenate([TIMES[1979], TIMES[1980]])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hourly files that, as in WeatherBench, begin 7 hours late for sums over past hours."""
    root = tmp_path_factory.mktemp("weatherbench")
    write_weatherbench(
        root, years=(1979, 1980), step_hours=1, variables=("z", "t", "t2m"), levels=(500, 850), times=TIMES
    )
    late = {1979: TIMES[1979][7:], 1980: TIMES[1980]}
    write_weatherbench(root, years=(1979, 1980), step_hours=1, variables=("tisr", "tp"), times=late, constants=False)
    return root


def arguments(root: Path, output: Path, *more: str) -> list[str]:
    years = ["--years", "1979", "1980", "--statistics-years", "1979", "1979"]
    return ["data", "prepare", "weather", "--root", str(root), "--output", str(output), *years, *more]


def fields(channel: str) -> np.ndarray:
    """What the files hold from the first hour on at which everything is defined, transformed, float64."""
    if channel != "tp":
        return weather_field(channel, ALL_TIMES[12:], GRID).astype(np.float64)
    hourly = hourly_precipitation(ALL_TIMES, GRID).astype(np.float64)
    # The sixth hour after 7 h is the first of which a whole 6-hour sum is known.
    totals = np.stack([hourly[hour - 5 : hour + 1].sum(axis=0) for hour in range(12, len(hourly))])
    return np.log(totals.astype(np.float32) + 0.001) - np.log(0.001)


def test_samples_of_files_equal_a_direct_computation(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(root, tmp_path, "--channels", *CHANNELS)) == 0
    described = capsys.readouterr().out
    assert "120 times in 1979-1980, from 1979-12-29T12 h to 1980-01-03T11 h, every 1 h; 5 channels" in described
    normalised = {}
    for channel in CHANNELS:
        values = fields(channel)
        training = values[: 72 - 12]
        normalised[channel] = (values - (0.0 if channel == "tp" else training.mean())) / training.std()
    constants = []
    for name in ("lsm", "orography", "lat2d", "lon2d"):
        values = constant_field(name, GRID).astype(np.float64)
        constants.append((values - values.mean()) / values.std())
    samples = WeatherSamples(WeatherStore.open(tmp_path), (1979, 1980), lead_hours=24)
    assert len(samples) == 120 - 12 - 24
    # The years are one after the other: windows go across.
    for index in (0, 50, len(samples) - 1):
        input, target = samples[index]
        start = index + 12
        assert samples.init_times[index] == ALL_TIMES[12 + start]
        expected = [normalised[channel][start - hours] for hours in (12, 6, 0) for channel in CHANNELS] + constants
        np.testing.assert_allclose(input.numpy(), np.stack(expected), rtol=2e-5, atol=2e-5)
        truth = np.stack([normalised[channel][start + 24] for channel in ("z_500", "t_850", "t2m")])
        np.testing.assert_allclose(target.numpy(), truth, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--channels", "z500"], 2, "did you mean 'z_500'?"),
        (["--constants", "lms"], 2, "did you mean 'lsm'?"),
        (["--on-nan", "zer"], 2, "did you mean zero?"),
        (["--channels", "tp", "--years", "1979", "2018"], 1, "the data lack 1981-2018, which --years"),
        (["--channels", "tp", "--statistics-from", "nowhere"], 1, "there is no smoe weather store in nowhere"),
    ],
)
def test_a_mistake_gets_one_clear_line(
    root: Path, tmp_path: Path, options: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(root, tmp_path, *options)) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("smoe: error: ") and text in error
