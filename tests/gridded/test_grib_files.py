from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import smoe
from ens10_files import GRID, STARTS, member_fields, write_grib
from smoe.errors import DataError
from smoe.gridded._open import open_fields
from smoe.gridded._source import FieldSource

pytest.importorskip("eccodes")


def test_grib_files_are_opened_without_the_index_beside_them(tmp_path: Path) -> None:
    path = write_grib(tmp_path / "members.grib", "pl", STARTS[:1], numbers=(1, 2))
    fields = open_fields(path)
    assert fields["t"].shape == (2, *GRID.shape)
    expected = member_fields("T", 500, STARTS[0])[1]
    np.testing.assert_allclose(fields["t"].isel(number=1, latitude=slice(2, 5)).values, expected[2:5], rtol=1e-5)
    np.testing.assert_allclose(fields["t"].isel(number=[1, 0], longitude=3).values[0], expected[:, 3], rtol=1e-5)
    # cfgrib would write an index, and read one, which is a pickle.
    assert [each.name for each in tmp_path.iterdir()] == ["members.grib"]


def test_files_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    path = write_grib(tmp_path / "members.grib", "pl", STARTS[:1], numbers=(1, 2))
    whole = path.read_bytes()
    # Inside the last message, behind it, and in its header.
    for damaged in (whole[:-100], whole + b"GR", whole[:-1] + b"8", whole[: len(whole) // 14 + 9]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"is damaged or incomplete: the message at byte \d+ does not end"):
            open_fields(path)
    path.write_bytes(whole + bytes(8))
    assert "t" in open_fields(path)


def write_levels(path: Path, names: tuple[str, ...], *, day: int = 1, step: int = 0) -> Path:
    """A field of each hour 0, 6, 12 and 18: `2t` at two metres, `t` at 850 hPa or at the surface."""
    import eccodes

    with path.open("wb") as file:
        for name, hour in itertools.product(names, range(0, 24, 6)):
            message = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib1")
            short, _, level_type = name.partition(":")
            settings: dict[str, object] = {
                "Ni": 5, "Nj": 3, "latitudeOfFirstGridPointInDegrees": 50, "latitudeOfLastGridPointInDegrees": 48,
                "longitudeOfFirstGridPointInDegrees": 0, "longitudeOfLastGridPointInDegrees": 4,
                "iDirectionIncrementInDegrees": 1, "jDirectionIncrementInDegrees": 1, "dataDate": 20190300 + day,
                "dataTime": hour * 100, "step": step, "typeOfLevel": level_type or "surface", "shortName": short,
            }  # fmt: skip
            settings |= {"level": 850} if level_type == "isobaricInhPa" else {}
            for key, value in settings.items():
                eccodes.codes_set(message, key, value)
            eccodes.codes_set_values(message, 280.0 + hour + np.arange(15.0))
            eccodes.codes_write(message, file)
            eccodes.codes_release(message)
    return path


@pytest.mark.parametrize("converted", [False, True])
def test_fields_of_step_0_are_analyses(tmp_path: Path, converted: bool) -> None:
    for day in (1, 2):
        write_levels(tmp_path / f"era5-{day}.grib", ("2t",), day=day)
        if converted:
            raw = xr.open_dataset(tmp_path / f"era5-{day}.grib", engine="cfgrib", indexpath="", decode_timedelta=True)
            assert "step" in raw.coords and raw["time"].attrs["standard_name"] == "forecast_reference_time"
            raw.to_netcdf(tmp_path / f"era5-{day}.nc")
    path = str(tmp_path / f"era5-*.{'nc' if converted else 'grib'}")
    fields = open_fields(path)
    assert fields["time"].attrs["standard_name"] == "time" and "step" not in fields.coords
    model = smoe.GridRegressor("layer", lead="6h", filters=2, max_epochs=1, compare="no", device="cpu", progress=False)
    predicted = model.fit(path, path).predict(path)["t2m"]
    np.testing.assert_array_equal(predicted["time"], fields["time"] + np.timedelta64(6, "h"))
    assert predicted["time"].attrs["standard_name"] == "time"
    # A forecast of six hours is none.
    ahead = FieldSource(open_fields(write_levels(tmp_path / "ahead.grib", ("2t",), step=6)))
    assert ahead.lead_times is not None and ahead.lead_times.tolist() == [6 * 3600]


def test_fields_on_several_kinds_of_levels(tmp_path: Path) -> None:
    path = write_levels(tmp_path / "several.grib", ("2t", "t:isobaricInhPa"))
    assert set(open_fields(path).data_vars) == {"t2m", "t"}
    path = write_levels(tmp_path / "several.grib", ("2t", "t:surface", "t:isobaricInhPa"))
    message = r"holds t on isobaricInhPa \(instant\), t on surface .* do not make one data set .*filter_by_keys"
    with pytest.raises(DataError, match=message) as caught:
        open_fields(path)
    assert "\n" not in str(caught.value) and "damaged" not in str(caught.value)
    assert set(open_fields(path, variables=["t2m"]).data_vars) >= {"t2m"}
    chosen = open_fields(path, open_options={"filter_by_keys": {"typeOfLevel": "isobaricInhPa"}})
    assert set(chosen.data_vars) == {"t"}
