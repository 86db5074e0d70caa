"""Problems on which the sparse kernels are compared with the loop definition in float64, output and gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from smoe.ops import output_grid
from smoe.options import PaddingMode


def reference_routed_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    *,
    expert_channels: int = 1,
    stride: int = 1,
    padding_mode: PaddingMode = "zeros",
) -> torch.Tensor:
    """Loops over samples, pixels, selected experts and taps; arguments as `smoe.ops.routed_conv2d`.

    Autograd differentiates it, so it defines the gradients too. Use it on small grids.
    """
    B, _, H, W = input.shape
    kernel_height, kernel_width = weight.shape[2:]
    output_height, output_width = output_grid(H, W, stride)
    indices = indices.expand(B, -1, -1).unflatten(2, (output_height, output_width))
    E = indices.shape[1]
    experts = weight.unflatten(0, (-1, expert_channels))

    def pixel(sample: int, row: int, column: int) -> torch.Tensor:
        if padding_mode in ("circular", "longitude"):
            column %= W
        if padding_mode == "circular":
            row %= H
        if not (0 <= row < H and 0 <= column < W):
            return torch.zeros_like(input[sample, :, 0, 0])
        return input[sample, :, row, column]

    def output_pixel(sample: int, slot: int, row: int, column: int) -> torch.Tensor:
        expert = experts[int(indices[sample, slot, row, column])]
        total = torch.zeros_like(expert[:, 0, 0, 0])
        for i in range(kernel_height):
            for j in range(kernel_width):
                source = pixel(sample, row * stride + i - kernel_height // 2, column * stride + j - kernel_width // 2)
                total = total + expert[:, :, i, j] @ source
        return total

    pixels = [
        output_pixel(sample, slot, row, column)
        for sample in range(B)
        for slot in range(E)
        for row in range(output_height)
        for column in range(output_width)
    ]
    stacked = torch.stack(pixels).reshape(B, E, output_height, output_width, expert_channels)
    return stacked.permute(0, 1, 4, 2, 3).flatten(1, 2)


# Rounding of the operands is not an error of the kernel: both sides get the rounded values. What is left is the order
# of float32 sums, and for half precision the rounding of the result.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


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
    ranks = torch.rand(1, case.num_experts, rows * columns, generator=generator)
    if case.usable is not None:
        ranks[:, case.usable :] = -1.0
    indices = ranks.argsort(dim=1, descending=True)[:, : case.num_selected].to(device, torch.int32)
    exact_input, exact_weight = (values.cpu().double().requires_grad_() for values in (input, weight))
    if case.batch == 0:
        truth = (error.cpu().double(), input.cpu().double(), torch.zeros_like(weight).cpu().double())
        return Problem(input, weight, indices, error, truth)
    output = reference_routed_conv2d(
        exact_input,
        exact_weight,
        indices.cpu(),
        expert_channels=case.expert_channels,
        stride=case.stride,
        padding_mode=case.padding_mode,
    )
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
