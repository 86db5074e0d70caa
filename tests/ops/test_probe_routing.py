"""The arithmetic of probing, against loops and against really exchanging experts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from smoe.ops import routed_conv2d
from smoe.ops._probing import (
    Challenge,
    at_slots,
    disturb,
    draw_challenge,
    draw_disturbance,
    exchange_scores,
    observe,
)
from smoe.ops._routing import top_experts

GRID = (5, 7)
P = GRID[0] * GRID[1]


def draw(num_experts: int, num_selected: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.randn(1, num_experts, P, generator=torch.Generator().manual_seed(seed))
    return scores, top_experts(scores, num_selected)


@pytest.mark.parametrize(("num_experts", "num_selected"), [(3, 1), (6, 2), (5, 4), (8, 4)])
def test_every_pair_meets_and_nobody_meets_himself(num_experts: int, num_selected: int) -> None:
    _, indices = draw(num_experts, num_selected)
    num_others = num_experts - num_selected
    pairs = [set() for _ in range(P)]
    for number in range(num_others * num_selected):
        challenge = draw_challenge(indices, num_experts, number)
        assert not (challenge.experts == indices).any()
        met_now = zip(challenge.experts.flatten().tolist(), challenge.slots.tolist(), strict=True)
        for met, pair in zip(pairs, met_now, strict=True):
            met.add(pair)
        if number == num_others - 1:
            assert all(len({expert for expert, _ in met}) == num_others for met in pairs)
    assert all(len(met) == num_others * num_selected for met in pairs)


def test_neighbours_do_not_try_the_same() -> None:
    _, indices = draw(8, 4)
    challenge = draw_challenge(indices, 8, 0)
    assert len(challenge.slots.unique()) == 4
    assert (challenge.slots[1:] != challenge.slots[:-1]).float().mean() > 0.5


def test_an_exchange_takes_the_place_and_nothing_else() -> None:
    scores, indices = draw(6, 3)
    challenge = draw_challenge(indices, 6, 4)
    is_exchanged = torch.rand(P, generator=torch.Generator().manual_seed(1)) < 0.5
    exchange_scores(scores[0], indices, challenge, is_exchanged)
    expected = indices.clone()
    for pixel in range(P):
        if is_exchanged[pixel]:
            expected[0, challenge.slots[pixel], pixel] = challenge.experts[0, 0, pixel]
    assert torch.equal(top_experts(scores, 3), expected)


@pytest.mark.parametrize(("num_experts", "num_selected", "expert_channels"), [(3, 1, 1), (5, 3, 2)])
def test_the_estimate_is_the_change_of_a_squared_loss(
    num_experts: int, num_selected: int, expert_channels: int
) -> None:
    """g d + h d^2 / 2 with h = 2 / N, against the loss after really exchanging one pixel's expert."""
    generator = torch.Generator().manual_seed(2)
    _, indices = draw(num_experts, num_selected)
    x = torch.randn(3, 2, *GRID, dtype=torch.float64, generator=generator)
    shape = (num_experts * expert_channels, 2, 3, 3)
    weight = torch.randn(shape, dtype=torch.float64, generator=generator)
    target = torch.randn(3, num_selected * expert_channels, *GRID, dtype=torch.float64, generator=generator)

    def output(routing: torch.Tensor) -> torch.Tensor:
        return routed_conv2d(x, weight, routing, expert_channels=expert_channels)

    selected = output(indices).requires_grad_()
    loss = F.mse_loss(selected, target)
    (error,) = torch.autograd.grad(loss, selected)
    challenge = draw_challenge(indices, num_experts, 3)
    incumbents = at_slots(selected.detach().flatten(2), challenge.slots, expert_channels)
    difference = output(challenge.experts).flatten(2) - incumbents
    seen = observe(error.flatten(2), difference, challenge.slots, None)
    estimate = seen.slopes + 0.5 * (2.0 / target.numel()) * seen.sizes
    for pixel in range(P):
        changed = indices.clone()
        changed[0, challenge.slots[pixel], pixel] = challenge.experts[0, 0, pixel]
        truth = F.mse_loss(output(changed), target) - loss
        assert estimate[pixel].item() == pytest.approx(truth.item(), rel=1e-4, abs=1e-7)


def test_squares_and_slopes_are_those_of_the_samples() -> None:
    generator = torch.Generator().manual_seed(3)
    error, difference = torch.randn(4, 6, P, generator=generator), torch.randn(4, 2, P, generator=generator)
    slots = torch.randint(0, 3, (P,), generator=generator)
    seen = observe(error, difference, slots, None)
    slopes = torch.zeros(4, P)
    for sample in range(4):
        for pixel in range(P):
            first = 2 * int(slots[pixel])
            slopes[sample, pixel] = error[sample, first : first + 2, pixel] @ difference[sample, :, pixel]
    torch.testing.assert_close(seen.slopes, slopes.sum(0))
    torch.testing.assert_close(seen.squares, slopes.square().sum(0))
    torch.testing.assert_close(seen.sizes, difference.square().sum((0, 1)))
    scaled = observe(8.0 * error, difference, slots, None, torch.tensor(8.0))
    torch.testing.assert_close(scaled.slopes, seen.slopes)


@pytest.mark.parametrize("expert_channels", [1, 2])
def test_the_curvature_of_a_squared_loss_is_measured_whatever_its_factor(expert_channels: int) -> None:
    generator = torch.Generator().manual_seed(4)
    rise = size = num_outputs = 0.0
    num_slots, num_pixels = 3, 256
    slots = torch.randint(0, num_slots, (num_pixels,), generator=generator)
    for number in range(40):
        selected = torch.randn(8, num_slots * expert_channels, num_pixels, generator=generator)
        difference = torch.randn(8, expert_channels, num_pixels, generator=generator)
        target = selected + 0.3 * torch.randn(selected.shape, generator=generator)
        disturbance = draw_disturbance(8, num_pixels, number, selected.device)
        before = selected.clone()
        disturb(selected, difference, slots, disturbance)
        changed = (selected != before).any(0).any(0).nonzero().flatten()
        assert torch.equal(changed, disturbance.pixels)
        num_outputs = selected.numel()
        error = 7.0 * 2.0 * (selected - target) / num_outputs
        seen = observe(error, difference, slots, disturbance)
        assert (seen.slopes[disturbance.pixels] == 0.0).all()
        rise, size = rise + seen.curvature[0], size + seen.curvature[1]
    assert rise / size * num_outputs == pytest.approx(7.0 * 2.0, rel=0.1)


def test_a_disturbance_has_no_direction_and_reaches_every_pixel() -> None:
    reached = torch.zeros(100, dtype=torch.bool)
    for number in range(64):
        pixels, signs = draw_disturbance(4, 100, number, torch.device("cpu"))
        assert (signs.sum(0) == 0.0).all()
        reached[pixels] = True
    assert reached.all()
    assert len(draw_disturbance(1, 9, 5, torch.device("cpu")).pixels) == 1


def test_at_slots_of_one_slot_is_the_tensor_itself() -> None:
    values = torch.randn(2, 3, P)
    assert at_slots(values, torch.zeros(P, dtype=torch.int64), 3) is values
    assert isinstance(draw_challenge(draw(3, 1)[1], 3, 0), Challenge)
