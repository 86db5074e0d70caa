"""Diagnostics of a routing, without pictures: what it is worth, expert use, regions, changes between epochs.

A routing is an integer array or tensor `(E, ...)` of the experts chosen at each pixel; the pixels may be a line, a map,
a volume or the nodes of a mesh. `num_experts` is X, the number of experts in the bank; `regions` are numbers from 0 in
the shape of the grid; `pixel_weights`, such as areas, say how much each pixel counts and must broadcast to the grid.
"""

from __future__ import annotations

from smoe.diagnostics._choices import (
    RoutingWatch,
    expert_use,
    fixed_choices,
    fixed_gates,
    layer_certainty,
    layer_inputs,
    layers_by_gate,
    match_experts,
    neighbour_agreement,
    new_choices,
    region_agreement,
    region_information,
    regions_of_experts,
    routing_certainty,
    selections,
    shared_choices,
    similarity_colours,
)
from smoe.diagnostics._describe import GateReport, RoutingReport, describe
from smoe.diagnostics._routing_gain import RoutingGain, routing_gains

__all__ = [
    "GateReport",
    "RoutingGain",
    "RoutingReport",
    "RoutingWatch",
    "describe",
    "expert_use",
    "fixed_choices",
    "fixed_gates",
    "layer_certainty",
    "layer_inputs",
    "layers_by_gate",
    "match_experts",
    "neighbour_agreement",
    "new_choices",
    "region_agreement",
    "region_information",
    "regions_of_experts",
    "routing_certainty",
    "routing_gains",
    "selections",
    "shared_choices",
    "similarity_colours",
]
