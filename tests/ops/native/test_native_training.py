"""The kernels of training against the Python definitions."""

from __future__ import annotations

import ctypes

import pytest
import torch

from definitions import loop_top_experts
from smoe.ops._classification import choice_errors, damp_error, routing_gradient, wrong_choices
from smoe.ops._operators import INSTRUCTION_SETS, NativeLibrary, _library_file, native_library, why_not

if native_library() is None:
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
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    scale, num_nonfinite = torch.tensor(loss_scale, dtype=torch.float64), torch.tensor(0)
    damped, gradient = torch.ops.smoe.train_routing_backward(
        *(error, scores, indices, None, scale, num_nonfinite, expert_channels, True),
        *(rc_weight, error_quantile, damping, tolerance, damping_tolerance),
    )
    return damped, gradient, bool(num_nonfinite)


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
    assert not is_nonfinite
    torch.testing.assert_close(gradient, expected, rtol=2e-6, atol=1e-9)
    assert torch.equal(damped, error if damping is None else damp_error(error, is_damped, damping, F))


UNWRITTEN = -(2**31)


def rank(instruction_set: str, name: str, scores: torch.Tensor, num_selected: int, threads: int, *noise: object):
    """Indices `(E, P)` of scores `(X, P)`, and whether the kernel reports a score that is not finite."""
    reason = why_not(instruction_set)
    if reason is not None:
        pytest.skip(reason)
    library = NativeLibrary(instruction_set, ctypes.CDLL(str(_library_file(instruction_set))))
    indices = torch.full((num_selected, scores.shape[1]), UNWRITTEN, dtype=torch.int32)
    found = ctypes.c_int64(0)
    sizes = [ctypes.c_int64(size) for size in (scores.shape[0], num_selected, scores.shape[1])]
    library.call(name, scores, *sizes, *noise, indices, ctypes.byref(found), ctypes.c_int64(threads))
    return indices, bool(found.value)


def spoil(scores: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "ties":
        # Many zeros among them, of either sign.
        scores = scores.round()
    elif kind == "zeros of both signs":
        scores = torch.where(scores > 0.5, scores, 0.0 * scores)
    elif kind == "wide":
        scores = scores.sign() * torch.exp(40 * scores.abs()).clamp(max=3e38)
    elif kind == "close":
        scores = 1.0 + 2.0**-23 * torch.randint(0, 2 * len(scores), scores.shape)
    elif kind == "one nan":
        scores[-1, -1] = torch.nan
    elif kind == "all nan":
        scores.fill_(torch.nan)
    elif kind == "nan pixels":
        scores[:, ::3] = torch.nan
    elif kind == "nan experts":
        scores[::2] = torch.nan
    elif kind == "infinities":
        scores[1::2, ::2] = -torch.inf
        scores[::4, 1::2] = torch.inf
    elif kind == "everything":
        scores[torch.rand(scores.shape) < 0.3] = torch.nan
        scores[torch.rand(scores.shape) < 0.2] = torch.inf
        scores[torch.rand(scores.shape) < 0.2] = -torch.inf
    return scores


FINITE = ("finite", "ties", "zeros of both signs", "wide", "close")
KINDS = (*FINITE, "one nan", "all nan", "nan pixels", "nan experts", "infinities", "everything")
# The best alone; networks of every size, with groups that are not full; more than networks sort: counted, and sorted.
SIZES = ((2, 1), (3, 2), (9, 9), (11, 3), (40, 8), (41, 16), (64, 1), (70, 33), (33, 32), (64, 64), (100, 99), (600, 5),
         (600, 65))  # fmt: skip


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_every_rank_is_written_and_nan_is_last(instruction_set):
    for number, (num_experts, num_selected) in enumerate(SIZES):
        # Each size meets four kinds, and each kind several sizes.
        for kind in ("everything", *(KINDS[(number + step) % len(KINDS)] for step in (0, 3, 6))):
            torch.manual_seed(num_experts)
            scores = spoil(torch.randn(num_experts, 69), kind)
            as_lowest = torch.where(scores.isnan(), -torch.inf, scores)
            for threads in (1, 2):
                indices, is_nonfinite = rank(instruction_set, "smoe_top_experts", scores, num_selected, threads)
                assert is_nonfinite == (kind not in FINITE), (num_experts, num_selected, kind)
                expected = loop_top_experts(as_lowest[None], num_selected)[0]
                assert torch.equal(indices, expected), (num_experts, num_selected, kind)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_every_family_has_an_expert_of_its_own(instruction_set):
    for num_experts, num_families in ((3, 3), (9, 2), (64, 7), (600, 5)):
        for kind in ("finite", "one nan", "all nan", "nan experts", "everything"):
            torch.manual_seed(num_experts)
            scores = spoil(torch.randn(num_experts, 37), kind)
            as_lowest = torch.where(scores.isnan(), -torch.inf, scores)
            parts = torch.arange(num_experts).tensor_split(num_families)
            for threads in (1, 2):
                noise = (torch.zeros((), dtype=torch.int64), ctypes.c_float(0.0))
                arguments = ("smoe_sample_families", scores, num_families, threads, *noise)
                indices, is_nonfinite = rank(instruction_set, *arguments)
                assert is_nonfinite == (kind != "finite"), (num_experts, num_families, kind)
                for family, part in enumerate(parts):
                    best = loop_top_experts(as_lowest[None, part], 1)[0, 0] + part[0]
                    assert torch.equal(indices[family], best), (num_experts, num_families, kind)
