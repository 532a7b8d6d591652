"""Hugging Face accelerate: the process group is made before the Accelerator, which then uses it.

fptps run -n 2 -s 1 python examples/torch/accelerate_loop.py
torchrun --nproc-per-node 2 examples/torch/accelerate_loop.py
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator

dist.init_process_group("fptps")
accelerator = Accelerator(cpu=True)

x = torch.randn(6400, 20, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
model, optimizer, batches = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.DataLoader(data, batch_size=32)
)

losses = []
for x, y in batches:  # a part of the data for each worker
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    losses.append(float(accelerator.reduce(loss.detach(), "mean")))

weights = sum(float(p.detach().double().sum()) for p in model.parameters())
print(
    f"worker {accelerator.process_index} of {accelerator.num_processes}: "
    f"mean loss {losses[0]:.3f} to {losses[-1]:.3f}, sum of the weights {weights!r}"
)
dist.destroy_process_group()
