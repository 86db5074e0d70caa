from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from definitions import loop_top_experts
from smoe.ops import Routing, gather_experts, top_experts
from smoe.ops._gather import scatter_experts
from smoe.ops._routing import family_members


def make(expert_channels: int, per_sample: bool, grid: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    outputs = torch.randn(2, 3 * expert_channels, *grid, dtype=torch.float64)
    indices = torch.rand(2 if per_sample else 1, 3, outputs[0, 0].numel()).argsort(dim=1)[:, :2].int()
    return outputs, indices


@pytest.mark.parametrize(
    ("expert_channels", "per_sample", "grid"), [(1, True, (5,)), (2, False, (2, 4)), (2, True, (2, 3, 2))]
)
def test_equals_loops(expert_channels, per_sample, grid):
    outputs, indices = make(expert_channels, per_sample, grid)
    outputs.requires_grad_()
    actual = gather_experts(outputs, indices, expert_channels)
    error = torch.randn_like(actual)
    (gradient,) = torch.autograd.grad(actual, outputs, error)
    expected, expected_gradient = torch.empty_like(actual), torch.zeros_like(outputs)
    for b in range(2):
        for s in range(2):
            for f in range(expert_channels):
                for p, pixel in enumerate(
                    torch.cartesian_prod(*map(torch.arange, grid)).reshape(-1, len(grid)).tolist()
                ):
                    expert = int(indices[b if per_sample else 0, s, p])
                    slot, channel = s * expert_channels + f, expert * expert_channels + f
                    expected[b, slot][tuple(pixel)] = outputs.detach()[b, channel][tuple(pixel)]
                    expected_gradient[b, channel][tuple(pixel)] = error[b, slot][tuple(pixel)]
    assert torch.equal(actual, expected)
    assert torch.equal(gradient, expected_gradient)
    assert torch.equal(scatter_experts(error, indices, 3, expert_channels), expected_gradient)


@pytest.mark.parametrize("expert_channels", [1, 2])
def test_memory_format_is_kept_in_both_directions(expert_channels):
    outputs, indices = make(expert_channels, False, (3, 4))
    expected = gather_experts(outputs, indices, expert_channels)
    assert expected.is_contiguous()
    last = outputs.to(memory_format=torch.channels_last).requires_grad_()
    actual = gather_experts(last, indices, expert_channels)
    assert torch.equal(actual, expected)
    assert actual.is_contiguous(memory_format=torch.channels_last)
    error = torch.randn_like(expected).to(memory_format=torch.channels_last)
    (gradient,) = torch.autograd.grad(actual, last, error)
    assert gradient.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(gradient, scatter_experts(error.contiguous(), indices, 3, expert_channels))


def test_derivatives_of_any_order_and_vmap():
    outputs, indices = make(2, True, (2, 3))
    outputs.requires_grad_()

    def function(values: torch.Tensor) -> torch.Tensor:
        return gather_experts(values, indices, 2).pow(3)

    assert torch.autograd.gradcheck(function, outputs)
    assert torch.autograd.gradgradcheck(function, outputs)
    jacobian = torch.func.jacrev(function)(outputs.detach())
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(function, outputs.detach()))


