"""Pictures of classifiers: they are written, and refuse what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from smoe.diagnostics.shared_experts import selections
from smoe.views import draw_confusion, draw_image_routing
from smoe.views.image_routing import _agreement


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


def test_agreement_of_neighbours():
    # One row of three pixels, two of four experts each: {0, 1}, {1, 2}, {1, 2}.
    chosen = np.array([[0, 1, 1], [1, 2, 2]])[:, None]
    # The first shares one of two with its neighbour, the last both; the middle has both neighbours.
    np.testing.assert_allclose(_agreement(selections(chosen, 4)), [[0.5, 0.75, 1.0]])


@pytest.mark.parametrize(("num_experts", "num_selected"), [(3, 1), (12, 6)])
def test_routing(tmp_path, num_experts, num_selected):
    generator = np.random.default_rng(0)
    scores = generator.random((num_experts, 6, 5))
    chosen = np.argsort(-scores, axis=0)[:num_selected]
    path = tmp_path / "routing.png"
    draw_image_routing(chosen, num_experts, generator.random((2, 6, 5)), ["a", "b"], path, title="a run")
    assert is_picture(path)
    with pytest.raises(ValueError, match=r"mean_images must be one of \(6, 5\) for each of 2 classes"):
        draw_image_routing(chosen, num_experts, generator.random((2, 5, 5)), ["a", "b"], path, title="")
