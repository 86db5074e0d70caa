"""The gates of a model: the layers that they serve, what they choose, and how certain they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from smoe.nn._conversion_plan import evaluation_mode
from smoe.nn._gate import SpatialGate
from smoe.nn._routed_layer import RoutedLayer
from smoe.ops._routing import Routing, family_members
from smoe.rules import StraightThrough

_PIXELS_AT_ONCE = 1 << 16


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


def routing_certainty(routing: Routing, *, families: bool, temperature: float = 1.0) -> float:
    """Returns how far the selected experts are ahead of their strongest rivals, in [0, 1].

    This is the mean over pixels and slots of `tanh(margin / (2 * temperature))`: p - q for the probabilities p and q
    that a softmax over the two gives them. It is 0 for a tie and 1 for a gate that no step can change. The rival is the
    best other expert of the family, or the best expert that is not selected. Without rivals the certainty is 1.

    Args:
        routing: Routing of a gate.
        families: Whether the gate selects one expert of each family.
        temperature: Temperature of the softmax.
    """
    num_experts, num_selected = routing.scores.shape[1], routing.indices.shape[1]
    members = family_members(num_experts, num_selected, device=routing.scores.device) if families else None
    total = 0.0
    # In pieces: a gate of many experts on a large grid has scores of gigabytes.
    pieces = (part.split(_PIXELS_AT_ONCE, dim=2) for part in (routing.scores.detach(), routing.indices))
    for scores, indices in zip(*pieces, strict=True):
        chosen = indices.long()
        others = scores.scatter(1, chosen, -torch.inf)
        rivals = others.amax(dim=1, keepdim=True) if members is None else others[:, members].amax(dim=2)
        # Without a rival the margin is infinite.
        margins = (scores.gather(1, chosen) - rivals).clamp(min=0.0)
        total += float(torch.tanh(margins / (2.0 * temperature)).sum(dtype=torch.float64))
    return total / routing.indices.numel()


def layer_certainty(layer: RoutedLayer, input: Tensor | None = None) -> float:
    """Returns the certainty of a layer's gate; see `routing_certainty`.

    Args:
        layer: Layer in evaluation mode, where a gate adds no noise.
        input: Input of the layer; needed only by a gate that looks at it.
    """
    temperature = layer.rule.temperature if isinstance(layer.rule, StraightThrough) else 1.0
    with torch.no_grad():
        routing = layer.gate(input)
    return routing_certainty(routing, families=layer.gate.order == "families", temperature=temperature)
