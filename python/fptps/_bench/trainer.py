"""A simulated trainer: a real model's transfers, with sleeps instead of computation."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..ticket import Ticket
from ..worker import KVWorker
from .bound import iteration_s, model_rate, payload_rate
from .measure import WAIT_S, progress, sleep_until
from .profile import Layer, Profile
from .timeline import Timeline

WARM_UP: Final = 2
"""Iterations before the measured ones."""


@dataclass(frozen=True)
class Options:
    """Options of the command line. link: bits per second, None if unknown; timeline: a file, None for none."""

    profile: Profile
    scale: float
    mode: str
    link: float | None
    iterations: int
    timeline: Path | None


class Accelerator:
    """Simulates computation by sleeping until times of its own clock. A sleep that ends late shortens the next one, so
    that neither late wake-ups nor the process's own CPU time add up."""

    def __init__(self) -> None:
        self._clock = time.perf_counter()

    def compute(self, seconds: float) -> None:
        """Computes for the given time."""
        self._clock += seconds
        sleep_until(self._clock)

    def wait(self, tickets: Sequence[Ticket[Any]]) -> None:
        """Idles until the tickets are done."""
        if all(ticket.done() for ticket in tickets):
            return
        for ticket in tickets:
            ticket.result(WAIT_S)
        self.idle()

    def idle(self) -> None:
        """The next computation begins no earlier than now."""
        self._clock = max(self._clock, time.perf_counter())


class Trainer:
    """One worker's training of a model."""

    def __init__(self, kv: KVWorker, layers: Sequence[Layer]) -> None:
        self._kv = kv
        self._layers = layers
        self._accelerator = Accelerator()
        # By layer. Zeros, because sums in place would otherwise grow without bound.
        self._tensors = [[np.zeros(count, np.float32) for count in layer.elements] for layer in layers]
        self._tickets: list[list[Ticket[Any]]] = [[] for _ in layers]
        self._keys: list[list[int]] = []
        every = [tensor for tensors in self._tensors for tensor in tensors]
        kv.init_all(dict(enumerate(every)))
        kv.set_tensor_count(len(every))
        keys = itertools.count()
        for tensors in self._tensors:
            self._keys.append([next(keys) for _ in tensors])

    def iteration(self) -> None:
        """A backward pass that pushes gradients layer by layer, and the forward pass that needs their sums."""
        for index in reversed(range(len(self._layers))):
            self._accelerator.compute(self._layers[index].backward_s)
            self._tickets[index] = [
                self._kv.push_pull(key, tensor, out=tensor, priority=-index)
                for key, tensor in zip(self._keys[index], self._tensors[index])
            ]
        for tickets, layer in zip(self._tickets, self._layers):
            self._accelerator.wait(tickets)
            self._accelerator.compute(layer.forward_s)


def measure(kv: KVWorker, options: Options) -> dict[str, Any]:
    """Runs on every worker. Returns the figures of all workers."""
    trainer = Trainer(kv, options.profile.layers)
    kv.barrier()
    taken, plans = [], []
    total = WARM_UP + options.iterations
    name = f"trainer {options.profile.name}"
    with progress(kv.rank, total, name) as bar, Timeline(options.timeline, kv.rank) as timeline:
        for number in range(total):
            start = time.perf_counter()
            trainer.iteration()
            end = time.perf_counter()
            taken.append(end - start)
            plans.append(kv.stats().plan)
            timeline.add("iteration", number, start, end)
            bar.update()
    iteration = statistics.mean(kv.allgather_object(statistics.median(taken[WARM_UP:])))
    bound = None
    if options.link is not None:
        rate = model_rate(kv.num_workers, kv.num_servers, payload_rate(options.link))
        bound = iteration_s(options.profile.layers, rate)
    return {
        "bench": "trainer",
        "workers": kv.num_workers,
        "servers": kv.num_servers,
        "profile": options.profile.name,
        "scale": options.scale,
        "mode": options.mode,
        "link_bit_s": options.link,
        "iterations": options.iterations,
        "model_mb": round(sum(layer.nbytes for layer in options.profile.layers) / 1e6, 3),
        "iteration_ms": round(iteration * 1e3, 3),
        "bound_ms": None if bound is None else round(bound * 1e3, 3),
        "ratio": None if bound is None else round(iteration / bound, 3),
        "plan_changes": [number for number, (before, plan) in enumerate(zip([0, *plans], plans)) if plan != before],
        "compute_ms": round(options.profile.compute_s * 1e3, 3),
    }
