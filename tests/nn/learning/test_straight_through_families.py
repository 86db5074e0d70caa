"""The straight-through gradient over families, against loops over experts, samples and pixels."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import smoe
from smoe.nn._gates import FactorisedGate
from smoe.nn._straight_through import StraightThroughLearner
from smoe.ops._families import family_sizes
from smoe.rules import StraightThrough
from smoe_paper.baselines.gates import ConvGate

GRID = (5, 6)


def make_layer(num_experts: int, num_selected: int, *, seed: int = 0, **options) -> smoe.SpatialMoE2d:
    """A layer whose experts differ, in float64."""
    torch.manual_seed(seed)
    rule = options.pop("rule", StraightThrough(share=1.0, warm_up=0))
    gate = options.pop("gate", None) or smoe.TensorGate(num_experts, num_selected, GRID, order="families")
    layer = smoe.SpatialMoE2d.from_experts(2, num_experts, num_selected, gate=gate, rule=rule, **options).double()
    nn.init.normal_(layer.weight)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer


def expected_gradient(
    layer: smoe.SpatialMoE2d, input: torch.Tensor, error: torch.Tensor, samples: list[int], *, is_relative: bool = True
) -> torch.Tensor:
    """The gradient of the scores `(X, P)` for an error `(B, E * F, P)`."""
    F_ = layer.expert_channels
    bias = layer.bias if layer.bias_owner == "expert" else None
    outputs = F.conv2d(input, layer.weight, bias, padding=1).flatten(2).detach()
    scores = layer.gate(None).scores[0].detach()
    products = torch.zeros_like(scores)
    spread, gradient, start = 0.0, torch.zeros_like(scores), 0
    sizes = family_sizes(layer.num_experts, layer.num_selected)
    for slot, size in enumerate(sizes):
        for expert in range(start, start + size):
            for sample in samples:
                for channel in range(F_):
                    products[expert] += error[sample, slot * F_ + channel] * outputs[sample, expert * F_ + channel]
        own = products[start : start + size]
        spread += float((own - own.mean(dim=0)).square().sum())
        start += size
    unit = (spread / scores.numel()) ** 0.5 if is_relative else 1.0
    start = 0
    for size in sizes:
        for pixel in range(scores.shape[1]):
            weights = [float(torch.exp(scores[expert, pixel])) for expert in range(start, start + size)]
            own = [float(products[expert, pixel]) / unit for expert in range(start, start + size)]
            probability = [weight / sum(weights) for weight in weights]
            mean = sum(p * d for p, d in zip(probability, own, strict=True))
            for place in range(size):
                gradient[start + place, pixel] = probability[place] * (own[place] - mean)
        start += size
    if not is_relative:
        return gradient
    # The norm that the gradient of the experts would have, if errors were independent of inputs.
    whole = error[samples].norm() * (len(error) / len(samples)) ** 0.5
    unit = whole * input[samples].square().mean().sqrt() * layer.weight[0].numel() ** 0.5
    return gradient * unit / (0.5 * scores.numel() ** 0.5)


@pytest.mark.parametrize(("num_experts", "num_selected"), [(3, 1), (4, 2), (7, 3), (8, 2)])
@pytest.mark.parametrize("expert_channels", [1, 2])
@pytest.mark.parametrize("bias", [False, "expert", "slot"])
def test_the_gradient_of_the_scores(num_experts: int, num_selected: int, expert_channels: int, bias) -> None:
    layer = make_layer(num_experts, num_selected, expert_channels=expert_channels, bias=bias)
    input = torch.randn(3, 2, *GRID).double()
    error = torch.randn(3, layer.out_channels, 30).double()
    layer(input).flatten(2).backward(error)
    found = layer.gate.get_parameter("scores").grad
    assert found is not None
    torch.testing.assert_close(found.flatten(1), expected_gradient(layer, input, error, [0, 1, 2]))


def test_a_share_of_the_samples_at_equal_distances() -> None:
    layer = make_layer(6, 3, rule=StraightThrough(share=0.5))
    input, error = torch.randn(5, 2, *GRID).double(), torch.randn(5, 3, 30).double()
    layer(input).flatten(2).backward(error)
    found = layer.gate.get_parameter("scores").grad
    assert found is not None
    torch.testing.assert_close(found.flatten(1), expected_gradient(layer, input, error, [0, 2]))


def test_the_experts_learn_where_they_were_drawn() -> None:
    layer = make_layer(6, 3)
    other = copy.deepcopy(layer)
    input, error = torch.randn(3, 2, *GRID).double(), torch.randn(3, 3, *GRID).double()
    torch.manual_seed(5)
    output = layer(input)
    torch.manual_seed(5)
    again = layer(input)
    assert torch.equal(output, again)
    # The drawn experts are found by their outputs.
    everywhere = F.conv2d(input, layer.weight, layer.bias, padding=1).unflatten(1, (3, 2))
    chosen = (everywhere - output.unsqueeze(2)).abs().amin(dim=0).argmin(dim=1) + 2 * torch.arange(3)[:, None, None]
    assert not torch.equal(chosen, layer.routing().indices)
    output.backward(error)
    other.rule = "frozen"
    with torch.no_grad():
        other.gate.get_parameter("scores").zero_().scatter_(0, chosen, 1.0)
    other(input).backward(error)
    torch.testing.assert_close(layer.weight.grad, other.weight.grad)
    assert layer.bias is not None
    assert other.bias is not None
    torch.testing.assert_close(layer.bias.grad, other.bias.grad)
    layer.eval()
    with torch.no_grad():
        layer.gate.get_parameter("scores").copy_(other.gate.get_parameter("scores"))
    assert torch.equal(layer(input), other.eval()(input))


def test_without_noise_the_best_are_selected_in_training() -> None:
    layer = make_layer(6, 3, rule=StraightThrough(noise=0.0))
    input = torch.randn(2, 2, *GRID).double()
    trained = layer(input)
    assert torch.equal(trained, layer.eval()(input))


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_gradient_has_the_scale_of_the_loss(scale: float) -> None:
    gradients = []
    for factor in (1.0, scale):
        layer = make_layer(6, 3).float()
        torch.manual_seed(3)
        (factor * layer(torch.randn(4, 2, *GRID)).square().mean()).backward()
        gradient = layer.gate.get_parameter("scores").grad
        assert gradient is not None
        gradients.append(gradient / factor)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-6)


def test_a_tracked_loss_scale_stays_in_the_gradient() -> None:
    gradients = []
    for factor in (1.0, 1024.0):
        layer = make_layer(6, 3)
        torch.manual_seed(3)
        loss = layer(torch.randn(4, 2, *GRID).double()).square().mean()
        scaled = smoe.nn.track_loss_scale(loss, layer) * factor
        layer.signal.set_loss_scale(factor)
        scaled.backward()
        gradient = layer.gate.get_parameter("scores").grad
        assert gradient is not None
        gradients.append(gradient / factor)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_weights_receive_the_gradient_of_choice_and_factor() -> None:
    layer = make_layer(4, 2, weighted=True, bias=False, rule=StraightThrough(share=1.0, noise=0.0))
    input, error = torch.randn(3, 2, *GRID).double(), torch.randn(3, 2, 30).double()
    layer(input).flatten(2).backward(error)
    outputs = F.conv2d(input, layer.weight, padding=1).flatten(2).detach()
    scores = layer.gate(None).scores[0].detach().requires_grad_()
    value = torch.zeros((), dtype=torch.float64)
    for slot in range(2):
        own = slice(2 * slot, 2 * slot + 2)
        products = (error[:, slot, None] * outputs[:, own]).sum(dim=0)
        choice = (scores[own].softmax(dim=0) * (products * scores[own]).detach()).sum()
        chosen = scores[own].argmax(dim=0, keepdim=True)
        value = value + choice + (scores[own].gather(0, chosen) * products.gather(0, chosen)).sum()
    (expected,) = torch.autograd.grad(value, scores)
    found = layer.gate.get_parameter("scores").grad
    assert found is not None
    torch.testing.assert_close(found.flatten(1), expected)


def test_layers_that_share_a_gate_add_their_gradients() -> None:
    gate = smoe.TensorGate(4, 2, GRID, order="families").double()
    layers = [make_layer(4, 2, gate=gate, seed=seed) for seed in (1, 2)]
    inputs = [torch.randn(2, 2, *GRID).double() for _ in layers]
    errors = [torch.randn(2, 2, 30).double() for _ in layers]
    expected = sum(
        expected_gradient(layer, input, error, [0, 1])
        for layer, input, error in zip(layers, inputs, errors, strict=True)
    )
    for layer, input, error in zip(layers, inputs, errors, strict=True):
        layer(input).flatten(2).backward(error)
    assert gate.scores.grad is not None
    torch.testing.assert_close(gate.scores.grad.flatten(1), expected)


def test_one_sample_is_enough_in_every_fourth_pass() -> None:
    layer = make_layer(4, 2, rule=StraightThrough(share=0.25))
    learned = []
    for _ in range(9):
        layer.zero_grad()
        layer(torch.randn(1, 2, *GRID).double()).square().sum().backward()
        learned.append(layer.gate.get_parameter("scores").grad is not None)
    assert learned == [True, False, False, False, True, False, False, False, True]


def has_learned(layer: smoe.SpatialMoE2d) -> bool:
    """Whether the keys received a gradient."""
    gradient = layer.gate.get_parameter("keys").grad
    return gradient is not None and bool((gradient != 0.0).any())


class ScoredGate(FactorisedGate):
    """A gate that always computes the scores."""

    @property
    def selects_families(self) -> bool:
        return False


@pytest.mark.parametrize("noise", [0.0, 1.5])
def test_passes_without_learning_compute_no_scores_and_select_alike(noise: float) -> None:
    torch.manual_seed(3)
    rule = StraightThrough(share=0.25, noise=noise)
    layer = smoe.SpatialMoE2d.from_experts(2, 6, 2, gate=FactorisedGate(6, 2, (9, 11)), rule=rule)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.gate.get_parameter("keys"), std=4.0)
    scored = copy.deepcopy(layer)
    scored.gate.__class__ = ScoredGate
    input = torch.randn(1, 2, 9, 11)
    learned: list[bool] = []
    for number in range(6):
        outputs, drawn = [], []
        for each in (layer, scored):
            torch.manual_seed(number)
            each.zero_grad()
            outputs.append(each(input))
            drawn.append(each.last_routing)
            outputs[-1].square().sum().backward()
        torch.testing.assert_close(*outputs)
        assert torch.equal(drawn[0].indices, drawn[1].indices)
        torch.testing.assert_close(drawn[0].scores, drawn[1].scores)
        learned.append(has_learned(layer))
        assert learned[-1] == has_learned(scored)
        torch.testing.assert_close(layer.weight.grad, scored.weight.grad)
    assert learned == [True, False, False, False, True, False]


def test_a_layer_used_twice_in_a_pass_goes_on_learning() -> None:
    layer = smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=FactorisedGate(4, 2, GRID), rule=StraightThrough(share=0.25))
    nn.init.normal_(layer.weight)
    num_learned = 0
    for number in range(13):
        layer.zero_grad()
        output = layer(torch.randn(1, 2, *GRID))
        if number > 0:  # an odd number of passes before
            output = layer(output)
        output.square().sum().backward()
        num_learned += has_learned(layer)
    assert num_learned >= 5


def test_the_noise_grows_during_the_warm_up() -> None:
    layer = smoe.SpatialMoE2d.from_experts(
        2, 4, 2, gate=FactorisedGate(4, 2, (20, 20)), rule=StraightThrough(noise=2.0, warm_up=4)
    )
    keys = layer.gate.get_parameter("keys")
    with torch.no_grad():
        keys.copy_(torch.eye(8)[:4])
        layer.gate.get_parameter("embedding.values").zero_()[::2] = 0.1  # leads by 1 score
    shares = []
    for _ in range(7):
        layer(torch.randn(4, 2, 20, 20)).sum().backward()
        assert layer.last_routing is not None
        shares.append(float((layer.last_routing.indices % 2 == 0).float().mean()))
    # The lead of 1 against the difference of two noises, sqrt(2) times 0, 0.5, 1, 1.5, 2, 2, 2: Phi of their ratio.
    assert shares == pytest.approx([1.0, 0.921, 0.760, 0.681, 0.638, 0.638, 0.638], abs=0.06)


def test_a_schedule_of_the_temperature_goes_on_counting() -> None:
    layer = smoe.SpatialMoE2d.from_experts(2, 4, 2, spatial_shape=GRID)
    for temperature in (1.0, 0.5, 0.25):
        layer.rule = dataclasses.replace(layer.rule, temperature=temperature)  # type: ignore[arg-type]
        layer(torch.randn(4, 2, *GRID)).sum().backward()
    assert layer.learner.counters["num_passes"] == 3
    # Another rule starts anew.
    layer.freeze()
    layer.rule = StraightThrough()
    assert layer.learner.counters["num_passes"] == 0


@pytest.mark.parametrize(("num_experts", "expected"), [(4, 4.0), (6, 4.0), (8, 16 / 6), (12, 1.6)])
def test_the_default_share_is_smaller_with_many_candidates(num_experts: int, expected: float) -> None:
    layer = smoe.SpatialMoE2d.from_experts(2, num_experts, 2, spatial_shape=GRID)
    assert isinstance(layer.learner, StraightThroughLearner)
    assert layer.learner.num_samples(layer.gate, 16) == pytest.approx(expected)


def test_a_pass_that_is_computed_again_draws_the_same() -> None:
    gradients = []
    for is_checkpointed in (False, True):
        layer = make_layer(6, 3)
        input = torch.randn(4, 2, *GRID).double().requires_grad_()
        torch.manual_seed(9)
        output = checkpoint(layer, input, use_reentrant=False) if is_checkpointed else layer(input)
        output.square().sum().backward()
        gradients.append([parameter.grad for parameter in layer.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)


def test_an_error_that_is_not_finite_moves_nothing_and_is_counted() -> None:
    layer = make_layer(4, 2)
    (layer(torch.randn(4, 2, *GRID).double()) * torch.nan).sum().backward()
    assert int(layer.num_nonfinite_errors) == 1
    gradient = layer.gate.get_parameter("scores").grad
    assert gradient is not None
    assert (gradient == 0.0).all()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.Adam, {"lr": 0.02}),
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9}),
    ],
)
def test_a_gate_finds_the_regions(kind: type[torch.optim.Optimizer], options: dict[str, float]) -> None:
    torch.manual_seed(0)
    truth = torch.zeros(GRID, dtype=torch.int64)
    truth[:, 3:] = 1
    layer = smoe.SpatialMoE2d.from_experts(
        2, 4, 2, gate=FactorisedGate(4, 2, GRID), rule=StraightThrough(share=1.0), bias=False
    )
    teacher = torch.randn(4, 2, 3, 3)
    steps = kind(layer.parameters(), **options)  # type: ignore[arg-type]
    for _ in range(400):
        input = torch.randn(16, 2, *GRID)
        outputs = F.conv2d(input, teacher, padding=1).unflatten(1, (2, 2))
        target = outputs.gather(2, truth.expand(16, 2, 1, *GRID)).squeeze(2)
        loss = F.mse_loss(layer(input), target)
        steps.zero_grad()
        loss.backward()
        steps.step()
    indices = layer.routing().indices
    for slot in range(2):
        is_second = indices[slot] == 2 * slot + 1
        num_right = int((is_second == truth.bool()).sum())
        assert max(num_right, 30 - num_right) >= 28


def test_freezing_ends_the_learning() -> None:
    layer = make_layer(4, 2)
    layer.rule = "frozen"
    before = layer.gate.get_parameter("scores").clone()
    optimizer = torch.optim.Adam(layer.parameters(), lr=1.0)
    layer(torch.randn(2, 2, *GRID).double()).square().sum().backward()
    optimizer.step()
    assert torch.equal(layer.gate.get_parameter("scores"), before)


def test_a_gate_that_looks_at_its_input_is_refused() -> None:
    gate = ConvGate(2, 4, 2, order="families")
    with pytest.raises(ValueError, match="does not look at its input, got ConvGate"):
        smoe.SpatialMoE2d.from_experts(2, 4, 2, gate=gate, rule="straight_through")


def test_an_unused_expert_becomes_a_copy_of_the_busiest() -> None:
    torch.manual_seed(0)
    layer = smoe.SpatialMoE2d.from_experts(2, 3, 1, spatial_shape=GRID, rule=StraightThrough(noise=0.0, patience=2))
    assert isinstance(layer.gate, FactorisedGate)
    with torch.no_grad():
        # Expert 0 serves all pixels, 1 and 2 none.
        layer.gate.embedding.values.fill_(1.0)
        layer.gate.keys.copy_(torch.tensor([1.0, -1.0, -2.0])[:, None].expand(3, 8))
    before = layer.weight.detach().clone()
    layer(torch.randn(4, 2, *GRID)).square().mean().backward()
    assert torch.equal(layer.weight, before)
    layer(torch.randn(4, 2, *GRID)).square().mean().backward()
    assert torch.equal(layer.weight[0], before[0])
    for expert in (1, 2):
        torch.testing.assert_close(layer.weight[expert], before[0], rtol=0.15, atol=0.0)
        keys = layer.gate.keys.detach()
        assert 0.05 < float((keys[expert] - keys[0]).norm() / keys[0].norm()) < 0.7
    assert not torch.equal(layer.weight[1], layer.weight[2])
    after = layer.weight.detach().clone()
    layer(torch.randn(4, 2, *GRID)).square().mean().backward()
    assert torch.equal(layer.weight, after)


class Regions:
    """Samples whose left and right halves are filtered by filters of their own."""

    def __init__(self, grid: int, channels: int) -> None:
        generator = torch.Generator().manual_seed(7)
        self.filters = torch.randn(2, channels, channels, 3, 3, generator=generator) / (9 * channels) ** 0.5
        self.is_left = torch.arange(grid) < grid // 2
        self.shape = (8, channels, grid, grid)

    def draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(self.shape)
        left, right = (F.conv2d(x, filters, padding=1) for filters in self.filters)
        return x, torch.where(self.is_left, left, right)

    def net(self, width: int, **options) -> nn.Module:
        channels = self.shape[1]
        convs = nn.Conv2d(channels, width, 3, padding=1), nn.Conv2d(width, channels, 3, padding=1)
        plain = nn.Sequential(convs[0], nn.BatchNorm2d(width), nn.ReLU(), convs[1])
        return smoe.convert(plain, example_input=torch.zeros(self.shape), **options)


def gradient_norm(net: nn.Module, *, of_gates: bool) -> float:
    """Of the gates, or of all other parameters of SMoE layers."""
    gates = {parameter for gate in smoe.diagnostics.layers_by_gate(net) for parameter in gate.parameters()}
    layers = [module for module in net.modules() if isinstance(module, smoe.SpatialMoE2d)]
    chosen = gates if of_gates else {parameter for layer in layers for parameter in layer.parameters()} - gates
    return float(nn.utils.get_total_norm([parameter.grad for parameter in chosen if parameter.grad is not None]))


@pytest.mark.parametrize(("grid", "width"), [(16, 8), (32, 8), (64, 8), (32, 32), (16, 64)])
@pytest.mark.parametrize("share_gates", [None, True, False])
def test_a_gate_has_no_larger_gradient_than_its_experts(grid: int, width: int, share_gates: bool | None) -> None:
    torch.manual_seed(0)
    task = Regions(grid, 4)
    net = task.net(width, share_gates=share_gates)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(6):
        x, target = task.draw()
        optimizer.zero_grad()
        F.mse_loss(net(x), target).backward()
        of_gates, of_experts = (gradient_norm(net, of_gates=is_gate) for is_gate in (True, False))
        assert of_gates <= of_experts
        # Experts that start equal have nothing to compare in the first pass.
        assert of_gates > 0.01 * of_experts or step == 0
        assert nn.utils.clip_grad_norm_(net.parameters(), 1.0) < 1.0 or of_experts > 0.9
        optimizer.step()
