"""Sums over the neighbours of the nodes of a graph, which no expert changes: computed once for all experts."""

from smoe.ops.graph.directions import edge_directions, edge_lengths
from smoe.ops.graph.edges import Aggregation, check_edges, edge_fingerprints
from smoe.ops.graph.neighbour_features import SparseGraph, neighbour_features

__all__ = [
    "Aggregation",
    "SparseGraph",
    "check_edges",
    "edge_directions",
    "edge_fingerprints",
    "edge_lengths",
    "neighbour_features",
]
