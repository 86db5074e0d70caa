from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from definitions import loop_top_experts
from smoe.ops import top_experts


@pytest.mark.parametrize("order", ["score", "index"])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("num_experts", [1, 2, 5, 20])
def test_every_number_of_selected_experts(num_experts, ties, order):
    # 17 and more selected experts are found by another method than fewer.
    torch.manual_seed(num_experts)
    scores = torch.randint(0, 3, (num_experts, 3, 4)).float() if ties else torch.randn(num_experts, 3, 4)
    for num_selected in range(1, num_experts + 1):
        routing = top_experts(scores, num_selected, order)
        expected = loop_top_experts(scores, num_selected, order)
        assert torch.equal(routing.indices, expected)
        assert torch.equal(routing.weights, scores.gather(0, expected))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    num_experts=st.integers(1, 40),
    grid=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    is_transposed=st.booleans(),
    data=st.data(),
)
def test_lower_index_wins_ties_in_any_layout(num_experts, grid, is_transposed, data):
    num_selected = data.draw(st.integers(1, num_experts))
    torch.manual_seed(num_experts)
    scores = torch.randint(-1, 2, (num_experts, *grid)).float()
    if is_transposed:
        scores = scores.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert torch.equal(top_experts(scores, num_selected).indices, loop_top_experts(scores, num_selected))


@pytest.mark.parametrize("num_selected", [1, 2, 17])
def test_equal_scores_give_the_first_experts(num_selected):
    # Large enough for vectorised and threaded reductions.
    indices = top_experts(torch.zeros(20, 64, 64), num_selected).indices
    assert torch.equal(indices, torch.arange(num_selected)[:, None, None].expand(num_selected, 64, 64))


@pytest.mark.parametrize("num_selected", [1, 3, 18])
def test_each_sample_has_its_own_choice(num_selected):
    scores = torch.randn(2, 18, 3, 2)
    routing = top_experts(scores, num_selected)
    for sample in range(2):
        assert torch.equal(routing.indices[sample], loop_top_experts(scores[sample], num_selected))


def test_weights_carry_the_gradient_to_the_selected_scores():
    scores = torch.tensor([1.0, 3.0, 2.0]).reshape(3, 1, 1).requires_grad_()
    top_experts(scores, 2).weights.sum().backward()
    assert scores.grad is not None
    assert scores.grad.flatten().tolist() == [0.0, 1.0, 1.0]


def test_scores_are_left_alone():
    scores = torch.randn(5, 3, 3)
    before = scores.clone()
    top_experts(scores, 3)
    assert torch.equal(scores, before)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_scores_that_cannot_be_ranked_are_refused(value):
    scores = torch.zeros(3, 2, 2)
    scores[1, 0, 1] = value
    scores.requires_grad_()
    with pytest.raises(ValueError, match=rf"1 of 12 gate scores are not finite, the first, {value}, at \(1, 0, 1\)"):
        top_experts(scores, 1)


@pytest.mark.parametrize("num_selected", [0, -1, 4])
def test_num_selected_out_of_range(num_selected):
    with pytest.raises(ValueError, match=rf"num_selected must be in \[1, 3\], got {num_selected}"):
        top_experts(torch.zeros(3, 2, 2), num_selected)


def test_wrong_shape_and_order():
    with pytest.raises(ValueError, match=r"got shape \(2, 2\)"):
        top_experts(torch.zeros(2, 2), 1)
    with pytest.raises(ValueError, match="order must be one of score, index, got 'best'"):
        top_experts(torch.zeros(3, 2, 2), 1, "best")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("num_experts", "num_selected"), [(31, 8), (32, 8), (33, 32), (64, 1), (100, 37), (512, 128)])
@pytest.mark.parametrize("kind", ["random", "ties", "some ties", "zeros of both signs", "wide", "close"])
def test_banks_large_enough_to_draw_the_best_together(num_experts, num_selected, kind):
    generator = torch.Generator().manual_seed(num_experts)
    # 5 x 11 pixels do not fill the last block of any width.
    scores = torch.randn(num_experts, 5, 11, generator=generator)
    if kind == "ties":
        scores = (2 * scores).round()
    elif kind == "some ties":
        # In some pixels only, so that blocks of pixels hold both.
        scores[:, :, ::3] = (2 * scores[:, :, ::3]).round()
    elif kind == "zeros of both signs":
        scores = torch.where(scores > 0.5, scores, 0.0 * scores)
    elif kind == "wide":
        scores = scores.sign() * torch.exp(40 * scores.abs()).clamp(max=3e38)
    elif kind == "close":
        scores = 1.0 + 2.0**-23 * torch.randint(0, 2 * num_experts, scores.shape, generator=generator)
    expected = scores.sort(dim=0, descending=True, stable=True).indices[:num_selected]
    assert torch.equal(top_experts(scores, num_selected).indices, expected)
