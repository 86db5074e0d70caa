"""The routed convolution of slices that do not see each other by the operator of the plane, for GPUs.

The slices lie below each other in one tall image. What the plane's operator computes where a filter reaches into
another slice is dropped.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


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
