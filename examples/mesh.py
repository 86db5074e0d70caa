"""A mesh from torch_geometric: experts are linear maps of a node and its neighbours, the gate chooses at each node."""

import torch
from torch_geometric import transforms
from torch_geometric.data import Data

import smoe

torch.manual_seed(0)
# Yours: any Data with edge_index, or smoe.read_mesh("ocean.nc"). Here: triangles over random points.
triangles = transforms.Compose([transforms.Delaunay(), transforms.FaceToEdge()])
mesh = triangles(Data(pos=torch.rand(300, 2)))
source, sink = mesh.edge_index

x = torch.randn(256, 300, 1)
degree = torch.zeros(300).index_add_(0, sink, torch.ones(len(sink)))
mean = torch.zeros_like(x).index_add_(1, sink, x[:, source]) / degree[:, None]
inside = (mesh.pos[:, 0] - 0.5).abs() < 0.25
target = torch.where(inside[:, None], mean, -x)  # diffusion inside of a stripe only

layer = smoe.GraphMoE(1, 1, num_nodes=300)
optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
loss = torch.tensor(torch.inf)
for _ in range(300):
    batch = torch.randint(256, (32,))
    loss = torch.nn.functional.mse_loss(layer(x[batch], mesh.edge_index), target[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

chosen = layer.routing().indices[0]
agreement = max((chosen == inside).float().mean(), (chosen != inside).float().mean())
print(f"loss {loss.item():.1e}, {agreement:.0%} of the nodes have the expert of their region")
smoe.plot_routing(layer, "mesh.png", coords=mesh.pos)
