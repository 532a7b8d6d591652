"""The pieces that prepare() puts together: broadcasts, DistributedOptimizer, accumulation, clipping, a scheduler.

fptps run -n 2 -s 1 python examples/torch/optimizer.py
"""

import torch

import fptps.torch as fptps

fptps.init()
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
fptps.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = fptps.DistributedOptimizer(
    torch.optim.AdamW(model.parameters(), lr=0.01),
    named_parameters=model.named_parameters(),
    compression=fptps.Compression.bf16,  # half the bytes
    backward_passes_per_step=2,  # gradients leave with every second backward()
)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)

torch.manual_seed(fptps.rank())
for step in range(60):
    optimizer.zero_grad()
    for _ in range(2):
        x = torch.randn(16, 20)
        loss = torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()) / 2
        loss.backward()
    if step % 10 == 0:  # gradients are whole after synchronize(); without it step() need not wait for them
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()

fptps.check(model)  # the same bits on all workers
print(f"worker {fptps.rank()} of {fptps.size()}: mean loss {2 * fptps.push_pull(loss.detach()):.3f}")
