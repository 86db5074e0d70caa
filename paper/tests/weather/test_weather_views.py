from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from smoe_paper.atmosphere.fields import Grid
from smoe_paper.weather.pictures import draw_forecast


def test_forecast_picture() -> None:
    store: Any = SimpleNamespace(grid=Grid((-60.0, 0.0, 60.0), (0.0, 90.0, 180.0, 270.0)))
    truth = np.arange(12.0).reshape(1, 3, 4)
    figure = draw_forecast(store, truth + 3.0, truth, ("z_500",))
    titles = {axes.get_title() for axes in figure.axes}
    assert {"Z500, truth", "Z500, forecast", "forecast - truth, RMSE 3 m² s⁻²"} <= titles
    meshes = [axes.collections[0] for axes in figure.axes if axes.get_title()]
    # Truth and forecast can be compared by colour; the error's white is zero.
    assert meshes[0].get_clim() == meshes[1].get_clim() == (0.0, 11.0)
    low, high = meshes[2].get_clim()
    assert low is not None and high is not None and low == -high == -3.0
    truth[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="Z500 holds values that are not finite"):
        draw_forecast(store, truth, truth, ("z_500",))
