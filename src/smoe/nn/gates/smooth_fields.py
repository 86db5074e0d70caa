"""Random fields with a correlation length, for gates that start with neighbouring pixels alike."""

from __future__ import annotations

import math

import torch


def smooth_fields(shape: tuple[int, ...], correlation_length: float) -> torch.Tensor:
    """Gaussian random fields of mean near 0 and standard deviation 1 over the whole tensor.

    The width of a plane is periodic, so that a globe has no seam; its height is not, so that the poles stay apart. No
    axis of a line or a volume is periodic.

    Args:
        shape: `(X, *grid)`, X independent fields.
        correlation_length: Distance in pixels at which the correlation has fallen to exp(-1/2).

    Returns:
        `(X, *grid)`, float32.
    """
    if not correlation_length > 0.0:
        raise ValueError(f"correlation_length must be positive, got {correlation_length}")
    num_fields, *grid = shape
    # Noise blurred by a Gaussian of width s correlates like a Gaussian of width s * sqrt(2).
    blur = correlation_length / math.sqrt(2.0)
    margin = math.ceil(4 * blur)
    is_plane = len(grid) == 2
    margins = [0 if is_plane and axis == 1 else margin for axis in range(len(grid))]
    noise = torch.randn(num_fields, *(size + 2 * extra for size, extra in zip(grid, margins, strict=True)))
    axes = tuple(range(1, noise.ndim))
    squared = torch.zeros(())
    for axis in axes:
        frequency = (torch.fft.rfftfreq if axis == axes[-1] else torch.fft.fftfreq)(noise.shape[axis])
        squared = squared[..., None] + frequency**2
    transfer = torch.exp(-2.0 * (math.pi * blur) ** 2 * squared)
    field = torch.fft.irfftn(torch.fft.rfftn(noise, dim=axes) * transfer, s=noise.shape[1:], dim=axes)
    for axis, size, extra in zip(axes, grid, margins, strict=True):
        field = field.narrow(axis, extra, size)
    spread = field.std(correction=0)
    # One expert on one pixel has no spread.
    return torch.where(spread > 0.0, field / spread, field)
