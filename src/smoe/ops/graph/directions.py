"""Directions and lengths of edges, as values that a graph layer weighs its neighbours by."""

from __future__ import annotations

import torch


def edge_directions(coordinates: torch.Tensor, edge_index: torch.Tensor, *, on_sphere: bool = False) -> torch.Tensor:
    """Steps from the target of each edge to its source, in units of the mean length of the edges.

    With these as `edge_attr`, the experts of `smoe.GraphMoE` see slopes: a sum for each direction.

    Args:
        coordinates: Places of the nodes, `(N, D)`, floating.
        edge_index: Source and target of each edge, `(2, M)`.
        on_sphere: The nodes lie on a sphere around the origin of space; the steps are then those to the east and to the
            north at the target, D = 2. At a pole east is the direction of the second axis.

    Returns:
        `(M, D)`.
    """
    if coordinates.ndim != 2 or not coordinates.is_floating_point():
        raise ValueError(f"coordinates must be floating (N, D), got {coordinates.dtype} of {tuple(coordinates.shape)}")
    source, target = edge_index
    steps = coordinates[source] - coordinates[target]
    length = steps.norm(dim=1).mean().clamp(min=torch.finfo(steps.dtype).tiny)
    if not on_sphere:
        return steps / length
    if coordinates.shape[1] != 3:
        raise ValueError(f"nodes on a sphere need coordinates (N, 3), got {tuple(coordinates.shape)}")
    up = torch.nn.functional.normalize(coordinates[target], dim=1)
    axis = torch.tensor([0.0, 0.0, 1.0], dtype=up.dtype, device=up.device).expand_as(up)
    east = torch.linalg.cross(axis, up)
    is_pole = east.norm(dim=1, keepdim=True) < 1e-6
    second = torch.tensor([0.0, 1.0, 0.0], dtype=up.dtype, device=up.device).expand_as(up)
    east = torch.nn.functional.normalize(torch.where(is_pole, second, east), dim=1)
    north = torch.linalg.cross(up, east)
    return torch.stack([(steps * east).sum(dim=1), (steps * north).sum(dim=1)], dim=1) / length


def edge_lengths(coordinates: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    """Lengths of the edges in units of their mean, `(M, 1)`.

    Args:
        coordinates: Places of the nodes, `(N, D)`, floating.
        edge_index: Source and target of each edge, `(2, M)`.
    """
    return edge_directions(coordinates, edge_index).norm(dim=1, keepdim=True)
