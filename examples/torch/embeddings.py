"""An embedding with sparse gradients: only the rows that a batch has touched travel.

fptps run -n 2 -s 1 python examples/torch/embeddings.py
"""

import torch

import fptps.torch as fptps


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(200, 8, sparse=True)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(words).mean(1))


fptps.init()
model = Words()
fptps.broadcast_parameters(model.state_dict())
# Two optimizers: SparseAdam takes sparse gradients alone.
sparse = fptps.DistributedOptimizer(torch.optim.SparseAdam(model.table.parameters(), lr=0.05))
dense = fptps.DistributedOptimizer(torch.optim.Adam(model.head.parameters(), lr=0.05))

torch.manual_seed(fptps.rank())
for _ in range(60):
    words = torch.randint(200, (64, 3))
    sparse.zero_grad()
    dense.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(words), ((words < 100).sum(1) > 1).long())
    loss.backward()
    sparse.step()
    dense.step()

fptps.check(model)
print(f"worker {fptps.rank()} of {fptps.size()}: mean loss {fptps.push_pull(loss.detach()):.3f}")
