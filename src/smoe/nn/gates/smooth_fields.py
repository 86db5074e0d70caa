"""Random fields with a correlation length, for gates that start with neighbouring pixels alike."""

from __future__ import annotations

import math

import torch


def smooth_fields(shape: tuple[int, ...], correlation_length: float) -> torch.Tensor:
    """Gaussian random fields of mean near 0 and standard deviation 1 over the whole tensor.

    The width is periodic, so that a globe has no seam; the height is not, so that the poles stay apart.

    Args:
        shape: `(X, H, W)`, X independent fields.
        correlation_length: distance in pixels at which the correlation has fallen to exp(-1/2).

    Returns:
        `(X, H, W)`, float32.
    """
    if not correlation_length > 0.0:
        raise ValueError(f"correlation_length must be positive, got {correlation_length}")
    num_fields, height, width = shape
    # Noise blurred by a Gaussian of width s correlates like a Gaussian of width s * sqrt(2).
    blur = correlation_length / math.sqrt(2.0)
    margin = math.ceil(4 * blur)
    noise = torch.randn(num_fields, height + 2 * margin, width)
    row_frequency = torch.fft.fftfreq(noise.shape[1])[:, None]
    column_frequency = torch.fft.rfftfreq(width)
    transfer = torch.exp(-2.0 * (math.pi * blur) ** 2 * (row_frequency**2 + column_frequency**2))
    blurred = torch.fft.irfft2(torch.fft.rfft2(noise) * transfer, s=noise.shape[1:])
    field = blurred[:, margin : margin + height]
    spread = field.std(correction=0)
    # One expert on one pixel has no spread.
    return torch.where(spread > 0.0, field / spread, field)
