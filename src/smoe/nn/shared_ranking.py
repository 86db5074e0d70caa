"""Layers that share a tensor gate rank its experts once in a forward pass, not once each.

Ranking 512 experts takes as long as the convolution that follows. The scores of a tensor gate are the same for all
layers that share it until its parameter changes, so the ranking is kept and given to the next layer. It ends

- when the parameter is another, has other memory or another version, as after any ordinary write;
- when a layer comes again, as in the next forward pass: writes through `parameter.data` leave no trace;
- when the parameter receives a gradient: fused optimisers, which write without counting a version, act on gradients.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from smoe.ops.top_experts import rank_experts
from smoe.options import Order

if TYPE_CHECKING:
    from smoe.nn.gates.gate import SpatialGate
    from smoe.nn.routed_layer import RoutedLayer


@dataclass(frozen=True)
class _Ranking:
    scores: weakref.ref[torch.Tensor]
    version: int
    address: int
    order: Order
    indices: torch.Tensor
    served: weakref.WeakSet[RoutedLayer]
    end_with_gradient: RemovableHandle | None

    def serves(self, layer: RoutedLayer, scores: torch.Tensor) -> bool:
        return (
            self.scores() is scores
            and self.version == scores._version
            and self.address == scores.data_ptr()
            and self.order == layer.order
            and layer not in self.served
        )


# Kept outside the gates, which are copied and pickled.
_rankings: weakref.WeakKeyDictionary[SpatialGate, _Ranking] = weakref.WeakKeyDictionary()


def rank_for(layer: RoutedLayer, scores: torch.Tensor) -> torch.Tensor:
    """The experts chosen by the layer's gate, as `rank_experts` gives them.

    Args:
        layer: whose gate and order.
        scores: what the gate said. A ranking is shared only if they are a parameter itself: an input, noise or a
            normalisation make new scores for each layer.
    """
    if torch.compiler.is_compiling() or not _is_settled(scores):
        return rank_experts(scores, layer.num_selected, layer.order)
    known = _rankings.get(layer.gate)
    if known is None or not known.serves(layer, scores):
        _forget(layer.gate)
        known = _Ranking(
            scores=weakref.ref(scores),
            version=scores._version,
            address=scores.data_ptr(),
            order=layer.order,
            indices=rank_experts(scores, layer.num_selected, layer.order),
            served=weakref.WeakSet(),
            end_with_gradient=_end_with_gradient(layer.gate, scores),
        )
        _rankings[layer.gate] = known
    known.served.add(layer)
    return known.indices


def _is_settled(scores: torch.Tensor) -> bool:
    """Whether a change of the scores would be noticed; with a gradient at hand, a fused optimiser can act any time."""
    return isinstance(scores, nn.Parameter) and not scores.is_inference() and scores.grad is None


def _end_with_gradient(gate: SpatialGate, scores: torch.Tensor) -> RemovableHandle | None:
    if not (scores.requires_grad and scores.is_leaf):
        return None
    owner = weakref.ref(gate)

    def end(parameter: torch.Tensor) -> None:
        del parameter
        if (gate := owner()) is not None:
            _forget(gate)

    return scores.register_post_accumulate_grad_hook(end)


def _forget(gate: SpatialGate) -> None:
    ranking = _rankings.pop(gate, None)
    if ranking is not None and ranking.end_with_gradient is not None:
        ranking.end_with_gradient.remove()
