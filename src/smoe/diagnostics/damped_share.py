"""How much of the error the damping keeps from the experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from smoe.diagnostics.evaluation_mode import evaluation_mode
from smoe.diagnostics.routing_gain import Loss
from smoe.nn.routed_layer import RoutedLayer
from smoe.ops.routing_error import choice_errors, wrong_choices
from smoe.ops.train_routing import root_mean_square
from smoe.rules import Damping


def damped_shares(model: nn.Module, loss_fn: Loss, input: Tensor, target: Tensor) -> dict[str, float]:
    """Returns the share of the choices whose error is damped, in [0, 1], for each layer that damps, by name.

    The errors are those of the model in evaluation mode: those of a layer below another one that damps are taken
    undamped. Neither the state of the model nor the gradients of its parameters change.

    Args:
        model: Model with SMoE layers.
        loss_fn: Function of prediction and target that returns a scalar.
        input: Input of the model.
        target: Target of the loss.
    """
    damped = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, RoutedLayer) and layer.active_damping is not None
    }
    if not damped:
        return {}
    outputs: dict[str, Tensor] = {}

    def keep(name: str):
        def hook(module: nn.Module, args: object, output: Tensor) -> None:
            del module, args
            outputs[name] = output

        return hook

    hooks = [layer.register_forward_hook(keep(name)) for name, layer in damped.items()]
    try:
        with evaluation_mode(model), torch.enable_grad():
            loss = loss_fn(model(input), target)
    finally:
        for handle in hooks:
            handle.remove()
    known = {name: output for name, output in outputs.items() if output.requires_grad}
    if not known:
        return {}
    errors = torch.autograd.grad(loss, list(known.values()), allow_unused=True)
    shares: dict[str, float] = {}
    for (name, output), error in zip(known.items(), errors, strict=True):
        layer = damped[name]
        if error is not None and layer.active_damping is not None:
            shares[name] = _share(error, output, layer.active_damping, layer.expert_channels)
    return shares


def _share(error: Tensor, output: Tensor, damping: Damping, expert_channels: int) -> float:
    unit = root_mean_square(output) if damping.tolerance_unit == "output" else 1.0
    errors = choice_errors(error.flatten(2), expert_channels)
    (is_wrong,) = wrong_choices(errors, damping.error_quantile, (damping.tolerance * unit,))
    return float(is_wrong.double().mean())
