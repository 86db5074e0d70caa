from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from smoe_paper import charts
from smoe_paper.charts import (
    Panel,
    draw_accuracies,
    draw_epochs,
    draw_grids,
    draw_region_accuracies,
    draw_scores,
)

KEY = "validation/within_1_percent"
HISTORY = [{KEY: 40.0, "other": 1.0}, {"other": 2.0}, {KEY: 100.0, "other": 3.0}]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    drawn: list[Figure] = []
    monkeypatch.setattr(charts, "save_picture", lambda figure, path: drawn.append(figure))
    return drawn


def test_picture_is_written(tmp_path: Path) -> None:
    path = tmp_path / "accuracy.png"
    draw_scores([{KEY: 2.0}, {KEY: 3.0}], {KEY: "within 1 %"}, path, reference=("paper", 100.0), is_maximum=True)
    assert list(tmp_path.iterdir()) == [path] and imread(path).shape[2] == 4


def test_score_curves(figures: list[Figure], tmp_path: Path) -> None:
    history = [{"validation/rmse_z_500": value} for value in (900.0, 500.0, None, 600.0)]
    draw_scores(
        history,
        {"validation/rmse_z_500": "Z500"},
        tmp_path / "unused.png",
        reference=("persistence", 936.0),
    )
    (axes,) = figures[0].axes
    assert np.asarray(axes.lines[0].get_xydata()).tolist() == [[1, 900], [2, 500], [4, 600]]
    # The best epoch is marked.
    assert np.asarray(axes.lines[1].get_xydata()).tolist() == [[2, 500]]
    assert {"500"} <= {text.get_text() for text in axes.texts}


def test_curves_of_many_models_are_drawn(tmp_path: Path) -> None:
    curves = {f"model {number}": [10.0 * number, 11.0 * number] for number in range(8)}
    draw_accuracies(curves, tmp_path / "curves.png", label="in %")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    lengths = {"model 1": 0.25}
    draw_accuracies(curves, tmp_path / "scaled.png", label="in %", epoch_lengths=lengths, unit="long epochs")
    assert (tmp_path / "scaled.png").read_bytes() != (tmp_path / "curves.png").read_bytes()


def test_regions_are_drawn(tmp_path: Path) -> None:
    draw_region_accuracies(
        {"conv": [99.0, 80.0], "other": [1.0, 2.0]}, ["slow", "fast"], tmp_path / "regions.png", label="in %"
    )
    assert (tmp_path / "regions.png").stat().st_size > 5_000


def test_grids_are_drawn_with_gaps(tmp_path: Path) -> None:
    values = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, 6.0]])
    draw_grids(
        [Panel("a", values), Panel("b", values)], "xy", "abc", tmp_path / "g.png", row_title="r", column_title="c"
    )
    assert (tmp_path / "g.png").stat().st_size > 5_000


def test_quantities_by_epoch_are_drawn_one_below_the_other(tmp_path: Path) -> None:
    curves = {"one": [3.0, 2.0], "two": [4.0, 1.0, 0.5]}
    draw_epochs({"loss": curves}, tmp_path / "one.png")
    draw_epochs({"loss": curves, "changed": curves}, tmp_path / "two.png")
    assert (tmp_path / "two.png").stat().st_size > (tmp_path / "one.png").stat().st_size > 5_000
