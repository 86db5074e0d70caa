"""A mesh: experts that are linear maps of a node and its neighbours, and a gate with a choice for each node."""

import torch

import smoe

torch.manual_seed(0)
# Yours: mesh = smoe.read_mesh("surface.vtk"), or edge_index of torch_geometric. Here: points, and their six nearest.
points = torch.rand(300, 2)
near = torch.cdist(points, points).topk(7, largest=False).indices[:, 1:]
edges = torch.stack([near.flatten(), torch.arange(300).repeat_interleave(6)])  # from, to

x = torch.randn(256, 300, 1)
mean = torch.zeros_like(x).index_add_(1, edges[1], x[:, edges[0]]) / 6
target = torch.where((points[:, :1] - 0.5).abs() < 0.25, mean, -x)  # diffusion inside of a stripe only

layer = smoe.GraphMoE(1, 1, num_nodes=300)
optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
loss = torch.tensor(torch.inf)
for _ in range(300):
    batch = torch.randint(256, (32,))
    loss = torch.nn.functional.mse_loss(layer(x[batch], edges), target[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

inside = (points[:, 0] - 0.5).abs() < 0.25
chosen = layer.routing().indices[0]
agreement = max((chosen == inside).float().mean(), (chosen != inside).float().mean())
print(f"loss {loss.item():.1e}, {agreement:.0%} of the nodes have the expert of their region")
smoe.plot_routing(layer, "mesh.png", coords=points)
