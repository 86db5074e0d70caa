"""Ends the learning of gates, and prepares trained networks for inference and export."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from smoe.nn._filter_bank import FilterBank
from smoe.nn._fixed_gates import DecidedGate
from smoe.nn._gate import SpatialGate
from smoe.nn._routed_layer import RoutedLayer
from smoe.nn._shared_parameters import is_sharded

Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def freeze(model: Model) -> Model:
    """A copy of a network whose routing is decided once and for all.

    Each gate that does not look at its input is replaced by a `DecidedGate`, which holds the selected experts: a
    forward pass computes no scores, and the scores are not saved. Gates that look at their input, and those of
    layers that are weighted or damp errors, stay as they are, but learn no more. The experts can be trained
    on. The copy computes what the model computes in evaluation mode. What the C++ kernels derive from a decided routing
    is made now, and again where the copy is loaded, moved, copied or unpickled: the first pass takes no longer than
    others. To end the learning of a gate during training,
    call `layer.freeze()` instead.

    Args:
        model: A network with SMoE layers, or one such layer.

    Returns:
        The copy.

    Raises:
        TypeError: If the model is not a module.
        ValueError: If the model has no SMoE layer.
        RuntimeError: If the parameters of the model are sharded among processes.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"freeze takes a torch.nn.Module, got {type(model).__name__}; of a GridRegressor, give its net")
    if any(is_sharded(module) for module in model.modules()):
        raise RuntimeError(
            f"the parameters of {type(model).__name__} are sharded among processes, and a copy of them is not whole; "
            "load the state_dict of all processes (torch.distributed.checkpoint.state_dict with full_state_dict=True) "
            "into a network that is not sharded, and freeze that"
        )
    frozen = copy.deepcopy(model)
    layers = [module for module in frozen.modules() if isinstance(module, RoutedLayer)]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no SMoE layer to freeze")
    decided: dict[int, DecidedGate] = {}
    for layer in layers:
        layer.freeze()
        if isinstance(layer, FilterBank):
            layer._fold_mean()
    for layer in layers:
        gate = layer.gate
        needs_scores = layer._weighted or layer._active_damping is not None or gate.looks_at_input
        if needs_scores or gate.spatial_shape is None or isinstance(gate, DecidedGate):
            continue
        if id(gate) not in decided:
            decided[id(gate)] = _decide(gate)
        layer._replace_gate(decided[id(gate)])
    return frozen


def _decide(gate: SpatialGate) -> DecidedGate:
    was_training = gate.training
    indices = gate.eval()(None).indices[0]
    gate.train(was_training)
    assert gate.spatial_shape is not None
    new = DecidedGate(indices.unflatten(1, gate.spatial_shape), gate.num_experts, order=gate.order)
    return new.to(indices.device).train(was_training)
