"""Ends the learning of gates, and prepares trained networks for inference and export."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from smoe.nn.gates.decided import DecidedGate
from smoe.nn.gates.gate import SpatialGate
from smoe.nn.routed_layer import RoutedLayer

Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def freeze(model: Model) -> Model:
    """A copy of a network whose routing is decided once and for all.

    Each gate that does not look at its input is replaced by a `DecidedGate`, which holds the selected experts: a
    forward pass computes no scores, and the scores are not saved. Gates that look at their input, and those of
    layers that are weighted or damp errors, stay as they are, but learn no more. The experts can be trained
    on. The copy computes what the model computes in evaluation mode. To end the learning of a gate within a training,
    call `layer.freeze()` instead.

    Args:
        model: A network with SMoE layers, or one such layer.

    Returns:
        The copy.

    Raises:
        ValueError: If the model has no SMoE layer.
    """
    frozen = copy.deepcopy(model)
    layers = [module for module in frozen.modules() if isinstance(module, RoutedLayer)]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no SMoE layer to freeze")
    decided: dict[int, DecidedGate] = {}
    for layer in layers:
        layer.freeze()
    for layer in layers:
        gate = layer.gate
        needs_scores = layer.weighted or layer.active_damping is not None or gate.looks_at_input
        if needs_scores or gate.spatial_shape is None or isinstance(gate, DecidedGate):
            continue
        if id(gate) not in decided:
            decided[id(gate)] = _decide(gate)
        layer.replace_gate(decided[id(gate)])
    return frozen


def _decide(gate: SpatialGate) -> DecidedGate:
    was_training = gate.training
    indices = gate.eval()(None).indices[0]
    gate.train(was_training)
    assert gate.spatial_shape is not None
    new = DecidedGate(indices.unflatten(1, gate.spatial_shape), gate.num_experts, order=gate.order)
    return new.to(indices.device).train(was_training)
