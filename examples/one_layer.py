"""One layer in a plain training loop: the left half of a grid is smoothed, the right half is sharpened."""

import torch
from torch.nn.functional import avg_pool2d, mse_loss

import smoe

torch.manual_seed(0)
x = torch.randn(256, 1, 32, 32)
smooth = avg_pool2d(x, 3, stride=1, padding=1)
target = torch.where(torch.arange(32) < 16, smooth, 2 * x - smooth)  # no single filter does both


def train(layer: torch.nn.Module) -> float:
    """Any loop and optimiser."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for _ in range(300):
        batch = torch.randint(256, (16,))
        loss = mse_loss(layer(x[batch]), target[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return mse_loss(layer(x), target).item()


layer = smoe.SpatialMoE2d(1, 1, kernel_size=3, spatial_shape=(32, 32))  # called like nn.Conv2d
plain = train(torch.nn.Conv2d(1, 1, 3, padding=1))
print(f"convolution {plain:.2f}, SMoE layer {train(layer):.1e}; the experts of the first row:")
print(*layer.routing().indices[0, 0].tolist())
print(smoe.describe(layer, mse_loss, x[:32], target[:32]))  # is it better than any single convolution?
