"""What routing classification sees of a CRPS loss, whose errors are not differences to the truth."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from smoe import SpatialMoE2d, convert
from smoe.ops._classification import choice_errors
from smoe.regression._nets import UNet
from smoe.rules import RoutingClassification
from smoe_paper.losses import GaussianCRPSLoss, corrected_crps


def random_target(num_samples: int = 2, rows: int = 5, columns: int = 8) -> torch.Tensor:
    """Truth, mean and spread of an ensemble of temperatures."""
    generator = torch.Generator().manual_seed(0)
    truth, mean, spread = torch.randn(3, num_samples, rows, columns, generator=generator, dtype=torch.float64)
    return torch.stack([270 + truth, 270 + 0.5 * mean, spread.exp()], dim=1)


def test_at_the_output_errors_are_bounded_by_the_spread() -> None:
    target = random_target()
    output = (0.3 * torch.randn(2, 2, 5, 8, dtype=torch.float64)).requires_grad_()
    GaussianCRPSLoss()(output, target).backward()
    assert output.grad is not None
    errors = choice_errors(output.grad, 1)
    truth, mean, spread = target.unbind(dim=1)
    std = output[:, 1].exp() * spread
    z = (truth - mean - output[:, 0] * spread) / std
    normal = torch.distributions.Normal(0.0, 1.0)
    expected = torch.stack(
        [
            spread * (2 * normal.cdf(z) - 1).abs(),
            std * (2 * normal.log_prob(z).exp() - 1 / math.sqrt(math.pi)).abs(),
        ],
        dim=1,
    )
    torch.testing.assert_close(errors, expected)
    assert (errors[:, 0] <= spread * (1 + 1e-9)).all()


def test_a_far_miss_is_no_worse_than_a_near_one() -> None:
    # Misses of 3, 30 and 0.1 standard deviations of a spread of 2, and of 3 of a spread of 4.
    truth, spread = torch.tensor([6.0, 60.0, 0.2, 12.0]), torch.tensor([2.0, 2.0, 2.0, 4.0])
    target = torch.stack([truth, torch.zeros(4), spread])[None, :, None]
    output = torch.zeros(1, 2, 1, 4, requires_grad=True)
    GaussianCRPSLoss()(output, target).backward()
    assert output.grad is not None
    # 2 Phi(3) - 1 = 0.9973 and 2 Phi(0.1) - 1 = 0.0797
    expected = [2 * 0.9973, 2.0, 2 * 0.0797, 4 * 0.9973]
    assert choice_errors(output.grad, 1)[0, 0, 0].tolist() == pytest.approx(expected, abs=2e-4)


def test_in_a_hidden_layer_errors_are_sensitivities_of_the_summed_crps() -> None:
    target = random_target(rows=4)
    mixing = torch.randn(2, 3, 1, 1, dtype=torch.float64)
    hidden = torch.randn(2, 3, 2, 4, dtype=torch.float64)

    def finish(activations: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.interpolate(activations, scale_factor=2.0), mixing)

    given = hidden.clone().requires_grad_()
    GaussianCRPSLoss()(finish(given), target).backward()
    assert given.grad is not None
    step = 1e-6
    for place in ((0, 0, 0, 0), (1, 2, 1, 3)):
        moved = hidden.clone()
        moved[place] += step
        change = (corrected_crps(finish(moved), target) - corrected_crps(finish(hidden), target)).sum() / step
        # 3 x 2 x 4 outputs for 4 x 8 pixels, halved.
        factor = 3 * 2 * 4 / (2 * 4 * 8)
        assert choice_errors(given.grad, 1)[place].item() == pytest.approx(factor * abs(change.item()), rel=1e-4)


def gate_gradients(unit: float, rule: RoutingClassification) -> list[torch.Tensor]:
    """Gradients of all gates of a small SMoE U-Net whose data are given in another unit."""
    torch.manual_seed(0)
    net = UNet(3, filters=4)
    example = torch.randn(2, 3, 5, 8)
    converted = convert(net, example_input=example, num_experts=4.0, rule=rule)
    GaussianCRPSLoss()(converted(example), (random_target() * unit).float()).backward()
    gates = {id(layer.gate): layer.gate for layer in converted.modules() if isinstance(layer, SpatialMoE2d)}
    gradients = [parameter.grad for gate in gates.values() for parameter in gate.parameters()]
    return [gradient for gradient in gradients if gradient is not None]


def test_the_quantile_has_no_unit_but_the_tolerances_have() -> None:
    # A power of two, so that nothing is rounded differently.
    unit = 2.0**10
    plain = RoutingClassification(error_quantile=0.7, tolerance=0.0)
    for one, other in zip(gate_gradients(1.0, plain), gate_gradients(unit, plain), strict=True):
        assert one.abs().max() > 0.0
        assert torch.equal(one, other)
    for tolerance_unit in ("data", "output"):
        rule = RoutingClassification(error_quantile=0.7, tolerance=0.5, tolerance_unit=tolerance_unit)
        pairs = zip(gate_gradients(1.0, rule), gate_gradients(unit, rule), strict=True)
        assert any(not torch.equal(one, other) for one, other in pairs), tolerance_unit
