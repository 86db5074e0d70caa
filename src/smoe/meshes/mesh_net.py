"""A residual net of SMoE layers on the nodes of a mesh."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from smoe.meshes.mesh import Mesh
from smoe.nn import GraphMoE, HEALPixMoE


class MeshNet(nn.Module):
    """An SMoE layer, residual blocks of two of them with ReLU, and a last layer.

    The layers are `HEALPixMoE` on a HEALPix sphere and `GraphMoE` on other meshes, with the hash of the mesh in their
    gates: weights of another mesh, or of another order of its nodes, are refused.

    Args:
        mesh: Mesh of the fields.
        in_channels: C, the number of channels of the input.
        out_channels: K, the number of channels of the output.
        filters: E, the number of outputs of each layer but the last.
        num_experts: Experts in each bank, as a multiple of its outputs.
        num_blocks: Residual blocks.
    """

    edges: torch.Tensor

    def __init__(
        self,
        mesh: Mesh,
        in_channels: int,
        out_channels: int,
        *,
        filters: int = 16,
        num_experts: float = 2.0,
        num_blocks: int = 1,
    ) -> None:
        super().__init__()
        self.num_nodes = mesh.num_nodes
        self.register_buffer("edges", mesh.edge_index, persistent=False)

        def layer(channels: int, outputs: int) -> GraphMoE | HEALPixMoE:
            numbers = (channels, max(outputs, round(num_experts * outputs)), outputs)
            if mesh.nside is not None and mesh.pixel_order is not None:
                return HEALPixMoE(*numbers, nside=mesh.nside, pixel_order=mesh.pixel_order)
            return GraphMoE(*numbers, num_nodes=mesh.num_nodes, coordinates=mesh.coordinates)

        self.stem = layer(in_channels, filters)
        self.blocks = nn.ModuleList(nn.ModuleList(layer(filters, filters) for _ in range(2)) for _ in range(num_blocks))
        self.head = layer(filters, out_channels)
        with torch.no_grad():
            # The net begins near the mean, or near what it is to correct.
            self.head.weight.mul_(0.1)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(B, C, N)` to `(B, K, N)`, or `(B, C, 1, N)` to `(B, K, 1, N)` as `open_mesh_fields` has them."""
        if input.shape[-1] != self.num_nodes or (input.ndim == 4 and input.shape[2] != 1) or input.ndim not in (3, 4):
            raise ValueError(
                f"input must be (B, C, {self.num_nodes}) or (B, C, 1, {self.num_nodes}), got shape {tuple(input.shape)}"
            )
        hidden = F.relu(self._apply_layer(self.stem, input.flatten(2)))
        # Each block adds a share, so that the size of the features does not grow with their number.
        scale = (2.0 * len(self.blocks)) ** -0.5
        for block in self.blocks:
            first, second = block.children()
            hidden = hidden + scale * self._apply_layer(second, F.relu(self._apply_layer(first, hidden)))
        output = self._apply_layer(self.head, F.relu(hidden))
        return output if input.ndim == 3 else output.unsqueeze(2)

    def _apply_layer(self, layer: nn.Module, features: torch.Tensor) -> torch.Tensor:
        if isinstance(layer, GraphMoE):
            return layer(features.transpose(1, 2), self.edges).transpose(1, 2)
        return layer(features)
