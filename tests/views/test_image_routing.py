from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smoe.views import draw_image_routing


@pytest.mark.parametrize(("num_experts", "num_selected"), [(3, 1), (12, 6)])
def test_routing(tmp_path: Path, num_experts: int, num_selected: int) -> None:
    generator = np.random.default_rng(0)
    scores = generator.random((num_experts, 6, 5))
    chosen = np.argsort(-scores, axis=0)[:num_selected]
    path = tmp_path / "routing.png"
    draw_image_routing(chosen, num_experts, generator.random((2, 6, 5)), ["a", "b"], path, title="a run")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000
    with pytest.raises(ValueError, match=r"mean_images must be one of \(6, 5\) for each of 2 classes"):
        draw_image_routing(chosen, num_experts, generator.random((2, 5, 5)), ["a", "b"], path, title="")
