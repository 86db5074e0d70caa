from __future__ import annotations

import torch
from torch import nn

from smoe.diagnostics import fixed_choices, fixed_gates, layers_by_gate
from smoe.nn import NoisyGate, SpatialMoE2d, TensorGate
from smoe_paper.baselines.gates import ConvGate


def test_gates_with_their_layers() -> None:
    shared, looking = NoisyGate(TensorGate(3, 1, (4, 5)), std=100.0), ConvGate(1, 3, 1)
    net = nn.Sequential(*(SpatialMoE2d.from_experts(1, 3, 1, gate=gate) for gate in (shared, looking, shared))).train()
    assert {gate: list(layers) for gate, layers in layers_by_gate(net).items()} == {shared: ["0", "2"], looking: ["1"]}
    assert fixed_gates(net) == {"0": shared}
    # Without noise, although the net trains, and as integers that take little room.
    choices = fixed_choices(net)
    assert choices["0"].shape == (1, 4, 5) and choices["0"].dtype == torch.int32
    assert torch.equal(choices["0"], fixed_choices(net)["0"])
    assert shared.training
