from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smoe
from smoe.nn._conversion_plan import Change, plan_conversion
from smoe.rules import Damping, RoutingClassification, Rule

RC = RoutingClassification.released()


class Net(nn.Module):
    """Every kind of convolution that a conversion may meet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 7, padding=3)
        self.first = nn.Conv2d(6, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 6, 3, padding=1, bias=False, padding_mode="circular")
        self.down = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.globe = smoe.nn.GridConv2d(8, 8, 3, padding_mode="longitude")
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.dilated = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.reflected = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        self.shrinking = nn.Conv2d(8, 8, 3)
        self.up = nn.ConvTranspose2d(8, 4, 3)
        self.unused = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.second(F.relu(self.first(F.relu(self.stem(x))))))
        x = self.globe(F.relu(self.down(x)))
        x = self.shrinking(self.reflected(self.dilated(self.depthwise(x))))
        return self.norm(self.up(x))


X = torch.randn(2, 3, 11, 14, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(1)
    return Net()


def layers(model: nn.Module) -> dict[str, smoe.SpatialMoE2d]:
    return {name: module for name, module in model.named_modules() if isinstance(module, smoe.SpatialMoE2d)}


CONVERTED = ["first", "second", "down", "globe", "depthwise", "dilated", "reflected", "shrinking", "up"]


def test_what_is_changed_and_what_is_left_and_why(net: Net) -> None:
    plan = plan_conversion(net, example_input=X)
    assert [change.name for change in plan.changes] == CONVERTED
    assert plan.changes[0].spatial_shape == (11, 14) and plan.changes[2].spatial_shape == (6, 7)
    assert (plan.changes[2].num_experts, plan.changes[2].num_selected) == (16, 8)
    assert plan.left == {
        "stem": "its kernel is 7 x 7",
        "unused": "the example input did not reach it",
    }
    reports: list[str] = []
    smoe.convert(net, example_input=X, notify=reports.append, rule=RC, order="score")
    assert "8 layers with 4 gates" in reports[0]
    assert "depthwise: left, its groups need the order 'families'" in reports[0]


def test_everything_but_the_experts_is_kept(net: Net) -> None:
    net.first.eval()
    before = copy.deepcopy(net.state_dict())
    converted = smoe.convert(net, example_input=X, rule=RoutingClassification.paper(), order="score")
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert net.training and not net.first.training and isinstance(net.first, nn.Conv2d)
    found = layers(converted)
    assert list(found) == [name for name in CONVERTED if name != "depthwise"]
    assert (found["first"].bias is not None, found["second"].bias is None) == (True, True)
    assert found["second"].padding_mode == "circular" and found["globe"].padding_mode == "longitude"
    assert found["down"].stride == (2, 2) and not found["first"].training and found["second"].training
    assert found["first"].rule == RoutingClassification.paper()
    assert found["first"]._active_damping == Damping(factor=0.1, error_quantile=0.7)
    assert found["first"].gate is found["second"].gate and found["down"].gate is found["globe"].gate
    assert converted(X).shape == net(X).shape


@pytest.mark.parametrize("num_experts", [2.0, 1.4, 24])
def test_a_start_from_the_filters_computes_the_same(net: Net, num_experts: float) -> None:
    net = net.eval()
    converted = smoe.convert(net, example_input=X, num_experts=num_experts, start="filters", rule="frozen")
    assert len(layers(converted)) == (8 if num_experts == 1.4 else 9)
    other = torch.randn(3, 3, 11, 14)
    torch.testing.assert_close(converted(other), net(other), rtol=1e-5, atol=1e-5)
    for layer in layers(converted).values():
        assert len(layer.routing().indices.unique()) > layer.gate.num_selected and layer.gate.order == "families"


def test_gates_of_the_user_serve_filters_too(net: Net) -> None:
    land = torch.zeros(11, 14)
    land[:, :7] = 1.0

    def make_gate(change: Change) -> smoe.SpatialGate:
        averaged = F.adaptive_avg_pool2d(land[None], list(change.spatial_shape))[0]  # type: ignore[arg-type]
        return smoe.FactorisedGate.from_prior(averaged, change.num_experts, change.num_selected)

    converted = smoe.convert(net, example_input=X, make_gate=make_gate, start="filters")
    chosen = layers(converted)["first"].routing().indices % 2
    assert chosen[:, :, :7].float().mean() > 0.8 and chosen[:, :, 7:].float().mean() < 0.2
    net.first.requires_grad_(False)
    one = smoe.TensorGate(12, 6, (11, 14))
    shared = smoe.convert(net, example_input=X, names="*[rc][so]*", rule="rc", make_gate=lambda change: one)
    assert [layer.gate is one for layer in layers(shared).values()] == [True, True] and one.scores.requires_grad


@pytest.mark.parametrize("rule", [RC, "rc", "straight_through", "end_to_end", "frozen"], ids=str)
def test_every_rule_learns_on_from_the_filters(net: Net, rule: Rule | str) -> None:
    converted = smoe.convert(net, example_input=X, start="filters", rule=rule)
    torch.testing.assert_close(copy.deepcopy(converted).eval()(X), copy.deepcopy(net).eval()(X), rtol=1e-5, atol=1e-5)
    target = torch.randn(2, 4, 6, 7)[:, :, : net(X).shape[2], : net(X).shape[3]]
    optimizer = torch.optim.SGD(converted.parameters(), lr=0.01)
    losses: list[float] = []
    for _ in range(8):
        loss = F.mse_loss(converted(X), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_names_and_predicates_choose(net: Net) -> None:
    by_name = plan_conversion(net, example_input=X, names="*o*n*")
    assert [change.name for change in by_name.changes] == ["second", "down"]
    assert by_name.left["first"] == "its name does not match '*o*n*'"
    wide = plan_conversion(net, example_input=X, kernel_size=None, predicate=lambda name, module: name == "stem")
    assert [change.name for change in wide.changes] == ["stem"] and wide.left["first"] == "the predicate is false"


def test_a_bias_belongs_to_the_channel_or_to_the_expert() -> None:
    x, values = torch.randn(2, 2, 5, 4), torch.tensor([1.0, -2.0, 0.5, 3.0])
    for bias in ("slot", "expert", True):
        layer = smoe.SpatialMoE2d.from_experts(2, 4, 3, spatial_shape=(5, 4), bias=bias, rule=RC, order="score")
        indices = layer.routing().indices
        offset = values[indices] if bias != "slot" else values[:3, None, None]
        with torch.no_grad():
            plain = layer(x)
            assert layer.bias is not None
            layer.bias.copy_(values if bias != "slot" else values[:3])
            torch.testing.assert_close(layer(x), plain + offset)
        layer.eval()(x).sum().backward()
        served = [2.0 * int((indices == expert).sum()) for expert in range(4)]
        torch.testing.assert_close(layer.bias.grad, torch.full((3,), 40.0) if bias == "slot" else torch.tensor(served))


def test_what_is_frozen_stays_frozen_and_the_rest_learns() -> None:
    model = nn.Sequential(*(nn.Conv2d(2, 2, 3, padding=1) for _ in range(3)), nn.Conv2d(2, 2, 3, 2, 1))
    for conv in (model[0], model[3]):
        conv.requires_grad_(False)
    model[1].bias.requires_grad_(False)  # type: ignore[union-attr]
    found = layers(smoe.convert(model, example_input=torch.randn(1, 2, 6, 6), start="filters", rule=RC))
    assert [layer.weight.requires_grad for layer in found.values()] == [False, True, True, False]
    assert [layer.bias.requires_grad for layer in found.values()] == [False, False, True, False]  # type: ignore[union-attr]
    # The first three share a gate; the fourth has its own, which serves frozen filters only.
    assert [layer.gate.scores.requires_grad for layer in found.values()] == [True, True, True, False]  # type: ignore[union-attr]


class Random(nn.Module):
    """Random in evaluation too, and its input changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x.add_(1.0))
        x = F.dropout(self.first(x), 0.5, training=True)
        return F.dropout(self.second(x) * torch.rand(()), 0.5, self.training)


