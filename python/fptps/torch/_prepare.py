"""What makes the models of all workers equal: at the start, and at the end of uneven data."""

from __future__ import annotations

import gc
import math
from typing import TypeVar

import torch
from torch import nn

from ..ticket import as_completed
from ..worker import KVWorker
from ._calls import broadcast_optimizer_state, broadcast_parameters, push_pull
from ._check import check_layout
from ._optimizer import DistributedOptimizer
from ._process import current
from ._server import ServerOptimizer

Model = TypeVar("Model", bound=nn.Module)


def prepare(model: Model, optimizer: torch.optim.Optimizer) -> tuple[Model, DistributedOptimizer]:
    """Makes a program's model and optimizer distributed: the model, and a DistributedOptimizer around the optimizer.

    All workers call it. It compares the models: MismatchError names the first parameter or buffer that differs in
    shape or dtype. It then gives all of them worker 0's parameters, buffers and state of the optimizer: a checkpoint
    has to be loaded by worker 0 alone, before. (After its death it is the lowest rank that lives.) Buffers, such as
    the running statistics of BatchNorm, are each worker's own from then on; average_buffers() makes them equal. A
    ServerOptimizer without parameters gets the model's.
    """
    check_layout(model)
    root = _leader(current().worker)
    broadcast_parameters({**dict(model.named_parameters()), **dict(model.named_buffers())}, root)
    if isinstance(optimizer, ServerOptimizer):
        optimizer.bind(model.named_parameters())
        return model, optimizer
    broadcast_optimizer_state(optimizer, root)
    return model, DistributedOptimizer(optimizer, model.named_parameters())


def _leader(worker: KVWorker) -> int:
    """The lowest rank that lives, the same on all workers."""
    return min(worker._collectives.allgather(None)) if worker._recovers else 0


def average_buffers(model: nn.Module) -> None:
    """Gives the floating-point buffers of all workers' models their mean: before an evaluation, or a checkpoint.

    Other buffers, such as counters, become worker 0's, or those of the lowest rank that lives. All workers call it.
    """
    buffers = dict(model.named_buffers())
    floats = [b for b in buffers.values() if b.is_floating_point()]
    if floats:
        mean = push_pull(torch.cat([b.detach().double().cpu().flatten() for b in floats]), name="buffers")
        for b, part in zip(floats, mean.split([b.numel() for b in floats])):
            b.detach().copy_(part.view(b.shape))
    others = {name: b for name, b in buffers.items() if not b.is_floating_point()}
    broadcast_parameters(others, _leader(current().worker))


def join() -> int:
    """For data that is not divided evenly: a worker calls it after its last step, and returns when all have done so.

    Until then it takes part in the others' steps of all DistributedOptimizers, with zeros; their means are over all
    workers, the joined ones included. At the end all workers have the parameters and the optimizers' states of the one
    that has taken most steps (of several, the lowest rank), which is returned. Training can go on.

    It takes part in steps alone: other calls that need all workers, such as push_pull() or check(), have to wait until
    after it. The program has to hold on to the same optimizers on all workers. RuntimeError between backward() and
    step().
    """
    gc.collect()  # on all workers the same optimizers have to be alive
    process = current()
    optimizers = process.living()
    rolls = {g.stand_in(): g for g in [optimizer.begin_join() for optimizer in optimizers] if g is not None}
    while rolls:
        ticket = next(as_completed(rolls, math.inf))
        ticket.result()
        gradients = rolls.pop(ticket)
        if gradients.follow(ticket):
            rolls[gradients.stand_in()] = gradients
    steps = process.worker._collectives.allgather(sum(optimizer.steps for optimizer in optimizers))
    last = max(steps, key=lambda rank: (steps[rank], -rank))
    for optimizer in optimizers:
        broadcast_parameters(optimizer.named_parameters(), last)
        broadcast_optimizer_state(optimizer.optimizer, last)
        optimizer.steps = process.worker.broadcast_object(optimizer.steps, last)
    return last
