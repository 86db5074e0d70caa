"""How certain a gate is of its choices."""

from __future__ import annotations

import torch
from torch import Tensor

from smoe.nn.routed_layer import RoutedLayer
from smoe.ops.routing import Routing
from smoe.ops.top_experts import family_members
from smoe.rules import StraightThrough

_PIXELS_AT_ONCE = 1 << 16


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
    return routing_certainty(routing, families=layer.order == "families", temperature=temperature)
