"""The tasks of `smoe bench learn`: the answer is known, and depends on the place in all of them but one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

GRID = (16, 16)
NUM_TEST = 256
OFFSET, DEVIATION = 300.0, 15.0


class Samples(NamedTuple):
    """Inputs `(N, C, H, W)` and targets of the same grid, or classes `(N,)`."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Lesson:
    """Samples of a task, and the network for them.

    Attributes:
        train: Training samples.
        validation: Samples by which a learning rate is chosen.
        test: Samples of the error, without noise.
        channels: Channels of the input, between the layers, and of the output of the network.
        is_residual: Whether the network has batch normalisation and residual connections, or ReLU alone.
        adds_input: Whether the network's output is added to its input.
        regions: Region of each pixel, where filters depend on one.
    """

    train: Samples
    validation: Samples
    test: Samples
    channels: tuple[int, ...]
    is_residual: bool = True
    adds_input: bool = False
    regions: Tensor | None = None

    @property
    def is_classification(self) -> bool:
        """Whether the targets are classes, to be predicted by the spatial means of the output."""
        return self.test.targets.dim() == 1

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Training loss."""
        if self.is_classification:
            return F.cross_entropy(output.mean(dim=(2, 3)), targets)
        return F.mse_loss(output, targets)

    def error(self, output: Tensor, targets: Tensor) -> float:
        """Mean squared error over the variance of the targets, or share of wrong classes."""
        if self.is_classification:
            return float((output.mean(dim=(2, 3)).argmax(dim=1) != targets).float().mean())
        return float((output - targets).square().mean() / targets.var())


def smooth_fields(shape: tuple[int, ...], length: float) -> Tensor:
    """Periodic Gaussian random fields with unit variance and a correlation length in pixels."""
    rows, columns = torch.fft.fftfreq(shape[-2])[:, None], torch.fft.rfftfreq(shape[-1])
    filter = torch.exp(-2 * (math.pi * length) ** 2 * (rows.square() + columns.square()))
    fields = torch.fft.irfft2(torch.fft.rfft2(torch.randn(shape)) * filter, s=shape[-2:])
    return fields / fields.std()


def make_lesson(name: str, seed: int, num_samples: int = 512) -> Lesson:
    """Draws the samples of a task; the random numbers of the caller are left alone.

    Args:
        name: Key of `TASKS`.
        seed: Seed of teacher, maps and samples.
        num_samples: Training samples; the others do not depend on it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 + seed)
        return TASKS[name](num_samples)


def _region_map(num_regions: int = 3) -> Tensor:
    return smooth_fields((num_regions, *GRID), 3.0).argmax(dim=0)


def _planted(depth: int, *, structure: bool = True, equal_norms: bool = False, classes: bool = False) -> Callable:
    """A teacher of conv-ReLU layers whose filters depend on the region; no bias, so that no offset depends on it."""

    def make(num_samples: int) -> Lesson:
        channels = (4, *(8,) * (depth - 1), 4)
        regions = _region_map() if structure else torch.zeros(GRID, dtype=torch.long)
        teacher = [
            torch.randn(3, fan_out, fan_in, 3, 3) * math.sqrt(2 / (9 * fan_in))
            for fan_in, fan_out in itertools.pairwise(channels)
        ]
        if equal_norms:
            teacher = [F.normalize(weight.flatten(2), dim=2).view_as(weight) for weight in teacher]

        def teach(input: Tensor) -> Tensor:
            for number, weight in enumerate(teacher):
                outputs = torch.stack([F.conv2d(input, each, padding=1) for each in weight])
                input = outputs.gather(0, regions.expand(1, *outputs.shape[1:]))[0]
                input = input.relu() if number < depth - 1 else input
            return input

        def draw(number: int) -> Samples:
            inputs = smooth_fields((number, channels[0], *GRID), 1.5)
            return Samples(inputs, teach(inputs))

        parts = [draw(number) for number in (NUM_TEST, NUM_TEST, num_samples)]
        if classes:
            means = torch.cat([part.targets.mean(dim=(2, 3)) for part in parts])
            means = (means - means[: 2 * NUM_TEST].mean(dim=0)) / means[: 2 * NUM_TEST].std(dim=0)
            classes_of = means.argmax(dim=1).split([len(part.targets) for part in parts])
            parts = [Samples(part.inputs, labels) for part, labels in zip(parts, classes_of, strict=True)]
        else:
            unit = parts[0].targets.std()
            parts = [Samples(part.inputs, part.targets / unit) for part in parts]
        test, validation, train = parts
        if not structure:
            train = train._replace(targets=train.targets + 0.5 * torch.randn(train.targets.shape))
        known = regions if structure else None
        return Lesson(train, validation, test, channels, is_residual=False, regions=known)

    return make


