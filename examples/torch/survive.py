"""Goes on when a worker or a server dies, and divides the data among the workers that are left.

    FPTPS_RECOVERY=1 fptps run -n 3 -s 1 python examples/torch/survive.py 60        # and kill one of the processes
    FPTPS_RECOVERY=1 fptps run -n 3 -s 1 python examples/torch/survive.py 60 30     # worker 1 kills itself in step 30

optimizer.workers changes in the same step on all workers, so that each example is learned from once in every step.
"""

import os
import signal
import sys

import torch

import fptps.torch as fptps

steps, death = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
torch.manual_seed(1)
data = torch.randn(600, 20)
labels = (data.sum(1) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))

fptps.init()
model, optimizer = fptps.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))

for step in range(steps):
    workers = optimizer.workers
    batch = slice(workers.index(fptps.rank()), None, len(workers))
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(data[batch]), labels[batch])
    loss.backward()
    if step == death and fptps.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()

fptps.check(model)
print(f"worker {fptps.rank()} of {fptps.size()}: mean loss {fptps.push_pull(loss.detach()):.3f}")
