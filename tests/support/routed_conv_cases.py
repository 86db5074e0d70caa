"""Problems on which the sparse kernels are compared with the loop definition in float64, output and gradients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from smoe.ops import output_grid
from smoe.options import PaddingMode


def loop_routed_conv(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    expert_channels: int = 1,
    stride: int | Sequence[int] = 1,
    padding_mode: str = "zeros",
    *,
    padding: Sequence[tuple[int, int]] | None = None,
    dilation: Sequence[int] | None = None,
    groups: int = 1,
) -> torch.Tensor:
    """Loops over samples, pixels, selected experts `(1 or B, E, P)` and taps, for any number of axes.

    Autograd differentiates it, so it defines the gradients too. Use it on small grids.
    """
    sizes, kernel = input.shape[2:], weight.shape[2:]
    steps = (stride,) * len(kernel) if isinstance(stride, int) else stride
    padding = [(size // 2, size // 2) for size in kernel] if padding is None else padding
    dilation = (1,) * len(kernel) if dilation is None else dilation
    axes = list(zip(sizes, kernel, steps, padding, dilation, strict=True))
    grid = [(size + sum(pad) - far * (taps - 1) - 1) // step + 1 for size, taps, step, pad, far in axes]
    experts, per_group, num_slots = weight.unflatten(0, (-1, expert_channels)), weight.shape[1], indices.shape[1]

    def source(place: int, size: int, *, is_last: bool) -> int | None:
        """The pixel of an axis that a place shows; None for zero."""
        if 0 <= place < size:
            return place
        if padding_mode == "circular" or (padding_mode == "longitude" and is_last):
            return place % size
        if padding_mode == "replicate":
            return min(max(place, 0), size - 1)
        if padding_mode == "reflect":
            return -place if place < 0 else 2 * (size - 1) - place
        return None

    outputs = []
    for sample, (pixel, place) in itertools.product(range(len(input)), enumerate(itertools.product(*map(range, grid)))):
        for slot in range(num_slots):
            expert = experts[int(indices[sample % len(indices), slot, pixel])]
            first = slot * groups // num_slots * per_group
            total = torch.zeros(expert_channels, dtype=input.dtype)
            for tap in itertools.product(*map(range, kernel)):
                at = [
                    source(where * step + t * far - pad[0], size, is_last=axis == len(axes) - 1)
                    for axis, (where, t, (size, _, step, pad, far)) in enumerate(zip(place, tap, axes, strict=True))
                ]
                if None not in at:
                    channels = slice(first, first + per_group)
                    total = total + expert[(slice(None), slice(None), *tap)] @ input[(sample, channels, *at)]
            outputs.append(total)
    return torch.stack(outputs).view(len(input), *grid, num_slots * expert_channels).movedim(-1, 1)


# Rounding of the operands is not an error of the kernel: both sides get the rounded values. What is left is the order
# of float32 sums, and for half precision the rounding of the result.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Case:
    """Sizes of a problem; the experts from `usable` on are selected nowhere."""

    batch: int = 3
    channels: int = 5
    num_experts: int = 5
    num_selected: int = 3
    grid: tuple[int, int] = (2, 3)
    kernel: tuple[int, int] = (3, 3)
    expert_channels: int = 1
    stride: int = 1
    padding_mode: PaddingMode = "zeros"
    usable: int | None = None
    per_sample: bool = False


@dataclass(frozen=True)
class Problem:
    """Tensors of a case, and the truth: output, input gradient and weight gradient in float64."""

    input: torch.Tensor
    weight: torch.Tensor
    indices: torch.Tensor
    error: torch.Tensor
    truth: tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def make_problem(case: Case, dtype: torch.dtype, device: torch.device) -> Problem:
    """Random tensors of a case and their truth."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    rows, columns = output_grid(*case.grid, case.stride)
    input = normal(case.batch, case.channels, *case.grid)
    weight = normal(case.num_experts * case.expert_channels, case.channels, *case.kernel)
    error = normal(case.batch, case.num_selected * case.expert_channels, rows, columns)
    samples = case.batch if case.per_sample else 1
    ranks = torch.rand(samples, case.num_experts, rows * columns, generator=generator)
    if case.usable is not None:
        ranks[:, case.usable :] = -1.0
    indices = ranks.argsort(dim=1, descending=True)[:, : case.num_selected].to(device, torch.int32)
    exact_input, exact_weight = (values.cpu().double().requires_grad_() for values in (input, weight))
    if case.batch == 0:
        truth = (error.cpu().double(), input.cpu().double(), torch.zeros_like(weight).cpu().double())
        return Problem(input, weight, indices, error, truth)
    options = (case.expert_channels, case.stride, case.padding_mode)
    output = loop_routed_conv(exact_input, exact_weight, indices.cpu(), *options)
    by_input, by_weight = torch.autograd.grad(output, (exact_input, exact_weight), error.cpu().double())
    return Problem(input, weight, indices, error, (output.detach(), by_input, by_weight))


def assert_near(name: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compares with a tolerance relative to the largest value, as sums of products call for."""
    assert actual.shape == expected.shape, name
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    tolerance = TOLERANCES[actual.dtype] * max(largest, 1.0)
    torch.testing.assert_close(
        actual.cpu().double(), expected, rtol=0.0, atol=tolerance, msg=lambda text: f"{name}: {text}"
    )
