"""Takes a trained gate to other nodes: another mesh, another order, another resolution of a grid."""

from __future__ import annotations

import copy
from typing import Literal, get_args

import torch
from torch import nn

from smoe.nn.gates.coarse import CoarseGate
from smoe.nn.gates.factorised import FactorisedGate
from smoe.nn.gates.fixed import FixedGate
from smoe.nn.gates.gate import SpatialGate
from smoe.nn.gates.noisy import NoisyGate
from smoe.nn.gates.tensor import TensorGate
from smoe.nn.geometry.node_order import NodeOrder, node_order_of

Transfer = Literal["nearest", "inverse_distance"]

# Distances held at a time.
_CHUNK = 1 << 24


def transfer_gate(
    gate: SpatialGate,
    old_coordinates: torch.Tensor,
    new_coordinates: torch.Tensor,
    *,
    mode: Transfer = "nearest",
    num_neighbours: int = 4,
) -> SpatialGate:
    """A copy of a gate for other nodes, whose scores come from the old nodes near each of them.

    The coordinates must be comparable: of one sphere as points in space, not as longitudes that jump. Parameters of the
    copy are new; rules start their memory anew.

    Args:
        gate: Gate with a field of scores: `TensorGate`, `FixedGate`, `FactorisedGate`, or a `NoisyGate` of one. A
            `CoarseGate` becomes a `TensorGate`, because other nodes may have no coarse grid.
        old_coordinates: Places of the pixels that the gate was made for, `(*grid, D)`.
        new_coordinates: Places of the new pixels, `(*new_grid, D)`; the new gate has this grid.
        mode: `nearest`: each pixel takes the scores of the nearest old one. `inverse_distance`: their mean over the
            nearest ones, weighted by the inverse of the distance.
        num_neighbours: Old pixels of that mean.

    Raises:
        ValueError: If the coordinates do not fit the gate, or the gate has no field.

    Example:
        >>> layer = smoe.GraphMoE(16, 8, 2, gate=smoe.transfer_gate(old.gate, old_mesh.coordinates, mesh.coordinates))
    """
    if mode not in get_args(Transfer):
        raise ValueError(f"mode must be one of {', '.join(get_args(Transfer))}, got {mode!r}")
    grid = gate.spatial_shape
    if grid is None or tuple(old_coordinates.shape[:-1]) != grid:
        raise ValueError(f"the gate was made for {grid}, but old_coordinates are of {tuple(old_coordinates.shape)}")
    if old_coordinates.shape[-1] != new_coordinates.shape[-1]:
        raise ValueError(
            f"coordinates must have as many components, got {old_coordinates.shape[-1]} and {new_coordinates.shape[-1]}"
        )
    old, new = (part.detach().flatten(0, -2).double().cpu() for part in (old_coordinates, new_coordinates))
    for name, part in (("old_coordinates", old), ("new_coordinates", new)):
        if not bool(part.isfinite().all()):
            raise ValueError(f"{name} must be finite, got {int((~part.isfinite()).sum())} values that are not")
    number = 1 if mode == "nearest" else min(num_neighbours, len(old))
    if number < 1:
        raise ValueError(f"num_neighbours must be at least 1, got {num_neighbours}")
    distance, near = _nearest(old, new, number)
    # A pixel in the place of an old one takes its scores alone.
    weight = 1.0 / distance.clamp(min=1e-12 * max(1.0, float(distance.max())))
    weight = weight / weight.sum(dim=1, keepdim=True)
    copied = _as_table(gate) if isinstance(gate, CoarseGate) else copy.deepcopy(gate)
    _transfer(copied, near, weight, tuple(new_coordinates.shape[:-1]))
    order = copied._modules.get("node_order")
    if isinstance(order, NodeOrder):
        order.hashes.zero_()
        if new_coordinates.ndim == 2:
            node_order_of(copied).note_coordinates(new_coordinates)
    copied.restart_memory(len(new))
    return copied


@torch.no_grad()
def _as_table(gate: CoarseGate) -> TensorGate:
    """A gate with the scores of all pixels as a table."""
    scores = gate.raw_scores(None)
    table = TensorGate(
        *(gate.num_experts, gate.num_selected, gate.spatial_shape),
        init="uniform",
        order=gate.order,
        normalization=gate.normalization,
        device=scores.device,
        dtype=scores.dtype,
    )
    table.scores = nn.Parameter(scores, gate.values.requires_grad)
    return table


def _transfer(gate: SpatialGate, near: torch.Tensor, weight: torch.Tensor, grid: tuple[int, ...]) -> None:
    def moved(field: torch.Tensor) -> torch.Tensor:
        flat = field.detach().flatten(1)
        picked = flat[:, near.to(flat.device)] * weight.to(flat.device, flat.dtype)
        return picked.sum(dim=2).unflatten(1, grid)

    if isinstance(gate, NoisyGate):
        _transfer(gate.gate, near, weight, grid)
    elif isinstance(gate, TensorGate):
        gate.scores = nn.Parameter(moved(gate.scores), gate.scores.requires_grad)
    elif isinstance(gate, FixedGate):
        gate.scores = moved(gate.scores)
    elif isinstance(gate, FactorisedGate):
        values = gate.embedding.values
        gate.embedding.values = nn.Parameter(moved(values), values.requires_grad)
    else:
        raise ValueError(f"a {type(gate).__name__} has no field of scores that could be transferred")


def _nearest(old: torch.Tensor, new: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Distances and numbers of the nearest old places of each new one, `(N', number)`."""
    try:
        from scipy.spatial import cKDTree  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        parts = [
            torch.cdist(part, old, compute_mode="donot_use_mm_for_euclid_dist").topk(number, dim=1, largest=False)
            for part in new.split(max(1, _CHUNK // len(old)))
        ]
        distance, near = (torch.cat(part) for part in zip(*parts, strict=True))
        return distance, near
    distance, near = cKDTree(old.numpy()).query(new.numpy(), k=number)
    shape = (len(new), number)
    return torch.as_tensor(distance).reshape(shape), torch.as_tensor(near).reshape(shape).long()
