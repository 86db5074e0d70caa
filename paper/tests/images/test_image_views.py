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


def test_confusion_refuses(tmp_path):
    with pytest.raises(ValueError, match=r"confusion must count samples in \(2, 2\), got \(3, 3\)"):
        draw_confusion(np.eye(3, dtype=int), ["a", "b"], tmp_path / "confusion.png", title="")
    with pytest.raises(ValueError, match="must count samples"):
        draw_confusion(np.zeros((2, 2), dtype=int), ["a", "b"], tmp_path / "confusion.png", title="")
