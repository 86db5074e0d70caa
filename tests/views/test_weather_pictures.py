from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from smoe.views import (
    ForecastMap,
    area_of_rows,
    draw_forecast,
    draw_globe_routing,
    draw_scores,
    forecast_maps,
    land_shares,
    routing_globe,
    score_curves,
    selections,
    similarity_colours,
)

LATITUDE, LONGITUDE = np.array([-60.0, 0.0, 60.0]), np.array([0.0, 90.0, 180.0, 270.0])
LAND = np.array([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    drawn: list[Figure] = []
    for module in (forecast_maps, routing_globe, score_curves):
        monkeypatch.setattr(module, "save_picture", lambda figure, path: drawn.append(figure))
    return drawn


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(lambda item: hasattr(item, "get_text")) if text.get_text()]  # type: ignore[attr-defined]


def test_selections() -> None:
    chosen = np.array([[[2, 0]], [[1, 2]]])
    # Pixel 0 has the experts 2 and 1, pixel 1 has 0 and 2; nobody has 3.
    expected = [[[False, True]], [[True, False]], [[True, True]], [[False, False]]]
    assert selections(chosen, 4).tolist() == expected
    with pytest.raises(ValueError, match=r"from 0 to 1 in the shape \(E, H, W\), got 0 to 2"):
        selections(chosen, 2)


def test_land_shares_count_area() -> None:
    # Rows at 60 degrees have half the area of a row at the equator.
    is_selected = np.zeros((3, 3, 4), dtype=bool)
    is_selected[0, 1, 0] = is_selected[0, 2, 1] = True  # equator, land (area 1); 60 N, sea (1/2): 2/3 land
    is_selected[1, 0] = True  # 60 S: sea
    assert land_shares(is_selected, LAND, LATITUDE) == pytest.approx([2 / 3, 0.0, np.nan], nan_ok=True)


def test_pixels_with_the_same_experts_have_the_same_colour() -> None:
    # Two sorts of pixels, and one pixel that shares one expert with the first sort.
    chosen = np.stack([np.where(LAND, 0, 2), np.where(LAND, 1, 3)]).astype(int)
    chosen[:, 0, 0] = (0, 3)
    colours = similarity_colours(selections(chosen, 5), area_of_rows(LATITUDE))
    assert colours.shape == (3, 4, 3) and colours.min() >= 0 and colours.max() <= 1
    land, sea, mixed = colours[1, 0], colours[2, 3], colours[0, 0]
    assert np.allclose(colours[LAND == 1], land)
    sea_pixels = LAND == 0
    sea_pixels[0, 0] = False
    assert np.allclose(colours[sea_pixels], sea)
    assert np.abs(land - sea).max() > 0.3
    # Nearer to both than they are to each other.
    apart = np.linalg.norm(land - sea)
    assert np.linalg.norm(mixed - land) < apart and np.linalg.norm(mixed - sea) < apart


def test_routing_that_is_the_same_everywhere_is_grey() -> None:
    chosen = np.zeros((1, 3, 4), dtype=int)
    assert np.allclose(similarity_colours(selections(chosen, 2)), 0.5)


@pytest.mark.parametrize("num_experts", [2, 40])
def test_routing_picture_says_who_is_in_use(figures: list[Figure], num_experts: int) -> None:
    rng = np.random.default_rng(0)
    chosen = rng.random((num_experts, 3, 4)).argsort(0)[: num_experts // 2]
    draw_globe_routing(
        chosen, chosen[0], num_experts, LAND, LATITUDE, LONGITUDE, "unused.png", title="gate of 38 layers"
    )
    shown = texts(figures[0])
    assert "gate of 38 layers" in shown
    num_used, num_first = len(np.unique(chosen)), len(np.unique(chosen[0]))
    assert f"area served by each expert ({num_used} of {num_experts} in use)" in shown
    assert f"first choice: {num_first} of {num_experts} experts" in shown
    # The bars are sorted: they have ranks, from 1, which are no numbers of experts.
    assert {"rank of the expert, most land first", "rank of the expert, busiest first"} <= set(shown)
    loads = next(axes for axes in figures[0].axes if axes.get_xlabel().endswith("busiest first"))
    assert loads.get_xlim() == (0.5, num_experts + 0.5)


def test_forecast_picture(figures: list[Figure]) -> None:
    truth = np.arange(12.0).reshape(3, 4)
    draw_forecast(
        [ForecastMap("Z500", "m2 s-2", truth + 3.0, truth, 3.0)], LATITUDE, LONGITUDE, "unused.png", title="from A to B"
    )
    assert {"from A to B", "Z500, truth", "Z500, forecast", "forecast - truth, RMSE 3 m2 s-2"} <= set(texts(figures[0]))
    meshes = [axes.collections[0] for axes in figures[0].axes if axes.get_title()]
    # Truth and forecast can be compared by colour; the error's white is zero.
    assert meshes[0].get_clim() == meshes[1].get_clim() == (0.0, 11.0)
    low, high = meshes[2].get_clim()
    assert low is not None and high is not None and low == -high == -3.0
    truth[0, 0] = np.nan
    with pytest.raises(ValueError, match="Z500 holds values that are not finite"):
        draw_forecast([ForecastMap("Z500", "", truth, truth, 0.0)], LATITUDE, LONGITUDE, "unused.png", title="")


def test_score_curves(figures: list[Figure], tmp_path: Path) -> None:
    history = [{"validation/rmse_z_500": value} for value in (900.0, 500.0, None, 600.0)]
    draw_scores(
        history,
        {"validation/rmse_z_500": "Z500"},
        tmp_path / "unused.png",
        references={"validation/rmse_z_500": {"persistence": 936.0}},
    )
    (axes,) = figures[0].axes
    assert np.asarray(axes.lines[0].get_xydata()).tolist() == [[1, 900], [2, 500], [4, 600]]
    # The best epoch is marked.
    assert np.asarray(axes.lines[1].get_xydata()).tolist() == [[2, 500]]
    assert {"500", "persistence 936"} <= set(texts(figures[0]))
    with pytest.raises(ValueError, match="no epoch of the history holds 'loss'; it holds validation/rmse_z_500"):
        draw_scores(history, {"loss": "loss"}, "unused.png")
