"""One SMoE layer in a plain training loop: left and right half of a grid need different filters."""

import torch

import smoe

torch.manual_seed(0)
height, width = 12, 16


def truth(x: torch.Tensor) -> torch.Tensor:
    """The left half doubles its input, the right half takes the pixel above."""
    above = torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :, :-1]
    return torch.cat([2 * x[..., : width // 2], above[..., width // 2 :]], dim=-1)


layer = smoe.SpatialMoE2d(1, 1, num_candidates=4, spatial_shape=(height, width))  # spare candidates help the search
optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
loss = torch.tensor(torch.inf)
for step in range(1500):
    x = torch.rand(16, 1, height, width)
    loss = torch.nn.functional.mse_loss(layer(x), truth(x))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 250 == 249:
        print(f"step {step + 1:4d}  loss {loss.item():.2e}")

print(f"final loss {loss.item():.2e}; the expert of each pixel:")
for row in layer.routing().indices[0].tolist():
    print(" ".join(str(expert) for expert in row))
