"""The inputs of the layers whose gates depend on them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from smoe.diagnostics.evaluation_mode import evaluation_mode
from smoe.nn.routed_layer import RoutedLayer


def layer_inputs(model: nn.Module, input: Tensor) -> dict[str, Tensor]:
    """Returns the inputs of the layers whose gates depend on their input, by the names of the layers.

    The model is run in evaluation mode, once, if it has such a layer; its mode does not change.

    Args:
        model: Model with SMoE layers.
        input: Input of the model.
    """
    inputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            del module
            inputs[name] = args[0]

        return hook

    hooks = [
        layer.register_forward_pre_hook(keep(name))
        for name, layer in model.named_modules()
        if isinstance(layer, RoutedLayer) and layer.gate.looks_at_input
    ]
    try:
        with evaluation_mode(model), torch.no_grad():
            if hooks:
                model(input)
    finally:
        for handle in hooks:
            handle.remove()
    return inputs