def _field_task(draw_law: Callable[[], Callable[[int], Samples]], *, raw: bool = False) -> Callable:
    """A network of three layers with batch normalisation learns a law from fields to fields."""

    def make(num_samples: int) -> Lesson:
        draw = draw_law()
        test, validation, train = (draw(number) for number in (NUM_TEST, NUM_TEST, num_samples))
        unit = test.targets.std()
        test, validation, train = (part._replace(targets=part.targets / unit) for part in (test, validation, train))
        if raw:
            test, validation, train = (
                Samples(*(OFFSET + DEVIATION * each for each in part)) for part in (test, validation, train)
            )
        channels = (test.inputs.shape[1], 10, 10, test.targets.shape[1])
        return Lesson(train, validation, test, channels, adds_input=raw)

    return make


def _advection() -> Callable[[int], Samples]:
    """Fields move with a flow that depends on the place, by two pixels where it is fastest."""
    stream = smooth_fields(GRID, 3.5)
    flow = torch.stack([-(stream.roll(-1, 0) - stream.roll(1, 0)), stream.roll(-1, 1) - stream.roll(1, 1)], dim=-1)
    flow = 2.0 * flow / flow.norm(dim=-1).max()
    rows, columns = torch.meshgrid(torch.arange(GRID[0]), torch.arange(GRID[1]), indexing="ij")
    places = (torch.stack([columns, rows], dim=-1) - flow) * 2 / (torch.tensor(GRID).flip(0) - 1) - 1

    def draw(number: int) -> Samples:
        inputs = smooth_fields((number, 1, *GRID), 1.2)
        grid = places.expand(number, -1, -1, -1)
        return Samples(inputs, F.grid_sample(inputs, grid, align_corners=True, padding_mode="border"))

    return draw


def _automaton() -> Callable[[int], Samples]:
    """A cellular automaton: life, majority or parity by region."""
    regions = _region_map()
    cross = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])[None, None]

    def draw(number: int) -> Samples:
        cells = (torch.rand(number, 1, *GRID) < 0.4).float()
        around = F.conv2d(cells, torch.ones(1, 1, 3, 3), padding=1)
        lives = (around == 3.0) | ((around == 4.0) & (cells > 0))
        parity = F.conv2d(cells, cross, padding=1) % 2
        after = torch.where(regions == 0, lives.float(), torch.where(regions == 1, (around > 4.0).float(), parity))
        return Samples((cells - 0.4) / 0.49, after - after.mean())

    return draw


def _shallow_water() -> Callable[[int], Samples]:
    """Height and flow after six steps of the linear shallow-water equations over a topography."""
    depth = 0.02 + 0.2 * torch.sigmoid(2.0 * smooth_fields(GRID, 3.0))

    def draw(number: int) -> Samples:
        height, east, north = start = smooth_fields((3, number, *GRID), 1.5)
        for _ in range(6):
            east = east - (height.roll(-1, 2) - height)
            north = north - (height.roll(-1, 1) - height)
            across, along = depth * east, depth * north
            height = height - (across - across.roll(1, 2)) - (along - along.roll(1, 1))
            east, north = 0.95 * east, 0.95 * north
        after = torch.stack([part / part.std() for part in (height, east, north)], dim=1)
        return Samples(start.transpose(0, 1), after)

    return draw


def _denoising() -> Callable[[int], Samples]:
    """Fields with white noise; nothing depends on the place."""

    def draw(number: int) -> Samples:
        fields = smooth_fields((number, 1, *GRID), 1.2)
        return Samples(fields + 0.7 * torch.randn(fields.shape), fields)

    return draw


TASKS: dict[str, Callable[[int], Lesson]] = {
    "one layer": _planted(1),
    "two layers": _planted(2),
    "three layers": _planted(3),
    "filters only": _planted(2, equal_norms=True),
    "classification": _planted(2, classes=True),
    "advection": _field_task(_advection),
    "automaton": _field_task(_automaton),
    "shallow water": _field_task(_shallow_water),
    "advection, raw": _field_task(_advection, raw=True),
    "no structure": _planted(2, structure=False),
    "denoising": _field_task(_denoising),
}
