"""Borders and output grids of convolutions in a volume."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from smoe.ops._conv_kernels import Implementation, NativeConvolution, register_convolution
from smoe.ops._gather import gather_experts, scatter_experts
from smoe.ops._operators import Geometry, autocast, call_operator, num_threads
from smoe.ops.triton._planes import GpuConvolution, load_sparse_planes, major_capability, shape_of, why_mixed
from smoe.ops.triton.availability import RoutedShape, why_dense

VOLUME_PADDINGS = ("zeros", "circular", "none")


def volume_padding(kernel: Sequence[int], padding_mode: str) -> tuple[int, int, int]:
    """Slices, rows and columns beyond each border that a kernel with odd sizes reads."""
    if padding_mode == "none":
        return 0, 0, 0
    depth, rows, columns = (size // 2 for size in kernel)
    return depth, rows, columns


def volume_grid(sizes: Sequence[int], kernel: Sequence[int], stride: int, padding_mode: str) -> tuple[int, int, int]:
    """Depth, rows and columns of the output."""
    padding = volume_padding(kernel, padding_mode)
    depth, rows, columns = (
        (size + 2 * extra - taps) // stride + 1 for size, taps, extra in zip(sizes, kernel, padding, strict=True)
    )
    return depth, rows, columns


def volume_conv3d(
    input: torch.Tensor, weight: torch.Tensor, *, stride: int = 1, padding_mode: str = "zeros"
) -> torch.Tensor:
    """Convolves `(B, C, D, H, W)` with `(O, C, kd, kh, kw)`; stride 1 keeps the grid, but for padding mode `none`."""
    padded, zeros = _pad(input, weight, padding_mode)
    return F.conv3d(padded, weight, stride=stride, padding=zeros)


def _pad(input: torch.Tensor, weight: torch.Tensor, padding_mode: str) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """The input with wrapped borders, and the zeros that the convolution adds."""
    if padding_mode != "circular":
        return input, volume_padding(weight.shape[2:], padding_mode)
    padded = input
    # By an index: F.pad wraps at most once around.
    for axis, index in _wrapped_axes(input, weight):
        padded = padded.index_select(axis, index)
    return padded, (0, 0, 0)


def _unpad(gradient: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, padding_mode: str) -> torch.Tensor:
    """The transpose of `_pad`: adds the gradient of each wrapped border to the voxels that it copies."""
    if padding_mode == "circular":
        for axis, index in reversed(_wrapped_axes(input, weight)):
            shape = list(gradient.shape)
            shape[axis] = input.shape[axis]
            gradient = gradient.new_zeros(shape).index_add(axis, index, gradient)
    return gradient


def _wrapped_axes(input: torch.Tensor, weight: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    """For each axis that is padded, the places that the padded axis has."""
    return [
        (axis, torch.arange(-(taps // 2), size + taps // 2, device=input.device) % size)
        for axis, (size, taps) in enumerate(zip(input.shape[2:], weight.shape[2:], strict=True), start=2)
        if taps > 1
    ]


def dense_routed_conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    *,
    gather: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor] = gather_experts,
) -> torch.Tensor:
    """Arguments and result as `smoe.ops._routed_conv3d`; cost and memory follow the whole bank X, not E.

    `gather` is an implementation of `gather_experts`.
    """
    everywhere = volume_conv3d(input, weight, stride=stride, padding_mode=padding_mode)
    return gather(everywhere, indices, expert_channels).contiguous()


def dense_routed_conv3d_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    needs_input: bool,
    needs_weight: bool,
    *,
    scatter: Callable[[torch.Tensor, torch.Tensor, int, int], torch.Tensor] = scatter_experts,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of input and weight; one that is not needed is empty. `scatter`: as `scatter_experts`."""
    everywhere = scatter(error, indices, weight.shape[0] // expert_channels, expert_channels)
    padded, zeros = _pad(input, weight, padding_mode)
    by_padded, by_weight, _ = torch.ops.aten.convolution_backward(
        *(everywhere, padded, weight, None, [stride] * 3, list(zeros), [1, 1, 1], False, [0, 0, 0], 1),
        [needs_input, needs_weight, False],
    )
    return (
        _unpad(by_padded, input, weight, padding_mode).contiguous() if needs_input else input.new_empty(0),
        by_weight.contiguous() if needs_weight else weight.new_empty(0),
    )


# Bytes of a slab's tall image: it should fill the GPU.
_SLAB_BYTES = 256 << 20


@dataclass(frozen=True)
class Slabs:
    """How a volume is cut into slabs and laid out as tall images."""

    input: torch.Tensor
    kernel: tuple[int, int, int]
    padding_mode: str

    @property
    def margins(self) -> tuple[int, int]:
        """Rows above and below each slice in the tall image. Adjacent slices share zeros."""
        rows = self.kernel[1] // 2
        return (rows, rows) if self.padding_mode == "circular" else (0, rows)

    @property
    def pitch(self) -> int:
        """Rows of the tall image for each slice."""
        return self.input.shape[3] + sum(self.margins)

    @property
    def plane_padding(self) -> str:
        """Padding mode of the plane: rows are padded here."""
        return "longitude" if self.padding_mode == "circular" else "zeros"

    def ranges(self) -> Iterator[tuple[int, int]]:
        """First and last slice of each slab."""
        B, C, D, _, W = self.input.shape
        slice_bytes = self.input.element_size() * B * C * self.kernel[0] * self.pitch * W
        number = max(1, min(D, _SLAB_BYTES // max(1, slice_bytes)))
        for begin in range(0, D, number):
            yield begin, min(begin + number, D)

    def taps(self, begin: int, end: int) -> Iterator[tuple[int, slice, slice | torch.Tensor]]:
        """For each tap in depth: its number, the slices of the slab that it reaches, and those they come from."""
        D = self.input.shape[2]
        for tap in range(self.kernel[0]):
            first = begin + tap - self.kernel[0] // 2
            if self.padding_mode == "circular":
                source = torch.arange(first, first + end - begin, device=self.input.device) % D
                yield tap, slice(0, end - begin), source
                continue
            skipped = max(0, -first)
            last = max(skipped, min(end - begin, D - first))
            yield tap, slice(skipped, last), slice(first + skipped, first + last)

    def tall_image(self, begin: int, end: int) -> torch.Tensor:
        """`(B, kd * C, slices * pitch, W)`; tap t of the depth has the channels `[t * C, (t + 1) * C)`."""
        B, C, _, H, W = self.input.shape
        above, below = self.margins
        tall = self.input.new_empty(B, self.kernel[0] * C, end - begin, self.pitch, W)
        # Zeros only where nothing else is written: between slices, and where a tap reaches beyond the volume.
        tall[..., :above, :] = 0.0
        tall[..., above + H :, :] = 0.0
        for tap, reached, source in self.taps(begin, end):
            channels = tall[:, tap * C : (tap + 1) * C]
            channels[:, :, : reached.start] = 0.0
            channels[:, :, reached.stop :] = 0.0
            if reached.stop > reached.start:
                channels[:, :, reached, above : above + H] = self.input[:, :, source]
        if above:
            inner = tall[..., above : above + H, :]
            for row in range(above):
                tall[..., above - 1 - row, :] = inner[..., (-1 - row) % H, :]
            for row in range(below):
                tall[..., above + H + row, :] = inner[..., row % H, :]
        return tall.flatten(2, 3)

    def add_from_tall(self, total: torch.Tensor, gradient: torch.Tensor, begin: int, end: int) -> None:
        """The transpose of `tall_image`: adds a slab's gradient to that of the input."""
        C, H = self.input.shape[1], self.input.shape[3]
        above, below = self.margins
        tall = gradient.unflatten(2, (end - begin, self.pitch))
        inner = tall[..., above : above + H, :]
        if above:
            for row in range(above):
                inner[..., (-1 - row) % H, :] += tall[..., above - 1 - row, :]
            for row in range(below):
                inner[..., row % H, :] += tall[..., above + H + row, :]
        for tap, reached, source in self.taps(begin, end):
            if reached.stop > reached.start:
                part = inner[:, tap * C : (tap + 1) * C, reached]
                if isinstance(source, torch.Tensor):
                    total.index_add_(2, source, part)
                else:
                    total[:, :, source] += part

    def lay_out(self, values: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        """Slices of `(S, E, D, H, W)` in the rows of the tall image, zero between them: `(S, E, slices * pitch, W)`."""
        S, E, _, H, W = values.shape
        above = self.margins[0]
        tall = values.new_empty(S, E, end - begin, self.pitch, W)
        tall[..., :above, :] = 0.0
        tall[..., above + H :, :] = 0.0
        tall[..., above : above + H, :] = values[:, :, begin:end]
        return tall.flatten(2, 3)

    def indices(self, indices: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        """The routing of a slab's tall image; rows between slices select distinct experts too, as the kernels need."""
        S, E, _ = indices.shape
        H, W = self.input.shape[3:]
        above = self.margins[0]
        by_slice = indices.view(S, E, -1, H, W)[:, :, begin:end]
        tall = indices.new_empty(S, E, end - begin, self.pitch, W)
        tall[..., above : above + H, :] = by_slice
        for row in (*range(above), *range(above + H, self.pitch)):
            tall[..., row, :] = by_slice[..., 0, :]
        return tall.view(S, E, -1)

    def inner_rows(self, tall: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        """The rows of the slices alone, `(B, E * F, slices, H, W)`."""
        above, H = self.margins[0], self.input.shape[3]
        return tall.unflatten(2, (end - begin, self.pitch))[..., above : above + H, :]


def _plane_weight(weight: torch.Tensor) -> torch.Tensor:
    """The bank with taps in depth as channels, `(X * F, kd * C, kh, kw)`."""
    return weight.transpose(1, 2).flatten(1, 2).contiguous()


def slab_routed_conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    padding_mode: str,
    plane: Implementation,
) -> torch.Tensor:
    """The output by the kernels of the plane; other arguments as the operator's."""
    slabs = Slabs(input, tuple(weight.shape[2:]), padding_mode)  # type: ignore[arg-type]
    bank = _plane_weight(weight)
    output = input.new_empty(input.shape[0], indices.shape[1] * expert_channels, *input.shape[2:])
    for begin, end in slabs.ranges():
        routing = slabs.indices(indices, begin, end)
        tall = plane.forward(slabs.tall_image(begin, end), bank, routing, expert_channels, 1, slabs.plane_padding)
        output[:, :, begin:end] = slabs.inner_rows(tall, begin, end)
    return output


def slab_routed_conv3d_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    padding_mode: str,
    needs_input: bool,
    needs_weight: bool,
    plane: Implementation,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of input and weight by the kernels of the plane; one that is not needed is empty."""
    slabs = Slabs(input, tuple(weight.shape[2:]), padding_mode)  # type: ignore[arg-type]
    bank = _plane_weight(weight)
    by_input = input.new_zeros(input.shape if needs_input else 0)
    by_bank = bank.new_zeros(bank.shape if needs_weight else 0)
    for begin, end in slabs.ranges():
        tensors = (slabs.lay_out(error, begin, end), slabs.tall_image(begin, end), bank)
        options = (expert_channels, 1, slabs.plane_padding, needs_input, needs_weight)
        by_tall, by_weight = plane.backward(*tensors, slabs.indices(indices, begin, end), *options)
        if needs_input:
            slabs.add_from_tall(by_input, by_tall, begin, end)
        if needs_weight:
            by_bank += by_weight
    if needs_weight:
        by_bank = by_bank.unflatten(1, (weight.shape[2], weight.shape[1])).transpose(1, 2).contiguous()
    return by_input, by_bank


def volume_geometry(
    input: torch.Size, weight: torch.Size, batch: int, num_selected: int, stride: int, padding_mode: str
) -> Geometry:
    """Describes a convolution of volumes: `make_geometry` of `NativeConvolution`."""
    (_, C, D, H, W), (kernel_depth, kernel_height, kernel_width) = input, weight[2:]
    output_depth, output_height, output_width = volume_grid(input[2:], weight[2:], stride, padding_mode)
    wraps = int(padding_mode == "circular")
    return Geometry(
        *(batch, C, weight[0], num_selected),
        *(D * H, W, output_depth * output_height, output_width),
        *(kernel_depth * kernel_height, kernel_width, stride, wraps, wraps, num_threads()),
        *(D, output_depth, kernel_depth, wraps),
        *volume_padding(weight[2:], padding_mode),
    )


VOLUMES = NativeConvolution(volume_grid, volume_geometry, dense_routed_conv3d, dense_routed_conv3d_backward)


def has_separate_slices(weight: torch.Tensor, stride: int, padding_mode: str) -> bool:
    """Whether no filter reads another slice, as on the padded faces of a HEALPix sphere."""
    return weight.shape[2] == 1 and stride == 1 and padding_mode == "none"


def _tall_indices(indices: torch.Tensor, grid: torch.Size, kernel: torch.Size) -> torch.Tensor:
    """The routing of all pixels of the slices; pixels of the border have the experts of the nearest inner one."""
    D, H, W = grid
    rows, columns = (
        torch.arange(-(taps // 2), size - taps // 2, device=indices.device).clamp(0, size - taps)
        for size, taps in ((H, kernel[1]), (W, kernel[2]))
    )
    by_slice = indices.unflatten(2, (D, H - kernel[1] + 1, W - kernel[2] + 1))
    return by_slice.index_select(3, rows).index_select(4, columns).flatten(2)


def planes_routed_conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
) -> torch.Tensor:
    """The output by the operator of the plane, without padding."""
    _, _, D, H, W = input.shape
    rows, columns = weight.shape[3] // 2, weight.shape[4] // 2
    tall = torch.ops.smoe.routed_conv2d(
        *(input.flatten(2, 3), weight.squeeze(2), _tall_indices(indices, input.shape[2:], weight.shape[2:])),
        *(expert_channels, 1, "zeros"),
    )
    return tall.unflatten(2, (D, H))[..., rows : H - rows, columns : W - columns].contiguous()


def planes_routed_conv3d_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    needs_input: bool,
    needs_weight: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of input and weight; one that is not needed is empty."""
    rows, columns = weight.shape[3] // 2, weight.shape[4] // 2
    by_input, by_weight = torch.ops.smoe.routed_conv2d_backward(
        *(F.pad(error, (columns, columns, rows, rows)).flatten(2, 3), input.flatten(2, 3), weight.squeeze(2)),
        *(
            _tall_indices(indices, input.shape[2:], weight.shape[2:]),
            expert_channels,
            1,
            "zeros",
            needs_input,
            needs_weight,
        ),
    )
    return (
        by_input.view(input.shape) if needs_input else by_input,
        by_weight.view(weight.shape) if needs_weight else by_weight,
    )


def cuda_routed_conv3d(
    input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, expert_channels: int, *options: Any
) -> torch.Tensor:
    """The output on a GPU, by the implementation that the shape decides."""
    if has_separate_slices(weight, *options):
        return planes_routed_conv3d(input, weight, indices, expert_channels)
    return GPU_VOLUMES.forward(input, weight, indices, expert_channels, *options)


def cuda_routed_conv3d_backward(
    error: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
    *needs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients on a GPU, by the implementation that the shape decides; one that is not needed is empty."""
    tensors = (error, input, weight, indices)
    if has_separate_slices(weight, stride, padding_mode):
        return planes_routed_conv3d_backward(*tensors, expert_channels, *needs)
    return GPU_VOLUMES.backward(*tensors, expert_channels, stride, padding_mode, *needs)


def why_no_slabs(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int,
    stride: int,
    padding_mode: str,
) -> str | None:
    """Why tensors on a GPU are computed densely, or None if slabs are computed by the sparse kernels of the plane."""
    if stride != 1 or padding_mode == "none":
        return f"slabs have stride 1 and padding, not stride {stride} and padding mode {padding_mode!r}"
    shape = slab_shape(input, weight, indices, expert_channels, padding_mode)
    return why_mixed(input, weight, indices) or why_dense(shape, major_capability(input))


def slab_shape(
    input: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, expert_channels: int, padding_mode: str
) -> RoutedShape:
    """Sizes of the plane that the first slab becomes."""
    slabs = Slabs(input, (weight.shape[2], weight.shape[3], weight.shape[4]), padding_mode)
    begin, end = next(slabs.ranges())
    rows, columns = (end - begin) * slabs.pitch, input.shape[4]
    return shape_of(input, weight, indices, expert_channels, (rows, columns), rows * columns)


def load_sparse_slabs() -> Implementation:
    """Slabs by the sparse kernels of the plane; this imports Triton."""
    plane = load_sparse_planes()

    def forward(input, weight, indices, expert_channels, stride, padding_mode):
        del stride  # 1, or `why_no_slabs` has a reason
        return slab_routed_conv3d(input, weight, indices, expert_channels, padding_mode, plane)

    def backward(error, input, weight, indices, expert_channels, stride, padding_mode, *needs):
        del stride
        tensors = (error, input, weight, indices)
        return slab_routed_conv3d_backward(*tensors, expert_channels, padding_mode, *needs, plane=plane)

    return Implementation(forward, backward)


GPU_VOLUMES = GpuConvolution(
    why_no_slabs, load_sparse_slabs, Implementation(dense_routed_conv3d, dense_routed_conv3d_backward)
)


def routed_conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    *,
    expert_channels: int = 1,
    stride: int = 1,
    padding_mode: str = "zeros",
) -> torch.Tensor:
    """Applies, at each voxel, the filters of the experts selected there. Gradients reach `input` and `weight`.

    Args:
        input: `(B, C, D, H, W)`.
        weight: Bank of experts `(X * F, C, kd, kh, kw)` with odd sizes; expert `x` owns `[x * F, (x + 1) * F)`.
        indices: Selected experts, distinct at each voxel of the output and in range, `(1 or B, E, D' * H' * W')`, int32
            or int64.
        expert_channels: F, the number of outputs per expert.
        stride: Stride of all axes.
        padding_mode: `zeros`; `circular`, which wraps all axes; or `none`, where only voxels are computed whose filter
            lies inside the volume.

    Returns:
        `(B, E * F, D', H', W')`; the channels of a voxel follow the order of its `indices`. With stride 1 and padding
        the grid is that of the input.
    """
    if input.ndim != 5 or weight.ndim != 5 or weight.shape[1] != input.shape[1]:
        raise ValueError(
            "input must be (B, C, D, H, W) and weight (X * F, C, kd, kh, kw), got shapes "
            f"{tuple(input.shape)} and {tuple(weight.shape)}"
        )
    if any(size % 2 == 0 for size in weight.shape[2:]):
        raise ValueError(f"the kernel must have odd sides to keep the grid, got {tuple(weight.shape[2:])}")
    if padding_mode not in VOLUME_PADDINGS:
        raise ValueError(f"padding_mode must be one of {', '.join(VOLUME_PADDINGS)} in a volume, got {padding_mode!r}")
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}")
    grid = volume_grid(input.shape[2:], weight.shape[2:], stride, padding_mode)
    if any(size < 1 for size in grid):
        raise ValueError(
            f"a volume of {tuple(input.shape[2:])} is smaller than the kernel {tuple(weight.shape[2:])}, and there is "
            "no padding; use padding_mode zeros or circular"
        )
    num_voxels = math.prod(grid)
    # Not len(), which would make a constant of the number of samples where a program is exported.
    if indices.ndim != 3 or indices.shape[0] not in (1, input.shape[0]) or indices.shape[2] != num_voxels:
        raise ValueError(
            f"indices must be (1 or {input.shape[0]}, E, {num_voxels}) for an output volume of {tuple(grid)}, got "
            f"shape {tuple(indices.shape)}; make the gate for the output grid (spatial_shape)"
        )
    input, weight = autocast(input, weight)
    if indices.dtype != torch.int32:
        indices = indices.to(torch.int32)
    return call_operator(_routed_conv3d, input, weight, indices, expert_channels, stride, padding_mode)


def _fake(input, weight, indices, expert_channels, stride, padding_mode):
    grid = volume_grid(input.shape[2:], weight.shape[2:], stride, padding_mode)
    return input.new_empty(input.shape[0], indices.shape[1] * expert_channels, *grid)


def _fake_backward(error, input, weight, indices, expert_channels, stride, padding_mode, needs_input, needs_weight):
    del error, indices, expert_channels, stride, padding_mode
    return (
        input.new_empty(input.shape if needs_input else (0,)),
        weight.new_empty(weight.shape if needs_weight else (0,)),
    )


_routed_conv3d = register_convolution(
    "routed_conv3d",
    dense=Implementation(dense_routed_conv3d, dense_routed_conv3d_backward),
    native=Implementation(VOLUMES.forward, VOLUMES.backward),
    cuda=Implementation(cuda_routed_conv3d, cuda_routed_conv3d_backward),
    fake=Implementation(_fake, _fake_backward),
)
