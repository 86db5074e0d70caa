"""Convert a network of torchvision: its convolutions become layers that compute what they did, and then learn."""

import torch
from torch import nn

import smoe

torch.manual_seed(0)
try:
    from torchvision.models import resnet18  # pyright: ignore[reportMissingImports]

    net: nn.Module = resnet18()
except (ImportError, RuntimeError):  # torchvision is missing, or was built for another torch: a small net of your own
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 1, 1),
    )  # fmt: skip
x = torch.randn(4, 3, 32, 64)

print(smoe.plan_conversion(net, example_input=x))  # what would change, and what stays and why
before = net.eval()(x)
converted = smoe.convert(net, example_input=x)
difference = (converted.eval()(x) - before).abs().max().item()
print(f"largest difference at the start: {difference:.1e}")

converted.train()
optimizer = torch.optim.AdamW(converted.parameters(), lr=1e-3)
for _ in range(3):
    loss = converted(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(smoe.describe(converted))
