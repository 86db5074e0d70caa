from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smoe
from smoe.diagnostics import RoutingGain, routing_gains
from smoe.nn import FixedGate, SpatialMoE2d, TensorGate
from smoe.nn._filter_bank import FilterBank
from smoe_paper.baselines.layers import ConvGate
from smoe_paper.baselines.routing_losses import ScoreGate


def test_the_convolution_is_that_of_least_squares_on_the_other_half_of_the_samples() -> None:
    torch.manual_seed(0)
    layer = SpatialMoE2d.from_experts(2, 3, 1, spatial_shape=(8, 9), bias=False)
    # Far from the targets, so that an imitation of the layer is worse than the fit.
    torch.nn.init.normal_(layer.weight)
    x = torch.randn(6, 2, 8, 9) + 3.0
    target = torch.randn(6, 1, 8, 9)
    patches = F.unfold(x, 3, padding=1)
    patches = torch.cat([patches, torch.ones_like(patches[:, :1])], dim=1).movedim(1, 2).double()
    losses = torch.zeros(6, dtype=torch.float64)
    for fitted, held in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        truth = target.flatten(2).movedim(1, 2).double()
        best = torch.linalg.lstsq(patches[fitted].flatten(0, 1), truth[fitted].flatten(0, 1)).solution
        losses[held] = (patches[held] @ best - truth[held]).square().mean(dim=(1, 2))
    (found,) = routing_gains(layer, F.mse_loss, x, target)
    # The imitation of the layer may be better on the other half than what is best on this one.
    assert found.loss_of_convolution <= float(losses.mean()) * (1 + 1e-5)
    assert found.loss_of_convolution == pytest.approx(float(losses.mean()), rel=0.05)
    with torch.no_grad():
        own = (layer.eval()(x) - target).square().mean(dim=(1, 2, 3)).double()
    assert found.loss == pytest.approx(float(own.mean()))
    assert found.num_samples == 6 and found.standard_error > 0.0


