"""What an embedding knows about a field, measured by its linear functions."""

from __future__ import annotations

import numpy as np
import pytest

from smoe.benchmarks.learned_places import explained


def test_a_linear_function_is_explained_whole_and_an_unrelated_field_hardly() -> None:
    generator = np.random.default_rng(0)
    embedding = generator.standard_normal((3, 2000))
    known = 5.0 + np.array([1.0, -2.0, 0.5]) @ embedding
    assert explained(embedding, known) == pytest.approx(1.0)
    assert explained(embedding, generator.standard_normal(2000)) == pytest.approx(0.0, abs=0.01)
    # Half of the variance is another cause.
    noisy = known + known.std() * generator.standard_normal(2000)
    assert explained(embedding, noisy) == pytest.approx(0.5, abs=0.05)
