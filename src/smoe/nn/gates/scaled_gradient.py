"""Parameters whose gradient has another size than that of the scores they make."""

from __future__ import annotations

import torch

from smoe.ops.registration import has_transforms


def scale_gradient(values: torch.Tensor, factor: float) -> torch.Tensor:
    """Returns the values; in backward, multiplies the gradient by a factor.

    A step along the gradient then changes the scores alike, whatever the scale of the scores and the number of pixels
    that share a value. It is for optimisers such as SGD; those that divide by the size of the gradient, as Adam does,
    are not affected.

    Args:
        values: Parameter of a gate.
        factor: Factor of its gradient.
    """
    if has_transforms():
        # The same by plain operations: the difference is 0, and has the derivative.
        scaled = values * factor
        return values.detach() + (scaled - scaled.detach())
    return _ScaledGradient.apply(values, factor)  # type: ignore[return-value]


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, factor):
        ctx.factor = factor
        return values.view_as(values)

    @staticmethod
    def backward(ctx, *grad_outputs):
        return grad_outputs[0] * ctx.factor, None
