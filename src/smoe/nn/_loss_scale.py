"""Lets SMoE layers see what a loss is multiplied by before its backward pass."""

from __future__ import annotations

import torch
from torch import nn

from smoe.nn._routed_layer import RoutedLayer
from smoe.ops._operators import has_transforms


def track_loss_scale(loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """Returns `loss`, and lets the model's SMoE layers see what it is multiplied by before its backward.

    A loss scaler, or the division by the number of accumulated batches, multiplies the whole gradient. An SMoE layer
    must divide it out of the error signal and multiply its gate's gradient by it. Wrap the loss where it is made:

        loss = smoe.nn.track_loss_scale(criterion(model(x), y), model)
        scaler.scale(loss / num_accumulated).backward()

    Not needed for a loss whose backward is called as it is.

    Args:
        loss: A scalar.
        model: Module that holds the layers.
    """
    if loss.ndim != 0:
        raise ValueError(f"loss must be a scalar, got shape {tuple(loss.shape)}")
    if has_transforms():
        raise RuntimeError(
            "track_loss_scale works in backward passes, not under torch.func: differentiate the loss as it is, and "
            "scale the gradients"
        )
    layers = [module for module in model.modules() if isinstance(module, RoutedLayer)]
    for layer in layers:
        layer._notice_tracked_loss()
    return _TrackLossScale.apply(loss, [layer._signal for layer in layers]) if layers else loss  # type: ignore[return-value]


class _TrackLossScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss, signals):
        ctx.signals = signals
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx, *grad_outputs):
        (scale,) = grad_outputs
        signals = ctx.signals
        for signal in signals:
            signal.set_loss_scale(scale)

        def forget_scale() -> None:
            for signal in signals:
                signal.set_loss_scale(1.0)

        # The scale is that of this backward pass: a later one may come from a loss that is not tracked.
        torch.autograd.Variable._execution_engine.queue_callback(forget_scale)
        return scale, None
