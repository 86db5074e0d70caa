from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from definitions import loop_top_experts
from smoe.ops import Routing, top_experts
from smoe.ops._routing import family_members


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
            torch.library.opcheck(operator, (scores, num_selected))
