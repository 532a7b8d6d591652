"""The smallest training: two lines make it distributed.

fptps run -n 2 -s 1 python examples/torch/minimal.py
torchrun --nproc-per-node 2 examples/torch/minimal.py
python examples/torch/minimal.py                          # alone
"""

import torch

import fptps.torch as fptps

model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

fptps.init()
model, optimizer = fptps.prepare(model, optimizer)

torch.manual_seed(fptps.rank())  # each worker has batches of its own
for _ in range(100):
    x = torch.randn(32, 20)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
    loss.backward()
    optimizer.step()

mean = fptps.push_pull(loss.detach())
print(f"worker {fptps.rank()} of {fptps.size()}: mean loss {mean:.3f}")
