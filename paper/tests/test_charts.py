from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from smoe_paper import charts


def test_a_score_by_epoch_has_its_best_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(charts, "save_picture", lambda figure, path: drawn.append(figure))
    values = {1: 900.0, 2: 500.0, 4: 600.0}
    for is_maximum, best in ((False, [2, 500]), (True, [1, 900])):
        charts.draw_score(values, "Z500", tmp_path / "x.png", is_maximum=is_maximum, reference=("persistence", 936.0))
        (axes,) = drawn.pop().axes
        assert np.asarray(axes.lines[0].get_xydata()).tolist() == [[1, 900], [2, 500], [4, 600]]
        assert np.asarray(axes.lines[1].get_xydata()).tolist() == [best]
        assert [text.get_text() for text in axes.texts] == [f"{best[1]}"]
