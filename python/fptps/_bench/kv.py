"""Throughput of ps-lite's classes: every worker's KVWorker push_pulls the same tensors again and again."""

from __future__ import annotations

import array
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .. import ps
from ..errors import ConfigError
from .check import WrongSum
from .measure import iterations_for, percentiles_us, progress, quantiles
from .processes import Usage
from .units import FLOAT32

EXACT: Final = 2**24
"""float32 represents all integers up to this one."""


@dataclass(frozen=True)
class Options:
    """Options of the command line. size: bytes of each tensor."""

    size: int
    tensors: int
    seconds: float
    van: str


@dataclass
class Timed:
    """Times of some iterations on this worker, in seconds."""

    elapsed: float = 0.0
    latencies: array.array[float] = field(default_factory=lambda: array.array("d"))
    """Of each push_pull, from the call to the end of its wait; waits are in the order of the calls."""


class Loop:
    """The tensors, one key each, spread over the servers. The servers add every push."""

    def __init__(self, office: ps.Postoffice, options: Options) -> None:
        self._kv = ps.KVWorker(0, 0, "float32")
        self._rank, self._workers = office.rank, office.num_workers
        ranges = office.server_key_ranges()
        self._keys = [np.array([ranges[n % len(ranges)].begin + n], np.uint64) for n in range(options.tensors)]
        shape = (options.tensors, options.size // FLOAT32)
        self._pushed = list(np.full(shape, self._rank + 1, np.float32))
        self._pulled = list(np.full(shape, 0, np.float32))  # written once: see push_pull.Loop
        self._iterations = 0

    def run(self, count: int, bar: Any = None) -> Timed:
        """Runs count iterations."""
        timed = Timed()
        now = time.perf_counter
        for _ in range(count):
            begun, timestamps = [], []
            start = now()
            for key, pushed, pulled in zip(self._keys, self._pushed, self._pulled):
                begun.append(now())
                timestamps.append(self._kv.push_pull(key, pushed, pulled))
            for begin, timestamp in zip(begun, timestamps):
                self._kv.wait(timestamp)
                timed.latencies.append(now() - begin)
            timed.elapsed += now() - start
            if bar is not None:
                bar.update()
        self._iterations += count
        return timed

    def verify(self) -> bool:
        """Raises WrongSum unless every push of every worker was added once.

        Returns False if the sum is too large to be checked.
        """
        expected = self._iterations * self._workers * (self._workers + 1) // 2
        if expected > EXACT:
            return False
        for key, pulled in zip(self._keys, self._pulled):
            self._kv.wait(self._kv.pull(key, pulled))
            if not np.all(pulled == expected):
                raise WrongSum(f"key {key[0]}: {pulled.min()!r} to {pulled.max()!r}, expected {expected}")
        return True


class Tables:
    """Tables to which every worker adds a row. All workers make the same calls in the same order."""

    def __init__(self, office: ps.Postoffice, first_key: int) -> None:
        self._office = office
        self._kv = ps.KVWorker(0, 1, "float64")
        self._keys = itertools.count(first_key)

    def gather(self, row: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
        """The rows of all workers, by rank."""
        table = np.zeros((self._office.num_workers, len(row)))
        table[self._office.rank] = row
        key = [next(self._keys)]
        self._kv.wait(self._kv.push(key, table))
        self._office.barrier(0, ps.WORKER_GROUP)
        self._kv.wait(self._kv.pull(key, table))
        return table

    def agree(self, number: float) -> float:
        """Rank 0's number."""
        return float(self.gather([number])[0, 0])


def take_part(options: Options) -> dict[str, Any]:
    """Runs the benchmark on this worker; returns the figures on rank 0."""
    ps.start()
    office = ps.Postoffice.get()
    if not office.num_servers:
        raise ConfigError("ps-lite's classes need servers: -s 1 or more")
    figures = measure(office, options)
    rank = office.rank
    ps.finalize()
    return figures if rank == 0 else {}


def measure(office: ps.Postoffice, options: Options) -> dict[str, Any]:
    """Runs on every worker. Returns the figures of all workers; CPU and memory on rank 0 alone."""
    loop, tables = Loop(office, options), Tables(office, options.tensors)
    iterations = iterations_for(options.seconds, lambda count: loop.run(count).elapsed, tables.agree)
    office.barrier(0, ps.WORKER_GROUP)
    usage = Usage() if office.rank == 0 else None
    office.barrier(0, ps.WORKER_GROUP)
    with progress(office.rank, iterations, "kv") as bar:
        timed = loop.run(iterations, bar)
    office.barrier(0, ps.WORKER_GROUP)
    cpu_s = usage.cpu_s() if usage else 0.0
    elapsed = tables.gather([timed.elapsed])
    latencies = tables.gather(quantiles(timed.latencies))
    moved = 2 * options.size * options.tensors * iterations  # of one worker, pushed and pulled
    result = {
        "bench": "kv",
        "workers": office.num_workers,
        "servers": office.num_servers,
        "size": options.size,
        "tensors": options.tensors,
        "iterations": iterations,
        "van": options.van,
        "goodput_mb_s_per_worker": round(float(np.mean(moved / 1e6 / elapsed)), 3),
        **percentiles_us(latencies),
    }
    if usage:
        result["cpu_s_per_gb"] = round(cpu_s / (moved * office.num_workers / 1e9), 3)
        result["cpu_of"] = usage.names()
        result["peak_rss_mb"] = round(usage.peak_rss() / 1e6, 3)
    result["checked"] = loop.verify()
    return result
