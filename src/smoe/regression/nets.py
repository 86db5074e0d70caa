"""Networks of a regressor: a plain one, and the same with SMoE layers in place of its convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoe.meshes._mesh import Mesh
from smoe.nn import SpatialMoE2d, convert
from smoe.nn._filter_bank import LocalAffine
from smoe.nn._gate import SpatialGate
from smoe.nn._grid_layers import GridConv2d
from smoe.options import PaddingMode
from smoe.regression.mesh_nets import make_mesh_module
from smoe.regression.options import NetName
from smoe.regression.unet import UNet

# Scale of the last filters at the start: a net begins near the mean, or near what it is to correct.
_START = 0.1


@dataclass(frozen=True)
class NetShape:
    """What a net is made for.

    Attributes:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        grid: Rows and columns.
        closes_circle: Whether the columns close a circle.
        start: Value of each output channel at the start.
    """

    in_channels: int
    out_channels: int
    grid: tuple[int, int]
    closes_circle: bool
    start: tuple[float, ...]

    @property
    def padding_mode(self) -> PaddingMode:
        """Padding of the convolutions."""
        return "longitude" if self.closes_circle else "zeros"


class SummedExperts(nn.Module):
    """One SMoE layer whose selected experts are summed: a linear map of its own at each pixel."""

    def __init__(self, shape: NetShape, num_selected: int, num_experts: int) -> None:
        super().__init__()
        self.layer = SpatialMoE2d(
            shape.in_channels,
            num_experts,
            num_selected,
            expert_channels=shape.out_channels,
            spatial_shape=shape.grid,
            padding_mode=shape.padding_mode,
        )
        with torch.no_grad():
            self.layer.weight.mul_(_START)

    def forward(self, input: Tensor) -> Tensor:
        """`(B, in_channels, H, W)` to `(B, out_channels, H, W)`."""
        return self.layer(input).unflatten(1, (self.layer.num_selected, -1)).sum(dim=1)


class ResNet(nn.Module):
    """A convolution, residual blocks of two convolutions with ReLU, and a last convolution."""

    def __init__(self, shape: NetShape, filters: int, num_blocks: int) -> None:
        super().__init__()
        self.stem = GridConv2d(shape.in_channels, filters, 3, padding_mode=shape.padding_mode, bias=True)
        self.blocks = nn.ModuleList(
            nn.ModuleList(GridConv2d(filters, filters, 3, padding_mode=shape.padding_mode, bias=True) for _ in range(2))
            for _ in range(num_blocks)
        )
        self.head = GridConv2d(filters, shape.out_channels, 3, padding_mode=shape.padding_mode, bias=True)
        with torch.no_grad():
            self.head.weight.mul_(_START)

    def forward(self, input: Tensor) -> Tensor:
        """`(B, in_channels, H, W)` to `(B, out_channels, H, W)`."""
        hidden = F.relu(self.stem(input))
        # Each block adds a share, so that the size of the features does not grow with their number.
        scale = (2.0 * len(self.blocks)) ** -0.5
        for block in self.blocks:
            first, second = block.children()
            hidden = hidden + scale * second(F.relu(first(hidden)))
        return self.head(F.relu(hidden))


class PaddedUNet(nn.Module):
    """The U-Net for any grid: rows and columns are padded to multiples of four and cut off again."""

    def __init__(self, shape: NetShape, filters: int) -> None:
        super().__init__()
        self.closes_circle = shape.closes_circle
        self.padding = (-shape.grid[0] % 4, -shape.grid[1] % 4)
        # A circle that is padded does not close any more.
        mode: PaddingMode = "longitude" if shape.closes_circle and not self.padding[1] else "zeros"
        self.unet = UNet(shape.in_channels, shape.out_channels, filters=filters, padding_mode=mode)
        with torch.no_grad():
            self.unet.head.weight.mul_(_START)
            if self.unet.head.bias is not None:
                self.unet.head.bias.zero_()

    def forward(self, input: Tensor) -> Tensor:
        """`(B, in_channels, H, W)` to `(B, out_channels, H, W)`."""
        rows, columns = self.padding
        if rows:
            input = F.pad(input, (0, 0, 0, rows))
        if columns:
            input = F.pad(input, (0, columns, 0, 0), mode="circular" if self.closes_circle else "constant")
        output = self.unet(input)
        return output[..., : output.shape[-2] - rows or None, : output.shape[-1] - columns or None]


class Regression(nn.Module):
    """A net and what follows it: a scale and offset of each pixel, and the start of each output.

    Args:
        net: Net to `(B, out_channels, H, W)`.
        shape: What it is made for.
        local_affine: Learn a scale and offset of each pixel and output.
    """

    start: Tensor

    def __init__(self, net: nn.Module, shape: NetShape, *, local_affine: bool) -> None:
        super().__init__()
        self.net = net
        self.affine = LocalAffine(shape.out_channels, shape.grid) if local_affine else None
        self.register_buffer("start", torch.tensor(shape.start)[:, None, None], persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """`(B, in_channels, H, W)` to `(B, out_channels, H, W)`."""
        output = self.net(input)
        if self.affine is not None:
            output = self.affine(output)
        return output + self.start.to(output.dtype)


def make_net(
    name: NetName,
    shape: NetShape,
    *,
    filters: int,
    num_blocks: int,
    num_experts: float,
    local_affine: bool,
    mesh: Mesh | None = None,
) -> Regression:
    """A net with SMoE layers."""
    if mesh is not None:
        net = make_mesh_module(
            name, mesh, shape.in_channels, shape.out_channels, filters=filters, num_blocks=num_blocks,
            num_experts=num_experts,
        )  # fmt: skip
        return Regression(net, shape, local_affine=local_affine)
    if name == "layer":
        experts = max(1, round(filters * num_experts))
        return Regression(SummedExperts(shape, filters, experts), shape, local_affine=local_affine)
    plain = _make_plain(name, shape, filters, num_blocks)
    example = torch.zeros(2, shape.in_channels, *shape.grid)
    net = convert(plain, example_input=example, num_experts=num_experts)
    return Regression(net, shape, local_affine=local_affine)


def make_plain_net(
    name: NetName, shape: NetShape, *, num_blocks: int, num_parameters: int, mesh: Mesh | None = None
) -> Regression:
    """The same kind of net with plain convolutions, as wide as the number of parameters allows.

    Args:
        name: Kind of the net.
        shape: What it is made for.
        num_blocks: Residual blocks.
        num_parameters: Most parameters; those of the experts of the net that it is compared with.
        mesh: Mesh of the fields; None for a grid.
    """
    # One layer has no width: two convolutions with as many filters between them.
    kind: NetName = "resnet" if name == "layer" else name
    num_blocks = 1 if name == "layer" else num_blocks
    filters = 1
    # Plain layers have as many parameters on a mesh of one node, whose hash takes no time.
    smallest = None if mesh is None else mesh.smallest()
    with torch.random.fork_rng(), torch.device("meta") if mesh is None else nullcontext():
        while filters < 1024 and _count(_make_plain(kind, shape, filters + 1, num_blocks, smallest)) <= num_parameters:
            filters += 1
    return Regression(_make_plain(kind, shape, filters, num_blocks, mesh), shape, local_affine=False)


def _make_plain(name: NetName, shape: NetShape, filters: int, num_blocks: int, mesh: Mesh | None = None) -> nn.Module:
    if mesh is not None:
        return make_mesh_module(
            name, mesh, shape.in_channels, shape.out_channels, filters=filters, num_blocks=num_blocks, num_experts=None
        )
    return PaddedUNet(shape, filters) if name == "unet" else ResNet(shape, filters, num_blocks)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def count_parameters(module: nn.Module) -> int:
    """Number of learned numbers, those of each pixel among them."""
    return _count(module)


def count_shared_parameters(module: nn.Module) -> int:
    """Number of learned numbers that all pixels share: filters and biases, not the scores and offsets of pixels."""
    of_pixels = {
        parameter
        for each in module.modules()
        if isinstance(each, (SpatialGate, LocalAffine))
        for parameter in each.parameters()
    }
    return sum(parameter.numel() for parameter in module.parameters() if parameter not in of_pixels)


def wrap_own_net(net: nn.Module, shape: NetShape) -> Regression:
    """A user's own net, checked to keep the grid and to give the outputs that are needed.

    Raises:
        ValueError: With both shapes.
    """
    was_training = net.training
    try:
        with torch.no_grad():
            output = net.eval()(torch.zeros(1, shape.in_channels, *shape.grid))
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"the net does not take (1, {shape.in_channels}, {shape.grid[0]}, {shape.grid[1]}), a sample of these "
            f"inputs: {' '.join(str(error).split())}"
        ) from error
    finally:
        net.train(was_training)
    expected = (1, shape.out_channels, *shape.grid)
    if tuple(output.shape) != expected:
        raise ValueError(
            f"the net must turn (1, {shape.in_channels}, {shape.grid[0]}, {shape.grid[1]}) into {expected}, got "
            f"{tuple(output.shape)}"
        )
    return Regression(net, shape, local_affine=False)


def start_values(values: Sequence[float], num_targets: int) -> tuple[float, ...]:
    """Starts of all output channels: those of one target, repeated."""
    return tuple(values) * num_targets
