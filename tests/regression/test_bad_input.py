"""Each mistake gets one line that names the value, the place and the remedy, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cftime
import numpy as np
import pytest
import xarray as xr

import smoe
from gridded_files import regional
from smoe.cli.main import main
from smoe.errors import DataError
from smoe.regression._options import RegressorOptions

FLAGS = ["--net", "layer", "--filters", "2", "--max-epochs", "1", "--device", "cpu", "--compare", "no"]

Change = Callable[[xr.Dataset, xr.Dataset], tuple[xr.Dataset, xr.Dataset]]


def units(dataset: xr.Dataset, text: str) -> xr.Dataset:
    changed = dataset.copy(deep=True)
    changed["t2m"].attrs["units"] = text
    return changed


def with_values(dataset: xr.Dataset, place: Any, value: float) -> xr.Dataset:
    changed = dataset.copy(deep=True)
    changed["t2m"][place] = value
    return changed


def in_calendar(dataset: xr.Dataset) -> xr.Dataset:
    dates = [cftime.datetime(2001, 1, 1 + day, calendar="noleap") for day in range(len(dataset["time"]))]
    return dataset.assign_coords(time=dates)


def swapped(x: xr.Dataset, y: xr.Dataset) -> tuple[xr.Dataset, xr.Dataset]:
    forecasts = x.rename(time="init_time").assign_coords(lead_time=((), 24, {"units": "hours"}))
    return y, forecasts


BAD: dict[str, tuple[Change, dict[str, Any], str]] = {
    "swapped": (swapped, {}, "were inputs and targets swapped"),
    "units": (
        lambda x, y: (units(x, "degC"), y),
        {},
        "'K' among the targets and its like among the inputs, t2m, in 'degC'",
    ),
    "constant target": (lambda x, y: (x, y * 0 + 3.0), {}, "t2m is 3 everywhere in the training period"),
    "steady target": (lambda x, y: (x, y * 0 + y.isel(time=0)), {}, "t2m is the same at all times of the training"),
    "no lead": (lambda x, y: (y, y), {}, r"target t2m is the same as the input t2m .* did you forget lead \(--lead\)"),
    "tiny input": (
        lambda x, y: (1e-40 * x.rename(t2m="q"), y),
        {},
        r"the input q varies by 4.* \(standard deviation\), which is too small for float32: give it in other units",
    ),
    "one step": (lambda x, y: (x.isel(time=[0]), y), {}, "the inputs have one time step only"),
    "no time": (lambda x, y: (x.isel(time=0), y), {}, "the inputs have no time dimension"),
    "overlap": (
        lambda x, y: (x, y),
        {"train": "2001-01-01:2001-01-10", "validation": "2001-01-10:2001-01-15"},
        r"train \(2001-01-01 to 2001-01-10T23:59\) and validation .* overlap",
    ),
    "empty period": (
        lambda x, y: (x, y),
        {"validation": "1999"},
        r"validation .1999-01-01 to .* holds 0 samples of 20",
    ),
    "reversed period": (lambda x, y: (x, y), {"validation": "2001:1999"}, "ends before it begins"),
    "lead": (lambda x, y: (x, y), {"lead": "36h"}, "the lead 36h is not a multiple of the 1D"),
    "infinite": (lambda x, y: (with_values(x, (3, 0, 0), np.inf), y), {}, "1 infinite values at 2001-01-04"),
    "gaps": (
        lambda x, y: (x, with_values(y, (3, 0, 0), np.nan)),
        {},
        "t2m of targets has 1 missing values at 2001-01-04",
    ),
    "duplicates": (lambda x, y: (x.isel(time=[0, 1, 1, 2]), y), {}, "1 duplicate times, the first 2001-01-02"),
    "calendars": (lambda x, y: (in_calendar(x), y), {}, "inputs are in the calendar noleap and targets in standard"),
    "other grid": (lambda x, y: (x.isel(lat=slice(0, 3)), y), {}, "3 x 6 .* against 4 x 6"),
    "other times": (
        lambda x, y: (x.assign_coords(time=x["time"] + np.timedelta64(999, "D")), y),
        {},
        "no target lies 0D after an input: inputs are from 2003-09-27",
    ),
    "static target": (
        lambda x, y: (x, y.assign(height=y["t2m"].isel(time=0, drop=True))),
        {},
        "the target height does not depend on time",
    ),
}


@pytest.fixture
def data() -> tuple[xr.Dataset, xr.Dataset]:
    return regional(20, 4, 6, seed=1), regional(20, 4, 6, seed=2)


@pytest.mark.parametrize("name", BAD)
def test_in_python(name: str, data: tuple[xr.Dataset, xr.Dataset]) -> None:
    change, arguments, message = BAD[name]
    with xr.set_options(keep_attrs=True):
        x, y = change(*data)
    arguments = dict(arguments)
    model = smoe.GridRegressor(lead=arguments.pop("lead", None), progress=False)
    with pytest.raises(DataError, match=message) as caught:
        model.fit(x, y, **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "swapped",
        "units",
        "constant target",
        "no lead",
        "one step",
        "overlap",
        "lead",
        "infinite",
        "gaps",
        "duplicates",
        "other grid",
    ],
)
def test_on_the_command_line(
    name: str, data: tuple[xr.Dataset, xr.Dataset], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, arguments, _ = BAD[name]
    with xr.set_options(keep_attrs=True):
        x, y = change(*data)
    x.to_netcdf(tmp_path / "x.nc")
    y.to_netcdf(tmp_path / "y.nc")
    periods = [f for key, value in arguments.items() for f in (f"--{key.replace('validation', 'validate')}", value)]
    code = main(["fit", str(tmp_path / "x.nc"), str(tmp_path / "y.nc"), "-o", str(tmp_path / "run"), *FLAGS, *periods])
    error = capsys.readouterr().err
    assert code == 1 and error.startswith("smoe: error: ") and error.count("\n") == 1, error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.nc", "y.nc"]


@pytest.mark.parametrize("memory", ["1.0", "1e-5"])
def test_a_truncated_chunk_leaves_nothing_behind(
    data: tuple[xr.Dataset, xr.Dataset], tmp_path: Path, capsys: pytest.CaptureFixture[str], memory: str
) -> None:
    x, y = data
    x.chunk(time=5).to_zarr(tmp_path / "x.zarr", consolidated=False)
    y.to_netcdf(tmp_path / "y.nc")
    chunk = tmp_path / "x.zarr" / "t2m" / "c" / "1" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-50])
    command = ["fit", str(tmp_path / "x.zarr"), str(tmp_path / "y.nc"), "-o", str(tmp_path / "run"), *FLAGS]
    code = main([*command, "--max-memory-gb", memory])
    # Where the fields are streamed, a line says so before.
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 1 and "t2m of inputs cannot be read, the file is damaged" in error
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fitted")
    x, y = regional(20, 4, 6, seed=1), regional(20, 4, 6, seed=2)
    x.to_netcdf(folder / "x.nc")
    y.to_netcdf(folder / "y.nc")
    code = main(["fit", str(folder / "x.nc"), str(folder / "y.nc"), "-o", str(folder / "run"), *FLAGS])
    assert code == 0
    return folder


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d.rename(t2m="tas"), "the inputs have no variable 't2m'"),
        (lambda d: units(d, "celsius"), "t2m is in 'celsius', but the model was fitted in 'K'"),
        (lambda d: d.isel(lon=slice(0, 4)), "columns 5 to 8 against 4 x 6 latitude-longitude"),
        (lambda d: d.assign_coords(lat=d["lat"] + 0.5), "their rows differ by up to 0.5"),
        (lambda d: with_values(d, (2, 1, 1), np.nan), "t2m has 1 missing values at 2001-01-03"),
        (lambda d: with_values(d, (2, 1, 1), -np.inf), "t2m has infinite values at 2001-01-03"),
        (in_calendar, "the inputs are in the calendar noleap, the model in standard"),
    ],
)
def test_other_data_than_those_of_the_fit(
    run: Path,
    tmp_path: Path,
    make: Callable[[xr.Dataset], xr.Dataset],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make(regional(6, 4, 6)).to_netcdf(tmp_path / "new.nc")
    code = main(["predict", str(run / "run"), str(tmp_path / "new.nc"), "-o", str(tmp_path / "out.nc")])
    error = capsys.readouterr().err
    assert code == 1 and message in error and error.count("\n") == 1, error
    assert [path.name for path in tmp_path.iterdir()] == ["new.nc"]


def test_outputs_that_exist_or_cannot_be_written(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def complaint(*args: str) -> str:
        assert main(args) in (1, 2)
        error = capsys.readouterr().err
        assert error.startswith("smoe: error: ") and error.count("\n") == 1, error
        return error

    new, model = str(run / "x.nc"), str(run / "run")
    (tmp_path / "out.nc").write_text("mine")
    assert "exists already" in complaint("predict", model, new, "-o", str(tmp_path / "out.nc"))
    assert (tmp_path / "out.nc").read_text() == "mine"
    assert "must end with" in complaint("predict", model, new, "-o", str(tmp_path / "out.txt"))
    assert "cannot be written" in complaint("predict", model, new, "-o", "/proc/smoe/out.nc")
    assert "holds a model already" in complaint("fit", new, new, "-o", model, *FLAGS)
    assert "is a file" in complaint("fit", new, new, "-o", str(tmp_path / "out.nc"), *FLAGS)
    assert "cannot be written" in complaint("fit", new, str(run / "y.nc"), "-o", "/proc/smoe", *FLAGS)
    assert "not a folder of a fitted model" in complaint("predict", str(tmp_path), new, "-o", str(tmp_path / "b.nc"))
    assert "did you mean --lead?" in complaint("fit", new, new, "-o", str(tmp_path / "r"), "--led", "1D")
    assert "--led; did you mean --lead?" in complaint("fit", "--led", "1D", new, new)
    folder = tmp_path / "readonly"
    folder.mkdir(mode=0o500)
    if not os.access(folder, os.W_OK):
        assert "read-only" in complaint("fit", new, new, "-o", str(folder / "r"), *FLAGS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"net": "resnett"}, "did you mean 'resnet'"),
        ({"objective": "rmse"}, "objective must be one of mse, mae, quantiles, gaussian, got 'rmse'"),
        ({"quantiles": (0.5, 0.1)}, "quantiles must ascend"),
        ({"quantiles": (0.0, 0.1)}, "between 0 and 1"),
        ({"filters": 0}, "filters must be a whole number of at least 1, got 0"),
        ({"num_experts": 0.5}, "at least 1, got 0.5"),
        ({"validation_share": 1.0}, "validation_share must lie between 0 and 1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RegressorOptions(**options)
