"""A simulated trainer: a real model's transfers, with sleeps in the place of its computing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..ticket import Ticket
from ..worker import KVWorker
from .bound import iteration_s, model_rate, payload_rate
from .exchange import Exchange
from .measure import WAIT_S, progress, sleep_until
from .profile import Layer, Profile

WARM_UP: Final = 2
"""Iterations before those that count."""


@dataclass(frozen=True)
class Options:
    """What is asked for on the command line. link: bits per second, None if it is not known."""

    profile: Profile
    scale: float
    mode: str
    link: float | None
    iterations: int


class Accelerator:
    """Computes by sleeping, on a clock of its own: a sleep that ends late shortens the next one, so that neither that
    nor the time that this process itself takes adds up."""

    def __init__(self) -> None:
        self._clock = time.perf_counter()

    def compute(self, seconds: float) -> None:
        """Takes so long."""
        self._clock += seconds
        sleep_until(self._clock)

    def wait(self, tickets: Sequence[Ticket[Any]]) -> None:
        """Does nothing until the tickets are done."""
        if all(ticket.done() for ticket in tickets):
            return
        for ticket in tickets:
            ticket.wait(WAIT_S)
        self._clock = max(self._clock, time.perf_counter())


class Trainer:
    """A model in training on one worker."""

    def __init__(self, kv: KVWorker, layers: Sequence[Layer]) -> None:
        self._kv = kv
        self._layers = layers
        self._accelerator = Accelerator()
        # By layer. Zeros stay zeros: sums in place must not grow without end.
        self._tensors = [[np.zeros(count, np.float32) for count in layer.elements] for layer in layers]
        self._tickets: list[list[Ticket[Any]]] = [[] for _ in layers]
        self._keys: list[list[int]] = []
        key = 0
        for tensors in self._tensors:
            self._keys.append(list(range(key, key + len(tensors))))
            key += len(tensors)
            for number, tensor in zip(self._keys[-1], tensors):
                kv.init(number, tensor)
        kv.set_tensor_count(key)

    def iteration(self) -> None:
        """A backward pass, whose gradients leave layer by layer, and the forward pass that needs their sums."""
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
    """Runs on every worker, and gives the figures of all of them."""
    trainer = Trainer(kv, options.profile.layers)
    kv.barrier()
    taken = []
    with progress(kv.rank, WARM_UP + options.iterations, f"trainer {options.profile.name}") as bar:
        for _ in range(WARM_UP + options.iterations):
            start = time.perf_counter()
            trainer.iteration()
            taken.append(time.perf_counter() - start)
            bar.update()
    medians = Exchange(kv).gather([statistics.median(taken[WARM_UP:])])
    iteration = float(medians.mean())
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
        "compute_ms": round(options.profile.compute_s * 1e3, 3),
    }
