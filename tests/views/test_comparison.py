from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smoe.views import Panel, draw_accuracies, draw_epochs, draw_grids, draw_region_accuracies


def test_curves_of_many_models_are_drawn(tmp_path: Path) -> None:
    curves = {f"model {number}": [10.0 * number, 11.0 * number] for number in range(8)}
    draw_accuracies(curves, tmp_path / "curves.png", label="in %")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    lengths = {"model 1": 0.25}
    draw_accuracies(curves, tmp_path / "scaled.png", label="in %", epoch_lengths=lengths, unit="long epochs")
    assert (tmp_path / "scaled.png").read_bytes() != (tmp_path / "curves.png").read_bytes()
    with pytest.raises(ValueError, match="the curve of 'empty' is empty"):
        draw_accuracies({"empty": []}, tmp_path / "bad.png", label="")
    with pytest.raises(ValueError, match="at least one model"):
        draw_accuracies({}, tmp_path / "bad.png", label="")
    assert not (tmp_path / "bad.png").exists()


def test_regions_are_drawn(tmp_path: Path) -> None:
    draw_region_accuracies(
        {"conv": [99.0, 80.0], "other": [1.0, 2.0]}, ["slow", "fast"], tmp_path / "regions.png", label="in %"
    )
    assert (tmp_path / "regions.png").stat().st_size > 5_000
    with pytest.raises(ValueError, match="'conv' has 1 accuracies for 2 regions"):
        draw_region_accuracies({"conv": [1.0]}, ["slow", "fast"], tmp_path / "bad.png", label="")
    with pytest.raises(ValueError, match="at least one model"):
        draw_region_accuracies({}, ["slow"], tmp_path / "bad.png", label="")


def test_grids_are_drawn_with_gaps(tmp_path: Path) -> None:
    values = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, 6.0]])
    draw_grids(
        [Panel("a", values), Panel("b", values)], "xy", "abc", tmp_path / "g.png", row_title="r", column_title="c"
    )
    assert (tmp_path / "g.png").stat().st_size > 5_000
    with pytest.raises(ValueError, match=r"'a' has the shape \(2, 3\), but the labels make \(3, 3\)"):
        draw_grids([Panel("a", values)], "xyz", "abc", tmp_path / "bad.png", row_title="r", column_title="c")
    with pytest.raises(ValueError, match="at least one panel"):
        draw_grids([], "x", "a", tmp_path / "bad.png", row_title="r", column_title="c")


def test_quantities_by_epoch_are_drawn_one_below_the_other(tmp_path: Path) -> None:
    curves = {"one": [3.0, 2.0], "two": [4.0, 1.0, 0.5]}
    draw_epochs({"loss": curves}, tmp_path / "one.png")
    draw_epochs({"loss": curves, "changed": curves}, tmp_path / "two.png")
    assert (tmp_path / "two.png").stat().st_size > (tmp_path / "one.png").stat().st_size > 5_000
    with pytest.raises(ValueError, match="at least one quantity"):
        draw_epochs({}, tmp_path / "bad.png")
    with pytest.raises(ValueError, match="the curve of 'empty' is empty"):
        draw_epochs({"loss": {"empty": []}}, tmp_path / "bad.png")
