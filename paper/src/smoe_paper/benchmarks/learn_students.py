"""The students of `smoe bench learn`, and how they are trained: SMoE layers and simple baselines."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from smoe.nn import SpatialMoE2d, TensorGate
from smoe.nn._filter_bank import LocalAffine
from smoe.rules import Frozen, Probing, RoutingClassification
from smoe_paper.baselines.layers import LocallyConnected2d
from smoe_paper.baselines.low_rank import LowRankLocal2d
from smoe_paper.benchmarks.learn_tasks import Lesson

BATCH_SIZE = 16
LEARNING_RATES = {"adam": 1e-2, "sgd": 0.1}


def train(net: nn.Module, lesson: Lesson, seed: int, num_steps: int) -> None:
    """Trains a network in place, the same batches for every student of a seed."""
    generator = torch.Generator().manual_seed(seed)
    learning_rate = LEARNING_RATES[lesson.task.optimizer]
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = (
        torch.optim.Adam(parameters, lr=learning_rate)
        if lesson.task.optimizer == "adam"
        else torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9)
    )
    net.train()
    for _ in range(num_steps):
        samples = torch.randint(len(lesson.data.inputs), (BATCH_SIZE,), generator=generator)
        optimizer.zero_grad()
        lesson.loss(net(lesson.data.inputs[samples]), samples).backward()
        optimizer.step()


def error_of(net: nn.Module, lesson: Lesson) -> float:
    """Test error of a network, in evaluation mode."""
    net.eval()
    with torch.no_grad():
        outputs: list[Tensor] = [net(inputs) for inputs in lesson.data.test_inputs.split(64)]
    return lesson.error(torch.cat(outputs))


MakeLayer = Callable[[int, int, int], nn.Module]
"""Makes a layer from its place in the network and its input and output channels."""

MAX_WIDTH = 64


class WithLearnedChannels(nn.Module):
    """A network whose input has further channels that are learned, the same for every sample.

    Args:
        net: Network for the widened input.
        num_channels: Number of learned channels.
        spatial_shape: Grid of the input.
    """

    def __init__(self, net: nn.Module, num_channels: int, spatial_shape: tuple[int, int]) -> None:
        super().__init__()
        self.net = net
        self.channels = nn.Parameter(0.1 * torch.randn(num_channels, *spatial_shape))

    def forward(self, input: Tensor) -> Tensor:
        """`(B, C, H, W)` to the output of the network."""
        return self.net(torch.cat([input, self.channels.expand(len(input), -1, -1, -1)], dim=1))


def make_net(channels: tuple[int, ...], make_layer: MakeLayer) -> nn.Sequential:
    """Layers with ReLU between them."""
    layers: list[nn.Module] = []
    for place, (fan_in, fan_out) in enumerate(itertools.pairwise(channels)):
        layers += [make_layer(place, fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_conv(place: int, fan_in: int, fan_out: int) -> nn.Module:
    """A 3 x 3 convolution with bias."""
    del place
    return nn.Conv2d(fan_in, fan_out, 3, padding=1)


def convolution(lesson: Lesson, width: int | None = None, num_extra: int = 0) -> nn.Sequential:
    """The plain network, of the teacher's channels or of another width between the layers."""
    first, *hidden, last = lesson.task.planted.channels
    if width is not None:
        hidden = [width] * max(1, len(hidden))
    return make_net((first + num_extra, *hidden, last), make_conv)


def spatial_moe(lesson: Lesson, **options: Any) -> nn.Sequential:
    """SMoE layers with the arguments given, and otherwise the defaults of the library."""
    planted, ratio = lesson.task.planted, lesson.task.ratio

    def make_layer(place: int, fan_in: int, fan_out: int) -> nn.Module:
        del place
        return SpatialMoE2d.from_experts(
            fan_in, ratio * fan_out, fan_out, spatial_shape=planted.spatial_shape, **options
        )

    return make_net(planted.channels, make_layer)


def oracle(lesson: Lesson) -> nn.Sequential:
    """SMoE layers whose gates know the regions."""
    num_regions = lesson.task.planted.num_regions

    def make_layer(place: int, fan_in: int, fan_out: int) -> nn.Module:
        experts = num_regions * torch.arange(fan_out)[:, None, None] + lesson.data.region_maps[place]
        gate = TensorGate(num_regions * fan_out, fan_out, lesson.task.planted.spatial_shape, order="families")
        with torch.no_grad():
            gate.scores.zero_().scatter_(0, experts, 1.0)
        return SpatialMoE2d.from_experts(fan_in, num_regions * fan_out, fan_out, gate=gate, rule=Frozen(), bias=True)

    return make_net(lesson.task.planted.channels, make_layer)


