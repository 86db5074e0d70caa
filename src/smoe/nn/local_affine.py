"""A learned scale and offset for each channel and pixel: the simplest layer that depends on the place."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn.grid_checks import check_positive


class LocalAffine(nn.Module):
    """Multiplies each channel by a learned number at each pixel, and adds another.

    Args:
        num_channels: C, the number of channels.
        spatial_shape: Grid of the input.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    def __init__(
        self,
        num_channels: int,
        spatial_shape: tuple[int, ...],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(num_channels=num_channels)
        self.scale = nn.Parameter(torch.empty(num_channels, *spatial_shape, device=device, dtype=dtype))
        self.offset = nn.Parameter(torch.empty(num_channels, *spatial_shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the scale to 1 and the offset to 0: the layer returns its input."""
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.offset)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, *grid)` to the same shape."""
        if tuple(input.shape[1:]) != tuple(self.scale.shape):
            raise ValueError(
                f"the layer was made for {tuple(self.scale.shape)} channels and pixels, got {tuple(input.shape[1:])}"
            )
        return torch.addcmul(self.offset.to(input.dtype), input, self.scale.to(input.dtype))

    def extra_repr(self) -> str:
        """The numbers that `repr` shows."""
        return f"{len(self.scale)}, spatial_shape={tuple(self.scale.shape[1:])}"
