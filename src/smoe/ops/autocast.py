"""What autocast does to the arguments of a convolution; it does not apply to operators of other libraries."""

from __future__ import annotations

import torch


def autocast(input: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and weight, on one device, in the dtype of autocast if it is active there; float64 stays."""
    device_type = input.device.type
    if not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        return input, weight
    dtype = torch.get_autocast_dtype(device_type)
    return (
        input if input.dtype == torch.float64 else input.to(dtype),
        weight if weight.dtype == torch.float64 else weight.to(dtype),
    )
