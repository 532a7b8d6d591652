"""Mixed precision, on a GPU where there is one: its gradients are copied to the CPU's memory and back.

fptps run -n 2 -s 1 python examples/torch/amp.py
"""

import torch

import fptps.torch as fptps

fptps.init()
cuda = torch.cuda.is_available()
device = torch.device("cuda", fptps.local_rank() % torch.cuda.device_count()) if cuda else torch.device("cpu")
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)).to(device)
model, optimizer = fptps.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
scaler = torch.amp.GradScaler(device.type)

torch.manual_seed(fptps.rank())
for _ in range(100):
    x = torch.randn(32, 20, device=device)
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.float16 if cuda else torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # waits for the sums: whether to take the step depends on all of them
    scaler.update()

print(f"worker {fptps.rank()} of {fptps.size()}: mean loss {fptps.push_pull(loss.detach()):.3f}")
