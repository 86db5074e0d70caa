"""The tasks of `smoe bench learn`: planted structure in all the forms in which a layer may meet it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from smoe.nn._gate_init import smooth_fields


@dataclass(frozen=True)
class PlantedTask:
    """What is planted.

    Attributes:
        depth: Layers of the teacher.
        has_structure: Whether the filters depend on the region.
        map_per_channel: Whether each channel has a region map of its own.
        has_bias: Whether the teacher's filters have a bias that depends on the region.
        noise: Standard deviation of the noise in the training targets, relative to that of the targets.
        input_scale: Factor of the inputs.
        target_scale: Factor of the targets.
        region_length: Correlation length of the region maps in pixels; 0 for white maps.
        num_regions: Regions.
        hidden_channels: Channels between the layers.
        spatial_shape: Rows and columns.
    """

    depth: int = 2
    has_structure: bool = True
    map_per_channel: bool = False
    has_bias: bool = False
    noise: float = 0.0
    input_scale: float = 1.0
    target_scale: float = 1.0
    region_length: float = 4.0
    num_regions: int = 3
    hidden_channels: int = 8
    spatial_shape: tuple[int, int] = (24, 32)

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels of the input, between the layers, and of the output."""
        return (4, *(self.hidden_channels,) * (self.depth - 1), 4)


@dataclass(frozen=True)
class PlantedData:
    """Samples of a task.

    Attributes:
        inputs: Training inputs `(N, C, H, W)`.
        targets: Training targets.
        test_inputs: Test inputs.
        test_targets: Test targets, without noise.
        region_maps: Region of each channel and pixel of each layer, `(E, H, W)`.
    """

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    region_maps: tuple[Tensor, ...]

    def relative_error(self, prediction: Tensor) -> float:
        """Mean squared error on the test inputs over the variance of the targets."""
        return float((prediction - self.test_targets).square().mean() / self.test_targets.var())


