"""Throughput: all workers push_pull the same tensors again and again."""

from __future__ import annotations

import array
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..worker import KVWorker
from . import check
from .exchange import Exchange
from .measure import WAIT_S, iterations_for, percentiles_us, progress, quantiles
from .processes import Usage
from .units import FLOAT32


@dataclass(frozen=True)
class Options:
    """What is asked for on the command line. size is in bytes, of each of the tensors."""

    size: int
    tensors: int
    seconds: float
    van: str
    check: bool


@dataclass
class Timed:
    """What some iterations took on this worker, in seconds."""

    elapsed: float = 0.0
    untimed_cpu: float = 0.0
    """Of filling and verifying, which no user's program does."""
    latencies: array.array[float] = field(default_factory=lambda: array.array("d"))
    """Of each push_pull, from the call on. Waited for in the order of the calls."""


class Loop:
    """The tensors, and what an iteration does with them."""

    def __init__(self, kv: KVWorker, options: Options) -> None:
        self._kv = kv
        self._check = options.check
        self._iterations = 0
        shape = (options.tensors, options.size // FLOAT32)
        # Every element is written here: untouched memory is one shared page of zeros, and reads from it are too fast.
        # Lists, since a program has its arrays: those that come of iterating over a matrix are new ones each time.
        self._pushed = list(np.full(shape, kv.rank + 1, np.float32))
        self._pulled = list(np.full(shape, 0, np.float32))
        for key, tensor in enumerate(self._pushed):
            kv.init(key, tensor)

    def run(self, count: int, bar: Any = None) -> Timed:
        """Runs so many iterations."""
        timed = Timed()
        for _ in range(count):
            if self._check:
                self._apart(timed, self._fill)
                self._kv.barrier()  # nobody's timed part waits for another's filling
            self._iteration(timed)
            if self._check:
                self._apart(timed, self._verify)
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
            ticket.wait(WAIT_S)
            timed.latencies.append(now() - begin)
        timed.elapsed += now() - start

    def _apart(self, timed: Timed, work: Any) -> None:
        start = time.thread_time()
        work()
        timed.untimed_cpu += time.thread_time() - start

    def _fill(self) -> None:
        for key, pushed in enumerate(self._pushed):
            check.fill(pushed, self._kv.rank, self._iterations, key)

    def _verify(self) -> None:
        for key, pulled in enumerate(self._pulled):
            check.verify(pulled, self._kv.num_workers, self._iterations, key)
            pulled.fill(-1)  # the next iteration's sum has to come


def measure(kv: KVWorker, options: Options) -> dict[str, Any]:
    """Runs on every worker, and gives the figures of all of them; those of CPU and memory on rank 0."""
    exchange = Exchange(kv)
    loop = Loop(kv, options)
    iterations = iterations_for(options.seconds, lambda count: loop.run(count).elapsed, exchange.agree)
    kv.barrier()
    usage = Usage() if kv.rank == 0 else None
    kv.barrier()
    with progress(kv.rank, iterations, "push_pull") as bar:
        timed = loop.run(iterations, bar)
    kv.barrier()
    cpu_s = usage.cpu_s() if usage else 0.0
    figures = exchange.gather([timed.elapsed, timed.untimed_cpu])
    latencies = exchange.gather(quantiles(timed.latencies))
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
    return result
