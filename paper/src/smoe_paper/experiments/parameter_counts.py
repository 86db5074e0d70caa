"""Numbers of parameters as the paper counts them: those of the gates apart."""

from __future__ import annotations

import torch

from smoe import nn


def count_parameters(model: torch.nn.Module) -> tuple[int, int]:
    """Numbers of parameters outside the gates and in them, frozen ones included."""
    gates = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.SpatialGate)
        for parameter in module.parameters()
    }
    sizes = [(id(parameter) in gates, parameter.numel()) for parameter in model.parameters()]
    return sum(size for is_gate, size in sizes if not is_gate), sum(size for is_gate, size in sizes if is_gate)
