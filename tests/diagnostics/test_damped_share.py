from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smoe.diagnostics import damped_shares
from smoe.nn import SpatialMoE2d
from smoe.rules import Damping, RoutingClassification


@pytest.mark.parametrize(
    ("unit", "quantile", "tolerance", "expert_channels"),
    [("data", 0.3, 0.0, 2), ("output", 0.7, 0.0, 1), ("output", 0.5, 0.4, 2), ("data", 0.0, 10.0, 1)],
)
def test_the_share_is_that_of_a_training_step(
    unit: str, quantile: float, tolerance: float, expert_channels: int
) -> None:
    damping = Damping(factor=0.0, error_quantile=quantile, tolerance=tolerance, tolerance_unit=unit)
    layer = SpatialMoE2d.from_experts(
        2, 4, 2, 1, expert_channels=expert_channels, spatial_shape=(5, 7), rule="frozen", damping=damping
    )
    x, target = torch.randn(3, 2, 5, 7), torch.randn(3, 2 * expert_channels, 5, 7)
    shares = damped_shares(layer, F.mse_loss, x, target)
    assert layer.weight.grad is None
    # A damping of 0 leaves no gradient of the outputs: what is left of the error is found by an input of ones.
    outputs: list[torch.Tensor] = []
    select = layer._select

    def keep(source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        outputs.append(select(source, indices))
        outputs[-1].retain_grad()
        return outputs[-1]

    layer._select = keep  # type: ignore[method-assign]
    F.mse_loss(layer.train()(x), target).backward()
    gradient = outputs[0].grad
    assert gradient is not None
    is_damped = (gradient.unflatten(1, (2, expert_channels)) == 0.0).all(dim=2)
    assert shares == {"": pytest.approx(float(is_damped.double().mean()))}
    assert (shares[""] > 0.0) == (tolerance < 1.0)


def test_layers_that_damp_nothing_are_left_out() -> None:
    net = nn.Sequential(
        SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(4, 4)),
        SpatialMoE2d.from_experts(1, 3, 1, spatial_shape=(4, 4), rule=RoutingClassification.released()),
    )
    x = torch.randn(2, 1, 4, 4)
    shares = damped_shares(net, F.mse_loss, x, torch.randn(2, 1, 4, 4))
    assert list(shares) == ["1"] and 0.5 < shares["1"] <= 0.75
    assert damped_shares(net[0], F.mse_loss, x, x) == {}
