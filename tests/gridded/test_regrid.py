"""Regridding against an analytic function, xarray's interpolation, and what it must refuse."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from smoe.gridded.regrid import regrid
from smoe.paper.weather.data import GRIDS, DataError


def smooth(latitude, longitude):
    lat, lon = np.radians(latitude)[:, None], np.radians(longitude)[None, :]
    return 3 + 2 * np.sin(lat) + np.cos(lat) ** 2 * np.cos(2 * lon + 0.3) + np.cos(lat) * np.sin(lon)


@pytest.mark.parametrize("name", GRIDS)
def test_error_falls_with_the_square_of_the_spacing(name):
    grid = GRIDS[name]
    truth = smooth(np.asarray(grid.latitude), np.asarray(grid.longitude))
    errors = []
    for count in (91, 181):
        latitude, longitude = np.linspace(90, -90, count), np.arange(2 * (count - 1)) * 180.0 / (count - 1)
        errors.append(np.abs(regrid(smooth(latitude, longitude), latitude, longitude, grid) - truth).max())
    assert errors[0] < 2e-3
    assert errors[1] < errors[0] / 3


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("start", [0.0, -180.0, 1.25, 200.0])
def test_equals_xarray(descending, start):
    pytest.importorskip("scipy", reason="xarray interpolates by scipy")
    # xarray knows neither the circle nor the poles, so it is handed columns on both sides and rows at the poles.
    grid, rng = GRIDS["5.625deg"], np.random.default_rng(0)
    latitude, longitude = np.linspace(-90, 90, 61), start + np.arange(120) * 3.0
    fields = rng.normal(size=(2, 3, 61, 120))
    wrapped = xr.DataArray(
        np.concatenate([fields] * 3, -1),
        dims=("a", "b", "lat", "lon"),
        coords={"lat": latitude, "lon": np.concatenate([longitude - 360, longitude, longitude + 360])},
    )
    expected = wrapped.interp(lat=list(grid.latitude), lon=list(grid.longitude), method="linear").values
    order = slice(None, None, -1) if descending else slice(None)
    np.testing.assert_allclose(regrid(fields[..., order, :], latitude[order], longitude, grid), expected, atol=1e-12)


def test_rows_beyond_the_last_lead_to_the_mean_at_the_pole():
    # Rows at -80 ... 80; 87.1875 lies 7.1875 / 10 of the way from the row at 80 to the pole.
    grid = GRIDS["5.625deg"]
    latitude, longitude = np.linspace(-80, 80, 17), np.arange(4) * 90.0
    fields = np.zeros((17, 4))
    fields[-1] = [0.0, 4.0, 0.0, 0.0]
    result = regrid(fields, latitude, longitude, grid)
    assert result[-1, 16] == pytest.approx(4.0 * (1 - 0.71875) + 1.0 * 0.71875)
    assert result[-1, 0] == pytest.approx(1.0 * 0.71875)


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_onto_itself_changes_nothing(name):
    grid = GRIDS[name]
    fields = np.random.default_rng(0).normal(size=(2, *grid.shape)).astype(np.float32)
    result = regrid(fields, np.asarray(grid.latitude), np.asarray(grid.longitude), grid)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, fields)


def test_a_nan_stays_where_it_has_weight():
    grid = GRIDS["5.625deg"]
    fields = np.ones(grid.shape)
    fields[3, 5] = np.nan
    result = regrid(fields, np.asarray(grid.latitude), np.asarray(grid.longitude), grid)
    assert np.argwhere(np.isnan(result)).tolist() == [[3, 5]]


@pytest.mark.parametrize(
    ("latitude", "longitude", "says"),
    [
        (np.linspace(-90, 90, 19), np.arange(36) * 5.0, "longitudes from 0 to 175 leave out"),
        (np.linspace(-90, 60, 19), np.arange(36) * 10.0, "latitudes from -90 to 60 leave out"),
        (np.linspace(-91, 90, 19), np.arange(36) * 10.0, "within"),
        (np.zeros(19), np.arange(36) * 10.0, "strictly"),
        (np.linspace(-90, 90, 19), np.arange(36)[::-1] * 10.0, "longitudes must ascend"),
        (np.linspace(-90, 90, 18), np.arange(36) * 10.0, r"shape \(19, 36\), expected \(\.\.\., 18, 36\)"),
    ],
)
def test_refused(latitude, longitude, says):
    with pytest.raises(DataError, match=says):
        regrid(np.zeros((19, 36)), latitude, longitude, GRIDS["5.625deg"])
