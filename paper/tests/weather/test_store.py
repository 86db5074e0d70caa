"""Stores made from fields in memory and from files: their values, resuming, missing values, refusals."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from memory_source import CONSTANTS, MemorySource, Silent, contents
from smoe.cli.main import main
from smoe.errors import DataError
from smoe_paper.weather import prepare as preparation
from smoe_paper.weather.commands import Preparation
from smoe_paper.weather.prepare import prepare
from smoe_paper.weather.store import WeatherSamples, WeatherStore
from weather_files import GRID, constant_field, hourly_precipitation, times_of_year, weather_field, write_weatherbench

SOURCE = MemorySource()
YEARS = (2000, 2001, 2002)
WANTED = Preparation((2000, 2002), (2000, 2001), SOURCE.names, CONSTANTS)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven blocks, of which the last of a year is not full."""
    monkeypatch.setattr(preparation, "_BLOCK_BYTES", 4 * 5 * 20 * 500)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "_BLOCK_BYTES", 4 * 5 * 20 * 500)
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
    assert store.years() == [2000, 2001, 2002]
    np.testing.assert_array_equal(store.times, np.concatenate([SOURCE.times(year) for year in YEARS]))
    for index, channel in enumerate(store.channels):
        training = transformed(channel, (2000, 2001))
        assert store.mean[index] == pytest.approx(0.0 if channel == "tp" else training.mean(), rel=1e-12, abs=1e-12)
        assert store.std[index] == pytest.approx(training.std(), rel=1e-10)
        fields = np.asarray(store.fields)[:, index]
        np.testing.assert_array_equal(
            fields, ((transformed(channel) - store.mean[index]) / store.std[index]).astype(np.float32)
        )
        scale, wanted = np.abs(transformed(channel)).max(), transformed(channel)[:9, None]
        for made in (fields[:9, None], torch.tensor(fields[:9, None])):
            np.testing.assert_allclose(store.to_physical([channel], made), wanted, atol=1e-6 * scale)
    # No rain is 0.
    assert np.asarray(store.fields)[:, store.channels.index("tp")].min() == 0


def test_a_store_is_sent_as_a_path(whole: Path) -> None:
    store = WeatherStore.open(whole)
    content = pickle.dumps(store)
    assert len(content) < 5_000
    np.testing.assert_array_equal(pickle.loads(content).fields[7], store.fields[7])


def test_the_checksum_does_not_depend_on_the_last_digit_of_a_sum(whole: Path) -> None:
    store = WeatherStore.open(whole)
    found, mean = store.checksum, store.results["mean"]
    store.results["mean"] = [mean[0] * (1.0 + 1e-15), *mean[1:]]
    assert store.results["mean"] != mean and store.checksum == found
    store.results["mean"] = [mean[0] * (1.0 + 1e-6), *mean[1:]]
    assert store.checksum != found


def test_constants(whole: Path, tmp_path: Path) -> None:
    store = WeatherStore.open(whole)
    assert store.constant_names == ("lsm", "orography", "lat2d")
    for index, name in enumerate(store.constant_names):
        raw = SOURCE.read_constant(name)
        np.testing.assert_array_equal(store.raw_constant(name), raw)
        expected = (raw.astype(np.float64) - raw.mean(dtype=np.float64)) / raw.astype(np.float64).std()
        np.testing.assert_allclose(store.constants[index], expected, rtol=1e-5)
    assert prepare(SOURCE, tmp_path, replace(WANTED, constants=()), Silent()).constants.shape == (0, 4, 5)


def edit(text: str, other: str) -> Callable[[Path], object]:
    return lambda path: (path / "store.json").write_text((path / "store.json").read_text().replace(text, other))


def cut(path: Path) -> None:
    with (path / "fields.npy").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 1)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (shutil.rmtree, "there is no smoe weather store in"),
        (cut, "fields.npy is missing or damaged"),
        (lambda path: (path / "fields.npy").unlink(), "fields.npy is missing or damaged"),
        (lambda path: (path / "time.npy").unlink(), "time.npy is missing or damaged"),
        (
            lambda path: np.save(path / "fields.npy", np.zeros((9, 5, 4, 5), "<f4")),
            "expected float32 of (2964, 5, 4, 5)",
        ),
        (lambda path: (path / "store.json").write_text("{"), "is damaged"),
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