def local_affine(lesson: Lesson) -> nn.Sequential:
    """Convolutions, each with a learned scale and offset for each channel and pixel."""
    shape = lesson.task.planted.spatial_shape
    return make_net(
        lesson.task.planted.channels,
        lambda place, fan_in, fan_out: nn.Sequential(make_conv(place, fan_in, fan_out), LocalAffine(fan_out, shape)),
    )


def low_rank_local(lesson: Lesson) -> nn.Sequential:
    """LRLCN with a table of combining weights and as many bases as a student has experts for each output."""
    shape, rank = lesson.task.planted.spatial_shape, lesson.task.ratio

    def make_layer(place: int, fan_in: int, fan_out: int) -> nn.Module:
        del place
        return LowRankLocal2d(
            fan_in, fan_out, spatial_rank=rank, combiner="table", spatial_shape=shape, spatial_bias=True
        )

    return make_net(lesson.task.planted.channels, make_layer)


def locally_connected(lesson: Lesson) -> nn.Sequential:
    """Filters of its own for every pixel."""
    shape = lesson.task.planted.spatial_shape

    def make_layer(place: int, fan_in: int, fan_out: int) -> nn.Module:
        del place
        return LocallyConnected2d(fan_in, fan_out, spatial_shape=shape)

    return make_net(lesson.task.planted.channels, make_layer)


def equal_parameters(lesson: Lesson) -> nn.Sequential:
    """The widest plain network without more parameters than the default SMoE, gates included, but at most 64 wide."""
    budget = _count(spatial_moe(lesson))
    widths = [width for width in range(4, MAX_WIDTH + 1) if _count(convolution(lesson, width)) <= budget]
    return convolution(lesson, max(widths))


def equal_time(lesson: Lesson) -> nn.Sequential:
    """The narrowest plain network whose training step takes as long as that of the default SMoE."""
    wanted = _seconds(spatial_moe(lesson), lesson)
    for width in range(8, MAX_WIDTH, 4):
        if _seconds(convolution(lesson, width), lesson) >= wanted:
            return convolution(lesson, width)
    return convolution(lesson, MAX_WIDTH)


def _count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def _seconds(net: nn.Module, lesson: Lesson, num_steps: int = 30) -> float:
    """Processor time of a training step."""
    samples = torch.arange(16)
    optimizer = torch.optim.Adam(net.parameters())
    started = 0.0
    for step in range(num_steps + 5):
        if step == 5:  # the first steps allocate
            started = time.process_time()
        optimizer.zero_grad()
        lesson.loss(net(lesson.data.inputs[samples]), samples).backward()
        optimizer.step()
    return (time.process_time() - started) / num_steps


def _paper_layers(rule: Any) -> Callable[[Lesson], nn.Sequential]:
    """The paper's selection: a table of scores, experts in the order of the scores."""

    def make(lesson: Lesson) -> nn.Sequential:
        shape = lesson.task.planted.spatial_shape

        def make_layer(place: int, fan_in: int, fan_out: int) -> nn.Module:
            del place
            num_experts = lesson.task.ratio * fan_out
            gate = TensorGate(num_experts, fan_out, shape, order="score")
            return SpatialMoE2d.from_experts(fan_in, num_experts, fan_out, gate=gate, rule=rule, bias="slot")

        return make_net(lesson.task.planted.channels, make_layer)

    return make


STUDENTS: dict[str, Callable[[Lesson], nn.Module]] = {
    "convolution": convolution,
    "convolution, equal parameters": equal_parameters,
    "convolution, equal time": equal_time,
    "convolution, 8 learned input channels": lambda lesson: WithLearnedChannels(
        convolution(lesson, num_extra=8), 8, lesson.task.planted.spatial_shape
    ),
    "convolution, local affine": local_affine,
    "LRLCN, table": low_rank_local,
    "LCN": locally_connected,
    "SMoE, frozen gate": lambda lesson: spatial_moe(lesson, rule=Frozen()),
    "SMoE, RC, released settings": _paper_layers(RoutingClassification.released()),
    "SMoE, probing": _paper_layers(Probing()),
    "SMoE, default": spatial_moe,
    "SMoE, default, local affine": lambda lesson: spatial_moe(lesson, local_affine=True),
    "SMoE, oracle gate": oracle,
}

# Trained on every task; the others only on those that are for all.
ALWAYS = (
    *("convolution", "convolution, local affine", "SMoE, default", "SMoE, default, local affine", "SMoE, oracle gate"),
)
