"""The ResNets: every parameter of torchvision's, the start, and the converted variants."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from smoe_paper.models import Bottleneck, ResNet

# Channels of the 3x3 convolutions and of the outputs of the stages of ResNet-50, and their blocks.
STAGES = (("layer1", 64, 256, 3), ("layer2", 128, 512, 4), ("layer3", 256, 1024, 6), ("layer4", 512, 2048, 3))


def norm(name: str, channels: int) -> dict[str, tuple[int, ...]]:
    per_channel = {f"{name}.{part}": (channels,) for part in ("weight", "bias", "running_mean", "running_var")}
    return {**per_channel, f"{name}.num_batches_tracked": ()}


def published(width_factor: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of torchvision's resnet50 and wide_resnet50_2, in its order."""
    expected: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64)}
    before = 64
    for stage, filters, channels, num_blocks in STAGES:
        width = filters * width_factor
        for block in range(num_blocks):
            prefix = f"{stage}.{block}"
            expected |= {f"{prefix}.conv1.weight": (width, before, 1, 1), **norm(f"{prefix}.bn1", width)}
            expected |= {f"{prefix}.conv2.weight": (width, width, 3, 3), **norm(f"{prefix}.bn2", width)}
            expected |= {f"{prefix}.conv3.weight": (channels, width, 1, 1), **norm(f"{prefix}.bn3", channels)}
            if block == 0:
                expected |= {f"{prefix}.downsample.0.weight": (channels, before, 1, 1)}
                expected |= norm(f"{prefix}.downsample.1", channels)
            before = channels
    return {**expected, "fc.weight": (1000, 2048), "fc.bias": (1000,)}


@pytest.mark.parametrize(("width_factor", "num_parameters"), [(1, 25_557_032), (2, 68_883_240)])
def test_a_published_state_dict_fits(width_factor: int, num_parameters: int) -> None:
    with torch.device("meta"):
        model = ResNet(width_factor=width_factor)
    expected = published(width_factor)
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == expected
    assert list(model.state_dict()) == list(expected)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    weights = {name: torch.empty(shape, device="meta") for name, shape in expected.items()}
    model.load_state_dict(weights, assign=True)


def test_the_start_is_torchvisions() -> None:
    torch.manual_seed(0)
    model = ResNet((1, 1, 1, 1), filters=16, num_classes=7)
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx(math.sqrt(2.0 / fan_out), rel=0.1)
        if isinstance(module, torch.nn.BatchNorm2d):
            # Not zero for the last norm of a block either: torchvision's zero_init_residual is off.
            assert bool((module.weight == 1).all())
            assert bool((module.bias == 0).all())
    bound = 1 / math.sqrt(model.fc.in_features)
    assert model.fc.weight.abs().max().item() == pytest.approx(bound, rel=0.05)


def block_by_definition(x: torch.Tensor, block: Bottleneck, stride: int) -> torch.Tensor:
    def convolve(
        x: torch.Tensor, conv: torch.nn.Module, norm: torch.nn.Module, stride: int = 1, padding: int = 0
    ) -> torch.Tensor:
        assert isinstance(conv, torch.nn.Conv2d)
        assert isinstance(norm, torch.nn.BatchNorm2d)
        x = F.conv2d(x, conv.weight, stride=stride, padding=padding)
        return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=1e-5)

    y = convolve(x, block.conv1, block.bn1).relu()
    # Version 1.5: the stride is on the 3x3 convolution.
    y = convolve(y, block.conv2, block.bn2, stride=stride, padding=1).relu()
    y = convolve(y, block.conv3, block.bn3)
    if block.downsample is not None:
        assert isinstance(block.downsample, torch.nn.Sequential)
        x = convolve(x, block.downsample[0], block.downsample[1], stride=stride)
    return (x + y).relu()


def test_the_net_is_what_it_says() -> None:
    torch.manual_seed(0)
    net = ResNet((2, 1, 2, 1), filters=4, num_classes=5).double().eval()
    for tensor in net.state_dict().values():
        # Norms start where much could be wrong unseen.
        if tensor.is_floating_point():
            tensor += 0.1 * torch.rand_like(tensor)
    x = torch.randn(2, 3, 37, 50, dtype=torch.float64)
    y = F.conv2d(x, net.conv1.weight, stride=2, padding=3)
    y = F.batch_norm(y, net.bn1.running_mean, net.bn1.running_var, net.bn1.weight, net.bn1.bias, eps=1e-5).relu()
    y = F.max_pool2d(y, 3, stride=2, padding=1)
    for number, stage in enumerate((net.layer1, net.layer2, net.layer3, net.layer4)):
        for position, block in enumerate(stage):
            assert isinstance(block, Bottleneck)
            y = block_by_definition(y, block, 2 if number and position == 0 else 1)
    expected = y.mean(dim=(2, 3)) @ net.fc.weight.T + net.fc.bias
    torch.testing.assert_close(net(x), expected)
