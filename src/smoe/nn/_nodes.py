"""A hash of the nodes that a gate was made for, so that no other mesh or order of nodes uses its choices."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import nn

from smoe.nn._gate import SpatialGate
from smoe.nn._gates import FactorisedGate, TensorGate
from smoe.ops._graph import check_edges, edge_factors, neighbour_features, with_self_loops
from smoe.options import Order

_REMEDY = (
    "number the nodes as before, or take the gate to the new nodes by "
    "smoe.transfer_gate(gate, old_coordinates, new_coordinates)"
)


class NodeOrder(nn.Module):
    """Hashes of a graph's edges and of its nodes' coordinates, saved with the gate; 0 where they are not known."""

    hashes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hashes", torch.zeros(2, dtype=torch.int64))

    def note_edges(self, fingerprint: int) -> None:
        """Keeps the fingerprint of the first graph and refuses others."""
        self._note(0, fingerprint, "the edges differ from those of the graph that the gate was made for")

    def note_coordinates(self, coordinates: torch.Tensor) -> None:
        """Keeps the hash of the first coordinates `(N, D)` and refuses others."""
        self._note(1, hash_coordinates(coordinates), "the coordinates differ from those that the gate was made for")

    def _note(self, place: int, value: int, problem: str) -> None:
        known = int(self.hashes[place])
        if known == 0:
            self.hashes[place] = value
        elif known != value:
            raise ValueError(f"{problem} (hash {value & _MASK:016x}, not {known & _MASK:016x}): {_REMEDY}")

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        del local_metadata, strict, missing_keys, unexpected_keys
        saved = state_dict.get(f"{prefix}hashes")
        if saved is None:  # saved before the gate had met a graph
            return
        for place, what in enumerate(("edges", "coordinates")):
            own, other = int(self.hashes[place]), int(saved[place])
            if own and other and own != other:
                error_msgs.append(
                    f"{prefix.removesuffix('.')}: the {what} of the saved gate have the hash {other & _MASK:016x}, "
                    f"those of this one {own & _MASK:016x}: {_REMEDY}"
                )
                return
        with torch.no_grad():
            self.hashes.copy_(torch.where(saved.to(self.hashes) != 0, saved.to(self.hashes), self.hashes))


_MASK = 2**64 - 1


def hash_coordinates(coordinates: torch.Tensor) -> int:
    """A number for coordinates `(N, D)` in float32, of their values and their order; never 0."""
    if coordinates.ndim != 2:
        raise ValueError(f"coordinates must be (N, D), got shape {tuple(coordinates.shape)}")
    values = coordinates.detach().to("cpu", torch.float32).contiguous().numpy()
    digest = hashlib.sha256(str(values.shape).encode() + values.tobytes()).digest()
    return int.from_bytes(digest[:8], "little", signed=True) or 1


def node_order_of(gate: SpatialGate) -> NodeOrder:
    """The node order of a gate, which is given one if it has none."""
    known = gate._modules.get("node_order")
    if isinstance(known, NodeOrder):
        return known
    order = NodeOrder()
    parameter = next(gate.parameters(), None)
    gate.add_module("node_order", order if parameter is None else order.to(parameter.device))
    return order


def diffused_noise(
    num_fields: int, edge_index: torch.Tensor, num_nodes: int, correlation_length: float
) -> torch.Tensor:
    """Random fields that are alike at neighbouring nodes, of mean near 0 and standard deviation 1.

    White noise takes steps of diffusion along the edges. On a plane of square cells, n steps blur by the root of n / 2
    edges along each axis.
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
        >>> conv = smoe.GraphMoE.from_experts(16, 8, 2, gate=gate)
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
