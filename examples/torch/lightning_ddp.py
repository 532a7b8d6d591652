"""Lightning: its DDP strategy over fptps, by the name of the backend.

fptps run -n 2 -s 1 python examples/torch/lightning_ddp.py
torchrun --nproc-per-node 2 examples/torch/lightning_ddp.py
"""

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy


class Signs(LightningModule):
    """Is the sum of 20 numbers positive?"""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
        self.losses: list[float] = []

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.losses.append(float(self.all_gather(loss.detach()).mean()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


x = torch.randn(6400, 20, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = Signs()
trainer = Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy=DDPStrategy(process_group_backend="fptps"),
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=32))  # a part of the data for each worker

weights = sum(float(p.detach().double().sum()) for p in model.parameters())
print(
    f"worker {trainer.global_rank} of {trainer.world_size}: "
    f"mean loss {model.losses[0]:.3f} to {model.losses[-1]:.3f}, sum of the weights {weights!r}"
)
torch.distributed.destroy_process_group()  # Lightning leaves it open
