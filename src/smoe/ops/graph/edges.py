"""Edges of a graph: what they must look like, their weights, and a number that tells graphs apart."""

from __future__ import annotations

from typing import Literal, get_args

import torch

Aggregation = Literal["mean", "sum", "gcn"]
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)

# Odd constants with bits spread evenly, as hash functions use them.
_PRIMES = (-7046029254386353131, -4417276706812531889, 1609587929392839161)

_EDGES_AT_ONCE = 1 << 16


def check_edges(edge_index: torch.Tensor, num_nodes: int) -> None:
    """Refuses edges that are not node numbers. Their range is checked on a CPU only, where that is free.

    Args:
        edge_index: Source and target of each edge, `(2, M)`, int64.
        num_nodes: Number of nodes.

    Raises:
        ValueError: If the shape or dtype is wrong, or a node does not exist.
    """
    if edge_index.layout is not torch.strided:
        raise ValueError("edge_index must be (2, M), sources above targets, got a sparse matrix: give its edges")
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise ValueError(
            f"edge_index must be (2, M), sources above targets, got shape {tuple(edge_index.shape)}; transpose a list "
            "of pairs"
        )
    if edge_index.dtype != torch.int64:
        raise ValueError(f"edge_index must hold node numbers as int64, got {edge_index.dtype}; convert it by .long()")
    if edge_index.device.type != "cpu" or torch.compiler.is_compiling() or edge_index.shape[1] == 0:
        return
    low, high = (int(bound) for bound in edge_index.aminmax())
    if low < 0 or high >= num_nodes:
        hint = "; do they start at 1? Subtract 1" if (low, high) == (1, num_nodes) else ""
        raise ValueError(
            f"edge_index must hold node numbers in [0, {num_nodes - 1}] for {num_nodes} nodes, got {low} to "
            f"{high}{hint}"
        )


def _last_self_loop(edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """Number of the edge that is the last self loop of a node, int64 `(N,)`; -1 without one. Not read on the host."""
    source, target = edge_index
    numbers = torch.arange(len(target), device=target.device)
    none = torch.full((num_nodes,), -1, device=target.device)
    return none.scatter_reduce(0, target, torch.where(source == target, numbers, -1), "amax")


def with_self_loops(edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """Adds a self loop to each node that has none; the edges given come first, in their order."""
    added = (_last_self_loop(edge_index, num_nodes) < 0).nonzero().flatten()
    return torch.cat([edge_index, added.expand(2, -1)], dim=1)


def with_all_self_loops(edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """Adds a self loop to each node, whether it has one or not, so that the number of edges is known beforehand."""
    return torch.cat([edge_index, torch.arange(num_nodes, device=edge_index.device).expand(2, -1)], dim=1)


def one_self_loop_each(edge_index: torch.Tensor, weight: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """Weights `(M + N,)` of the edges of `with_all_self_loops` by which each node has one self loop.

    That is the last one given, as in torch_geometric, or the one that was added, of weight 1; all others weigh 0.

    Args:
        edge_index: Edges given, `(2, M)`.
        weight: Their weights, `(M,)`.
        num_nodes: Number of nodes.
    """
    source, target = edge_index
    last = _last_self_loop(edge_index, num_nodes)
    is_repeated = (source == target) & (last[target] != torch.arange(len(target), device=target.device))
    return torch.cat([weight.masked_fill(is_repeated, 0.0), (last < 0).to(weight.dtype)])


def edge_factors(
    edge_index: torch.Tensor, weight: torch.Tensor, num_nodes: int, aggregation: Aggregation
) -> torch.Tensor:
    """Factors `(M,)` of the edges in a sum over neighbours; gradients reach `weight`.

    Args:
        edge_index: `(2, M)`.
        weight: Weights of the edges, `(M,)`.
        num_nodes: Number of nodes.
        aggregation: `sum` keeps the weights; `mean` divides them by the number of edges into the target; `gcn` divides
            them by the roots of the weighted numbers of edges into source and target. Self loops are the caller's.
    """
    target = edge_index[1]
    if aggregation == "sum":
        return weight
    if aggregation == "mean":
        number = torch.zeros(num_nodes, dtype=weight.dtype, device=weight.device)
        number = number.index_add(0, target, torch.ones_like(weight))
        return weight / number.clamp(min=1.0)[target]
    degree = torch.zeros(num_nodes, dtype=weight.dtype, device=weight.device).index_add(0, target, weight)
    # As in torch_geometric, the edges of a degree of 0 count nothing, and a negative degree makes NaN.
    root = torch.where(degree == 0.0, torch.ones_like(degree), degree).rsqrt() * (degree != 0.0)
    return root[edge_index[0]] * weight * root[target]


def edge_fingerprints(edge_index: torch.Tensor, num_nodes: int, num_graphs: int = 1) -> torch.Tensor:
    """A number for the edges of each graph `(num_graphs,)`, int64, whatever their order.

    It changes if nodes are numbered differently, unless the numbering is a symmetry of the graph.

    Args:
        edge_index: Edges of all graphs `(2, M)`; graph g has the nodes `[g * num_nodes, (g + 1) * num_nodes)`.
        num_nodes: Number of nodes of each graph.
        num_graphs: Number of graphs.
    """
    total = torch.zeros(num_graphs, dtype=torch.int64, device=edge_index.device)
    # In parts: what is computed on the way would take more memory than a pass of the layer.
    for part in edge_index.split(_EDGES_AT_ONCE, dim=1):
        source, target = part % num_nodes
        mixed = (source + 1) * _PRIMES[0] + (target + 1) * _PRIMES[1]
        mixed = (mixed ^ (mixed >> 29)) * _PRIMES[2]
        total.index_add_(0, part[1] // num_nodes, mixed ^ (mixed >> 32))
    return total
