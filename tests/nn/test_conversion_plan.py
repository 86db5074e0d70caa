from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune

import smoe
from smoe.nn._conversion_plan import plan_conversion
from smoe.rules import RoutingClassification
from smoe_paper.benchmarks.layer import CONFIGURATIONS

RC = RoutingClassification.released()

X = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(0))


def conv() -> nn.Conv2d:
    return nn.Conv2d(4, 4, 3, padding=1)


class Uses(nn.Module):
    """A function of a convolution and of the inputs."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.conv, self.function = conv(), function

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        return self.function(self.conv, *inputs, **named)


def test_a_module_under_several_names_stays_one_module() -> None:
    """As MONAI's DynUNet registers its blocks."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = conv()
            self.blocks = nn.ModuleList([conv(), self.first])
            self.again = self.first

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.again(self.blocks[1](self.blocks[0](self.first(x))))

    net = Net().eval()
    converted = smoe.convert(net, example_input=X)
    assert converted.first is converted.again is converted.blocks[1]  # type: ignore[index]
    assert [type(part) for part in converted.blocks] == [smoe.SpatialMoE2d] * 2  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="the model has none, but 2 SMoE layers"):
        smoe.convert(converted, example_input=X)
    torch.testing.assert_close(converted(X), net(X), rtol=1e-5, atol=1e-5)


def test_weight_normalisation_is_kept() -> None:
    net = nn.Sequential(parametrizations.weight_norm(conv()), parametrizations.spectral_norm(conv())).eval()
    converted = smoe.convert(net, example_input=X)
    torch.testing.assert_close(converted(X), net(X), rtol=1e-5, atol=1e-5)
    names = {name for name, _ in converted[0].named_parameters()}  # type: ignore[index]
    assert {"parametrizations.weight.original0", "parametrizations.weight.original1"} <= names
    assert "its parameters are parametrised" in plan_conversion(net, example_input=X).left["1"]
    converted.train()(X).sum().backward()
    assert converted[0].parametrizations["weight"].original0.grad.abs().sum() > 0  # type: ignore[index]


def test_the_price_and_the_share_of_a_conversion() -> None:
    net = nn.Sequential(conv(), nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=2), nn.Conv2d(8, 2, 1))
    plan = plan_conversion(net, example_input=X[:1])
    # 30 pixels; 4 x 4 x 9 by the kernels, 8 x 2 x 9 with every candidate.
    assert [change.multiply_adds for change in plan.changes] == [(4320, 4320), (4320, 8640)]
    assert plan.multiply_adds == 4320 + 4320 + 480 and plan.share == 8640 / 9120
    assert str(plan).splitlines()[-1] == (
        "2 of 3 layers, with 95% of the multiply-adds; parameters 318 -> 606 without gates, multiply-adds of a forward "
        "pass 9,120 -> 13,440; a training step is expected to take 1.8 times as long"
    )


def test_the_expected_price_is_that_of_the_measured_table() -> None:
    """Within a third, where the convolution itself is not slow for other reasons, as with one channel."""
    table = Path(__file__).parents[2] / "paper/results/bench/layer.jsonl"
    rows = {row["configuration"]: row for row in map(json.loads, table.read_text().splitlines())}
    for name in (
        "small net, 8",
        "ResNet-18 stage, 2",
        "CIFAR, 1",
        "ResNet-50 stage, 16",
        "WeatherBench, 8",
        "ENS-10, 1",
    ):
        c = CONFIGURATIONS[name]
        net = nn.Conv2d(c.in_channels, c.out_channels, 3, padding=1, device="meta")
        example = torch.empty(c.batch, c.in_channels, c.height, c.width, device="meta")
        price = plan_conversion(net, example_input=example).price
        assert 0.75 < price / float(rows[name]["default"]) < 1.34, name


def test_a_conversion_of_hardly_anything_warns() -> None:
    net = nn.Sequential(nn.Conv2d(4, 64, 1), nn.Conv2d(64, 64, 1), nn.Conv2d(64, 4, 1), conv())
    with pytest.warns(UserWarning, match=r"only 3.0% of the network's multiply-adds .* kernel_size=None"):
        smoe.convert(net, example_input=X)
    smoe.convert(net, example_input=X, names="3")


def test_linear_layers_over_positions_are_converted_where_asked() -> None:
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
    net = nn.Sequential(block, nn.Flatten(), nn.Linear(40, 3)).eval()
    x = torch.randn(2, 5, 8)
    with pytest.raises(ValueError, match="the model has none; linear=True converts linear layers over positions"):
        smoe.convert(net, example_input=x)
    plan = plan_conversion(net, example_input=x, linear=True)
    assert [(change.name, change.spatial_shape) for change in plan.changes] == [
        ("0.linear1", (5,)),
        ("0.linear2", (5,)),
    ]
    assert plan.left["2"] == "its input has no positions: it is not (B, *positions, C)"
    converted = smoe.convert(net.train(), example_input=x, linear=True).eval()
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            torch.testing.assert_close(converted(x), net.eval()(x), rtol=1e-5, atol=1e-5)
    layer = converted.get_submodule("0.linear1")
    assert layer(x).is_contiguous()
    assert isinstance(layer, smoe.nn.TokenMoE) and (layer.in_features, layer.out_features) == (8, 16)
    with pytest.raises(ValueError, match=r"output grid of \(5,\), got an input of \(4,\).* smoe.interpolate_grids"):
        converted(x[:, :4])
    # The first axis of this one is that of the positions.
    other = plan_conversion(nn.TransformerEncoderLayer(8, 2, 16), example_input=x, linear=True)
    assert not other.changes and "make the transformer with batch_first=True" in other.left["linear1"]


