"""The students of `smoe bench learn`, and how they are trained: the library's layers and simple rivals.

A student is the plain network of its task whose convolutions are replaced, and nothing else.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smoe
from smoe_paper.baselines.layers import LocallyConnected2d
from smoe_paper.baselines.low_rank import LowRankLocal2d
from smoe_paper.benchmarks.learn_tasks import GRID, Lesson, Samples
from smoe_paper.models import VisionTransformer

NUM_CANDIDATES = 3
RANK = 8


class Course(NamedTuple):
    """How a student is trained.

    Attributes:
        optimizer: `adamw`, or `sgd` with momentum 0.9.
        rate: Learning rate.
        num_steps: Training steps.
        batch: Samples of a step.
        cosine: Whether the rate falls to zero along half a cosine.
        clip: Bound of the gradient's norm.
    """

    optimizer: str = "adamw"
    rate: float = 1e-3
    num_steps: int = 300
    batch: int = 8
    cosine: bool = False
    clip: float = math.inf

    @property
    def name(self) -> str:
        """What differs from the others in the table."""
        parts = [f"{'AdamW' if self.optimizer == 'adamw' else 'SGD'} {self.rate:g}", f"{self.num_steps} steps"]
        parts += [f"batch {self.batch}"] * (self.batch != Course().batch)
        parts += ["cosine"] * self.cosine + [f"clipped at {self.clip:g}"] * math.isfinite(self.clip)
        return ", ".join(parts)


def train(net: nn.Module, lesson: Lesson, seed: int, course: Course) -> None:
    """Trains a network in place, the same batches for every student of a seed."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = (
        torch.optim.AdamW(parameters, lr=course.rate)
        if course.optimizer == "adamw"
        else torch.optim.SGD(parameters, lr=course.rate, momentum=0.9)
    )
    net.train()
    for step in range(course.num_steps):
        if course.cosine:
            optimizer.param_groups[0]["lr"] = course.rate * (1 + math.cos(math.pi * step / course.num_steps)) / 2
        samples = torch.randint(len(lesson.train.inputs), (course.batch,), generator=generator)
        optimizer.zero_grad()
        lesson.loss(net(lesson.train.inputs[samples]), lesson.train.targets[samples]).backward()
        if math.isfinite(course.clip):
            nn.utils.clip_grad_norm_(parameters, course.clip)
        optimizer.step()


@torch.no_grad()
def error_of(net: nn.Module, lesson: Lesson, samples: Samples) -> float:
    """Error of a network in evaluation mode."""
    net.eval()
    return lesson.error(net(samples.inputs), samples.targets)


class PlainNet(nn.Module):
    """The network of a task: convolutions with ReLU between them, and batch normalisation if it is residual."""

    def __init__(self, lesson: Lesson, width: int | None = None) -> None:
        super().__init__()
        first, *hidden, last = lesson.channels
        channels = (first, *(width or each for each in hidden), last)
        self.is_residual, self.adds_input = lesson.is_residual, lesson.adds_input
        self.convs = nn.ModuleList(nn.Conv2d(*pair, 3, padding=1) for pair in itertools.pairwise(channels))
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(each) if lesson.is_residual else nn.Identity() for each in channels[1:-1]
        )

    def forward(self, input: Tensor) -> Tensor:
        """`(B, C, H, W)` to outputs of the same grid."""
        hidden = input
        for conv, norm in zip(self.convs, self.norms, strict=False):
            output = norm(conv(hidden)).relu()
            hidden = hidden + output if self.is_residual and hidden.shape == output.shape else output
        output = self.convs[-1](hidden)
        return input + output if self.adds_input else output


def local_affine(conv: nn.Module, out_channels: int) -> nn.Module:
    """A convolution with a learned scale and offset for each channel and pixel."""
    return nn.Sequential(conv, smoe.LocalAffine(out_channels, GRID))


