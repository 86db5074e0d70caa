"""Random numbers that are the same on every device: drawn on the host, and copied without waiting for the device."""

from __future__ import annotations

import torch


def host_normal(shape: torch.Size | tuple[int, ...], generator: torch.Generator, like: torch.Tensor) -> torch.Tensor:
    """Normal random numbers of a generator of the CPU, on the device and in the dtype of `like`.

    A copy from pinned memory does not wait for what the device has to do before it; one from other memory does.
    """
    noise = torch.randn(shape, generator=generator)
    if like.is_cuda:
        noise = noise.pin_memory()
    return noise.to(like.device, like.dtype, non_blocking=True)
