"""Pictures of classifiers: they are written, and refuse what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from smoe_paper.images.pictures import draw_confusion


def is_picture(path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000


@pytest.mark.parametrize("num_classes", [1, 10, 30])
def test_confusion(tmp_path, num_classes):
    confusion = np.random.default_rng(0).integers(0, 50, (num_classes, num_classes))
    confusion[0] = 0
    confusion[0, 0] = 1
    path = tmp_path / "confusion.png"
    draw_confusion(confusion, [str(number) for number in range(num_classes)], path, title="a run")
    assert is_picture(path)


def test_confusion_without_mistakes(tmp_path):
    draw_confusion(np.diag([5, 5]), ["a", "b"], tmp_path / "confusion.png", title="a run")
    assert is_picture(tmp_path / "confusion.png")