class WithChannels(nn.Module):
    """A convolution whose input has further channels: coordinates, or learned ones that start at zero."""

    def __init__(self, conv: nn.Conv2d, channels: Tensor, *, is_learned: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(conv.in_channels + len(channels), conv.out_channels, 3, padding=1)
        self.channels = nn.Parameter(channels, requires_grad=is_learned)

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of input and channels."""
        return self.conv(torch.cat([input, self.channels.expand(len(input), -1, -1, -1)], dim=1))


class Transformer(nn.Module):
    """A vision transformer of 2 x 2 patches with fixed positions, and a convolution of its output and the input."""

    def __init__(self, lesson: Lesson, width: int = 32) -> None:
        super().__init__()
        inputs, self.adds_input = lesson.channels[0], lesson.adds_input
        self.net = VisionTransformer(inputs, width, GRID, patch_size=2, width=width, depth=2, hidden=2 * width)
        self.last = nn.Conv2d(width + inputs, lesson.channels[-1], 3, padding=1)

    def forward(self, input: Tensor) -> Tensor:
        """`(B, C, H, W)` to outputs of the same grid."""
        output = self.last(torch.cat([self.net(input), input], dim=1))
        return input + output if self.adds_input else output


class Candidates(nn.Module):
    """Equal copies of a convolution, and at each pixel one of them by a map, or a softmax mixture by learned scores."""

    def __init__(self, conv: nn.Conv2d, chosen: Tensor | None) -> None:
        super().__init__()
        assert conv.bias is not None
        self.weight = nn.Parameter(conv.weight.detach().repeat_interleave(NUM_CANDIDATES, dim=0))
        self.bias = nn.Parameter(conv.bias.detach().repeat_interleave(NUM_CANDIDATES))
        self.chosen = chosen
        if chosen is None:
            self.keys = nn.Parameter(torch.randn(conv.out_channels, NUM_CANDIDATES, RANK) / RANK**0.5)
            self.embedding = nn.Parameter(0.01 * torch.randn(RANK, *GRID))

    def forward(self, input: Tensor) -> Tensor:
        """`(B, C, H, W)` to `(B, E, H, W)`."""
        outputs = F.conv2d(input, self.weight, self.bias, padding=1)
        outputs = outputs.unflatten(1, (-1, NUM_CANDIDATES))
        if self.chosen is not None:
            return outputs.gather(2, self.chosen[None, :, None].expand(len(input), -1, -1, -1, -1))[:, :, 0]
        scores = 10.0 * torch.einsum("ekr,rhw->ekhw", self.keys, self.embedding)
        return (outputs * scores.softmax(dim=1)).sum(dim=2)


MakeLayer = Callable[[nn.Conv2d, int], nn.Module]
"""Makes a layer from a convolution and its number in the network."""


def replaced(make_layer: MakeLayer) -> Callable[[Lesson], PlainNet]:
    """A student whose convolutions are replaced."""

    def make(lesson: Lesson) -> PlainNet:
        net = PlainNet(lesson)
        for number, conv in enumerate(net.convs):
            assert isinstance(conv, nn.Conv2d)
            net.convs[number] = make_layer(conv, number)
        return net

    return make


def _coordinates() -> Tensor:
    axes = (torch.linspace(-1.0, 1.0, size) for size in GRID)
    return torch.stack(torch.meshgrid(*axes, indexing="ij"))


def _low_rank(conv: nn.Conv2d, number: int) -> nn.Module:
    del number
    return LowRankLocal2d(
        *(conv.in_channels, conv.out_channels),
        spatial_rank=NUM_CANDIDATES,
        combiner="table",
        spatial_shape=GRID,
        spatial_bias=True,
    )


def _at_random(conv: nn.Conv2d, number: int) -> nn.Module:
    del number
    chosen = torch.randint(NUM_CANDIDATES, (conv.out_channels, *GRID))
    return local_affine(Candidates(conv, chosen), conv.out_channels)


def oracle(lesson: Lesson) -> nn.Module:
    """The true region of each pixel chooses the filter."""
    assert lesson.regions is not None
    regions = lesson.regions
    return replaced(lambda conv, _: Candidates(conv, regions.expand(conv.out_channels, -1, -1)))(lesson)


def default(lesson: Lesson, **options: Any) -> nn.Module:
    """The plain network, converted with the library's defaults."""
    net = PlainNet(lesson)
    return smoe.convert(net, example_input=lesson.train.inputs[:2], **options)


def converted(make: Callable[[Lesson], nn.Module]) -> Callable[[Lesson], nn.Module]:
    """Another student, converted with the library's defaults."""
    return lambda lesson: smoe.convert(make(lesson), example_input=lesson.train.inputs[:2])


def shuffled(lesson: Lesson, taught: nn.Module) -> nn.Module:
    """What a trained default has chosen at each pixel, at other pixels: the same shares, the wrong places."""
    order = torch.randperm(math.prod(GRID))
    maps = []
    for layer in taught.convs:  # pyright: ignore[reportGeneralTypeIssues]
        experts = layer.routing().indices.reshape(-1, math.prod(GRID)).long()
        num_candidates = layer.gate.num_experts // len(experts)
        maps.append((experts % num_candidates)[:, order].view(-1, *GRID))
    make = replaced(lambda conv, number: local_affine(Candidates(conv, maps[number]), conv.out_channels))
    return make(lesson)


def _seconds(net: nn.Module, lesson: Lesson) -> float:
    """Processor time of some training steps, the least of five, as others use the machine."""
    train(net, lesson, 0, Course(num_steps=5))  # the first steps allocate
    times = []
    for _ in range(5):
        started = time.process_time()
        train(net, lesson, 0, Course(num_steps=10))
        times.append(time.process_time() - started)
    return min(times)


_WIDTHS: dict[tuple[int, ...], int] = {}


def equal_time(lesson: Lesson) -> nn.Module:
    """The narrowest plain network whose training step takes as long as that of the default."""
    if lesson.channels not in _WIDTHS:
        with torch.random.fork_rng(devices=[]):
            wanted = _seconds(default(lesson), lesson)
            widths = range(lesson.channels[-2] + 4, 64, 4)
            _WIDTHS[lesson.channels] = next((w for w in widths if _seconds(PlainNet(lesson, w), lesson) >= wanted), 64)
    return PlainNet(lesson, _WIDTHS[lesson.channels])


STUDENTS: dict[str, Callable[[Lesson], nn.Module]] = {
    "convolution": PlainNet,
    "convolution, equal time": equal_time,
    "convolution, local affine": replaced(lambda conv, _: local_affine(conv, conv.out_channels)),
    "CoordConv": replaced(lambda conv, _: WithChannels(conv, _coordinates(), is_learned=False)),
    "learned channels": replaced(lambda conv, _: WithChannels(conv, torch.zeros(4, *GRID), is_learned=True)),
    "LRLCN": replaced(_low_rank),
    "LCN": replaced(lambda conv, _: LocallyConnected2d(conv.in_channels, conv.out_channels, spatial_shape=GRID)),
    "frozen random choice": replaced(_at_random),
    "soft mixture": replaced(lambda conv, _: Candidates(conv, None)),
    "default": default,
    "default, three candidates": lambda lesson: default(lesson, num_experts=3.0),
    "default, no local affine": lambda lesson: default(lesson, local_affine=False),
    "true regions": oracle,
    "transformer": Transformer,
}
STUDENTS |= {f"{name}, converted": converted(STUDENTS[name]) for name in ("learned channels", "transformer")}
