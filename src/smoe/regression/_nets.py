"""Networks of a regressor, on grids and on the nodes of a mesh."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoe.errors import DataError
from smoe.gridded import HorizontalGrid
from smoe.meshes import NODES, Mesh, MeshNet, SummedMeshLayer, make_mesh
from smoe.nn import SharedBatchNorm2d, SpatialMoE2d, convert
from smoe.nn._filter_bank import LocalAffine
from smoe.nn._gate import SpatialGate
from smoe.nn._grid_layers import GridConv2d
from smoe.nn._routed_layer import check_positive
from smoe.options import PaddingMode
from smoe.regression._options import SIMPLE, NetName, RegressorOptions


def start_as_torch(weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Draws kernels `(N, C, rows, columns)` and biases as `torch.nn.Conv2d` does: uniform within 1 / sqrt(fan-in)."""
    bound = 1.0 / math.sqrt(weight[0].numel())
    nn.init.uniform_(weight, -bound, bound)
    if bias is not None:
        nn.init.uniform_(bias, -bound, bound)


class UNetBlock(nn.Module):
    """Two times: a 3x3 convolution, batch normalisation and ReLU."""

    def __init__(self, in_channels: int, hidden: int, out_channels: int, padding_mode: PaddingMode) -> None:
        super().__init__()
        self.first = _make_conv(in_channels, hidden, padding_mode)
        self.first_norm = SharedBatchNorm2d(hidden)
        self.second = _make_conv(hidden, out_channels, padding_mode)
        self.second_norm = SharedBatchNorm2d(out_channels)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.first_norm(self.first(input)), inplace=True)
        return F.relu(self.second_norm(self.second(hidden)), inplace=True)


