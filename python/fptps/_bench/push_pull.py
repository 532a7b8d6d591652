"""Throughput: all workers push_pull the same tensors again and again."""

from __future__ import annotations

import array
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..worker import KVWorker
from . import check
from .measure import WAIT_S, iterations_for, percentiles_us, progress, quantiles
from .processes import Usage
from .units import FLOAT32


@dataclass(frozen=True)
class Options:
    """Options of the command line. size: bytes of each tensor."""

    size: int
    tensors: int
    seconds: float
    van: str
    check: bool


@dataclass
class Timed:
    """Times of some iterations on this worker, in seconds."""

    elapsed: float = 0.0
    untimed_cpu: float = 0.0
    """CPU time of filling and verifying, which a user's program does not do."""
    latencies: array.array[float] = field(default_factory=lambda: array.array("d"))
    """Of each push_pull, from the call to the end of its wait; waits are in the order of the calls."""


class Loop:
    """The tensors, and the iterations on them."""

    def __init__(self, kv: KVWorker, options: Options) -> None:
        self._kv = kv
        self._check = options.check
        self._iterations = 0
        shape = (options.tensors, options.size // FLOAT32)
        # Every element is written once: untouched memory is a single page of zeros, and reads from it are too fast.
        # Lists keep the array objects; iterating over a matrix would make new ones each time.
        self._pushed = list(np.full(shape, kv.rank + 1, np.float32))
        self._pulled = list(np.full(shape, 0, np.float32))
        kv.init_all(dict(enumerate(self._pushed)))

    def run(self, count: int, bar: Any = None) -> Timed:
        """Runs count iterations."""
        timed = Timed()
        for _ in range(count):
            if self._check:
                self._untimed(timed, self._fill)
                self._kv.barrier()  # so that no timed part includes the wait for another worker's filling
            self._iteration(timed)
            if self._check:
                self._untimed(timed, self._verify)
            self._iterations += 1
            if bar is not None:
                bar.update()
        return timed

    def _iteration(self, timed: Timed) -> None:
        now = time.perf_counter
        begun, tickets = [], []
        start = now()
        for key, (pushed, pulled) in enumerate(zip(self._pushed, self._pulled)):
            begun.append(now())
            tickets.append(self._kv.push_pull(key, pushed, out=pulled))
        for begin, ticket in zip(begun, tickets):
            ticket.result(WAIT_S)
            timed.latencies.append(now() - begin)
        timed.elapsed += now() - start

    def _untimed(self, timed: Timed, work: Any) -> None:
        start = time.thread_time()
        work()
        timed.untimed_cpu += time.thread_time() - start

    def _fill(self) -> None:
        for key, pushed in enumerate(self._pushed):
            check.fill(pushed, self._kv.rank, self._iterations, key)

    def _verify(self) -> None:
        for key, pulled in enumerate(self._pulled):
            check.verify(pulled, self._kv.num_workers, self._iterations, key)
            pulled.fill(-1)  # so that the next iteration's sum must overwrite it


def measure(kv: KVWorker, options: Options) -> dict[str, Any]:
    """Runs on every worker. Returns the figures of all workers; CPU and memory on rank 0 alone."""
    loop = Loop(kv, options)
    iterations = iterations_for(options.seconds, lambda count: loop.run(count).elapsed, kv.broadcast_object)
    kv.barrier()
    usage = Usage() if kv.rank == 0 else None
    kv.barrier()
    with progress(kv.rank, iterations, "push_pull") as bar:
        timed = loop.run(iterations, bar)
    kv.barrier()
    cpu_s = usage.cpu_s() if usage else 0.0
    figures = np.array(kv.allgather_object([timed.elapsed, timed.untimed_cpu]))
    latencies = np.array(kv.allgather_object(quantiles(timed.latencies)))
    moved = 2 * options.size * options.tensors * iterations  # of one worker, pushed and pulled
    result = {
        "bench": "push_pull",
        "workers": kv.num_workers,
        "servers": kv.num_servers,
        "size": options.size,
        "tensors": options.tensors,
        "iterations": iterations,
        "van": options.van,
        "goodput_mb_s_per_worker": round(float(np.mean(moved / 1e6 / figures[:, 0])), 3),
        **percentiles_us(latencies),
    }
    if usage:
        spent = max(0.0, cpu_s - float(figures[:, 1].sum()))
        result["cpu_s_per_gb"] = round(spent / (moved * kv.num_workers / 1e9), 3)
        result["cpu_of"] = usage.names()
        result["peak_rss_mb"] = round(usage.peak_rss() / 1e6, 3)
    if options.check:
        result["checked"] = True
    if kv.deterministic:
        result["deterministic"] = True
    return result
