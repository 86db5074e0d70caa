"""Whether Triton kernels can run here, and for which shapes they are chosen. Needs no Triton itself."""

from __future__ import annotations

import functools
import importlib.util
import os
from dataclasses import dataclass
from typing import NamedTuple

import torch

# Tensor cores with bfloat16 and TF32, and asynchronous copies, came with compute capability 8.0 (Ampere).
MIN_CAPABILITY = (8, 0)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# Offsets in the kernels are 32-bit integers, and the last block of a tensor reaches beyond its end.
MAX_ELEMENTS = 2**31 - 2**16

# The oldest Triton that the kernels were written for: `tl.histogram` with a mask.
MIN_TRITON = (3, 4)

# The rule of `why_dense`. A block of the matrix product has at least 16 rows, columns and depth: below these
# sizes most of it is padding, and more than that for the weight gradient.
MIN_CHANNELS = 32
MIN_SELECTED_CHANNELS = 32
MIN_BATCH = 24


class Crossover(NamedTuple):
    """From where on the sparse kernels are chosen. The dense way wastes X / E; the batch shares the loaded filters.

    Attributes:
        ratio: Smallest X / E.
        batch_times_ratio: Smallest B * X / E.
    """

    ratio: float
    batch_times_ratio: float


# By the major number of the compute capability; a later one counts as the last. From the roofline model (`smoe bench
# gpu-model`), not from measurements: Hopper has tensor cores three times as fast as Ampere, but not such an L2 cache.
CROSSOVERS = {8: Crossover(1.5, 64), 9: Crossover(4, 256)}


@dataclass(frozen=True)
class RoutedShape:
    """Sizes that decide how a routed convolution is computed.

    Attributes:
        batch: B.
        channels: C.
        num_experts: X.
        num_selected: E.
        expert_channels: F.
        kernel: Rows and columns of a filter.
        grid: Rows and columns of the input.
        output_pixels: P.
        is_shared: Whether all samples share the routing.
    """

    batch: int
    channels: int
    num_experts: int
    num_selected: int
    expert_channels: int
    kernel: tuple[int, int]
    grid: tuple[int, int]
    output_pixels: int
    is_shared: bool = True

    @property
    def largest_tensor(self) -> int:
        """Elements of the largest tensor that the kernels read or write."""
        filters, selected = self.num_experts * self.expert_channels, self.num_selected * self.expert_channels
        padded_batch = -(-self.batch // 16) * 16
        return max(
            self.batch * self.channels * self.grid[0] * self.grid[1],
            padded_batch * selected * self.output_pixels,
            filters * self.channels * self.kernel[0] * self.kernel[1],
            filters * self.output_pixels,
        )


@functools.cache
def why_no_triton() -> str | None:
    """Why the Triton kernels cannot run in this process, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; PyTorch's builds for CUDA come with it"
    if torch.version.hip is not None:
        return "the kernels were compiled and proven for NVIDIA GPUs only, and this PyTorch is built for AMD"
    if torch.version.cuda is None:
        return f"this PyTorch ({torch.__version__}) is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device or driver"
    if os.environ.get("SMOE_BACKEND") != "triton":
        return "nobody has measured them on a GPU yet, so they are off: set SMOE_BACKEND=triton to use them"
    return why_too_old(_triton_version())


def why_too_old(version: str) -> str | None:
    """Why a version of Triton does not serve, or None."""
    numbers = tuple(int(number) for number in version.split(".")[:2])
    wanted = ".".join(map(str, MIN_TRITON))
    return f"Triton {version} is older than {wanted}; update PyTorch" if numbers < MIN_TRITON else None


def _triton_version() -> str:
    import triton

    return triton.__version__


@functools.cache
def why_not_on(device_index: int) -> str | None:
    """Why the kernels cannot run on a CUDA device, or None."""
    capability = torch.cuda.get_device_capability(device_index)
    if capability < MIN_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} is below {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]}"
    return None


def why_not_for(*tensors: torch.Tensor, dtypes: tuple[torch.dtype, ...] = DTYPES) -> str | None:
    """Why kernels cannot work on these tensors, or None; the floating-point tensors must have one of `dtypes`."""
    reason = why_no_triton()
    for tensor in tensors if reason is None else ():
        if tensor.is_floating_point() and tensor.dtype not in dtypes:
            return f"no kernel for {tensor.dtype}"
        if is_too_large(_extent(tensor)):
            return f"a tensor has {_extent(tensor)} elements, more than 32-bit offsets reach"
        reason = reason or why_not_on(tensor.device.index)
    return reason


def is_too_large(num_elements: int) -> bool:
    """Whether a tensor of so many elements is beyond the offsets of the kernels."""
    return num_elements >= MAX_ELEMENTS


def _extent(tensor: torch.Tensor) -> int:
    """Elements from the first of a tensor to its last in memory: more than it has, if it is a part of another."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def why_dense(shape: RoutedShape, major: int) -> str | None:
    """Why a routed convolution of this shape is computed densely, or None if the sparse kernels are chosen.

    Only the shape and the generation of the GPU decide, so that a run can be repeated bit by bit.

    Args:
        shape: Sizes of the problem.
        major: Major number of the device's compute capability.
    """
    selected = shape.num_selected * shape.expert_channels
    ratio = shape.num_experts / shape.num_selected
    crossover = CROSSOVERS[min(major, max(CROSSOVERS))]
    if not shape.is_shared:
        return "each sample has its own routing, so that no filters are shared by the batch"
    if is_too_large(shape.largest_tensor):
        return f"a tensor has {shape.largest_tensor} elements, more than 32-bit offsets reach"
    if shape.channels < MIN_CHANNELS:
        return f"C = {shape.channels} is below {MIN_CHANNELS}"
    if selected < MIN_SELECTED_CHANNELS:
        return f"E * F = {selected} is below {MIN_SELECTED_CHANNELS}"
    if shape.batch < MIN_BATCH:
        return f"B = {shape.batch} is below {MIN_BATCH}"
    if ratio < crossover.ratio:
        return f"X / E = {ratio:.3g} is below {crossover.ratio:g} (compute capability {major}.x)"
    if shape.batch * ratio < crossover.batch_times_ratio:
        return (
            f"B * X / E = {shape.batch * ratio:.3g} is below {crossover.batch_times_ratio:g} "
            f"(compute capability {major}.x)"
        )
    return None
