"""The kernel of the gate's gradient, against the same gradient by convolutions with all experts and a softmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smoe.ops._conv_kernels import conv_grid, convolve
from smoe.ops._families import family_gradient, family_sizes, learn_factorised
from smoe.ops._operators import native_library

pytestmark = pytest.mark.skipif(native_library() is None, reason="there are no kernels here")

SCALE, TEMPERATURE = 0.7, 1.5
# B, C, X, E, F, input grid, kernel, stride, padding mode, R.
CASES = {
    "two candidates": (2, 8, 16, 8, 1, (16, 16), (3, 3), 1, "zeros", 8),
    "odd sizes, many filters": (3, 5, 51, 17, 1, (7, 11), (3, 5), 1, "zeros", 3),
    "several bands and blocks of channels": (1, 130, 48, 24, 1, (37, 70), (3, 3), 1, "longitude", 8),
    "uneven families": (2, 3, 11, 4, 1, (6, 5), (3, 3), 1, "circular", 9),
    "some families of one": (1, 3, 5, 3, 1, (4, 4), (3, 3), 1, "zeros", 8),
    "experts of several channels": (2, 4, 6, 2, 3, (9, 8), (3, 3), 1, "zeros", 8),
    "one family": (4, 1, 3, 1, 1, (64, 64), (3, 3), 1, "zeros", 8),
    "one tap": (2, 33, 64, 4, 1, (10, 13), (1, 1), 1, "zeros", 8),
    "stride": (2, 4, 8, 4, 1, (13, 14), (3, 3), 2, "zeros", 8),
    "stride that wraps": (2, 4, 8, 4, 1, (12, 15), (5, 3), 2, "circular", 8),
    "stride beyond the kernel": (1, 2, 4, 2, 1, (11, 10), (1, 3), 4, "zeros", 8),
    "kernel beyond the grid": (1, 2, 4, 2, 1, (2, 3), (5, 7), 1, "circular", 8),
    "volume": (2, 3, 6, 3, 1, (4, 5, 6), (3, 3, 3), 1, "zeros", 8),
    "volume that wraps": (1, 3, 7, 3, 2, (3, 5, 4), (3, 1, 3), 1, "circular", 70),
    "volume with a stride": (1, 2, 4, 2, 1, (5, 6, 7), (3, 3, 3), 2, "zeros", 8),
    "padded faces": (2, 3, 4, 2, 1, (12, 6, 6), (1, 3, 3), 1, "none", 8),
    "one pixel": (1, 1, 2, 1, 1, (1, 1), (1, 1), 1, "zeros", 1),
}


def make_tensors(case: str) -> dict[str, Any]:
    B, C, X, E, F, sizes, kernel, stride, padding_mode, R = CASES[case]
    grid = conv_grid(sizes, kernel, stride, padding_mode)
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "source": (B, C, *sizes),
        "error": (B, E * F, *grid),
        "weight": (X * F, C, *kernel),
        "bias": (X * F,),
        "keys": (X, R),
        "embedding": (R, torch.Size(grid).numel()),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def expected(case: str, tensors: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """In float64."""
    _, _, X, E, F, _, _, stride, padding_mode, _ = CASES[case]
    exact: Any = (each if each is None else each.double() for each in tensors.values())
    source, error, weight, bias, keys, embedding = exact
    outputs = convolve(source, weight, bias, stride=stride, padding_mode=padding_mode).flatten(2)
    slots = torch.arange(E).repeat_interleave(torch.tensor(family_sizes(X, E)))
    errors = error.flatten(2).unflatten(1, (E, F))[:, slots]
    products = (errors * outputs.unflatten(1, (X, F))).sum(dim=(0, 2))
    keys, embedding = keys.requires_grad_(), embedding.requires_grad_()
    scores = SCALE * keys @ embedding
    gradient = family_gradient(scores.detach()[None], products[None], E, TEMPERATURE)[0]
    return torch.autograd.grad(scores, [keys, embedding], gradient)


def learn(case: str, tensors: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, bool]:
    _, _, _, E, F, _, _, stride, padding_mode, _ = CASES[case]
    options = {"num_selected": E, "expert_channels": F, "stride": stride, "padding_mode": padding_mode}
    found = learn_factorised(**tensors, **options, scale=SCALE, temperature=TEMPERATURE)
    assert found is not None
    return found


@pytest.mark.parametrize("case", [*CASES, "without a bias", "large scores"])
def test_the_gradient_is_that_of_its_definition(case: str) -> None:
    tensors = make_tensors(case if case in CASES else "uneven families")
    rtol, atol = (1e-3, 1e-4) if case == "large scores" else (1e-4, 2e-5)
    if case == "without a bias":
        tensors["bias"] = None
    elif case == "large scores":  # which select for certain
        tensors["keys"] *= 1e4
    case = case if case in CASES else "uneven families"
    *found, is_finite = learn(case, tensors)
    assert is_finite
    for mine, true in zip(found, expected(case, tensors), strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=rtol, atol=atol * float(true.abs().max()))


def test_some_samples_of_a_batch_are_not_copied_and_right() -> None:
    tensors = make_tensors("two candidates")
    spread = {
        name: torch.stack([tensors[name], torch.full_like(tensors[name], torch.nan)], dim=1).flatten(0, 1)[::2]
        for name in ("source", "error")
    }
    for one, other in zip(
        learn("two candidates", tensors | spread)[:2], learn("two candidates", tensors)[:2], strict=True
    ):
        assert torch.equal(one, other)


def test_an_error_that_is_not_finite_is_found_and_gives_zeros() -> None:
    tensors = make_tensors("stride")
    tensors["error"][1, 2, 3, 3] = torch.inf
    by_keys, by_embedding, is_finite = learn("stride", tensors)
    assert not is_finite
    assert not by_keys.any()
    assert not by_embedding.any()


@pytest.mark.parametrize("case", ["several bands and blocks of channels", "volume"])
def test_results_do_not_depend_on_the_number_of_threads(case: str) -> None:
    tensors, before = make_tensors(case), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = learn(case, tensors)
        torch.set_num_threads(3)
        three = learn(case, tensors)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one[0], three[0])
    assert torch.equal(one[1], three[1])


def test_other_dtypes_and_empty_batches_have_no_kernel() -> None:
    tensors = make_tensors("two candidates")
    options = {"num_selected": 8, "expert_channels": 1, "stride": 1, "padding_mode": "zeros"}
    doubles = {name: tensor.double() for name, tensor in tensors.items()}
    assert learn_factorised(**doubles, **options, scale=1.0, temperature=1.0) is None
    empty = tensors | {name: tensors[name][:0] for name in ("source", "error")}
    assert learn_factorised(**empty, **options, scale=1.0, temperature=1.0) is None
