"""The graph layer in plain loops over nodes, edges and experts, which its tests compare it with."""

from __future__ import annotations

import math

import torch


def loop_neighbourhood(
    x: torch.Tensor,
    edge_index: torch.Tensor,
    *,
    aggregation: str = "mean",
    edge_weight: torch.Tensor | None = None,
    edge_attr: torch.Tensor | None = None,
    root: bool = True,
) -> torch.Tensor:
    """Features `(N, blocks * C)` of the neighbourhoods of `(N, C)`."""
    num_nodes = len(x)
    edges = [
        (int(s), int(t), x.new_ones(()) if edge_weight is None else edge_weight[e], e)
        for e, (s, t) in enumerate(edge_index.T.tolist())
    ]
    if aggregation == "gcn":
        # Of several self loops of a node the last one counts, as in torch_geometric.
        looped = {s: e for s, t, _, e in edges if s == t}
        edges = [edge for edge in edges if edge[0] != edge[1] or edge[3] == looped[edge[0]]]
        edges += [(p, p, x.new_ones(()), None) for p in range(num_nodes) if p not in looped]
    rows = []
    degree = [sum((w for _, t, w, _ in edges if t == p), x.new_zeros(())) for p in range(num_nodes)]
    for p in range(num_nodes):
        arriving = [edge for edge in edges if edge[1] == p]
        sums = [torch.zeros_like(x[0]) for _ in range(1 + (0 if edge_attr is None else edge_attr.shape[1]))]
        for s, t, weight, e in arriving:
            factor = weight
            if aggregation == "mean":
                factor = weight / len(arriving)
            elif aggregation == "gcn":
                factor = weight / ((degree[s] * degree[t]).sqrt() if degree[s].detach().item() > 0 else math.inf)
            sums[0] = sums[0] + factor * x[s]
            for column in range(len(sums) - 1):
                value = x.new_zeros(()) if e is None else edge_attr[e, column]  # type: ignore[index]
                sums[1 + column] = sums[1 + column] + factor * value * x[s]
        rows.append(torch.cat([x[p], *sums] if root else sums))
    return torch.stack(rows)


def loop_graph_moe(
    features: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, expert_channels: int = 1
) -> torch.Tensor:
    """Outputs `(N, E * F)` of the experts `(E, N)` of each node, from its features `(N, C')`."""
    experts = weight.unflatten(0, (-1, expert_channels))
    return torch.stack(
        [
            torch.cat([experts[int(expert)] @ features[node] for expert in indices[:, node]])
            for node in range(len(features))
        ]
    )
