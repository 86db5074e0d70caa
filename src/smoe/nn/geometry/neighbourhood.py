"""From the features of nodes to those of their neighbourhoods, which the experts of a graph layer work on."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from smoe.nn.geometry.graph_memory import GraphMemory, KeptGraph
from smoe.ops.graph import Aggregation, SparseGraph, check_edges, neighbour_features
from smoe.ops.graph.edges import AGGREGATIONS, edge_factors, one_self_loop_each, with_all_self_loops
from smoe.ops.registration import has_transforms


class Neighbourhood:
    """Computes `[x(p), sum_q phi_0(q, p) x(q), ..., sum_q phi_D(q, p) x(q)]` at each node p.

    On a CPU the edges are sorted once and kept until others come.

    Args:
        aggregation: `mean`, `sum` or `gcn`.
        edge_dim: D, the number of columns of `edge_attr`.
        root: Whether the features of the node itself come first.
    """

    def __init__(self, aggregation: Aggregation, edge_dim: int, root: bool) -> None:
        if aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, got {aggregation!r}")
        if edge_dim < 0:
            raise ValueError(f"edge_dim must not be negative, got {edge_dim}")
        self.aggregation: Aggregation = aggregation
        self.edge_dim = edge_dim
        self.root = root
        self._memory = GraphMemory()

    @property
    def num_blocks(self) -> int:
        """Number of features of a neighbourhood for each feature of a node."""
        return self.root + 1 + self.edge_dim

    def is_new(self, edge_index: torch.Tensor, num_nodes: int) -> bool:
        """Whether the edges are not those that were sorted last."""
        return self._memory.find(edge_index, num_nodes) is None

    def features(
        self,
        x: torch.Tensor,
        edge_index: torch.Tensor,
        edge_weight: torch.Tensor | None,
        edge_attr: torch.Tensor | None,
        num_nodes: int,
    ) -> torch.Tensor:
        """Features of the neighbourhoods, `(S, num_blocks * C, N)`; gradients reach all floating arguments.

        Args:
            x: `(S, N, C)`.
            edge_index: `(2, M)`.
            edge_weight: `(M,)`.
            edge_attr: `(M, D)`.
            num_nodes: Nodes that the edges number: N, or S * N.
        """
        self._check(edge_index, edge_weight, edge_attr)
        dtype = torch.promote_types(x.dtype, torch.float32)
        is_sorted = x.device.type == "cpu" and not (torch.compiler.is_compiling() or has_transforms())
        kept = self._sorted(edge_index, num_nodes) if is_sorted else None
        if kept is not None:
            edges, all_edges = kept.graph, kept.graph.edge_index
        else:
            check_edges(edge_index, num_nodes)
            edges = all_edges = self._all_edges(edge_index, num_nodes)
        if kept is not None and edge_weight is None:
            factors = kept.factors(dtype, lambda: self._factors(edge_index, all_edges, None, num_nodes, dtype))
        else:
            factors = self._factors(edge_index, all_edges, edge_weight, num_nodes, dtype)
        if edge_attr is not None:
            # Self loops that were added have no direction.
            columns = F.pad(edge_attr.to(dtype).T, (0, factors.shape[1] - len(edge_attr)))
            factors = torch.cat([factors, columns * factors])
        return neighbour_features(x, edges, factors, num_nodes, root=self.root)

    def _check(
        self, edge_index: torch.Tensor, edge_weight: torch.Tensor | None, edge_attr: torch.Tensor | None
    ) -> None:
        num_edges = edge_index.shape[-1]
        if edge_weight is not None and edge_weight.shape != (num_edges,):
            raise ValueError(f"edge_weight must be ({num_edges},), got shape {tuple(edge_weight.shape)}")
        given = None if edge_attr is None else tuple(edge_attr.shape)
        wanted = (num_edges, self.edge_dim) if self.edge_dim else None
        if given != wanted:
            raise ValueError(f"edge_attr must be {wanted} for edge_dim={self.edge_dim}, got {given}")

    def _sorted(self, edge_index: torch.Tensor, num_nodes: int) -> KeptGraph:
        kept = self._memory.find(edge_index, num_nodes)
        if kept is None:
            check_edges(edge_index, num_nodes)
            kept = self._memory.keep(edge_index, SparseGraph(self._all_edges(edge_index, num_nodes), num_nodes))
        return kept

    def _all_edges(self, edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
        return with_all_self_loops(edge_index, num_nodes) if self.aggregation == "gcn" else edge_index

    def _factors(
        self,
        edge_index: torch.Tensor,
        all_edges: torch.Tensor,
        weight: torch.Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        if weight is None:
            weight = torch.ones(edge_index.shape[1], dtype=dtype, device=edge_index.device)
        weight = weight.to(dtype)
        if self.aggregation == "gcn":
            weight = one_self_loop_each(edge_index, weight, num_nodes)
        return edge_factors(all_edges, weight, num_nodes, self.aggregation)[None]
