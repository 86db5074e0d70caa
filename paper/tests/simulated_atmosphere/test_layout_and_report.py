"""Files of the simulated atmosphere, and the report about them."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from simulation import layout
from simulation.baselines import climatology_rmse, persistence_rmse, rmse, week_of_year, weekly_climatology_rmse
from simulation.climate import global_mean, jets, winter_land_sea_contrast
from simulation.report import describe
from simulation.simulated_years import SimulatedYears


def fields_of(year, rng):
    steps = len(layout.year_times(year))
    return {
        name: rng.random((steps, 7, 32, 64) if variable.has_levels else (steps, 32, 64), dtype=np.float32)
        for name, variable in layout.VARIABLES.items()
    }


@pytest.fixture
def year(tmp_path, monkeypatch):
    """A leap year of which only the first and the last six days are written."""
    days = layout.year_times(2004)
    monkeypatch.setattr(layout, "year_times", lambda _: np.concatenate([days[:24], days[-24:]]))
    values = fields_of(2004, np.random.default_rng(0))
    layout.write_year(tmp_path, 2004, values, {"source": layout.ORIGIN})
    return tmp_path, values


def test_a_year_has_every_sixth_hour():
    times = layout.year_times(2004)
    assert len(times) == 366 * 4
    assert len(layout.year_times(2005)) == 365 * 4
    assert np.unique(np.diff(times)) == np.timedelta64(6, "h")
    assert str(times[0]) == "2004-01-01T00"
    assert str(times[-1]) == "2004-12-31T18"


def test_the_files_lie_where_weatherbench_has_them(year):
    root, _ = year
    written = sorted(str(path.relative_to(root)) for path in root.rglob("*.nc"))
    assert written == sorted(
        f"5.625deg/{folder}/{folder}_2004_5.625deg.nc"
        for folder in (
            "geopotential", "temperature", "u_component_of_wind", "v_component_of_wind", "specific_humidity",
            "2m_temperature", "toa_incident_solar_radiation", "6hr_precipitation",
        )
    )  # fmt: skip
    assert layout.has_year(root, 2004)
    assert not layout.has_year(root, 2005)
    assert not list(root.rglob("*.part"))


def test_a_level_variable_as_weatherbench_writes_it(year):
    root, values = year
    with xr.open_dataset(root / "5.625deg/geopotential/geopotential_2004_5.625deg.nc") as data:
        assert data["z"].dims == ("time", "level", "lat", "lon")
        assert data["z"].dtype == np.float32
        assert data["z"].attrs["units"] == "m**2 s**-2"
        assert data["level"].dtype == np.int32
        assert data["level"].values.tolist() == [50, 250, 500, 600, 700, 850, 925]
        assert data["lat"].values[[0, 1, -1]].tolist() == [-87.1875, -81.5625, 87.1875]
        assert data["lon"].values[[0, 1, -1]].tolist() == [0.0, 5.625, 354.375]
        assert str(data["time"].values[0]).startswith("2004-01-01T00")
        assert str(data["time"].values[-1]).startswith("2004-12-31T18")
        assert "not ERA5" in data.attrs["source"]
        np.testing.assert_array_equal(data["z"].values, values["z"])


def test_a_year_with_a_time_missing_is_refused(year):
    root, values = year
    with pytest.raises(ValueError, match=r"z of 2005 must have the shape \(48, 7, 32, 64\), got \(47"):
        layout.write_year(root, 2005, {name: array[:-1] for name, array in values.items()}, {})


def test_constants(tmp_path):
    land = np.linspace(-0.1, 1.1, 32 * 64).reshape(32, 64)
    layout.write_constants(tmp_path, 100 * land, land, {})
    with xr.open_dataset(tmp_path / "5.625deg/constants/constants_5.625deg.nc") as data:
        assert set(data.data_vars) == {"orography", "lsm", "lat2d", "lon2d"}
        assert float(data["lsm"].min()) == 0.0
        assert float(data["lsm"].max()) == 1.0
        assert float(data["lat2d"].isel(lat=3, lon=9)) == -87.1875 + 3 * 5.625
        assert float(data["lon2d"].isel(lat=3, lon=9)) == 9 * 5.625


LAT = layout.LATITUDE[:, None]


def test_rmse_weighs_by_the_cosine_of_latitude():
    error = np.zeros((2, 32, 64), dtype=np.float32)
    error[0, 5] = 3.0
    # Half of the times have an error of 3 on one latitude.
    weights = np.cos(np.radians(layout.LATITUDE))
    assert rmse(error) == pytest.approx(np.sqrt(9 / 2 * weights[5] / weights.sum()))


def test_global_mean_of_sine_squared():
    assert global_mean(np.broadcast_to(np.sin(np.radians(LAT)) ** 2, (3, 32, 64))) == pytest.approx(1 / 3, abs=2e-3)


def test_persistence_compares_with_the_field_before():
    truth = np.broadcast_to(np.arange(40.0)[:, None, None], (40, 32, 64)).astype(np.float32)
    assert persistence_rmse(truth, 72) == pytest.approx(12.0)
    with pytest.raises(ValueError, match="a lead of 70 h"):
        persistence_rmse(truth, 70)


def test_climatologies_know_earlier_years_only():
    earlier_times, times = layout.year_times(2001), layout.year_times(2002)
    season = np.broadcast_to(week_of_year(earlier_times)[:, None, None], (1460, 32, 64)).astype(np.float32)
    assert weekly_climatology_rmse(season + 2, times, season, earlier_times) == pytest.approx(2.0)
    # Weeks 0 to 51 with 28 fields each, the last with 32: the spread about their mean.
    assert climatology_rmse(season, season) == pytest.approx(np.std(week_of_year(times)), rel=1e-4)


@pytest.fixture
def simulated(tmp_path, monkeypatch):
    """Three years with a jet at 36.5625 N, cold land and weather of one number, on every fourth day only."""
    root, every = tmp_path, layout.year_times
    monkeypatch.setattr(layout, "year_times", lambda year: every(year)[::16])
    land = np.broadcast_to(np.arange(64) < 32, (32, 64)).astype(np.float32)
    layout.write_constants(root, 0 * land, land, {f"{name}_version": "1" for name in ("jcm", "jax", "dinosaur")})
    for year in (2001, 2002, 2003):
        steps = len(layout.year_times(year))
        flat = np.zeros((steps, 32, 64), dtype=np.float32)
        deep = np.zeros((steps, 7, 32, 64), dtype=np.float32)
        jet = np.where(np.isclose(layout.LATITUDE, 36.5625), 30.0, 1.0).astype(np.float32)[:, None]
        weather = (np.arange(steps) % 2).astype(np.float32)[:, None, None]
        values = dict.fromkeys("ztvq", deep) | {"u": deep + jet, "t2m": flat + 280 - 5 * land + weather}
        layout.write_year(root, year, values | {"tisr": flat + 3600 * 340, "tp": flat + 0.00075}, {})
    return root


def test_jet_and_land_are_found(simulated):
    data = SimulatedYears(simulated)
    assert jets(data, data.years)[0] == ("Dec-Feb", "north", 30.0, 36.5625)
    land, sea = winter_land_sea_contrast(data, data.years)
    assert sea - land == pytest.approx(5.0)
    assert 280 < sea < 281


def test_the_report_holds_the_numbers(simulated):
    text = describe(simulated)
    assert "| 2003 | 0 | 0.00 | 278.00 | 3.00 | 30.0 |" in text
    assert "340.0 W/m2" in text
    assert "land is 5.0 K colder" in text
    # Leads of 12 and 20 fields bring the same weather back, so persistence is perfect; the climatology misses by 0.5.
    assert "| T2m [K] | 0.00 (3.00) | 0.00 (3.27) | 0.50 (6.07) |" in text
