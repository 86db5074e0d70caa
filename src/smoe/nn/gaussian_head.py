"""Turns two outputs of a network into a normal distribution, relative to the ensemble (paper section 3.3, ENS-10)."""

from __future__ import annotations

import torch


def gaussian_correction(output: torch.Tensor, spread: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The change of the ensemble's mean, and the new spread.

    Args:
        output: Outputs o0 and o1, `(B, 2, H, W)`.
        spread: Standard deviation s of the ensemble, in physical units, `(B, H, W)`.

    Returns:
        `o0 * s` and `exp(o1) * s`, both `(B, H, W)`, in float32 at least. Where the ensemble has no spread, both are 0:
        the head cannot move such a pixel.
    """
    if output.ndim != 4 or output.shape[1] != 2 or spread.shape != (output.shape[0], *output.shape[2:]):
        raise ValueError(
            f"output must be (B, 2, H, W) and spread (B, H, W), got {tuple(output.shape)} and {tuple(spread.shape)}"
        )
    output = output.to(torch.promote_types(output.dtype, torch.float32))
    return output[:, 0] * spread, output[:, 1].exp() * spread


def gaussian_head(output: torch.Tensor, mean: torch.Tensor, spread: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The corrected forecast: `N(o0 * s + m, (exp(o1) * s)^2)` at each pixel.

    An output of zeros gives the ensemble's own mean and spread.

    Args:
        output: Outputs o0 and o1, `(B, 2, H, W)`.
        mean: Mean m of the ensemble, in physical units, `(B, H, W)`.
        spread: Standard deviation s of the ensemble, of the same shape.

    Returns:
        Mean and standard deviation, both `(B, H, W)`.
    """
    shift, std = gaussian_correction(output, spread)
    if mean.shape != shift.shape:
        raise ValueError(f"mean must be (B, H, W) as spread, got {tuple(mean.shape)} and {tuple(spread.shape)}")
    return mean + shift, std
