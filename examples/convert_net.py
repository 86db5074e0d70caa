"""Convert a network: its convolutions become SMoE layers that compute what they did before, and then learn."""

import torch
from torch import nn

import smoe

torch.manual_seed(0)
# Or a net of torchvision or timm, such as torchvision.models.resnet18().
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
