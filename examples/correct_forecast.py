"""Correct a forecast by your own NetCDF files: forecasts in, analyses as truth, corrected forecasts out."""

import tempfile
from pathlib import Path

import numpy as np
import xarray as xr

import smoe

folder = Path(tempfile.mkdtemp())
# Yours are files already. Here: a forecast that is too warm over "land", the eastern half, and too flat elsewhere.
rng = np.random.default_rng(0)
time = np.arange("2002-01-01", "2003-01-01", dtype="datetime64[D]").astype("datetime64[ns]")
coords = {"time": time, "lat": np.linspace(60, 40, 12), "lon": np.linspace(0, 30, 16)}
truth = xr.DataArray(rng.normal(280, 5, (len(time), 12, 16)).astype("f4"), coords, name="t2m", attrs={"units": "K"})
forecast = (280 + 0.5 * (truth - 280)).where(truth.lon <= 15, truth + 2)
forecast = (forecast + rng.normal(0, 0.5, truth.shape)).astype("f4").assign_attrs(units="K")
forecasts, analyses = str(folder / "forecast.nc"), str(folder / "analysis.nc")
forecast.to_netcdf(forecasts)
truth.to_netcdf(analyses)

model = smoe.GridRegressor("layer", max_epochs=12, device="cpu", progress=False)
model.fit(forecasts, analyses, validation="2002-06:2002-09", test="2002-10:2002-12")
print(model.score(forecasts, analyses, period="2002-10:2002-12"))

corrected = model.predict(forecasts)  # xarray in, xarray out: names, units and coordinates are kept
corrected.to_netcdf(folder / "corrected.nc")
model.save(folder / "model")  # `smoe report` writes a page about it
