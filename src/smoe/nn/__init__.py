"""Modules: the SMoE layers, their gates, and layers that know where they are."""

from __future__ import annotations

from smoe.nn._batch_norm import SharedBatchNorm2d
from smoe.nn._conversion_plan import Change, ConversionPlan, plan_conversion
from smoe.nn._convert import convert, load_plain_state_dict
from smoe.nn._coordinate_embedding import CoordinateEmbedding
from smoe.nn._filter_bank import LocalAffine
from smoe.nn._fixed_gates import DecidedGate, FixedGate
from smoe.nn._freeze import freeze
from smoe.nn._gate import SpatialGate
from smoe.nn._gates import FactorisedGate, PixelEmbedding, TensorGate
from smoe.nn._graph_layer import GraphMoE
from smoe.nn._grid_layers import GridConv2d, SpatialMoE1d, SpatialMoE2d, SpatialMoE3d, TokenMoE
from smoe.nn._healpix_layer import HEALPixMoE
from smoe.nn._interpolate import interpolate_grids, transfer_gate
from smoe.nn._module_layer import SpatialMoE
from smoe.nn._routed_layer import Learner, RoutedLayer, Step
from smoe.nn._score_learners import FrozenLearner, track_loss_scale
from smoe.nn._sharding import shard, unsharded
from smoe.nn._shared_parameters import StatefulModule

__all__ = [
    "Change",
    "ConversionPlan",
    "CoordinateEmbedding",
    "DecidedGate",
    "FactorisedGate",
    "FixedGate",
    "FrozenLearner",
    "GraphMoE",
    "GridConv2d",
    "HEALPixMoE",
    "Learner",
    "LocalAffine",
    "PixelEmbedding",
    "RoutedLayer",
    "SharedBatchNorm2d",
    "SpatialGate",
    "SpatialMoE",
    "SpatialMoE1d",
    "SpatialMoE2d",
    "SpatialMoE3d",
    "StatefulModule",
    "Step",
    "TensorGate",
    "TokenMoE",
    "convert",
    "freeze",
    "interpolate_grids",
    "load_plain_state_dict",
    "plan_conversion",
    "shard",
    "track_loss_scale",
    "transfer_gate",
    "unsharded",
]
