"""Stateless functions on tensors: the operations an SMoE layer is made of."""

from smoe.ops.error_quantile import error_quantile
from smoe.ops.family_gradient import family_gradient
from smoe.ops.gather_experts import gather_experts
from smoe.ops.grid_conv import grid_conv2d
from smoe.ops.local_conv import local_conv2d
from smoe.ops.padding import output_grid, wrap_padding
from smoe.ops.registration import plain_operators
from smoe.ops.routed_conv import routed_conv2d
from smoe.ops.routing import Routing, RoutingMap
from smoe.ops.top_experts import family_members, top_experts
from smoe.ops.train_routing import ErrorSignal, train_routing
from smoe.options import PADDING_MODES

__all__ = [
    "PADDING_MODES",
    "ErrorSignal",
    "Routing",
    "RoutingMap",
    "error_quantile",
    "family_gradient",
    "family_members",
    "gather_experts",
    "grid_conv2d",
    "local_conv2d",
    "output_grid",
    "plain_operators",
    "routed_conv2d",
    "top_experts",
    "train_routing",
    "wrap_padding",
]
