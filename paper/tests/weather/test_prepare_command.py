"""From tiny NetCDF files as downloaded, through the command line, to samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smoe.cli.main import main
from smoe_paper.atmosphere.axes import GRIDS
from smoe_paper.weather.samples import WeatherSamples
from smoe_paper.weather.store import WeatherStore
from weather_files import (
    constant_field,
    hourly_precipitation,
    times_of_year,
    weather_field,
    weatherbench2_dataset,
    write_cmip,
    write_weatherbench,
    write_weatherbench2,
)

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


def test_samples_equal_a_direct_computation(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(root, tmp_path, "--channels", *CHANNELS)) == 0
    output = capsys.readouterr()
    assert "120 times, 1979-12-29T12 h to 1980-01-03T11 h, every 1 h; 5 channels, 32 x 64" in output.out
    assert "1979: 12 steps left out at the beginning" in output.out
    assert "the store takes 4.9 MB" in output.err and "begins 7 times late" in output.err

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
        assert samples.init_time(index) == ALL_TIMES[12 + start]
        expected = [normalised[channel][start - hours] for hours in (12, 6, 0) for channel in CHANNELS] + constants
        np.testing.assert_allclose(input.numpy(), np.stack(expected), rtol=2e-5, atol=2e-5)
        truth = np.stack([normalised[channel][start + 24] for channel in ("z_500", "t_850", "t2m")])
        np.testing.assert_allclose(target.numpy(), truth, rtol=2e-5, atol=2e-5)


def test_cmip_with_the_statistics_of_era5_and_a_zarr_store_with_its_own(root: Path, tmp_path: Path) -> None:
    channels = ("--channels", "z_500", "t_850", "t2m", "tisr", "tp")
    era5 = tmp_path / "era5"
    assert main(arguments(root, era5, *channels)) == 0
    write_cmip(root / "CMIP" / "MPI-ESM", variables=("z", "t", "t2m", "tisr", "tp"), periods=(("1850-01-01T06", 12),))
    command = ["data", "prepare", "weather", "--root", str(root), "--kind", "cmip", "--years", "1850", "1850"]
    command += [*channels, "--output", str(tmp_path / "cmip"), "--statistics-from", str(era5)]
    assert main(command) == 0
    cmip, reference = WeatherStore.open(tmp_path / "cmip"), WeatherStore.open(era5)
    np.testing.assert_array_equal(cmip.mean, reference.mean)
    for index, channel in enumerate(cmip.channels):
        physical = weather_field(channel, cmip.times, GRID)
        np.testing.assert_allclose(
            cmip.to_physical(channel, np.asarray(cmip.fields)[:, index]),
            physical,
            rtol=1e-5,
            atol=1e-6,
            err_msg=channel,
        )

    times = times_of_year(1979, 12)
    zarr = write_weatherbench2(tmp_path / "era5.zarr", weatherbench2_dataset(times, ("z", "t", "t2m", "tisr", "tp")))
    command = ["data", "prepare", "weather", "--root", str(zarr), "--years", "1979", "1979", *channels]
    assert main([*command, "--statistics-years", "1979", "1979", "--output", str(tmp_path / "zarr")]) == 0
    store = WeatherStore.open(tmp_path / "zarr")
    values = weather_field("t2m", times, GRID).astype(np.float64)
    np.testing.assert_allclose(
        np.asarray(store.fields)[:, 2], (values - values.mean()) / values.std(), rtol=2e-5, atol=2e-5
    )
    np.testing.assert_array_equal(store.raw_constant("lsm"), constant_field("lsm", GRID))


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["data", "prepare", "wether"], "knows no data 'wether'; did you mean 'weather'?"),
        (["data", "prepare", "weather", "--root", "x"], "--output"),
        (["data", "prepare", "weather", "--output", "x", "--root", "x", "--on-nan", "zer"], "did you mean zero?"),
        (["data", "prepare", "weather", "--output", "x", "--root", "x", "--channels", "z500"], "did you mean 'z_500'?"),
        (["data", "prepare", "weather", "--output", "x", "--root", "x", "--constants", "lms"], "did you mean 'lsm'?"),
        (["data", "check", "x", "--resolution", "5.652deg"], "did you mean 5.625deg?"),
    ],
)
def test_a_mistake_gets_one_clear_line(args: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and text in error


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--channels", "z_50"], "the data lack the channels z_50; there are z_500, z_850"),
        (["--channels", "tp", "--years", "1979", "2018"], "the data lack 1981-2018, which --years"),
        (["--channels", "tp", "--statistics-from", "nowhere"], "there is no weather store in nowhere"),
        (["--resolution", "2.8125deg"], "2.8125deg"),
    ],
)
def test_data_that_do_not_do_are_one_clear_line(
    root: Path, tmp_path: Path, options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(root, tmp_path, *options)) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("smoe: error: ") and text in error


def test_a_store_is_described_and_compared_with_its_checksums(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert main(arguments(root, store, "--channels", "t2m", "tp")) == 0
    described = capsys.readouterr().out
    assert main(["data", "check", str(store)]) == 0
    assert capsys.readouterr().out == described + "every byte is as it was written\n"
    with (store / "fields" / "1980" / "c" / "0" / "0" / "0" / "0").open("r+b") as file:
        file.seek(-100, 2)
        file.write(b"smoe")
    assert main(["data", "check", str(store), "--quick"]) == 0
    assert main(["data", "check", str(store)]) == 1
    assert "fields/1980/c/0/0/0/0 is not as it was written" in capsys.readouterr().err
