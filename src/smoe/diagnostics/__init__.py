"""Diagnostics of a routing, without pictures: expert use, regions, matching of runs, changes between epochs.

A routing is an integer array or tensor `(E, ...)` of the experts chosen at each pixel; the pixels may be a line, a map,
a volume or the nodes of a mesh.
"""

from __future__ import annotations

from smoe.diagnostics.expert_use import expert_use, mean_where_served, selections
from smoe.diagnostics.gates import fixed_choices, fixed_gates, layers_by_gate
from smoe.diagnostics.matching import match_experts, shared_choices
from smoe.diagnostics.regions import region_agreement, region_information, regions_of_experts
from smoe.diagnostics.routing_changes import RoutingChanges, new_choices
from smoe.diagnostics.shared_experts import neighbour_agreement, similarity_components

__all__ = [
    "RoutingChanges",
    "expert_use",
    "fixed_choices",
    "fixed_gates",
    "layers_by_gate",
    "match_experts",
    "mean_where_served",
    "neighbour_agreement",
    "new_choices",
    "region_agreement",
    "region_information",
    "regions_of_experts",
    "selections",
    "shared_choices",
    "similarity_components",
]