def test_both_networks_are_compared_and_nothing_else_changes() -> None:
    net, x = Random(), X.clone()
    net.norm.eval()
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    smoe.plan_conversion(net, example_input=x)
    assert torch.equal(torch.get_rng_state(), state)
    converted = smoe.convert(net, example_input=x)
    assert torch.equal(x, X)
    for each in (net, converted):
        assert torch.equal(each.norm.running_mean, before["norm.running_mean"])  # type: ignore[arg-type]
        assert (each.training, each.norm.training) == (True, False)  # type: ignore[union-attr]
    assert all(layer._scored_routing() is None for layer in layers(converted).values())
    assert all(not any(layer._learner.counters.values()) for layer in layers(converted).values())


@pytest.mark.parametrize("train_only", [False, True])
def test_a_layer_that_computes_something_else_is_named(monkeypatch: pytest.MonkeyPatch, train_only: bool) -> None:
    fill = smoe.nn.convert.__globals__["fill_families"]

    def fill_wrongly(new: smoe.SpatialMoE2d, filters: torch.Tensor, bias: torch.Tensor | None) -> None:
        fill(new, filters, bias)
        if new.stride == (2, 2):
            with torch.no_grad():
                if train_only:  # experts that no pixel selects, but for the noise
                    new.gate.get_buffer("keys")[1::2] = 0.0
                    new.gate.get_buffer("keys")[::2] = 0.0
                    new.weight[1::2] *= 1.01
                else:
                    new.weight.mul_(1.01)

    monkeypatch.setitem(smoe.nn.convert.__globals__, "fill_families", fill_wrongly)
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="down, as a SpatialMoE2d, computes something else than the Conv2d: outputs"):
        smoe.convert(Net(), example_input=X, rule="straight_through(warm_up=0)")
    smoe.convert(Net(), example_input=X, rule="straight_through(warm_up=0)", check=False)