class UNet(nn.Module):
    """Mean and spread of an ensemble's fields to two numbers for each pixel, which a head makes a forecast of.

    Three levels, each of half the rows and columns of the one before, with twice the filters; bilinear upsampling; the
    output of a level of the encoder goes before that of the decoder's next lower level into the decoder. 633,698
    parameters for 14 channels and 636,002 for 22, as ENS-10's.

    An odd number of rows (361) loses its last one on the way down; on the way up the first one is repeated, as in
    ENS-10, which moves the lower levels' rows by half a pixel.
    """

    def __init__(
        self, in_channels: int, out_channels: int = 2, *, filters: int = 32, padding_mode: PaddingMode = "zeros"
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, out_channels=out_channels, filters=filters)
        if padding_mode == "circular":
            raise ValueError("padding_mode must be zeros or longitude, as the poles do not meet, got 'circular'")
        self.in_channels = in_channels
        self.padding_mode: PaddingMode = padding_mode
        f = filters
        self.encoder = nn.ModuleList(
            [
                UNetBlock(in_channels, f, f, padding_mode),
                UNetBlock(f, 2 * f, 2 * f, padding_mode),
                UNetBlock(2 * f, 4 * f, 4 * f, padding_mode),
            ]
        )
        self.decoder = nn.ModuleList(
            [
                UNetBlock(4 * f, 4 * f, 2 * f, padding_mode),
                UNetBlock(4 * f, 2 * f, f, padding_mode),
                UNetBlock(2 * f, f, f, padding_mode),
            ]
        )
        self.head = _make_conv(f, out_channels, padding_mode)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, in_channels, H, W)` to `(B, out_channels, H, W)`; any H from 4 on, W a multiple of 4."""
        check_input(input, self.in_channels)
        rows, columns = input.shape[2:]
        if rows < 4 or columns % 4:
            raise ValueError(f"the grid must have 4 rows or more and a multiple of 4 columns, got {rows} x {columns}")
        fine = self.encoder[0](input)
        middle = self.encoder[1](F.max_pool2d(fine, 2))
        coarse = self.decoder[0](self.encoder[2](F.max_pool2d(middle, 2)))
        middle = self.decoder[1](self._join(middle, coarse))
        return self.head(self.decoder[2](self._join(fine, middle)))

    def _join(self, skipped: torch.Tensor, coarse: torch.Tensor) -> torch.Tensor:
        """What the encoder left at this level, and then the level below, upsampled."""
        fine = self._upsample(coarse)
        if fine.shape[2] < skipped.shape[2]:
            fine = F.pad(fine, (0, 0, 1, 0), mode="replicate")
        return torch.cat([skipped, fine], dim=1)

    def _upsample(self, coarse: torch.Tensor) -> torch.Tensor:
        if self.padding_mode == "zeros":
            return F.interpolate(coarse, scale_factor=2.0, mode="bilinear", align_corners=False)
        wrapped = F.pad(coarse, (1, 1, 0, 0), mode="circular")
        return F.interpolate(wrapped, scale_factor=2.0, mode="bilinear", align_corners=False)[..., 2:-2]


def _make_conv(in_channels: int, out_channels: int, padding_mode: PaddingMode) -> GridConv2d:
    conv = GridConv2d(in_channels, out_channels, 3, padding_mode=padding_mode, bias=True)
    start_as_torch(conv.weight, conv.bias)
    return conv


def check_net_name(name: NetName, grid: HorizontalGrid) -> None:
    """Refuses a net that does not work on a mesh, before any field is read."""
    if grid.kind == "mesh" and name == "unet":
        raise DataError(
            f"the net 'unet' works on rows and columns, but the fields are on a {grid.describe()}: choose layer or "
            "resnet"
        )


def mesh_of_targets(dataset: Any, grid: HorizontalGrid, own_net: nn.Module | None) -> Mesh | None:
    """The mesh that the targets lie on; None for a grid."""
    if grid.kind != "mesh":
        return None
    if isinstance(own_net, MeshNet):
        return own_net.mesh
    return make_mesh(dataset[NODES].attrs["nodes"])


def make_mesh_module(
    name: NetName, mesh: Mesh, shape: NetShape, *, filters: int, num_blocks: int, num_experts: float | None
) -> nn.Module:
    """A net of SMoE layers on a mesh, or a plain one where `num_experts` is None."""
    channels = shape.in_channels, shape.out_channels
    if name == "layer" and num_experts is not None:
        total = max(filters, round(filters * num_experts))
        return SummedMeshLayer(mesh, *channels, num_selected=filters, num_experts=total)
    num_blocks = 1 if name == "layer" else num_blocks
    return MeshNet(mesh, *channels, filters=filters, num_experts=num_experts, num_blocks=num_blocks)


# Scale of the filters of a single layer at the start, which would not choose between experts that are all zero.
_START = 0.01


@dataclass(frozen=True)
class NetShape:
    """What a net is made for."""

    in_channels: int  # channels of the input
    out_channels: int  # channels of the output
    grid: tuple[int, int]  # rows and columns
    closes_circle: bool  # whether the columns close a circle
    num_targets: int  # targets that the output channels belong to

    @property
    def padding_mode(self) -> PaddingMode:
        """Padding of the convolutions."""
        return "longitude" if self.closes_circle else "zeros"


def start_at_zero(layer: GridConv2d) -> None:
    """A net begins at the prediction that it corrects."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class SummedExperts(nn.Module):
    """One SMoE layer whose selected experts are summed: a linear map of its own at each pixel."""

    def __init__(self, shape: NetShape, num_selected: int, num_experts: int) -> None:
        super().__init__()
        self.layer = SpatialMoE2d.from_experts(
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
        return self.layer(input).unflatten(1, (self.layer.gate.num_selected, -1)).sum(dim=1)


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
        start_at_zero(self.head)

    def forward(self, input: Tensor) -> Tensor:
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
        # Padded columns break periodicity.
        mode: PaddingMode = "longitude" if shape.closes_circle and not self.padding[1] else "zeros"
        self.unet = UNet(shape.in_channels, shape.out_channels, filters=filters, padding_mode=mode)
        start_at_zero(self.unet.head)

    def forward(self, input: Tensor) -> Tensor:
        rows, columns = self.padding
        if rows:
            input = F.pad(input, (0, 0, 0, rows))
        if columns:
            input = F.pad(input, (0, columns, 0, 0), mode="circular" if self.closes_circle else "constant")
        output = self.unet(input)
        return output[..., : output.shape[-2] - rows or None, : output.shape[-1] - columns or None]


class ZeroNet(nn.Module):
    """Zeros, where a simple model alone predicts."""

    def __init__(self, shape: NetShape) -> None:
        super().__init__()
        self.out_channels = shape.out_channels

    def forward(self, input: Tensor) -> Tensor:
        return input.new_zeros(len(input), self.out_channels, *input.shape[2:])


class Regression(nn.Module):
    """A net and what follows it: a scale and offset of each pixel, and the start.

    Attributes:
        start: What is predicted without the net, `(out_channels, H, W)`.
        scale: Standard deviation of what the net corrects, in the units of each target, `(K,)`.
    """

    start: Tensor
    scale: Tensor

    def __init__(self, net: nn.Module, shape: NetShape, *, local_affine: bool) -> None:
        super().__init__()
        self.net = net
        self.affine = LocalAffine(shape.out_channels, shape.grid) if local_affine else None
        self.register_buffer("start", torch.zeros(shape.out_channels, *shape.grid))
        self.register_buffer("scale", torch.ones(shape.num_targets, dtype=torch.float64))

    def forward(self, input: Tensor) -> Tensor:
        output = self.net(input)
        if self.affine is not None:
            output = self.affine(output)
        return output + self.start.to(output.dtype)


def make_net(shape: NetShape, options: RegressorOptions, mesh: Mesh | None = None) -> Regression:
    """The net of SMoE layers that the options name, or none for a simple model."""
    name, filters, num_experts = options.net, options.filters, options.num_experts
    if name in SIMPLE:
        return Regression(ZeroNet(shape), shape, local_affine=False)
    if mesh is not None:
        net = make_mesh_module(
            name, mesh, shape, filters=filters, num_blocks=options.num_blocks, num_experts=num_experts
        )
    elif name == "layer":
        net = SummedExperts(shape, filters, max(1, round(filters * num_experts)))
    else:
        plain = _make_plain(name, shape, filters, options.num_blocks)
        example = torch.zeros(2, shape.in_channels, *shape.grid)
        net = convert(plain, example_input=example, num_experts=num_experts)
    return Regression(net, shape, local_affine=options.local_affine)


def make_plain_net(
    name: NetName, shape: NetShape, *, num_blocks: int, num_parameters: int, mesh: Mesh | None = None
) -> Regression:
    """The same kind of net with plain convolutions, as wide as the number of parameters allows."""
    # One layer has no width: two convolutions with as many filters between them.
    kind: NetName = "resnet" if name == "layer" else name
    num_blocks = 1 if name == "layer" else num_blocks
    filters = 1
    # Plain layers have as many parameters on a mesh of one node, whose hash takes no time.
    smallest = None if mesh is None else mesh.smallest()
    with torch.random.fork_rng(), torch.device("meta") if mesh is None else nullcontext():
        while filters < 1024 and num_parameters >= count_parameters(
            _make_plain(kind, shape, filters + 1, num_blocks, smallest)
        ):
            filters += 1
    return Regression(_make_plain(kind, shape, filters, num_blocks, mesh), shape, local_affine=False)


def _make_plain(name: NetName, shape: NetShape, filters: int, num_blocks: int, mesh: Mesh | None = None) -> nn.Module:
    if mesh is not None:
        return make_mesh_module(name, mesh, shape, filters=filters, num_blocks=num_blocks, num_experts=None)
    return PaddedUNet(shape, filters) if name == "unet" else ResNet(shape, filters, num_blocks)


def count_parameters(module: nn.Module) -> int:
    """Number of learned numbers, those of each pixel among them."""
    return sum(parameter.numel() for parameter in module.parameters())


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
    """A user's own net, checked to keep the grid and to give the outputs that are needed."""
    was_training = net.training
    try:
        with torch.no_grad():
            output = net.eval()(torch.zeros(1, shape.in_channels, *shape.grid))
    except (RuntimeError, TypeError) as error:
        raise DataError(
            f"the net does not take (1, {shape.in_channels}, {shape.grid[0]}, {shape.grid[1]}), a sample of these "
            f"inputs: {' '.join(str(error).split())}"
        ) from error
    finally:
        net.train(was_training)
    expected = (1, shape.out_channels, *shape.grid)
    if tuple(output.shape) != expected:
        raise DataError(
            f"the net must turn (1, {shape.in_channels}, {shape.grid[0]}, {shape.grid[1]}) into {expected}, got "
            f"{tuple(output.shape)}"
        )
    return Regression(net, shape, local_affine=False)


def check_input(input: torch.Tensor, in_channels: int) -> None:
    """Refuses what is not a batch of grids with the layer's channels."""
    if input.ndim != 4 or input.shape[1] != in_channels:
        raise ValueError(f"input must be (B, {in_channels}, H, W), got shape {tuple(input.shape)}")
