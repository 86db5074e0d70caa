"""Every expert everywhere in a volume, then a gather. Any device, any dtype."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from smoe.ops.gather_experts import gather_experts, scatter_experts
from smoe.ops.routed_conv3d.grid import volume_padding


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
    """Arguments and result as `smoe.ops.routed_conv3d`; cost and memory follow the whole bank X, not E.

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
