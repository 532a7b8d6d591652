"""Goes on where an earlier run was ended, by its checkpoint.

    fptps run -n 2 -s 1 python examples/torch/resume.py checkpoint.pt 30     # up to step 30
    fptps run -n 2 -s 1 python examples/torch/resume.py checkpoint.pt 60     # from there to step 60

Worker 0 writes and reads the file: prepare() gives all workers its parameters, and its optimizer's state.
"""

import os
import sys

import torch

import fptps.torch as fptps

path, last = sys.argv[1], int(sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

fptps.init()
first = 0
if fptps.rank() == 0 and os.path.exists(path):
    states = torch.load(path)
    model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    first = states["step"]
first = fptps.broadcast_object(first)
model, optimizer = fptps.prepare(model, optimizer)

for step in range(first, last):
    torch.manual_seed(1000 * step + fptps.rank())
    x = torch.randn(32, 20)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
    loss.backward()
    optimizer.step()
    if fptps.rank() == 0 and (step + 1) % 10 == 0:  # both states are those after this step, though step() did not wait
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(states, path + ".part")
        os.replace(path + ".part", path)  # whole, or the one before

print(
    f"worker {fptps.rank()} of {fptps.size()}: steps {first} to {last}, mean loss {fptps.push_pull(loss.detach()):.3f}"
)
