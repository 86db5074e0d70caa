"""A hash of the nodes that a gate was made for, so that no other mesh or order of nodes uses its choices."""

from __future__ import annotations

import hashlib
from typing import Literal

import torch
from torch import nn

from smoe.nn._gate import SpatialGate

_REMEDY = (
    "number the nodes as before, or take the gate to the new nodes by "
    "smoe.transfer_gate(gate, old_coordinates, new_coordinates)"
)


_HASHED = ("edges", "coordinates")
_MASK = 2**64 - 1


class NodeOrder(nn.Module):
    """Hashes of a graph's edges and of its nodes' coordinates, saved with the gate; 0 where they are not known."""

    hashes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hashes", torch.zeros(2, dtype=torch.int64))

    def note(self, what: Literal["edges", "coordinates"], value: int) -> None:
        """Keeps the hash of the first graph, and refuses others."""
        place = _HASHED.index(what)
        known = int(self.hashes[place])
        if known == 0:
            self.hashes[place] = value
        elif known != value:
            raise ValueError(
                f"the {what} differ from those of the graph that the gate was made for (hash {value & _MASK:016x}, not "
                f"{known & _MASK:016x}): {_REMEDY}"
            )

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        del local_metadata, strict, missing_keys, unexpected_keys
        saved = state_dict.get(f"{prefix}hashes")
        if saved is None:  # saved before the gate had met a graph
            return
        for place, what in enumerate(_HASHED):
            own, other = int(self.hashes[place]), int(saved[place])
            if own and other and own != other:
                error_msgs.append(
                    f"{prefix.removesuffix('.')}: the {what} of the saved gate have the hash {other & _MASK:016x}, "
                    f"those of this one {own & _MASK:016x}: {_REMEDY}"
                )
                return
        with torch.no_grad():
            self.hashes.copy_(torch.where(saved.to(self.hashes) != 0, saved.to(self.hashes), self.hashes))


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
