import numpy as np
import pytest
import xarray as xr

from simulation import layout


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
