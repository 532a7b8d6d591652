"""The loop of a worker, the same for all Python peers, so that all are measured alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Callable, Protocol

from .common import Options, Part, PeerError

CALIBRATION = 0.1
"""The number of iterations is doubled until they take this fraction of the requested time. This also warms up."""


class Worker(Protocol):
    """One worker of a peer, with its tensors."""

    def start(self, tensor: int) -> None:
        """Begins to sum the tensor over all workers."""

    def wait(self, tensor: int) -> None:
        """Waits for the sum."""

    def fill(self, value: float) -> None:
        """Sets all elements of all tensors."""

    def elements(self, tensor: int) -> tuple[float, float]:
        """The first and the last element of the sum."""

    def agree(self, value: float) -> float:
        """Reduces the workers' numbers to one, the same on all workers; waits for all of them."""


def verify(worker: Worker, rank: int, options: Options) -> None:
    """Checks the sums before anything is measured. Leaves zeros, which stay zeros when they are summed."""
    worker.fill(rank + 1.0)
    iterate(worker, options.tensors)
    expected = options.workers * (options.workers + 1) / 2
    for tensor in range(options.tensors):
        if worker.elements(tensor) != (expected, expected):
            raise PeerError(f"tensor {tensor} is {worker.elements(tensor)}, not {expected}")
    worker.agree(0.0)
    worker.fill(0.0)


def iterate(worker: Worker, tensors: int) -> list[float]:
    """Sums all tensors at once. Returns microseconds from each call to the end of its wait; waits are in order."""
    clock = time.perf_counter_ns
    calls, latencies = [], []
    for tensor in range(tensors):
        calls.append(clock())
        worker.start(tensor)
    for tensor in range(tensors):
        worker.wait(tensor)
        latencies.append((clock() - calls[tensor]) / 1e3)
    return latencies


def iterations_for(seconds: float, took: Callable[[int], float]) -> int:
    """The number of iterations that fill the time. took(n): seconds of n iterations, the same number on all workers."""
    count = 1
    while True:
        elapsed = took(count)
        if elapsed >= seconds * CALIBRATION:
            return max(round(count * seconds / elapsed), 1)
        count *= 2


def cpu_s(processes: Sequence[int]) -> float:
    """CPU seconds so far of this process and of others, with all their threads."""
    # The clock id of another process's CPU time, as clock_getcpuclockid returns it in C.
    return time.process_time() + sum(time.clock_gettime((~pid << 3) | 2) for pid in processes)


def measure(worker: Worker, rank: int, options: Options, others: Sequence[int] = ()) -> Part:
    """Measures on one worker. The CPU time of the processes `others` is added to its own."""
    verify(worker, rank, options)

    def took(count: int) -> float:
        worker.agree(0.0)
        start = time.perf_counter()
        for _ in range(count):
            iterate(worker, options.tensors)
        return worker.agree(time.perf_counter() - start)

    iterations = iterations_for(options.seconds, took)
    latencies: list[float] = []
    worker.agree(0.0)
    cpu, start = cpu_s(others), time.perf_counter()
    for _ in range(iterations):
        latencies += iterate(worker, options.tensors)
    elapsed = time.perf_counter() - start
    return Part(iterations, elapsed, cpu_s(others) - cpu, latencies)
