"""The kernels of training against the Python definitions."""

from __future__ import annotations

import pytest
import torch

from smoe.ops._classification import _call_kernel, choice_errors, damp_error, routing_gradient, wrong_choices
from smoe.ops._operators import native_library

LIBRARY = native_library()
if LIBRARY is None:
    pytest.skip("the kernels are not built here; python -m smoe.ops.backends says why", allow_module_level=True)


@pytest.mark.parametrize("size", [256, 4096, 70000])
def test_quantile_where_the_sample_misleads(size: int) -> None:
    # The kernel looks at up to 256 places first, spread by the golden ratio, and guesses from their values.
    places = torch.arange(256) * 2654435769 % 2**32 * size // 2**32
    errors = torch.rand(3, size)
    errors[0, places] += 2.0
    errors[1, places] -= 2.0
    errors[2, places] = 0.5
    for quantile in (0.0, 0.3, 0.5, 1.0):
        actual = torch.ops.smoe.error_quantile(errors, quantile)
        torch.testing.assert_close(actual, errors.double().quantile(quantile, dim=1).float())


def train(
    error: torch.Tensor,
    scores: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    *,
    loss_scale: float = 1.0,
    rc_weight: float = 1.0,
    error_quantile: float = 0.4,
    damping: float | None = 0.0,
    tolerance: float = 0.0,
    damping_tolerance: float = 0.0,
) -> tuple[torch.Tensor | None, torch.Tensor | None, bool]:
    assert LIBRARY is not None
    scale = torch.tensor(loss_scale, dtype=torch.float64)
    return _call_kernel(
        *(LIBRARY, error, scores, indices, None, scale, expert_channels, True),
        *(rc_weight, error_quantile, damping, tolerance, damping_tolerance),
    )


@pytest.mark.parametrize(("B", "X", "E", "F"), [(1, 5, 2, 1), (1, 4, 3, 2), (3, 300, 2, 1)])
def test_results_do_not_depend_on_threads(B: int, X: int, E: int, F: int) -> None:
    # Large enough for two threads, which share the one sample; odd, so that chunks and registers are not filled.
    P = 131 * 151
    error, scores = torch.randn(B, E * F, P), torch.randn(1, X, P)
    indices = scores.topk(E, dim=1).indices.int()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        options = {"error_quantile": 0.3, "damping": 0.5, "tolerance": 1e-3, "damping_tolerance": 1.0}
        results.append(train(error, scores, indices, F, **options))
    torch.set_num_threads(1)
    first, first_gradient, _ = results[0]
    assert first is not None and first_gradient is not None
    for damped, gradient, _ in results[1:]:
        assert torch.equal(damped, first)
        assert torch.equal(gradient, first_gradient)
    is_wrong, is_damped = wrong_choices(choice_errors(error, F), 0.3, (1e-3, 1.0))
    torch.testing.assert_close(first_gradient, routing_gradient(scores, indices, is_wrong), rtol=2e-6, atol=1e-11)
    assert torch.equal(first, damp_error(error, is_damped, 0.5, F))


@pytest.mark.parametrize("num_samples", [1, 5], ids=["shared scores", "scores of each sample"])
@pytest.mark.parametrize(
    ("X", "E", "F", "damping", "threads"),
    [(3, 1, 1, None, 1), (6, 2, 1, 0.0, 2), (5, 4, 1, 0.1, 1), (7, 3, 2, 0.1, 2), (4, 1, 3, 0.0, 1)],
)
def test_equals_the_definitions(X: int, E: int, F: int, num_samples: int, damping: float | None, threads: int) -> None:
    B, P = 5, 63
    error = torch.randn(B, E * F, P) * 1e-3
    scores = torch.randn(num_samples, X, P) * 3
    indices = scores.topk(E, dim=1).indices.int()
    torch.set_num_threads(threads)
    options = {"rc_weight": 0.7, "tolerance": 1e-3, "damping_tolerance": 5e-3, "loss_scale": 16.0}
    damped, gradient, is_nonfinite = train(error, scores, indices, F, damping=damping, **options)
    torch.set_num_threads(1)

    errors = choice_errors(error, F, torch.tensor(16.0, dtype=torch.float64))
    is_wrong, is_damped = wrong_choices(errors, 0.4, (1e-3, 5e-3))
    assert 0 < int(is_damped.sum()) < int(is_wrong.sum()) < is_wrong.numel()
    expected = routing_gradient(scores, indices, is_wrong) * 0.7 * 16.0
    assert gradient is not None and not is_nonfinite
    torch.testing.assert_close(gradient, expected, rtol=2e-6, atol=1e-9)
    if damping is None:
        assert damped is None
    else:
        assert damped is not None
        assert torch.equal(damped, damp_error(error, is_damped, damping, F))
