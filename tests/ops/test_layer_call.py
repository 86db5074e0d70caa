"""A pass of a layer by one call of a kernel in each direction, beside its operators in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smoe.ops._layer_call import Bank, LayerCall
from smoe.ops._operators import native_library

pytestmark = pytest.mark.skipif(native_library() is None, reason="the kernels were not built")

# Batch, channels, experts, selected, grid, kernel, stride, padding: for each group of kernels, and odd sizes.
CASES = {
    "families of two": (2, 7, 34, 17, (5, 19), (3, 3), 1, "zeros"),
    "families of two, a volume": (1, 5, 32, 16, (3, 4, 7), (3, 3, 3), 1, "circular"),
    "lists": (1, 5, 12, 4, (6, 7), (3, 5), 1, "longitude"),
    "uneven families": (3, 4, 11, 4, (9, 6), (3, 3), 2, "zeros"),
    "samples in lanes": (13, 6, 12, 5, (5, 3), (3, 3), 1, "circular"),
    "tiny": (5, 1, 4, 2, (33, 35), (3, 3), 1, "zeros"),
    "a line": (2, 3, 16, 8, (23,), (5,), 1, "zeros"),
}


def make(case: str, *, with_mean: bool, with_bias: bool = True, with_affine: bool = True) -> Any:
    B, C, X, E, grid, kernel, stride, padding = CASES[case]
    torch.manual_seed(0)
    output = tuple((size - 1) // stride + 1 for size in grid)
    indices = (torch.rand(X - 1, *output).argsort(dim=0)[:E]).flatten(1)[None].int()  # nobody selects the last expert
    if X == 2 * E:
        indices = (2 * torch.arange(E)[:, None] + torch.randint(0, 2, indices.shape[1:]))[None].int()
        indices[:, -1] = X - 2
    leaves: list[Any] = [torch.randn(B, C, *grid), torch.randn(X, C, *kernel)]
    leaves += [torch.randn(X) if with_bias else None]
    leaves += [torch.randn(E, *output) if with_affine else None for _ in range(2)]
    mean = (torch.randn(C), torch.randn(X)) if with_mean else (None, None)
    leaves = [each if each is None else each.requires_grad_() for each in leaves]
    # A line is an image of one row.
    source, weight = [each.unsqueeze(2) if each.ndim == 3 else each for each in leaves[:2]]
    call = LayerCall(leaves[0], source, weight, stride, padding, indices.contiguous())
    return call, indices.contiguous(), leaves, mean, torch.randn(B, E, *output)


def run(call: LayerCall, indices, leaves, mean, error, *, twice: bool = False) -> list[torch.Tensor]:
    output = call.output(leaves[0], indices, Bank(*leaves[1:], *mean), None)
    wanted = [each for each in leaves if each is not None]
    if twice:
        torch.autograd.grad(output, wanted, torch.randn_like(error), retain_graph=True)
    return [output.detach(), *torch.autograd.grad(output, wanted, error)]


def change_maps(leaves: list[Any], change: str) -> None:
    """Scales and offsets from which outputs do not tell what was scaled: at some places, or at many."""
    if change == "none":
        return
    scale, offset = (each.data.flatten() for each in leaves[3:])
    if change == "few zeros":
        offset.div_(100.0)
        scale[5::300] = 0.0
        scale[7::400] = 1e-20
    elif change == "zeros":
        scale.zero_()
    elif change == "large offsets":
        offset.add_(1e5)


@pytest.mark.parametrize(
    ("options", "change"),
    [
        *[({}, change) for change in ("none", "few zeros", "zeros", "large offsets")],
        *[(options, "none") for options in ({"with_bias": False}, {"with_affine": False})],
        ({"with_mean": True}, "none"),
        ({"with_mean": True}, "few zeros"),
    ],
    ids=str,
)
@pytest.mark.parametrize("case", CASES)
def test_output_and_gradients_are_those_of_the_operators_in_float64(case, options, change) -> None:
    call, indices, leaves, mean, error = make(case, **{"with_mean": False, **options})
    change_maps(leaves, change)
    found = run(call, indices, leaves, mean, error)
    wide: list[Any] = [each if each is None else each.detach().double().requires_grad_() for each in leaves]
    output = call.composed(
        wide[0], indices, Bank(*wide[1:], *(each if each is None else each.double() for each in mean))
    )
    expected = [output, *torch.autograd.grad(output, [each for each in wide if each is not None], error.double())]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0.0, atol=1e-5 * float(other.detach().abs().max()))


@pytest.mark.parametrize("case", CASES)
def test_nothing_depends_on_threads_nor_on_a_graph_that_is_kept(case) -> None:
    call, indices, leaves, mean, error = make(case, with_mean=True)
    once = run(call, indices, leaves, mean, error)
    for one, other in zip(run(call, indices, leaves, mean, error, twice=True), once, strict=True):
        assert torch.equal(one, other)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        again = make(case, with_mean=True)
        assert not call.serves(leaves[0])
        for one, other in zip(run(*again), once, strict=True):
            assert torch.equal(one, other)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("case", ["families of two", "lists"])
def test_the_next_layer_may_work_in_place_and_hooks_may_move_what_is_saved(case) -> None:
    call, indices, leaves, mean, error = make(case, with_mean=True)

    def gradients(activate: Any) -> list[torch.Tensor]:
        output = call.output(leaves[0], indices, Bank(*leaves[1:], *mean), None)
        return list(torch.autograd.grad(activate(output), leaves, error))

    expected = gradients(torch.relu)
    for keeps_scaled in (False, True):
        assert call.keeps_scaled == keeps_scaled
        for one, other in zip(gradients(torch.relu_), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0.0, atol=1e-5 * float(other.abs().max()))
    call.keeps_scaled = False
    with torch.autograd.graph.save_on_cpu():
        for one, other in zip(gradients(torch.relu), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0.0, atol=1e-5 * float(other.abs().max()))
        for one, other in zip(gradients(torch.relu_), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0.0, atol=1e-5 * float(other.abs().max()))


def test_what_was_scaled_is_not_stored_beside_the_output() -> None:
    call, indices, leaves, mean, error = make("families of two", with_mean=True)
    output = call.output(leaves[0], indices, Bank(*leaves[1:], *mean), None)
    node: Any = output.grad_fn
    sizes = [each.shape for each in node.saved_tensors if each is not None]
    assert output.shape not in sizes
    output.backward(error)
    assert node.output is None  # a loss that is still held holds no outputs


def test_an_error_that_is_not_finite_is_noticed() -> None:
    call, indices, leaves, mean, error = make("lists", with_mean=True)
    seen: list[bool | None] = []

    class Lesson:
        numbers: tuple[torch.Tensor, ...] = ()
        needs_source = False

        def learn(self, error, source, compared, is_finite):
            seen.append(is_finite)
            return ()

    for value in (0.0, float("nan"), float("inf")):
        error[0, 0, 1, 1] = value
        call.output(leaves[0], indices, Bank(*leaves[1:], *mean), Lesson()).backward(error)
    assert seen == [True, False, False]
