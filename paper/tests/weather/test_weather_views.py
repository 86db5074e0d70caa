from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from smoe_paper.weather import pictures as views
from smoe_paper.weather.pictures import ForecastMap, draw_forecast

LATITUDE, LONGITUDE = np.array([-60.0, 0.0, 60.0]), np.array([0.0, 90.0, 180.0, 270.0])


def test_forecast_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(views, "save_picture", lambda figure, path: figures.append(figure))
    truth = np.arange(12.0).reshape(3, 4)
    draw_forecast(
        [ForecastMap("Z500", "m2 s-2", truth + 3.0, truth, 3.0)], LATITUDE, LONGITUDE, "unused.png", title="from A to B"
    )
    titles = {axes.get_title() for axes in figures[0].axes}
    assert {"Z500, truth", "Z500, forecast", "forecast - truth, RMSE 3 m2 s-2"} <= titles
    assert figures[0].get_suptitle() == "from A to B"
    meshes = [axes.collections[0] for axes in figures[0].axes if axes.get_title()]
    # Truth and forecast can be compared by colour; the error's white is zero.
    assert meshes[0].get_clim() == meshes[1].get_clim() == (0.0, 11.0)
    low, high = meshes[2].get_clim()
    assert low is not None and high is not None and low == -high == -3.0
    truth[0, 0] = np.nan
    with pytest.raises(ValueError, match="Z500 holds values that are not finite"):
        draw_forecast([ForecastMap("Z500", "", truth, truth, 0.0)], LATITUDE, LONGITUDE, "unused.png", title="")
