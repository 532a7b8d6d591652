"""The optimiser on the aggregators: its state lives once in the cluster, not once on each worker.

fptps run -n 2 -s 1 python examples/torch/server.py
"""

import torch

import fptps.torch as ft
from fptps.optim import AdamW

model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))

ft.init()
model, optimizer = ft.prepare(model, ft.ServerOptimizer(AdamW(lr=0.01)))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.5)

torch.manual_seed(ft.rank())  # each worker has batches of its own
for _ in range(100):
    x = torch.randn(32, 20)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
    loss.backward()
    optimizer.step()
    scheduler.step()

mean = ft.push_pull(loss.detach())
print(f"worker {ft.rank()} of {ft.size()}: mean loss {mean:.3f}")
