"""Modules: the SMoE layers, their gates, and layers that know where they are."""

from smoe.nn.cond_conv import CondConv2d
from smoe.nn.conversion_plan import ConversionPlan, plan_conversion
from smoe.nn.convert import convert
from smoe.nn.coord_conv import CoordConv2d
from smoe.nn.freeze import freeze
from smoe.nn.gates import (
    CoarseGate,
    ConvGate,
    CoordConv3Gate,
    CoordConvGate,
    DecidedGate,
    FactorisedGate,
    FixedGate,
    LinearGate,
    LocallyConnectedGate,
    NoisyGate,
    PixelEmbedding,
    SpatialGate,
    TensorGate,
)
from smoe.nn.gaussian_head import gaussian_correction, gaussian_head
from smoe.nn.geometry.graph_moe import GraphMoE
from smoe.nn.geometry.healpix_moe import HEALPixMoE
from smoe.nn.geometry.node_gates import node_gate
from smoe.nn.geometry.spatial_moe_1d import SpatialMoE1d
from smoe.nn.geometry.spatial_moe_3d import SpatialMoE3d
from smoe.nn.geometry.transfer_gate import transfer_gate
from smoe.nn.grid_conv import GridConv2d
from smoe.nn.interpolate_grids import interpolate_grids
from smoe.nn.learned_channels import LearnedChannels
from smoe.nn.learning import Learner, Memory, Setting, Step
from smoe.nn.local_affine import LocalAffine
from smoe.nn.locally_connected import LocallyConnected2d
from smoe.nn.loss_scale import track_loss_scale
from smoe.nn.low_rank_local import LowRankLocal2d
from smoe.nn.patch_moe import PatchMoE
from smoe.nn.routed_layer import RoutedLayer
from smoe.nn.sharding import shard, unsharded
from smoe.nn.shared_batch_norm import SharedBatchNorm2d
from smoe.nn.spatial_moe import SpatialMoE
from smoe.nn.spatial_moe_2d import SpatialMoE2d

__all__ = [
    "CoarseGate",
    "CondConv2d",
    "ConvGate",
    "ConversionPlan",
    "CoordConv2d",
    "CoordConv3Gate",
    "CoordConvGate",
    "DecidedGate",
    "FactorisedGate",
    "FixedGate",
    "GraphMoE",
    "GridConv2d",
    "HEALPixMoE",
    "LearnedChannels",
    "Learner",
    "LinearGate",
    "LocalAffine",
    "LocallyConnected2d",
    "LocallyConnectedGate",
    "LowRankLocal2d",
    "Memory",
    "NoisyGate",
    "PatchMoE",
    "PixelEmbedding",
    "RoutedLayer",
    "Setting",
    "SharedBatchNorm2d",
    "SpatialGate",
    "SpatialMoE",
    "SpatialMoE1d",
    "SpatialMoE2d",
    "SpatialMoE3d",
    "Step",
    "TensorGate",
    "convert",
    "freeze",
    "gaussian_correction",
    "gaussian_head",
    "interpolate_grids",
    "node_gate",
    "plan_conversion",
    "shard",
    "track_loss_scale",
    "transfer_gate",
    "unsharded",
]
