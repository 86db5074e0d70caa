"""Train on several processes or machines: nothing but DistributedDataParallel.

One machine:  torchrun --standalone --nproc-per-node 2 several_machines.py
Two machines: torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29400 several_machines.py
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import smoe

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
torch.manual_seed(0)  # the same start in each process
x = torch.randn(128, 1, 16, 16)
target = torch.where(torch.arange(16) < 8, x, -x)
layer = smoe.SpatialMoE2d(1, 1, spatial_shape=(16, 16)).to(device)
model = DistributedDataParallel(layer)  # the gate's gradient is averaged like any other
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
order = torch.Generator().manual_seed(1)
loss = torch.tensor(torch.inf)
for _ in range(200):
    batch = torch.randint(128, (16,), generator=order)[dist.get_rank() :: dist.get_world_size()]  # a share
    loss = torch.nn.functional.mse_loss(model(x[batch].to(device)), target[batch].to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} processes, loss {loss.item():.1e}")
    torch.save(layer.state_dict(), "layer.pt")
dist.barrier()  # a thread that still holds a tensor when Python ends would abort the process
dist.destroy_process_group()