class Killing(Silent):
    """Ends its process without a warning after a block."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def advance(self, text: str | None = None) -> None:
        super().advance(text)
        if len(self.steps) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


# Six blocks of statistics, and seven to be written.
@pytest.mark.parametrize(("last", "num_left"), [(1, 13), (5, 13), (7, 6), (12, 1)])
def test_a_killed_preparation_goes_on_to_the_same_bytes(tmp_path: Path, whole: Path, last: int, num_left: int) -> None:
    path = tmp_path / "store"
    process = os.fork()
    if process == 0:
        try:
            prepare(SOURCE, path, WANTED, Killing(last))
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(process, 0)[1])
    with pytest.raises(DataError, match=r"is not finished"):
        WeatherStore.open(path)
    listener = Silent()
    prepare(SOURCE, path, WANTED, listener)
    assert contents(path) == contents(whole)
    # Neither statistics that are known nor whole blocks are read again.
    assert len(listener.steps) == num_left


def test_a_finished_store_is_left_alone_and_one_writer_is_let_in(copy: Path, whole: Path, tmp_path: Path) -> None:
    listener = Silent()
    prepare(MemorySource(), copy, WANTED, listener)
    assert "nothing to do" in listener.lines[-1] and contents(copy) == contents(whole)
    for changed, text in (({"channels": SOURCE.names[:2]}, "channels"), ({"on_nan": "zero-tisr"}, "on_nan")):
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
        ({"statistics_years": (1999, 2001)}, "the data lack 1999, which --years or --statistics-years ask for"),
        ({"channels": ("z_500", "z_500")}, "and each once, got z_500, z_500"),
        ({"channels": ()}, "must name at least one field"),
        ({"constants": ("lsm", "slt")}, "has no slt; it has lsm, orography, lat2d"),
        ({"step_hours": 3}, "are 6 h apart, expected a part of a day, of which --step-hours 3 must be a multiple"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path: Path, changed: dict[str, object], text: str) -> None:
    with pytest.raises(DataError) as caught:
        prepare(SOURCE, tmp_path / "store", replace(WANTED, **changed), Silent())  # type: ignore[arg-type]
    assert text in str(caught.value) and not (tmp_path / "store").exists()


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
    assert hourly.times[0] == np.datetime64("2000-01-01T12") and hourly.step_hours == 1
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


def with_nans() -> MemorySource:
    source = MemorySource()
    for channel, year in (("tisr", 2001), ("t_850", 2002)):
        values = SOURCE.read_year(channel, year)[:30].copy()
        values[20, 1, 2] = np.nan
        values[21, 3] = np.nan
        source.changes[channel, year] = values
    return source


def test_nans_are_refused_or_replaced_in_solar_radiation(tmp_path: Path) -> None:
    where = r"tisr holds 6 NaN, first at 2001-01-06T00 h, latitude -20, longitude 144"
    with pytest.raises(DataError, match=where):
        prepare(with_nans(), tmp_path / "refuse", WANTED, Silent())
    with pytest.raises(DataError, match=r"t_850 holds 6 NaN, .* or see --on-nan"):
        prepare(with_nans(), tmp_path / "both", replace(WANTED, on_nan="zero-tisr"), Silent())
    wanted = replace(WANTED, on_nan="zero-tisr", channels=("tisr",))
    zero, row = prepare(with_nans(), tmp_path / "zero", wanted, Silent()), len(SOURCE.times(2000)) + 20
    # Zeros count in the statistics.
    values = physical("tisr", (2000, 2001), with_nans()).astype(np.float64)
    assert zero.mean[0] == pytest.approx(np.nan_to_num(values).mean(), rel=1e-12)
    assert abs(zero.to_physical(["tisr"], zero.fields[row].astype(np.float64))[0, 1, 2]) < 1.0


@pytest.mark.parametrize(
    ("channel", "values", "text"),
    [
        ("t2m", np.full((1, 4, 5), np.inf), "t2m at 2000-01-01T00 has values from inf to inf"),
        (
            "tp",
            np.array([[[0, 0, -0.0011, 0, 0]] * 4]),
            "-0.0011 at 2000-01-01T00 h, latitude -60, longitude 144",
        ),
        # Only the beginning of a record is left out, and no more than a day of it.
        ("tp", np.full((6, 4, 5), np.nan), "tp holds 120 NaN"),
        ("t_850", np.full((1, 4, 5), 7.0), "memory: t_850 at 2000-01-01T00 has values from 7 to 7"),
        ("t2m", np.full((2, 4, 5), 250.0), "t2m at 2000-01-01T00 is 250 everywhere (2 of"),
    ],
)
def test_values_that_are_refused(tmp_path: Path, channel: str, values: np.ndarray, text: str) -> None:
    source = MemorySource()
    source.changes[channel, 2000] = values
    with pytest.raises(DataError) as caught:
        prepare(source, tmp_path, replace(WANTED, statistics_years=(2000, 2000)), Silent())
    assert text in str(caught.value)


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
        (["--on-nan", "zero"], 2, "did you mean zero-tisr?"),
        (["--channels", "tp", "--years", "1979", "2018"], 1, "the data lack 1981-2018, which --years"),
    ],
)
def test_a_mistake_gets_one_clear_line(
    root: Path, tmp_path: Path, options: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(root, tmp_path, *options)) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("smoe: error: ") and text in error
