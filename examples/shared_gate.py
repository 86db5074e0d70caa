"""A deeper network: two SMoE layers that share one gate, which starts from a map of land and sea."""

import torch

import smoe

torch.manual_seed(0)
rows, columns = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 64), indexing="ij")
land_fraction = torch.sigmoid(20 * (0.5 - (rows**2 + columns**2).sqrt()))

# 8 of 16 experts at each pixel; land pixels start with experts 8-15, sea pixels with 0-7, and both can learn away.
gate = smoe.TensorGate.from_prior(land_fraction, num_experts=16, num_selected=8)


def smoe_layer(in_channels: int) -> smoe.SpatialMoE2d:
    """An SMoE layer on a globe: longitude wraps."""
    return smoe.SpatialMoE2d.from_experts(
        in_channels, num_experts=16, num_selected=8, gate=gate, padding_mode="longitude", rule="rc"
    )


layer = smoe_layer(3)
net = torch.nn.Sequential(layer, torch.nn.BatchNorm2d(8), torch.nn.ReLU(), smoe_layer(8), torch.nn.Conv2d(8, 1, 1))
before = gate.scores.detach().clone()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
loss = torch.tensor(torch.inf)
for _ in range(20):
    x = torch.randn(4, 3, 32, 64)
    loss = torch.nn.functional.mse_loss(net(x), x.mean(dim=1, keepdim=True) * (1 + land_fraction))
    loss.backward()  # the gate receives the sum of both layers' gradients
    optimizer.step()
    optimizer.zero_grad()

print(f"loss {loss.item():.3f}; {sum(p.numel() for p in net.parameters())} parameters, the gate counted once")
print(f"experts at a land pixel: {sorted(layer.routing().indices[:, 16, 32].tolist())}")
print(f"experts at a sea pixel:  {sorted(layer.routing().indices[:, 0, 0].tolist())}")
print(f"largest change of a score: {(gate.scores - before).abs().max():.3f}")
