"""The gates of a model, the layers that they serve, and what they choose."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from smoe.nn.gates import SpatialGate
from smoe.nn.routed_layer import RoutedLayer


def layers_by_gate(model: nn.Module) -> dict[SpatialGate, dict[str, RoutedLayer]]:
    """Returns each gate of a model with the layers that use it, by name, in the order of the model."""
    found: dict[SpatialGate, dict[str, RoutedLayer]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, RoutedLayer):
            found.setdefault(layer.gate, {})[name] = layer
    return found


def fixed_gates(model: nn.Module) -> dict[str, SpatialGate]:
    """Returns each gate whose choices do not depend on the input, by the name of the first layer that uses it."""
    return {next(iter(layers)): gate for gate, layers in layers_by_gate(model).items() if not gate.looks_at_input}


def fixed_choices(model: nn.Module) -> dict[str, Tensor]:
    """Returns the experts that each gate of `fixed_gates` chooses, without noise, `(E, ...)`, int32 on the CPU.

    They are in the order of the first layer that uses the gate. The modes of the gates do not change.
    """
    choices: dict[str, Tensor] = {}
    with torch.no_grad():
        for gate, layers in layers_by_gate(model).items():
            if gate.looks_at_input:
                continue
            name, layer = next(iter(layers.items()))
            was_training = gate.training
            # In evaluation mode a noisy gate is without noise.
            gate.eval()
            choices[name] = layer.routing().indices.to("cpu", torch.int32)
            gate.train(was_training)
    return choices
