"""Gating functions: who serves which pixel (paper section 2.1)."""

from smoe.nn.gates.coarse import CoarseGate
from smoe.nn.gates.convolutional import ConvGate, CoordConv3Gate, CoordConvGate
from smoe.nn.gates.decided import DecidedGate
from smoe.nn.gates.factorised import FactorisedGate, PixelEmbedding
from smoe.nn.gates.fixed import FixedGate
from smoe.nn.gates.gate import SpatialGate
from smoe.nn.gates.linear import LinearGate
from smoe.nn.gates.locally_connected import LocallyConnectedGate
from smoe.nn.gates.noisy import NoisyGate
from smoe.nn.gates.tensor import TensorGate

__all__ = [
    "CoarseGate",
    "ConvGate",
    "CoordConv3Gate",
    "CoordConvGate",
    "DecidedGate",
    "FactorisedGate",
    "FixedGate",
    "LinearGate",
    "LocallyConnectedGate",
    "NoisyGate",
    "PixelEmbedding",
    "SpatialGate",
    "TensorGate",
]