def test_tensors_that_share_memory_are_tied() -> None:
    first, second = conv(), conv()
    second.weight = nn.Parameter(first.weight.data)
    plan = plan_conversion(nn.Sequential(first, second), example_input=X)
    assert plan.left == {"0": "it is tied to 1.weight", "1": "it is tied to 0.weight"}

    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv()
            self.kernel = self.conv.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.conv2d(self.conv(x), self.kernel, padding=1)

    assert plan_conversion(Reused(), example_input=X).left == {"conv": "it is tied to kernel"}


class Simple(nn.Conv2d):
    """As torchvision's Conv3DSimple: arguments only."""

    def __init__(self) -> None:
        super().__init__(4, 4, 3, padding=1)


class Standardized(Simple):
    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return super()._conv_forward(input, weight - weight.mean(), bias)


class Doubled(smoe.nn.GridConv2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(input)


def changed(change: Callable[[nn.Conv2d], object]) -> nn.Module:
    module = conv()
    change(module)
    return module


HOOKS = "it has hooks, as weight normalisation and pruning of the older kind have; remove them before"


class Conv2d(Standardized):
    """With the name of what it is not."""


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (
            changed(lambda module: module.weight.register_hook(lambda gradient: 2.0 * gradient)),
            "its parameters have hooks, which the experts would not have; remove them before",
        ),
        (
            changed(lambda module: module.register_parameter("factor", nn.Parameter(torch.ones(1)))),
            "it holds factor besides its filters",
        ),
        (Conv2d(), f"{__name__}.Conv2d has a forward of its own and may do more than a Conv2d"),
        (changed(lambda module: module.register_forward_hook(lambda module, args, output: -output)), HOOKS),
        (prune.l1_unstructured(conv(), "weight", 0.5), HOOKS),
        (changed(lambda module: setattr(module, "forward", lambda fields: 2.0 * fields)), "its forward was replaced"),
        (Standardized(), "Standardized has a forward of its own and may do more than a Conv2d"),
        (Doubled(4, 4), "Doubled has a forward of its own and may do more than a GridConv2d"),
    ],
)
def test_what_does_more_than_convolve_is_left(module: nn.Module, reason: str) -> None:
    plan = plan_conversion(nn.Sequential(module, Simple()), example_input=X)
    assert plan.left == {"0": reason} and [change.name for change in plan.changes] == ["1"]


class Autocast(nn.Sequential):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(input)


class Marked(torch.Tensor):
    """A tensor that may mean something else."""