class Uses(nn.Module):
    """A function of convolutions and of the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.conv, self.other, self.function = *(nn.Conv2d(3, 3, 3, padding=1) for _ in range(2)), function
        self.hidden = [self.conv]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def kept() -> nn.Module:
    net = Uses(lambda net, x: net.conv(x))
    net.kept = net(X)
    return net


PLAIN = Uses(lambda net, x: net.other(net.conv(x)))
READS = Uses(lambda net, x: net.other(net.conv(x) / net.conv.weight.norm()))
PYRAMID = Uses(lambda net, x: net.conv(x).sum() + net.conv(F.avg_pool2d(x, 2)).sum())
UNCALLED = "the network reaches conv in another way than by name"


@pytest.mark.parametrize(
    ("net", "options", "message"),
    [
        (PLAIN, {"start": "filter"}, "start must be one of random, filters, got 'filter'"),
        (PLAIN, {"start": "filters", "order": "index"}, "leave order at 'families', got 'index'"),
        (PLAIN, {"start": "filters", "make_gate": lambda _: smoe.TensorGate(4, 2, (2, 2))}, "make_gate gave 'score'"),
        (PLAIN, {"make_gate": lambda _: None}, "make_gate must return a gate, got NoneType for conv"),
        (PLAIN, {"num_experts": 2}, "2 experts are fewer than its 3 filters"),
        (PLAIN, {"num_experts": 1.0}, r"num_experts=1.0 gives a pixel no choice.* give more, as 2.0"),
        (PLAIN, {"make_gate": "rc"}, "make_gate must be a function or None, got 'rc'"),
        (PLAIN, {"predicate": "conv"}, "predicate must be a function or None, got 'conv'"),
        (PLAIN, {"kernel_size": 5}, "its kernel is 3 x 3; kernel_size=None converts kernels of any size"),
        (PLAIN, {"kernel_size": (3, -1)}, r"kernel_size must be a number, .* got \(3, -1\)"),
        (PLAIN, {"kernel_size": 3.0}, "kernel_size must be a number, one for each axis, or None for any, got 3.0"),
        (PLAIN, {"names": ["0", "1"]}, r"names must be one pattern such as 'blocks.\*', got \['0', '1'\]"),
        (PYRAMID, {}, r"conv: left, it works on several grids, \(11, 14\), \(5, 7\)"),
        (Uses(lambda net, x: net.other(net.hidden[0](x))), {}, UNCALLED),
        (Uses(lambda net, x: net.hidden[0](x)), {"rule": RC, "order": "score"}, UNCALLED),
        (Uses(lambda net, x: net.hidden[0](net.conv(x))), {}, UNCALLED),  # as often as before
        (READS, {}, "computes something else, first at other .* or give check=False"),
        (
            Uses(lambda net, x: net.conv(x) - net.conv.bias[:, None, None]),
            {},
            "fails on the example, near conv, .* than its call",
        ),
        (kept(), {}, "the network cannot be copied: .*: convert it before it is used"),
    ],
)
def test_refusals(net: nn.Module, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        smoe.convert(net, example_input=X, **options)


def test_random_outputs_of_another_layout_are_no_difference() -> None:
    """As the variational autoencoders of MONAI, whose attention leaves the channels last."""

    def sample(net: Uses, x: torch.Tensor) -> Any:
        y = net.conv(x.to(memory_format=torch.channels_last))
        return y, net.other(torch.randn_like(y) * y)

    with pytest.warns(UserWarning, match="random in evaluation mode too"):
        smoe.convert(Uses(sample), example_input=X)
    wrong: nn.Module = Uses(lambda net, x: (sample(net, x)[1], net.other(net.conv(x) / net.conv.weight.norm())))
    with (
        pytest.warns(UserWarning, match="random"),
        pytest.raises(ValueError, match="computes something else, first at other"),
    ):
        smoe.convert(wrong, example_input=X)


def test_what_is_refused_can_be_left_out() -> None:
    smoe.convert(READS, example_input=X, check=False)
    smoe.convert(READS, example_input=X, names="other")
    hidden = Uses(lambda net, x: net.other(net.hidden[0](x)))
    assert list(layers(smoe.convert(hidden, example_input=X, names="other"))) == ["other"]


def test_parts_in_inference_mode_and_outputs_near_zero_or_nan() -> None:
    def without_gradients(net: Uses, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            y = net.conv(x + 1.0)
        return y.clone()

    smoe.convert(Uses(without_gradients), example_input=X)
    # Below the smallest normal number, rounding errors are relative no more.
    smoe.convert(Uses(lambda net, x: 1e-40 * net.conv(x)), example_input=X)
    broken = Uses(lambda net, x: net.conv(x))
    broken.conv.weight.data.fill_(math.nan)
    smoe.convert(broken, example_input=X)


def test_a_converted_network_is_loaded_in_two_lines(net: Net, tmp_path: Path) -> None:
    trained = smoe.convert(net, example_input=X)
    optimizer = torch.optim.Adam(trained.parameters(), lr=1e-2)
    for _ in range(3):
        trained(X).square().mean().backward()
        optimizer.step()
    torch.save(trained.state_dict(), tmp_path / "net.pt")
    loaded = smoe.convert(Net(), example_input=X)
    loaded.load_state_dict(torch.load(tmp_path / "net.pt"))
    with torch.device("meta"):
        empty = smoe.convert(Net(), example_input=X.to("meta"))
    empty.load_state_dict(torch.load(tmp_path / "net.pt"), assign=True)
    assert torch.equal(loaded.eval()(X), trained.eval()(X)) and torch.equal(empty.eval()(X), trained(X))


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_rounding_is_no_difference(offset: float) -> None:
    """Filters whose sum is 0 leave of a large offset its rounding errors."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(16, 8, 5, padding=2, padding_mode="circular", bias=False))
    with torch.no_grad():
        net[0].weight -= net[0].weight.mean(dim=(1, 2, 3), keepdim=True)  # type: ignore[operator]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = (torch.randn(2, 16, 12, 9) + offset).to(dtype)
        smoe.convert(net.to(dtype), example_input=x, kernel_size=None)