class OnGraph(nn.Module):
    """A layer on a ring of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = smoe.GraphMoE.from_experts(2, 4, 2, num_nodes=12)
        self.edges = torch.stack([torch.arange(12), torch.arange(12).roll(1)])

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, self.edges)


GEOMETRIES = {
    "stride": (lambda: SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=(4, 5), stride=2), (2, 8, 9)),
    "circular": (
        lambda: SpatialMoE2d.from_experts(2, 4, 2, 5, spatial_shape=(8, 9), padding_mode="circular"),
        (2, 8, 9),
    ),
    "weighted": (lambda: SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=(8, 9), weighted=True, rule="rc"), (2, 8, 9)),
    "expert_channels": (lambda: SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=(8, 9), expert_channels=3), (2, 8, 9)),
    "local_affine": (lambda: SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=(8, 9), local_affine=True), (2, 8, 9)),
    "line": (lambda: smoe.SpatialMoE1d.from_experts(2, 4, 2, spatial_shape=20), (2, 20)),
    "volume": (lambda: smoe.SpatialMoE3d.from_experts(2, 4, 2, spatial_shape=(3, 4, 5)), (2, 3, 4, 5)),
    "sphere": (lambda: smoe.HEALPixMoE.from_experts(2, 4, 2, nside=2), (2, 48)),
    "graph": (OnGraph, (12, 2)),
    "any module": (
        lambda: smoe.SpatialMoE(nn.Conv2d(2, 4, 3, padding=1), 4, 2, spatial_shape=(8, 9), order="score", rule="rc"),
        (2, 8, 9),
    ),
}


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_what_a_convolution_can_do_is_found_on_every_geometry(geometry: str) -> None:
    torch.manual_seed(0)
    make, shape = GEOMETRIES[geometry]
    model = make()
    x = torch.randn(8, *shape) + 1.0
    layer = next(module for module in model.modules() if isinstance(module, (FilterBank, smoe.SpatialMoE)))
    with torch.no_grad():
        if isinstance(layer, FilterBank):
            if layer._affine is not None:
                layer._affine.scale.uniform_(0.5, 2.0)
                layer._affine.offset.normal_()
            # What the layer computes with equal experts is a convolution.
            truth = copy.deepcopy(model).eval()
            like = next(module for module in truth.modules() if isinstance(module, FilterBank))
            like._weighted = False
            filters = like.weight.unflatten(0, (4, -1))
            filters.copy_(torch.randn_like(filters[:1]).expand_as(filters))
            layer.weight.normal_()
            target = truth(x)
        else:
            experts = layer.experts(x)
            target = torch.stack([experts.sum(dim=1), experts[:, 1] - experts[:, 2] + 2.0], dim=1)
    (found,) = routing_gains(model, F.mse_loss, x, target)
    assert found.loss > 0.05
    assert found.loss_of_convolution < 1e-3 * found.loss
    assert not found.helps and str(found).endswith("no better than a convolution, so the routing does not help")


def halves(x: Tensor) -> Tensor:
    """The left half smoothed, the right half sharpened."""
    smooth = F.avg_pool2d(x, 3, stride=1, padding=1)
    return torch.where(torch.arange(x.shape[3]) < x.shape[3] // 2, smooth, 2 * x - smooth)


def train(net: nn.Module, x: Tensor, target: Tensor, num_steps: int = 150) -> nn.Module:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(num_steps):
        batch = torch.randint(len(x), (16,))
        loss = F.mse_loss(net(x[batch]), target[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def test_the_routing_helps_where_the_halves_were_found() -> None:
    torch.manual_seed(0)
    x = torch.randn(128, 1, 16, 16)
    layer = SpatialMoE2d.from_experts(1, 2, 1, spatial_shape=(16, 16))
    train(layer, x, halves(x), 300)
    experts = layer.routing().indices[0].float()
    assert (experts[:, :8].mean() - experts[:, 8:].mean()).abs() > 0.9
    (found,) = routing_gains(layer, F.mse_loss, x[:32], halves(x[:32]))
    assert found.helps and found.gain > 0.9
    assert "with the best single convolution in its place the loss is 0." in str(found)
    assert "the routing helps: it removes" in str(found)
    (untrained,) = routing_gains(
        SpatialMoE2d.from_experts(1, 2, 1, spatial_shape=(16, 16)), F.mse_loss, x[:32], halves(x[:32])
    )
    assert not untrained.helps


def test_each_layer_of_a_network_is_compared_on_its_own() -> None:
    """Two layers with oracle gates: the second does alike everywhere."""
    torch.manual_seed(0)
    sides = (torch.arange(8) >= 4).long().expand(8, 8)
    one, two = (SpatialMoE2d.from_experts(1, 2, 1, gate=FixedGate.from_region_map(sides), bias=False) for _ in range(2))
    net = nn.Sequential(one, two)
    with torch.no_grad():
        one.weight.normal_()
        two.weight.copy_(torch.randn(1, 1, 3, 3).expand(2, 1, 3, 3))
        x = torch.randn(16, 1, 8, 8)
        target = net.eval()(x) + 0.1 * torch.randn(16, 1, 8, 8)
    first, second, both = routing_gains(net, F.mse_loss, x, target)
    assert first.helps and not second.is_better and both.helps
    assert first.is_alone and second.is_alone and not both.is_alone
    assert "the other layers rely on this routing" in str(first) and str(both).endswith("% of the loss")
    assert "in place of 0 the loss is" in str(first) and "the routing makes no clear difference" in str(second)


def test_the_words_follow_the_numbers() -> None:
    ends = {
        (0.5, 1.0, 0.1, 8): "the loss is 1, with the layer 0.5: the routing helps: it removes 50 % of the loss",
        (0.5, 1.0, 0.3, 8): "the routing makes no clear difference (50 %)",
        # Better in each sample, though one of them has most of the loss.
        (0.5, 1.0, 0.3, 8, False, 8): "the routing helps: it removes 50 % of the loss",
        (0.0, 1.0, 0.6, 8, False, 7): "the routing makes no clear difference (100 %)",
        (0.5, 1.0, 0.1, 3): "3 samples do not tell which is better",
        (0.5, 1.0, math.nan, 1): "1 sample does not tell which is better",
        (0.95, 1.0, 0.01, 8): "a little better (5 %), which a network trained with convolutions may make up for",
        (0.995, 1.0, 0.0, 8): "the routing makes no clear difference (0.5 %)",
        (1.5, 1.0, 0.1, 8): "no better than a convolution, so the routing does not help",
        (-2.0, -1.0, 0.1, 8): "the routing helps",
    }
    for numbers, end in ends.items():
        gain = RoutingGain("layer", *numbers)
        assert str(gain).endswith(end)
        assert str(RoutingGain.from_record(gain.as_record())) == str(gain)


def test_a_batch_whose_samples_are_not_along_the_first_axis_is_one_sample() -> None:
    layer = SpatialMoE2d.from_experts(1, 2, 1, spatial_shape=(4, 4))
    x = torch.randn(5, 1, 4, 4)
    (found,) = routing_gains(layer, lambda prediction, truth: F.mse_loss(prediction[:, 0], truth[0]), x, x[None, :, 0])
    assert found.num_samples == 1 and math.isnan(found.standard_error)
    assert routing_gains(nn.Conv2d(1, 1, 1), F.mse_loss, x, x) == []


@pytest.mark.parametrize("rule", ["rc", "frozen"])
def test_the_model_does_not_change(rule: str) -> None:
    shared = TensorGate(4, 2, (5, 6))
    net = nn.Sequential(
        SpatialMoE2d.from_experts(1, 4, 2, gate=shared, rule=rule),
        nn.BatchNorm2d(2),
        nn.Dropout(0.5).eval(),
        SpatialMoE2d.from_experts(2, 4, 2, gate=shared, rule=rule),
        SpatialMoE2d.from_experts(2, 3, 1, gate=ScoreGate(ConvGate(2, 3, 1), std=1.0), weighted=True),
    ).train()
    x, target = torch.randn(4, 1, 5, 6), torch.randn(4, 1, 5, 6)
    before, random = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    modes = [module.training for module in net.modules()]
    found = routing_gains(net, F.mse_loss, x, target)
    assert [gain.layer for gain in found] == ["0", "3", "4", "all 3 layers"]
    assert [module.training for module in net.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    with torch.no_grad():
        assert float(F.mse_loss(net.eval()(x), target)) == pytest.approx(found[0].loss)
