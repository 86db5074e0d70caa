"""Nets of SMoE layers on the nodes of a mesh, and plain ones to compare with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from smoe.meshes._mesh import Mesh
from smoe.nn import GraphMoE, HEALPixMoE
from smoe.nn._filter_bank import BankOptions
from smoe.nn._fixed_gates import FixedGate

# Scale of the last experts at the start: a net begins near the mean, or near what it is to correct.
_START = 0.1


class MeshLayer(nn.Module):
    """`HEALPixMoE` or `GraphMoE`, `(B, C, N)` to `(B, K, N)`; without a number of experts, one map everywhere."""

    edges: torch.Tensor

    def __init__(
        self,
        mesh: Mesh,
        in_channels: int,
        num_experts: int | None,
        num_selected: int,
        *,
        expert_channels: int = 1,
    ) -> None:
        super().__init__()
        numbers = (in_channels, num_experts or 1, num_selected)
        options: BankOptions = {"expert_channels": expert_channels}
        if num_experts is None:
            grid = (12, mesh.nside, mesh.nside) if mesh.nside is not None else (mesh.num_nodes,)
            options |= {"gate": FixedGate(torch.zeros(1, *grid), 1), "rule": "frozen"}
        self.layer: GraphMoE | HEALPixMoE
        if mesh.nside is not None:
            assert mesh.pixel_order is not None
            self.layer = HEALPixMoE.from_experts(*numbers, nside=mesh.nside, pixel_order=mesh.pixel_order, **options)
        else:
            self.layer = GraphMoE.from_experts(
                *numbers, num_nodes=mesh.num_nodes, coordinates=mesh.coordinates, **options
            )
        self.register_buffer("edges", mesh.edge_index if mesh.nside is None else torch.empty(2, 0), persistent=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, N)` to `(B, E * F, N)`."""
        if isinstance(self.layer, GraphMoE):
            return self.layer(input.transpose(1, 2), self.edges).transpose(1, 2)
        return self.layer(input)


class MeshNet(nn.Module):
    """An SMoE layer, residual blocks of two of them with ReLU, and a last layer.

    The layers are `HEALPixMoE` on a HEALPix sphere and `GraphMoE` on other meshes, with the hash of the mesh in their
    gates: weights of another mesh, or of another order of its nodes, are refused.

    Args:
        mesh: Mesh of the fields.
        in_channels: C, the number of channels of the input.
        out_channels: K, the number of channels of the output.
        filters: E, the number of outputs of each layer but the last.
        num_experts: Experts in each bank, as a multiple of its outputs; None for plain layers, in which all nodes share
            one linear map or filter for each output.
        num_blocks: Residual blocks.
    """

    def __init__(
        self,
        mesh: Mesh,
        in_channels: int,
        out_channels: int,
        *,
        filters: int = 16,
        num_experts: float | None = 2.0,
        num_blocks: int = 1,
    ) -> None:
        super().__init__()
        self.mesh = mesh

        def layer(channels: int, outputs: int) -> MeshLayer:
            if num_experts is None:
                return MeshLayer(mesh, channels, None, 1, expert_channels=outputs)
            return MeshLayer(mesh, channels, max(outputs, round(num_experts * outputs)), outputs)

        self.stem = layer(in_channels, filters)
        self.blocks = nn.ModuleList(nn.ModuleList(layer(filters, filters) for _ in range(2)) for _ in range(num_blocks))
        self.head = layer(filters, out_channels)
        with torch.no_grad():
            self.head.layer.weight.mul_(_START)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, N)` to `(B, K, N)`, or `(B, C, 1, N)` to `(B, K, 1, N)`, as fits have them."""
        hidden = F.relu(self.stem(without_row(input, self.mesh.num_nodes)))
        # Each block adds a share, so that the size of the features does not grow with their number.
        scale = (2.0 * len(self.blocks)) ** -0.5
        for block in self.blocks:
            first, second = block.children()
            hidden = hidden + scale * second(F.relu(first(hidden)))
        output = self.head(F.relu(hidden))
        return output if input.ndim == 3 else output.unsqueeze(2)


class SummedMeshLayer(nn.Module):
    """One SMoE layer whose selected experts are summed: a linear map of its own at each node."""

    def __init__(
        self,
        mesh: Mesh,
        in_channels: int,
        out_channels: int,
        *,
        num_selected: int,
        num_experts: int,
    ) -> None:
        super().__init__()
        self.num_nodes = mesh.num_nodes
        self.stem = MeshLayer(mesh, in_channels, num_experts, num_selected, expert_channels=out_channels)
        with torch.no_grad():
            self.stem.layer.weight.mul_(_START)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        found = self.stem(without_row(input, self.num_nodes))
        output = found.unflatten(1, (self.stem.layer.gate.num_selected, -1)).sum(dim=1)
        return output if input.ndim == 3 else output.unsqueeze(2)


def without_row(input: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """`(B, C, N)` of the same or of a row of nodes `(B, C, 1, N)`."""
    if input.shape[-1] != num_nodes or (input.ndim == 4 and input.shape[2] != 1) or input.ndim not in (3, 4):
        raise ValueError(f"input must be (B, C, {num_nodes}) or (B, C, 1, {num_nodes}), got shape {tuple(input.shape)}")
    return input.flatten(2)
