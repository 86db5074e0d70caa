"""Read the routing: which expert serves which pixel, whether it is worth anything, and what the experts do."""

import torch

import smoe

torch.manual_seed(0)
x = torch.randn(512, 1, 16, 24)
regions = (torch.arange(24) < 12).long().expand(16, 24)
target = torch.where(regions.bool(), x, -x)  # the left half keeps its input, the right half changes its sign

layer = smoe.SpatialMoE2d(1, 1, spatial_shape=(16, 24))
start = smoe.describe(layer)
optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
for _ in range(300):
    batch = torch.randint(400, (16,))
    loss = torch.nn.functional.mse_loss(layer(x[batch]), target[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

routing = layer.routing()  # a picture in a notebook
print("experts of the first row:", routing.indices[0, 0].tolist())
for region in (0, 1):
    print(f"experts of region {region}:", routing.indices[0][regions == region].unique(return_counts=True))
# Samples that the layer was not trained on tell what it is worth beside the best single convolution.
print(smoe.describe(layer, torch.nn.functional.mse_loss, x[400:], target[400:], since=start))
print("filters of the experts:", layer.weight.detach().flatten(1))
routing.plot("routing.png", title="which expert serves which pixel")
