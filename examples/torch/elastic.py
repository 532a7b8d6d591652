"""Goes on when workers die, and with workers that come later, from the state of the others.

    fptps run -n 3 --restarts 5 python examples/torch/elastic.py 400        # and kill one of the processes
    fptps run -n 3 --restarts 5 python examples/torch/elastic.py 400 30     # worker 1 kills itself in step 30

State.admit() is where the others wait for a worker that has been started later.
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
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)
state = fptps.State(model, optimizer, scheduler=scheduler, step=0)

while state.step < steps:
    if state.admit():
        print(f"worker {fptps.rank()}, step {state.step}: the workers are {optimizer.workers}")
    workers = optimizer.workers
    batch = slice(workers.index(fptps.rank()), None, len(workers))
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(data[batch]), labels[batch])
    loss.backward()
    if state.step == death and fptps.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    scheduler.step()
    state.step += 1

fptps.check(model)
print(f"worker {fptps.rank()} of {fptps.size()}: mean loss {fptps.push_pull(loss.detach()):.3f}")
