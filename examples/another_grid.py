"""Move a gate to another grid: a layer of 16 x 24 pixels continues on 32 x 48, and a network as a whole."""

import torch
from torch import nn

import smoe

torch.manual_seed(0)


def truth(x: torch.Tensor) -> torch.Tensor:
    """The left half keeps its input, the right half changes its sign."""
    return torch.where(torch.arange(x.shape[-1]) < x.shape[-1] // 2, x, -x)


net = nn.Sequential(smoe.SpatialMoE2d(1, 1, spatial_shape=(16, 24)))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(300):
    x = torch.randn(16, 1, 16, 24)
    loss = nn.functional.mse_loss(net(x), truth(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# A copy with new parameters, for the finer grid: give them to a new optimiser to go on.
fine = smoe.interpolate_grids(net, example_input=torch.zeros(1, 1, 32, 48)).eval()
x = torch.randn(64, 1, 32, 48)
print(f"error on 32 x 48, never trained there: {nn.functional.mse_loss(fine(x), truth(x)).item():.1e}")

# Of nodes with coordinates, one gate alone: from each new node to the nearest old one.
old, new = torch.rand(50, 2), torch.rand(80, 2)
gate = smoe.transfer_gate(smoe.FactorisedGate(4, 2, (50,)), old, new)
print("a gate of", gate.spatial_shape, "nodes")
