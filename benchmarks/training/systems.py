"""What is compared: ways to make a training data-parallel, as a user would write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fptps.torch
from fptps.torch._process import current

from .names import BACKEND, FORWARD, HOOK, NONE

DEFAULT_BUCKETS_MB: Final = (1.0, 25.0)
"""DDP's first bucket, and the others."""


@dataclass(frozen=True)
class Training:
    """A data-parallel training: the model to call, and the optimizer to step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def finish(self) -> None:
        """Brings the weights up to date."""
        if isinstance(self.optimizer, fptps.torch.DistributedOptimizer):
            self.optimizer.flush()


def start(system: str, net: nn.Module, gloo: dist.ProcessGroup, scale: float) -> Training:
    """Makes a network's training data-parallel.

    gloo: the group of all workers over Gloo; scale: the factor on the sizes of a whole model's tensors.
    """
    if system in (NONE, FORWARD):
        return Training(net, distributed(net, sgd(net), "none" if system == NONE else "forward"))
    model = ddp(net, None if system == BACKEND else gloo, scale)
    if system == HOOK:
        tensors = current().worker.namespace(f"ddp {next(current().numbers)}")
        model.register_comm_hook(fptps.torch.DDPState(tensors, model), fptps.torch.ddp_hook)
    return Training(model, sgd(net))


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all systems."""
    return torch.optim.SGD(net.parameters(), lr=1.0)


def distributed(net: nn.Module, optimizer: torch.optim.Optimizer, overlap: Any) -> fptps.torch.DistributedOptimizer:
    """What fptps.torch.prepare() does, with a choice of the overlap."""
    fptps.torch.broadcast_parameters(net.state_dict())
    return fptps.torch.DistributedOptimizer(optimizer, net.named_parameters(), overlap=overlap)


def ddp(net: nn.Module, group: dist.ProcessGroup | None, scale: float) -> DistributedDataParallel:
    """DDP with its default buckets, scaled like the tensors: it has as many as for the whole model."""
    buckets: dict[str, Any] = (
        {} if scale == 1 else {"bucket_cap_mb_list": [scale * size for size in DEFAULT_BUCKETS_MB]}
    )
    return DistributedDataParallel(net, process_group=group, **buckets)