def test_wrong_routings_are_refused():
    outputs = torch.zeros(2, 3, 2, 4)
    with pytest.raises(
        ValueError, match=r"P = 8, the pixels of the experts' output grid \(2, 4\), got shape \(1, 1, 16\)"
    ):
        gather_experts(outputs, torch.zeros(1, 1, 16, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"got shape \(1, 2, 4\)"):
        gather_experts(outputs, torch.zeros(1, 2, 4, dtype=torch.int32))
    with pytest.raises(ValueError, match="for 3 samples but the experts' output has 2"):
        gather_experts(outputs, torch.zeros(3, 1, 8, dtype=torch.int32))


@pytest.mark.parametrize("order", ["score", "index"])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("num_experts", [1, 2, 5, 20])
def test_every_number_of_selected_experts(num_experts, ties, order):
    # 17 and more selected experts are found by another method than fewer.
    torch.manual_seed(num_experts)
    scores = torch.randint(0, 3, (1, num_experts, 12)).float() if ties else torch.randn(1, num_experts, 12)
    for num_selected in range(1, num_experts + 1):
        actual = top_experts(scores, num_selected, order)
        assert actual.dtype == torch.int32
        assert torch.equal(actual, loop_top_experts(scores, num_selected, order))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    num_experts=st.integers(1, 40),
    num_pixels=st.integers(1, 81),
    num_samples=st.integers(1, 3),
    is_transposed=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    data=st.data(),
)
def test_lower_index_wins_ties_in_any_layout(num_experts, num_pixels, num_samples, is_transposed, dtype, data):
    num_selected = data.draw(st.integers(1, num_experts))
    torch.manual_seed(num_experts)
    scores = torch.randint(-1, 2, (num_samples, num_experts, num_pixels)).to(dtype)
    if is_transposed:
        scores = scores.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert torch.equal(top_experts(scores, num_selected), loop_top_experts(scores, num_selected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("num_experts", "num_families"), [(6, 6), (6, 1), (8, 3), (11, 4), (40, 7)])
def test_families_take_the_best_of_their_own_experts(num_experts, num_families, dtype):
    torch.manual_seed(num_experts)
    # Whole numbers, so that there are ties. 37 pixels do not fill the last block of any width.
    scores = torch.randint(-2, 3, (2, num_experts, 37)).to(dtype)
    actual = top_experts(scores, num_families, "families")
    assert actual.dtype == torch.int32
    size, larger = divmod(num_experts, num_families)
    start = 0
    for family in range(num_families):
        end = start + size + (family < larger)
        assert family_members(num_experts, num_families)[family].unique().tolist() == list(range(start, end))
        expected = loop_top_experts(scores[:, start:end], 1)[:, 0] + start
        assert torch.equal(actual[:, family], expected)
        start = end
    assert start == num_experts


def test_routing_weights_carry_the_gradient_to_the_selected_scores():
    scores = torch.tensor([1.0, 3.0, 2.0]).reshape(1, 3, 1).requires_grad_()
    Routing(top_experts(scores, 2), scores).weights.sum().backward()
    assert scores.grad is not None
    assert scores.grad.flatten().tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("order", ["score", "families"])
@pytest.mark.parametrize(("num_selected", "value"), [(1, torch.nan), (2, torch.inf), (2, -torch.inf)])
def test_scores_that_cannot_be_ranked_are_refused(num_selected, value, order, dtype):
    scores = torch.zeros(2, 3, 20, dtype=dtype)
    scores[1, 1, 19] = value
    scores.requires_grad_()
    message = f"1 of 120 gate scores are not finite, the first, {value}, for expert 1 at pixel 19 of sample 1"
    with pytest.raises(ValueError, match=message):
        top_experts(scores, num_selected, order)


def test_wrong_shape_and_order():
    for number in (0, 4):
        with pytest.raises(ValueError, match=rf"num_selected must be in \[1, 3\], got {number}"):
            top_experts(torch.zeros(1, 3, 4), number)
    with pytest.raises(ValueError, match=r"got shape \(1, 3, 2, 2\)"):
        top_experts(torch.zeros(1, 3, 2, 2), 1)
    with pytest.raises(ValueError, match="order must be one of score, index, families, got 'best'"):
        top_experts(torch.zeros(1, 3, 4), 1, "best")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("order", ["score", "families"])
def test_nothing_to_rank(order):
    with pytest.raises(ValueError, match=r"num_selected must be in \[1, 0\], got 1"):
        top_experts(torch.zeros(1, 0, 4), 1, order)
    assert top_experts(torch.zeros(1, 3, 0), 2, order).shape == (1, 2, 0)
    assert top_experts(torch.zeros(0, 3, 4), 2, order).shape == (0, 2, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["top_experts", "family_experts"])
def test_operators_are_well_defined_for_compilers(name, dtype):
    operator = getattr(torch.ops.smoe, name).default
    for scores in (torch.randn(1, 5, 7, dtype=dtype), torch.randn(7, 5, 2, dtype=dtype).permute(2, 1, 0)):
        for num_selected in (1, 3, 5):
            noise = (torch.tensor(7), 0.5) if name == "family_experts" else ()
            torch.library.opcheck(operator, (scores, num_selected, *noise))
