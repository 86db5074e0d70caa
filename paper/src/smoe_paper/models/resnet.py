"""ResNet-50 and Wide ResNet-50-2 for images, with the names and shapes of torchvision, whose weights load."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from smoe_paper.baselines import check_input

# Output channels of a block for each of its filters.
_EXPANSION = 4


def start_as_torchvision(weight: torch.Tensor, out_channels: int) -> None:
    """Draws kernels `(N, C, rows, columns)` from a normal distribution of variance 2 / fan-out."""
    nn.init.normal_(weight, std=math.sqrt(2.0 / (out_channels * weight.shape[2] * weight.shape[3])))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, each with batch normalisation, added to the input."""

    def __init__(self, in_channels: int, filters: int, width: int, stride: int = 1) -> None:
        super().__init__()
        out_channels = _EXPANSION * filters
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2: nn.Module = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output = self.relu(self.bn1(self.conv1(input)))
        output = self.relu(self.bn2(self.conv2(output)))
        output = self.bn3(self.conv3(output))
        return self.relu(output + (input if self.downsample is None else self.downsample(input)))


class ResNet(nn.Module):
    """Images `(B, 3, H, W)` to logits `(B, num_classes)`.

    With 1000 classes it has 25,557,032 parameters, as `wide_resnet50_2` 68,883,240.

    Args:
        filters: Number of filters of the first convolution; each stage has twice as many as the one before.
        width_factor: Number of channels of the 3x3 convolutions as a multiple of the stage's filters; 2 is Wide
            ResNet-50-2.
    """

    def __init__(
        self,
        num_blocks: Sequence[int] = (3, 4, 6, 3),
        *,
        num_classes: int = 1000,
        filters: int = 64,
        width_factor: int = 1,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, filters, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.relu: nn.Module = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = [filters, *(_EXPANSION * filters * 2**stage for stage in range(4))]

        def stage(number: int) -> nn.Sequential:
            """The blocks of a stage; the first one changes the channels, and halves the grid after stage 0."""
            stage_filters = filters * 2**number
            blocks = (
                Bottleneck(
                    channels[number] if block == 0 else channels[number + 1],
                    stage_filters,
                    stage_filters * width_factor,
                    2 if number > 0 and block == 0 else 1,
                )
                for block in range(num_blocks[number])
            )
            return nn.Sequential(*blocks)

        self.layer1, self.layer2, self.layer3, self.layer4 = (stage(number) for number in range(4))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels[-1], num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                start_as_torchvision(module.weight, module.out_channels)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        check_input(input, 3)
        output = self.maxpool(self.relu(self.bn1(self.conv1(input))))
        output = self.layer4(self.layer3(self.layer2(self.layer1(output))))
        return self.fc(self.avgpool(output).flatten(1))
