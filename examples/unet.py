"""Add one layer to your U-Net: its last convolution learns what to do where."""

import torch
from torch import nn

import smoe


class UNet(nn.Module):
    """Your U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.ReLU())
        self.bottom = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Upsample(None, 2))
        self.out: nn.Module = nn.Conv2d(32, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(B, 2, H, W)` to `(B, 1, H, W)`."""
        return self.out(torch.cat([skip := self.down(x), self.bottom(skip)], dim=1))


def train(net: nn.Module) -> float:
    """Any loop and optimiser; the gate learns in the same backward pass."""
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(200):
        x = torch.randn(8, 2, 32, 48)
        target = torch.where(torch.arange(48) < 24, x[:, :1] * x[:, 1:], x[:, :1].abs())  # a law for each half
        loss = nn.functional.mse_loss(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()  # pyright: ignore[reportPossiblyUnboundVariable]


torch.manual_seed(0)
plain, located = UNet(), UNet()
located.out = smoe.SpatialMoE2d(32, 1, 3, spatial_shape=(32, 48))  # the one changed line
print(f"plain {train(plain):.4f}, with one layer {train(located):.4f}")
