"""Trainings by PyTorch's own distributed classes, which test_torch_trainings.py runs on two backends."""

from __future__ import annotations

import contextlib
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook, fp16_compress_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import fptps.torch

STEPS = 4


def net():
    """Other values on every rank, with a frozen parameter and the buffers of a batch normalisation."""
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 130),
        torch.nn.Tanh(), torch.nn.Linear(130, 3),
    )  # fmt: skip
    model[5].bias.requires_grad = False
    return model


def loader():
    """Every rank's own part of one data set, which does not divide evenly."""
    source = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(101, 1, 8, 8, generator=source), torch.randint(3, (101,), generator=source))
    return DataLoader(data, batch_size=13, sampler=DistributedSampler(data, shuffle=True, seed=1))


def train(model, optimizer, steps=STEPS):
    losses = []
    for _, (x, y) in zip(range(steps), loader()):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    mean = torch.stack(losses).sum()
    dist.all_reduce(mean)
    return {"loss": mean}


def state(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def ddp():
    """Small buckets, so that several are under way; DDP makes them anew after the first step."""
    model = DistributedDataParallel(net(), bucket_cap_mb=0.02)
    return {**train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)), **state(model)}


def unused_parameters():
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.own, self.unused = net(), torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def forward(self, x):
            y = self.used(x)
            return self.own(y) if dist.get_rank() else y

    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    return {**train(model, torch.optim.SGD(model.parameters(), lr=0.1)), **state(model)}


def zero():
    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    return {**train(model, optimizer), **state(model)}


def fsdp():
    """fully_shard: parameters gathered for each layer, gradients reduced and scattered."""
    model = net()
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)
    model[5].bias.requires_grad = True
    for layer in (model[3], model[5]):
        fully_shard(layer)
    fully_shard(model)
    result = train(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    whole = {name: t.full_tensor() for name, t in model.named_parameters()}
    return {**result, **{name: t.detach() for name, t in whole.items()}}


TRAININGS = [ddp, unused_parameters, zero, fsdp]


def all_trainings():
    return {training.__name__: training() for training in TRAININGS}


HOOKS = {
    "plain": (None, fptps.torch.ddp_hook),
    "compressed": (fp16_compress_hook, fp16_compress_wrapper(fptps.torch.ddp_hook)),
}
"""DDP's own hook, or none, and the one that does the same over fptps."""


def hooks():
    """Under `fptps run`, with DDP over gloo. By name: DDP's own result, and the hook's."""
    results = {}
    with fptps.KVWorker() as kv:
        for name, (own, ours) in HOOKS.items():
            pair = []
            for hook in (own, ours):
                model = DistributedDataParallel(net(), bucket_cap_mb=0.02)
                if hook is ours:
                    model.register_comm_hook(fptps.torch.DDPState(kv.namespace(name), model), hook)
                elif hook is not None:
                    model.register_comm_hook(None, hook)
                result = train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
                pair.append({**result, **state(model)})
            results[name] = pair
        with contextlib.suppress(ValueError):
            half = dist.new_group([0]), dist.new_group([1])
            alone = DistributedDataParallel(net(), process_group=half[dist.get_rank()])
            fptps.torch.DDPState(kv, alone)
            raise AssertionError("DDP of one process, and fptps of two")
    return results


class Backwards(torch.nn.Module):
    """Uses its layers in the reverse of the order in which they are defined."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(40, 40) for _ in range(4))

    def forward(self, x):
        for layer in reversed(self.layers):
            x = layer(x)
        return x


def priorities_of_the_hook():
    """Under `fptps run`, with DDP over gloo: the hook's calls in a step, after DDP has made its buckets anew. Each is
    the priorities of its tensors, by name."""
    with fptps.KVWorker() as kv:
        model = DistributedDataParallel(Backwards(), bucket_cap_mb=0.005)  # a bucket holds a layer at most
        model.register_comm_hook(fptps.torch.DDPState(kv, model), fptps.torch.ddp_hook)
        for _ in range(3):
            with mock.patch.object(kv, "push_pull_all", wraps=kv.push_pull_all) as push_pull_all:
                model(torch.ones(2, 40)).sum().backward()
    return [call.kwargs["priority"] for call in push_pull_all.call_args_list]


def the_cluster_of_the_environment():
    """Under `fptps run`: its servers sum for the default group; a default group after that one has its own cluster."""
    servers = []
    for _ in range(2):
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        servers.append(backend._membership.kv.num_servers)
        x = torch.full((9,), dist.get_rank() + 1.0)
        dist.all_reduce(x)
        assert torch.equal(x, torch.full((9,), 3.0))
        if len(servers) == 1:
            dist.destroy_process_group()
            dist.init_process_group("fptps")
    return servers
