"""Diagnostics of a routing, without pictures: what it is worth, expert use, regions, changes between epochs.

A routing is an integer array or tensor `(E, ...)` of the experts chosen at each pixel; the pixels may be a line, a map,
a volume or the nodes of a mesh.
"""

from __future__ import annotations

from smoe.diagnostics.choices import new_choices
from smoe.diagnostics.describe import GateReport, RoutingReport, describe
from smoe.diagnostics.expert_use import expert_use, mean_where_served, selections
from smoe.diagnostics.gates import (
    fixed_choices,
    fixed_gates,
    layer_certainty,
    layer_inputs,
    layers_by_gate,
    routing_certainty,
)
from smoe.diagnostics.matching import match_experts, shared_choices
from smoe.diagnostics.regions import region_agreement, region_information, regions_of_experts
from smoe.diagnostics.routing_gain import RoutingGain, damped_shares, routing_gains
from smoe.diagnostics.routing_watch import RoutingChanges, RoutingWatch
from smoe.diagnostics.shared_experts import neighbour_agreement, similarity_components

__all__ = [
    "GateReport",
    "RoutingChanges",
    "RoutingGain",
    "RoutingReport",
    "RoutingWatch",
    "damped_shares",
    "describe",
    "expert_use",
    "fixed_choices",
    "fixed_gates",
    "layer_certainty",
    "layer_inputs",
    "layers_by_gate",
    "match_experts",
    "mean_where_served",
    "neighbour_agreement",
    "new_choices",
    "region_agreement",
    "region_information",
    "regions_of_experts",
    "routing_certainty",
    "routing_gains",
    "selections",
    "shared_choices",
    "similarity_components",
]