def make_data(task: PlantedTask, seed: int, num_samples: int = 2048, num_test: int = 256) -> PlantedData:
    """Draws a teacher, its region maps and samples; the random numbers of the caller are left alone.

    Args:
        task: What is planted.
        seed: Seed of teacher, maps and samples.
        num_samples: Training samples.
        num_test: Test samples.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 + seed)
        shared_map = _region_maps(task, 1)
        maps: list[Tensor] = []
        filters: list[Tensor] = []
        biases: list[Tensor] = []
        for fan_in, fan_out in zip(task.channels, task.channels[1:], strict=False):
            regions = _region_maps(task, fan_out) if task.map_per_channel else shared_map.expand(fan_out, -1, -1)
            maps.append(regions if task.has_structure else torch.zeros_like(regions))
            size = (fan_out, task.num_regions, fan_in, 3, 3)
            filters.append(torch.randn(size) * math.sqrt(2 / (9 * fan_in)))
            biases.append(torch.randn(size[:2]) * (0.5 if task.has_bias else 0.0))
        length = math.sqrt(2.0) * 3.0
        fields = smooth_fields(((num_samples + num_test) * task.channels[0], *task.spatial_shape), length)
        inputs = fields.unflatten(0, (-1, task.channels[0]))
        targets = torch.cat([_teach(part, filters, biases, maps) for part in inputs.split(256)])
        targets = targets / targets[:num_samples].std()
        noise = task.noise * torch.randn(targets[:num_samples].shape)
    inputs, targets = inputs * task.input_scale, targets * task.target_scale
    return PlantedData(
        inputs[:num_samples],
        targets[:num_samples] + noise * task.target_scale,
        inputs[num_samples:],
        targets[num_samples:],
        tuple(maps),
    )


def _region_maps(task: PlantedTask, number: int) -> Tensor:
    shape = (task.num_regions * number, *task.spatial_shape)
    fields = smooth_fields(shape, task.region_length) if task.region_length > 0.0 else torch.randn(shape)
    return fields.unflatten(0, (task.num_regions, number)).argmax(dim=0)


def _teach(input: Tensor, filters: list[Tensor], biases: list[Tensor], maps: list[Tensor]) -> Tensor:
    for layer, (weight, bias, regions) in enumerate(zip(filters, biases, maps, strict=True)):
        outputs = F.conv2d(input, weight.flatten(0, 1), bias.flatten(), padding=1).unflatten(1, weight.shape[:2])
        chosen = regions[None, :, None].expand(len(input), -1, -1, -1, -1)
        input = outputs.gather(2, chosen).squeeze(2)
        if layer < len(filters) - 1:
            input = input.relu()
    return input


@dataclass(frozen=True)
class LearningTask:
    """A planted task and how students are trained on it.

    Attributes:
        planted: What is planted.
        ratio: Experts for each output channel of a student; the teacher has one for each region.
        optimizer: `adam`, or `sgd` with momentum.
        is_classification: Whether the largest of the teacher's spatial means is to be predicted, and not its output.
        for_all: Whether every student is trained on it, or the most important ones only.
    """

    planted: PlantedTask = field(default_factory=PlantedTask)
    ratio: int = 3
    optimizer: Literal["adam", "sgd"] = "adam"
    is_classification: bool = False
    for_all: bool = False


TASKS = {
    "one layer": LearningTask(PlantedTask(depth=1), for_all=True),
    "two layers": LearningTask(for_all=True),
    "three layers": LearningTask(PlantedTask(depth=3), for_all=True),
    "no structure": LearningTask(PlantedTask(has_structure=False, noise=0.5), for_all=True),
    "map per channel": LearningTask(PlantedTask(map_per_channel=True)),
    "biases": LearningTask(PlantedTask(has_bias=True)),
    "noise 0.5": LearningTask(PlantedTask(noise=0.5)),
    "all x 1e-3": LearningTask(PlantedTask(input_scale=1e-3, target_scale=1e-3)),
    "all x 1e3": LearningTask(PlantedTask(input_scale=1e3, target_scale=1e3)),
    "white regions": LearningTask(PlantedTask(region_length=0.0)),
    "X = 2 E": LearningTask(ratio=2),
    "X = 6 E": LearningTask(ratio=6),
    "classification": LearningTask(is_classification=True),
    "SGD": LearningTask(optimizer="sgd"),
}


@dataclass(frozen=True)
class Lesson:
    """Samples of a task, and what is to be learned from them.

    Attributes:
        task: The task.
        data: Samples; `targets` are replaced by `labels` in a classification.
        labels: Classes of training and test samples; None in a regression.
    """

    task: LearningTask
    data: PlantedData
    labels: tuple[Tensor, Tensor] | None = None

    def loss(self, output: Tensor, samples: Tensor) -> Tensor:
        """Training loss of the outputs for training samples with these numbers."""
        if self.labels is None:
            return F.mse_loss(output, self.data.targets[samples])
        return F.cross_entropy(output.mean(dim=(2, 3)), self.labels[0][samples])

    def error(self, output: Tensor) -> float:
        """Test error: relative mean squared error, or share of wrong classes."""
        if self.labels is None:
            return self.data.relative_error(output)
        return float((output.mean(dim=(2, 3)).argmax(dim=1) != self.labels[1]).float().mean())


def make_lesson(task: LearningTask, seed: int) -> Lesson:
    """Draws the samples of a task.

    Args:
        task: The task.
        seed: Seed of teacher, maps and samples.
    """
    data = make_data(task.planted, seed)
    if not task.is_classification:
        return Lesson(task, data)
    means = torch.cat([data.targets, data.test_targets]).mean(dim=(2, 3))
    classes = ((means - means.mean(dim=0)) / means.std(dim=0)).argmax(dim=1)
    return Lesson(task, data, (classes[: len(data.targets)], classes[len(data.targets) :]))
