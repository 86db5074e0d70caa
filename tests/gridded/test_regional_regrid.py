from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from smoe.errors import DataError
from smoe.gridded._grids import HorizontalGrid
from smoe.gridded._regrid import Regridding


def grid(rows: np.ndarray, columns: np.ndarray, *, closes: bool = False) -> HorizontalGrid:
    return HorizontalGrid("latitude-longitude", (len(rows), len(columns)), rows, columns, closes)


def test_between_regions_as_xarray_does() -> None:
    source = grid(np.arange(30.0, 61.0, 2.0), np.arange(-10.0, 31.0, 2.5))
    target = grid(np.arange(33.0, 55.0, 1.3), np.arange(-8.0, 20.0, 1.7))
    fields = np.random.default_rng(0).normal(size=(2, *source.shape)).astype(np.float32)
    array = xr.DataArray(fields, dims=("n", "lat", "lon"), coords={"lat": source.rows, "lon": source.columns})
    expected = array.interp(lat=target.rows, lon=target.columns)
    np.testing.assert_allclose(Regridding(source, target)(fields), expected, atol=1e-6)


def test_across_the_seam_of_a_globe() -> None:
    source = grid(np.arange(-85.0, 86.0, 5.0), np.arange(0.0, 360.0, 5.0), closes=True)
    target = grid(np.arange(-10.0, 11.0, 4.0), np.arange(-7.0, 8.0, 2.0))
    fields = np.cos(np.deg2rad(source.columns)) * np.ones((source.shape[0], 1))
    expected = [np.interp(x, [-10, -5, 0, 5, 10], np.cos(np.deg2rad([-10, -5, 0, 5, 10]))) for x in target.columns]
    np.testing.assert_allclose(Regridding(source, target)(fields), np.broadcast_to(expected, target.shape), atol=1e-6)


def test_a_target_outside_is_refused() -> None:
    source = grid(np.arange(30.0, 61.0, 2.0), np.arange(0.0, 31.0, 2.5))
    near = grid(np.arange(29.5, 40.0, 1.0), np.arange(-1.0, 20.0, 1.7))
    assert Regridding(source, near)(np.ones(source.shape)).shape == near.shape
    for far in (grid(np.arange(20.0, 40.0, 1.0), source.columns), grid(source.rows, np.arange(-5.0, 20.0, 1.7))):
        with pytest.raises(DataError, match="is not inside of"):
            Regridding(source, far)
    curvilinear = HorizontalGrid("curvilinear", (2, 2), np.zeros((2, 2)), np.zeros((2, 2)), False)
    with pytest.raises(DataError, match="works between grids of latitudes and longitudes"):
        Regridding(source, curvilinear)
