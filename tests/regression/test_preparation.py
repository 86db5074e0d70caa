"""Preparation reads each field of a file once, and gathers in passing what xarray computes from all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr

from gridded_files import regional, times
from smoe.errors import DataError
from smoe.gridded._source import FieldSource
from smoe.regression._options import RegressorOptions
from smoe.regression._preparation import prepare

COUNT = 800
PERIODS = {"train": "2001-01-01:2002-12-31", "validation": "2003-01-01:2003-03-01"}


@pytest.fixture
def data() -> tuple[xr.Dataset, xr.Dataset]:
    """Inputs with a static field, unsorted times and a masked pixel; targets with the times of two years and more."""
    x, y = regional(COUNT, 3, 5, seed=1), regional(COUNT, 3, 5, seed=2)
    x["t2m"][:, 0, 1] = np.nan
    y["t2m"][:, 2, 2] = np.nan
    x["height"] = x["t2m"].isel(time=0, drop=True).fillna(0.0).assign_attrs(units="m")
    order = np.random.default_rng(0).permutation(COUNT)
    return x.isel(time=order), y


def read_positions(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Records which positions of inputs and targets are read from their source."""
    read: dict[str, list[int]] = {"inputs": [], "targets": []}
    original = FieldSource.read

    def recorded(self: FieldSource, positions: np.ndarray) -> np.ndarray:
        if len(positions) > 1 or not any(channel.is_static for channel in self.channels):
            read[self.where].extend(positions.tolist())
        return original(self, positions)

    monkeypatch.setattr(FieldSource, "read", recorded)
    return read


@pytest.mark.parametrize("max_memory_gb", [1e-5, 1.0])
def test_each_field_is_read_once(
    data: tuple[xr.Dataset, xr.Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_memory_gb: float
) -> None:
    read = read_positions(monkeypatch)
    prepared = prepare(*data, RegressorOptions(max_memory_gb=max_memory_gb), PERIODS, cache=tmp_path)
    for split in prepared.splits.values():
        split.physical([0, 1])
    for positions in read.values():
        assert len(positions) == 790 and len(set(positions)) == 790


@pytest.mark.parametrize("max_memory_gb", [1e-5, 1.0])
def test_what_dask_reads_side_by_side_is_bit_equal(tmp_path: Path, max_memory_gb: float) -> None:
    x = xr.merge([regional(60, 4, 6, seed=1), regional(60, 4, 6, name="u", seed=2)])
    x.chunk(time=7).to_zarr(tmp_path / "x.zarr", consolidated=False)
    y = regional(60, 4, 6, seed=3)
    found = []
    for scheduler in ("synchronous", "threads"):
        with dask.config.set(scheduler=scheduler):
            options = RegressorOptions(lead="1D", max_memory_gb=max_memory_gb)
            found.append(prepare(str(tmp_path / "x.zarr"), y, options, {}, cache=tmp_path / scheduler))
    for name in vars(found[0].statistics):
        np.testing.assert_array_equal(*(getattr(each.statistics, name) for each in found), err_msg=name)
    np.testing.assert_array_equal(*(each.splits["train"].inputs.values for each in found))
    chunk = tmp_path / "x.zarr" / "u" / "c" / "3" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    for scheduler in ("synchronous", "threads"):
        with (
            dask.config.set(scheduler=scheduler),
            pytest.raises(DataError, match="u of inputs cannot be") as caught,
        ):
            prepare(str(tmp_path / "x.zarr"), y, options, {}, cache=tmp_path / f"damaged {scheduler}")
        assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)


def test_statistics_are_those_that_xarray_computes(data: tuple[xr.Dataset, xr.Dataset], tmp_path: Path) -> None:
    x, y = data
    options = RegressorOptions(max_memory_gb=1e-5, lead="1D")
    found = prepare(x, y, options, PERIODS, cache=tmp_path).statistics
    train = slice("2001-01-01", "2002-12-30")
    before = x["t2m"].sortby("time").sel(time=train).astype(np.float64)
    after = y["t2m"].sel(time=slice("2001-01-02", "2002-12-31")).astype(np.float64)
    change = after - before.values

    def same(actual: np.ndarray, expected: Any) -> None:
        np.testing.assert_allclose(actual, np.broadcast_to(expected, actual.shape), rtol=1e-5)

    there = ~np.isnan(before.values[0] + after.values[0])
    same(found.input_mean[0][there], before.mean("time").values[there])
    same(found.input_std[0][there], before.std("time").values[there])
    # A static field differs between pixels only.
    same(found.input_mean[1], float(x["height"].mean()))
    same(found.input_std[1], float(x["height"].std()))
    # Where the input has no value, the target that continues it stands in.
    same(found.input_fill[0], before.mean("time").fillna(after.mean("time")))
    same(found.input_fill[1], x["height"])
    error = change.mean("time").where(before.mean("time").notnull(), 0.0 * after.mean("time"))
    np.testing.assert_allclose(found.mean_error[0], error, rtol=1e-5, atol=1e-6)


def test_samples_that_are_dropped_do_not_enter_the_statistics(
    data: tuple[xr.Dataset, xr.Dataset], tmp_path: Path
) -> None:
    x, y = data
    spoilt = x.copy(deep=True)
    place = int(np.flatnonzero(x["time"].values == times(1, "2001-06-01")[0])[0])
    spoilt["t2m"][place] = 1e6 * spoilt["t2m"][place]
    spoilt["t2m"][place, 1, 1] = np.nan
    options = RegressorOptions(missing="drop")
    dropped = prepare(spoilt, y, options, PERIODS, cache=tmp_path)
    assert len(dropped.splits["train"]) == 729
    without = prepare(x.isel(time=x["time"] != x["time"][place]), y, options, PERIODS, cache=tmp_path).statistics
    for name in vars(without):
        np.testing.assert_allclose(getattr(dropped.statistics, name), getattr(without, name), rtol=1e-5, atol=1e-5)
