"""A rule of a user's own in one file: its numbers, its learner, and a layer that it trains.

The experts take turns: each serves all pixels for one backward pass. The learner remembers the squared error of each
expert at each pixel, and the scores receive a gradient that makes the expert with the smallest error the best.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

import smoe
from smoe.nn import Learner, RoutedLayer, Step
from smoe.rules import Rule

GRID = (4, 6)


class TakeTurnsLearner(Learner):
    """Lets the experts of a pixel take turns, and remembers the error of each."""

    rule: TakeTurns
    errors: torch.Tensor

    def __init__(self, rule: TakeTurns, layer: RoutedLayer) -> None:
        super().__init__(rule, layer, "num_passes")
        if layer.gate.num_selected != 1:
            raise ValueError("taking turns needs a gate that selects one expert")
        self.register_buffer("errors", torch.zeros(1, layer.gate.num_experts, GRID[0] * GRID[1]))

    def output(self, step: Step) -> torch.Tensor:
        """The output of the expert whose turn it is."""
        turn = self.counters["num_passes"] % step.layer.gate.num_experts
        experts = torch.full_like(step.routing.indices, turn)
        return _Turn.apply(step.select(experts), step.routing.scores, self, turn)  # type: ignore[return-value]


@dataclass(frozen=True)
class TakeTurns(Rule):
    """Every expert serves every pixel in turn; the errors leave a share `memory` of the past."""

    memory: float = 0.9

    name: ClassVar[str] = "take_turns"
    learner: ClassVar[type[Learner]] = TakeTurnsLearner


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, selected, scores, learner, turn):
        ctx.learner, ctx.turn = learner, turn
        ctx.save_for_backward(scores)
        return selected.detach()

    @staticmethod
    def backward(ctx, *grad_outputs):
        (error,), (scores,), learner = grad_outputs, ctx.saved_tensors, ctx.learner
        seen = learner.errors[:, ctx.turn]
        seen.mul_(learner.rule.memory).add_(error.square().sum(dim=(0, 1)).flatten())
        learner.counters["num_passes"] += 1
        return error, scores + learner.errors / (learner.errors.mean() + 1e-30), None, None


def make_layer(num_steps: int) -> smoe.SpatialMoE2d:
    """A layer trained on data whose left half is doubled and whose right half is negated."""
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d.from_experts(1, 2, 1, spatial_shape=GRID, order="score", rule=TakeTurns())
    optimizer = torch.optim.SGD([layer.gate.get_parameter("scores")], lr=0.1)
    with torch.no_grad():
        layer.weight.zero_()[:, 0, 1, 1] = torch.tensor([2.0, -1.0])
    for _ in range(num_steps):
        x = torch.randn(4, 1, *GRID)
        optimizer.zero_grad()
        F.mse_loss(layer(x), torch.tensor([2.0] * 3 + [-1.0] * 3) * x).backward()
        optimizer.step()
    return layer


def test_it_trains_a_layer() -> None:
    layer = make_layer(40)
    routing = layer.routing().indices[0]
    assert (routing[:, :3] == 0).all() and (routing[:, 3:] == 1).all()
    assert layer._learner.counters["num_passes"] == 40


def test_it_is_a_rule_like_the_others() -> None:
    layer = make_layer(3)
    assert "rule='take_turns'" in repr(layer)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin.rule == TakeTurns() and twin._learner.counters == {"num_passes": 3}
    resumed = make_layer(0)
    resumed.load_state_dict(layer.state_dict())
    assert resumed._learner.counters == {"num_passes": 3}
    for rule in ("rc", "end_to_end", "frozen"):
        layer.rule = rule
        other = copy.deepcopy(layer)
        layer.rule = TakeTurns(0.5)
        assert layer._learner.counters == {"num_passes": 0}
        other.load_state_dict(layer.state_dict())
        layer.load_state_dict(other.state_dict())
        layer(torch.randn(4, 1, *GRID)).sum().backward()
        assert layer._learner.counters == {"num_passes": 1}


def test_what_it_cannot_train_is_refused_and_the_old_rule_goes_on() -> None:
    layer = smoe.SpatialMoE2d.from_experts(1, 4, 2, spatial_shape=GRID, order="score", rule="rc")
    learner = layer._learner
    with pytest.raises(ValueError, match="selects one expert"):
        layer.rule = TakeTurns()
    assert layer._learner is learner


def test_a_rule_without_a_learner_is_refused() -> None:
    @dataclass(frozen=True)
    class Nothing(Rule):
        name: ClassVar[str] = "nothing"

    with pytest.raises(ValueError, match="the rule Nothing names no learner: set its class attribute `learner`"):
        smoe.SpatialMoE2d.from_experts(1, 2, 1, spatial_shape=GRID, rule=Nothing())