def with_weight(change: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    return changed(lambda module: setattr(module, "weight", nn.Parameter(change(module.weight.detach()))))


@pytest.mark.parametrize(
    ("net", "example", "reason"),
    [
        (conv().half(), X.half(), None),
        (nn.Conv1d(4, 4, 3, padding=1).bfloat16(), X[:, :, 0].bfloat16(), None),
        (nn.Conv3d(4, 4, (3, 1, 5), padding="same").double(), X[:, :, None].double(), None),
        (nn.Conv2d(4, 1, 3, padding=1), X, None),
        (nn.Conv2d(4, 4, 7, padding=3), X[:, :, :2, :3], None),
        (conv(), X[:0], None),
        (conv().to("meta"), X.to("meta"), None),
        (nn.Sequential(nn.LazyConv2d(4, 3, padding=1)), X, None),
        (Autocast(conv()), X, None),
        (conv(), X.to(memory_format=torch.channels_last), None),
        (Uses(lambda conv, x, offset: conv(x) + offset), (X, X), None),
        (Uses(lambda conv, x, offset: conv(x) + offset), {"x": X, "offset": X}, None),
        (
            nn.Conv2d(4, 4, 3, padding=1, dtype=torch.complex64),
            X.to(torch.complex64),
            "its filters are torch.complex64",
        ),
        (with_weight(lambda weight: weight.as_subclass(Marked)), X, "its filters are a Marked"),
        (with_weight(lambda weight: weight[:, :0]), X[:, :0], "its filters are empty"),
        (Uses(lambda conv, x: conv(x) + conv(x[0])), X, None),
        (nn.ConvTranspose2d(4, 2, 3, 2), X[0], None),
    ],
)
def test_what_a_plan_promises_is_done(net: nn.Module, example: Any, reason: str | None) -> None:
    plan = plan_conversion(net, example_input=example, kernel_size=None)
    assert bool(plan.changes) == (reason is None), plan.reasons
    with contextlib.nullcontext() if reason is None else pytest.raises(ValueError, match=reason):
        smoe.convert(net, example_input=example, kernel_size=None)  # compares what both compute


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("num_axes", [1, 2, 3])
def test_convolutions_with_all_options_are_converted(num_axes: int) -> None:
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[num_axes - 1]
    example = torch.randn(2, 4, *(7, 6, 5)[:num_axes])
    pair = (1, 2, 1)[-num_axes:]
    options = itertools.product(
        *((1, 2, 3), (1, 2, pair), (0, 1, 2, "same"), (1, pair), (1, 2, 4), (True, False)),
        ("zeros", "circular", "reflect", "replicate"),
    )
    drawn = random.Random(num_axes).sample(list(options), 30)
    for size, stride, padding, dilation, groups, bias, mode in drawn:
        if padding == "same" and stride != 1:
            continue
        net = kind(4, 8, size, stride, padding, dilation, groups, bias, mode)  # type: ignore[arg-type]
        try:
            net(example)
        except RuntimeError:
            continue
        layer = smoe.convert(net, example_input=example, kernel_size=None)  # compares what both compute
        names = ("kernel_size", "stride", "dilation", "groups", "padding_mode", "in_channels", "out_channels")
        assert all(getattr(layer, name) == getattr(net, name) for name in names)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("num_axes", [1, 2, 3])
def test_transposed_convolutions_are_converted(num_axes: int, groups: int) -> None:
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[num_axes - 1]
    example = torch.randn(2, 4, *(4, 3, 2)[:num_axes])
    for size, stride, padding, output_padding in ((2, 2, 0, 0), (3, 2, 1, 1), (3, 1, 1, 0)):
        net = kind(4, 6, size, stride, padding, output_padding, groups)
        layer = smoe.convert(net, example_input=example, kernel_size=None)
        assert layer.transposed and layer.output_padding == net.output_padding
        # Its gate is on the output grid, and learns.
        assert layer.routing().indices.shape == (6, *net(example).shape[2:])  # type: ignore[operator]
        layer(example).square().sum().backward()
        assert all(parameter.grad is not None for parameter in layer.parameters())


def test_numbers_of_experts() -> None:
    numbers: list[tuple[Any, int]] = [(8, 8), (np.int64(8), 8), (1.5, 6), (np.float32(1.5), 6)]
    for given, expected in numbers:
        assert plan_conversion(conv(), example_input=X, num_experts=given).changes[0].num_experts == expected
    wrong: tuple[Any, ...] = (0, -1.0, float("nan"), float("inf"), True, "2", None)
    for given in wrong:
        with pytest.raises(ValueError, match=f"num_experts must be .*, got {given!r}"):
            plan_conversion(conv(), example_input=X, num_experts=given)
    for number in (1.1, 4):
        reason = plan_conversion(conv(), example_input=X, num_experts=number).left[""]
        assert reason == "4 experts for as many filters leave a pixel no choice; give more num_experts"


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (nn.Conv2d, X, r"got the class Conv2d: give Conv2d\(...\)"),
        ("net", X, "model must be a torch.nn.Module, got str"),
        (conv(), (2, 4, 6, 5), r"got the shape \(2, 4, 6, 5\): give torch.zeros\(2, 4, 6, 5\)"),
        (conv(), X.shape, r"give torch.zeros\(2, 4, 6, 5\)"),
        (torch.compile(conv(), backend="eager"), X, "model was compiled.* before it is compiled"),
        (
            torch.export.export(nn.Sequential(conv()), (X,)).module(),
            X,
            "model was exported.* convert the network before",
        ),
        (conv(), X.numpy(), "example_input must be a tensor, or a tuple or dictionary of arguments, got ndarray"),
        (conv(), None, "example_input must be a tensor.* got NoneType"),
    ],
)
def test_what_is_no_network_or_no_example_is_refused(model: Any, example: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        smoe.convert(model, example_input=example)
    assert "\n" not in str(caught.value)
    assert torch._dynamo.eval_frame._stance.stance == "default"  # what is compiled later is compiled


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:`torch.jit.trace")
def test_parts_that_were_quantised_or_compiled() -> None:
    class Parts(nn.Sequential):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return self[2](self[1](input))

    compiled: Any = torch.compile(nn.Sequential(conv()), backend="eager")
    traced: Any = torch.jit.trace(conv(), X)
    net = Parts(torch.ao.nn.quantized.Conv2d(4, 4, 3, padding=1), compiled, traced).eval()
    plan = plan_conversion(net, example_input=X)
    assert plan.left == {
        "0": "it is quantised; convert the network before",
        "2": "torch.jit has compiled it; convert the network before",
    }
    converted = smoe.convert(net, example_input=X)
    with torch.no_grad():
        torch.testing.assert_close(converted(X), net(X), rtol=1e-4, atol=1e-5)
