"""A worker that trains each model by each system, one after the other, in a cluster that the environment names.

fptps run -n 2 -s 2 -- python -m benchmarks.training.worker --master 127.0.0.1 --interface lo \
    --system "DDP, gloo" --system DistributedOptimizer --model resnet50=0.05

Worker 0 prints the figures, a line of JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

import fptps.torch
from fptps._bench.processes import Usage

from .common import WARM_UP, best_rate, idle_share, milliseconds, parser, processor_s
from .models import Job, job, same_weights
from .names import BACKEND
from .systems import Training, start

PORT: Final = "29500"
"""On the test bed, whose nodes have addresses of their own. `fptps run` chooses a port of this machine."""


def main() -> None:
    """The command line."""
    options = arguments()
    rank, workers, servers = (
        int(os.environ[name]) for name in ("DMLC_WORKER_ID", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER")
    )
    os.environ["GLOO_SOCKET_IFNAME"] = options.interface
    torch.set_num_threads(1)
    gloo = join(options.master, options.systems, rank, workers)
    figures = []
    for name, scale in options.models:
        chosen = job(name, scale, rank, workers)
        bound = None
        if options.link:
            bound = chosen.bound_s(best_rate(workers, servers, options.link))
        for system in options.systems:
            found = measure(chosen, system, gloo, scale, options.iterations)
            figures.append({"model": name, "system": system, "bound_ms": milliseconds(bound), **found})
    if rank == 0:
        print(json.dumps({"trainings": figures}), flush=True)
    dist.barrier(group=gloo)
    dist.destroy_process_group()


def arguments() -> argparse.Namespace:
    """The options."""
    made = parser("one worker of the training benchmark")
    made.add_argument("--master", required=True, help="address of worker 0")
    made.add_argument("--interface", required=True, help="network interface for Gloo")
    made.add_argument("--system", dest="systems", action="append", required=True)
    return made.parse_args()


def join(master: str, systems: list[str], rank: int, workers: int) -> dist.ProcessGroup:
    """Joins the cluster, by fptps.torch or by the backend of the default group. Returns a group over Gloo."""
    by_backend = BACKEND in systems
    address = f"tcp://{master}:{os.environ.get('MASTER_PORT', PORT)}"
    dist.init_process_group("fptps" if by_backend else "gloo", init_method=address, rank=rank, world_size=workers)
    if not by_backend:
        fptps.torch.init()
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group


def measure(chosen: Job, system: str, gloo: dist.ProcessGroup, scale: float, iterations: int) -> dict[str, Any]:
    """Trains, verifies the weights, and returns the figures of all workers."""
    net = chosen.build()
    training = start(system, net, gloo, scale)
    usage = Usage() if dist.get_rank() == 0 else None
    dist.barrier(group=gloo)
    taken, idle = train(chosen, training, WARM_UP + iterations)
    dist.barrier(group=gloo)
    cpu_s = usage.cpu_s() / len(taken) if usage else None
    training.finish()
    chosen.verify(net, WARM_UP + iterations)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (statistics.median(taken[WARM_UP:]), digest(net)), group=gloo)
    same_weights([weights for _, weights in found])
    iteration = statistics.mean(seconds for seconds, _ in found)
    return {"iteration_ms": milliseconds(iteration), "cpu_ms": milliseconds(cpu_s), "idle_share": round(idle, 3)}


def train(chosen: Job, training: Training, iterations: int) -> tuple[list[float], float]:
    """Returns the seconds of each iteration, from the begin of the backward pass to the end of the next forward pass,
    and the part of the machine's processor time that nobody used meanwhile."""
    taken = []
    loss = chosen.loss(training.model)
    before = processor_s()
    for _ in range(iterations):
        begin = time.perf_counter()
        loss = iterate(chosen, training, loss)
        taken.append(time.perf_counter() - begin)
    return taken, idle_share(before)


def iterate(chosen: Job, training: Training, loss: torch.Tensor) -> torch.Tensor:
    """An iteration: the backward pass of the last forward pass, a step, and the next forward pass. Returns its loss."""
    loss.backward()  # type: ignore[no-untyped-call]
    training.optimizer.step()
    training.optimizer.zero_grad()
    return chosen.loss(training.model)


def digest(net: nn.Module) -> bytes:
    """A hash of the weights."""
    made = hashlib.sha256()
    for parameter in net.parameters():
        made.update(parameter.detach().numpy().tobytes())
    return made.digest()


if __name__ == "__main__":
    main()
