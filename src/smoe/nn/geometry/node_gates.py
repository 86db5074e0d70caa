"""Gates for the nodes of a graph, and starts that are smooth over its edges."""

from __future__ import annotations

import math
from typing import Any

import torch

from smoe.nn.gates.factorised import FactorisedGate
from smoe.nn.gates.tensor import TensorGate
from smoe.ops.graph import check_edges, neighbour_features
from smoe.ops.graph.edges import edge_factors, with_self_loops
from smoe.options import Order


def diffused_noise(
    num_fields: int, edge_index: torch.Tensor, num_nodes: int, correlation_length: float
) -> torch.Tensor:
    """Random fields that are alike at neighbouring nodes, of mean near 0 and standard deviation 1.

    White noise takes steps of diffusion along the edges. On a plane of square cells, n steps blur by the root of n / 2
    edges along each axis.

    Args:
        num_fields: Independent fields.
        edge_index: Source and target of each edge, `(2, M)`.
        num_nodes: N.
        correlation_length: Distance, in edges, at which the correlation has fallen to about exp(-1/2).

    Returns:
        `(num_fields, N)`, float32.
    """
    if not correlation_length > 0.0:
        raise ValueError(f"correlation_length must be positive, got {correlation_length}")
    check_edges(edge_index, num_nodes)
    # Both directions, so that heat does not drain to one end; a self loop keeps nodes of two colours from alternating.
    edges = with_self_loops(torch.cat([edge_index, edge_index.flip(0)], dim=1).unique(dim=1), num_nodes)
    factors = edge_factors(edges, torch.ones(edges.shape[1]), num_nodes, "mean")[None]
    field = torch.randn(1, num_nodes, num_fields)
    # Noise blurred by a Gaussian of width s correlates like a Gaussian of width s * sqrt(2).
    for _ in range(max(1, round(correlation_length**2))):
        field = neighbour_features(field, edges, factors, num_nodes, root=False).transpose(1, 2)
    field = field[0].T
    spread = field.std(correction=0)
    return torch.where(spread > 0.0, field / spread, field)


def node_gate(
    num_experts: int,
    num_selected: int,
    num_nodes: int,
    *,
    edge_index: torch.Tensor | None = None,
    correlation_length: float = 4.0,
    prior: torch.Tensor | None = None,
    prior_strength: float = 2.0,
    rank: int | None = None,
    order: Order | None = None,
) -> TensorGate | FactorisedGate:
    """A gate for the nodes of a graph.

    Args:
        num_experts: X, the number of experts in the bank.
        num_selected: E, the number of experts selected at each node.
        num_nodes: N.
        edge_index: Edges `(2, M)`: neighbouring nodes then start with like scores. None for independent ones.
        correlation_length: Correlation length of that start, in edges.
        prior: Group number of each node, or a fraction in [0, 1], `(N,)`: each group's nodes start with a share of the
            experts.
        prior_strength: Strength of the prior, see `TensorGate.from_prior`.
        rank: Numbers of each node of a factorised gate; None for a score of each expert and node.
        order: Order of the selected experts; that of the kind of gate if None.

    Example:
        >>> gate = node_gate(8, 2, data.num_nodes, edge_index=data.edge_index)
        >>> conv = smoe.GraphMoE(16, 8, 2, gate=gate)
    """
    options: dict[str, Any] = {} if order is None else {"order": order}
    if rank is not None:
        options["rank"] = rank
    kind = TensorGate if rank is None else FactorisedGate
    if prior is not None:
        if tuple(prior.shape) != (num_nodes,):
            raise ValueError(f"prior must be ({num_nodes},), a value for each node, got {tuple(prior.shape)}")
        gate = kind.from_prior(prior, num_experts, num_selected, prior_strength, **options)
    else:
        gate = kind(num_experts, num_selected, (num_nodes,), **options)
    if edge_index is None:
        return gate
    if prior is not None:
        raise ValueError("edge_index and prior both decide where the gate starts: give one of them")
    with torch.no_grad():
        if isinstance(gate, FactorisedGate):
            values = gate.embedding.values
            values.copy_(diffused_noise(len(values), edge_index, num_nodes, correlation_length) * values.std())
        else:
            spread = gate.bound / math.sqrt(3.0)
            gate.scores.copy_(diffused_noise(num_experts, edge_index, num_nodes, correlation_length) * spread)
    return gate
