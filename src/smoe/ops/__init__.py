"""Stateless functions on tensors: the operations an SMoE layer is made of."""

from __future__ import annotations

from smoe.ops._classification import error_quantile, train_routing
from smoe.ops._conv_kernels import output_grid, wrap_padding
from smoe.ops._families import family_gradient
from smoe.ops._gather import gather_experts
from smoe.ops._graph import edge_directions
from smoe.ops._healpix import healpix_coordinates, pad_faces
from smoe.ops._operators import plain_operators
from smoe.ops._routed_conv import grid_conv2d, local_conv2d, routed_conv2d
from smoe.ops._routing import ErrorSignal, Routing, RoutingMap, family_members, top_experts
from smoe.options import PADDING_MODES

__all__ = [
    "PADDING_MODES",
    "ErrorSignal",
    "Routing",
    "RoutingMap",
    "edge_directions",
    "error_quantile",
    "family_gradient",
    "family_members",
    "gather_experts",
    "grid_conv2d",
    "healpix_coordinates",
    "local_conv2d",
    "output_grid",
    "pad_faces",
    "plain_operators",
    "routed_conv2d",
    "top_experts",
    "train_routing",
    "wrap_padding",
]
