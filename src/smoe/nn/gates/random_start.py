"""The start of the numbers that factorised and coarse gates learn, and the checks of what describes it."""

from __future__ import annotations

import math

import torch

from smoe.nn.gates.smooth_fields import smooth_fields
from smoe.options import GateInit

START_STD = 0.1
"""Standard deviation of the scores of a random start: small beside the temperature 1 of the straight-through rule, so
that all candidates of a family stay likely."""

_INITS = ("uniform", "kaiming", "smooth")


def check_start(init: GateInit, correlation_length: float | None, inits: tuple[str, ...] = _INITS) -> None:
    """Refuses a start that a gate does not have, and a correlation length without smooth fields.

    Args:
        init: Name of the start.
        correlation_length: Correlation length that was given; None if none was.
        inits: Names of the starts that the gate has.
    """
    if init not in inits:
        raise ValueError(f"init must be one of {', '.join(inits)}, got {init!r}")
    if correlation_length is not None and init != "smooth":
        raise ValueError(f"correlation_length belongs to init='smooth', but init is {init!r}")


def check_scale(scale: float) -> None:
    """Refuses a factor of the scores that is not positive and finite."""
    if not 0.0 < scale < math.inf:
        raise ValueError(f"scale must be positive and finite, got {scale}")


def check_strength(strength: float) -> None:
    """Refuses a negative strength of a prior."""
    if not strength >= 0.0:
        raise ValueError(f"strength must not be negative, got {strength}")


@torch.no_grad()
def draw_start(values: torch.Tensor, init: GateInit, correlation_length: float | None) -> None:
    """Fills values `(N, *grid)` with zeros (`uniform`), or with random numbers of standard deviation 1.

    Args:
        values: Values to fill.
        init: `uniform`, `kaiming` for independent numbers, or `smooth` for random fields.
        correlation_length: Correlation length of the smooth fields in pixels; an eighth of the shorter side if None.
    """
    if init == "uniform":
        values.zero_()
    elif init == "smooth":
        values.copy_(smooth_fields(tuple(values.shape), correlation_length or min(values.shape[1:]) / 8))
    else:
        values.normal_()
