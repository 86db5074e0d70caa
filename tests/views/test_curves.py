from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from smoe.views import _charts, draw_accuracy, draw_scores

KEY = "validation/within_1_percent"
HISTORY = [{KEY: 40.0, "other": 1.0}, {"other": 2.0}, {KEY: 100.0, "other": 3.0}]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    drawn: list[Figure] = []
    monkeypatch.setattr(_charts, "save_picture", lambda figure, path: drawn.append(figure))
    return drawn


def test_curve_holds_the_epochs_that_have_the_key(figures: list[Figure]) -> None:
    draw_accuracy(HISTORY, "unused.png", keys=(KEY,), reference=("paper", 99.5))
    curve, line = figures[0].axes[0].lines
    np.testing.assert_array_equal(curve.get_xydata(), [[1, 40], [3, 100]])
    np.testing.assert_array_equal(line.get_ydata(), [99.5, 99.5])
    assert line.get_label() == "paper: 99.5 %" and curve.get_label() == "validation, within 1 %"


def test_several_curves_without_reference(figures: list[Figure]) -> None:
    draw_accuracy(HISTORY, "unused.png", keys=(KEY, "other"))
    assert [np.shape(line.get_xydata()) for line in figures[0].axes[0].lines] == [(2, 2), (3, 2)]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
@pytest.mark.parametrize("history", [HISTORY, HISTORY[:1], [{KEY: float("nan")}, {KEY: 3.0}]])
def test_picture_is_written(tmp_path: Path, suffix: str, history: list[dict[str, float]]) -> None:
    path = tmp_path / f"accuracy.{suffix}"
    draw_accuracy(history, path, keys=(KEY,), reference=("paper", 100.0))
    assert list(tmp_path.iterdir()) == [path] and path.stat().st_size > 1000
    if suffix == "png":
        assert imread(path).shape[:2] == (672, 1152)


def test_missing_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds 'accuracy'; it holds other, validation/within_1_percent"):
        draw_accuracy(HISTORY, tmp_path / "accuracy.png", keys=("accuracy",))
    with pytest.raises(ValueError, match="it holds nothing"):
        draw_accuracy([], tmp_path / "accuracy.png", keys=(KEY,))
    with pytest.raises(ValueError, match="at least one curve"):
        draw_accuracy(HISTORY, tmp_path / "accuracy.png", keys=())


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
    assert {"500", "persistence 936"} <= {text.get_text() for text in axes.texts}
    with pytest.raises(ValueError, match="no epoch of the history holds 'loss'; it holds validation/rmse_z_500"):
        draw_scores(history, {"loss": "loss"}, "unused.png")
