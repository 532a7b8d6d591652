"""Measures how long the machine does not run a thread that never sleeps: a lower bound on the latency of any program.

python -m benchmarks.stillness

A hypervisor may stop a core, and the kernel has its own work. One process on each core reads the clock in a loop;
between two readings that are far apart it did not run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

SECONDS: Final = 2.0
GAP_S: Final = 50e-6
"""A longer time between two readings is a gap."""


def gaps(core: int, seconds: float = SECONDS) -> list[float]:
    """The gaps of one core, in seconds."""
    os.sched_setaffinity(0, {core})
    clock, found = time.perf_counter, []
    last = clock()
    end = last + seconds
    while last < end:
        now = clock()
        if now - last > GAP_S:
            found.append(now - last)
        last = now
    return found


def waits(found: Sequence[float], seconds: float, share: float) -> float:
    """The quantile `share` of the seconds that a thread waits if it becomes ready at a random moment.

    It waits longer than w if it becomes ready within a gap, more than w before the end of the gap.
    """
    low, high = 0.0, max(found, default=0.0)
    for _ in range(60):
        middle = (low + high) / 2
        if sum(gap - middle for gap in found if gap > middle) > (1 - share) * seconds:
            low = middle
        else:
            high = middle
    return high


def measure() -> dict[str, float]:
    """The gaps of all cores together."""
    cores = sorted(os.sched_getaffinity(0))
    with ProcessPoolExecutor(len(cores), get_context("spawn")) as pool:
        found = [gap for each in pool.map(gaps, cores) for gap in each]
    seconds = SECONDS * len(cores)
    return {
        "still_share": round(sum(found) / seconds, 4),
        "p99_ms": round(waits(found, seconds, 0.99) * 1e3, 3),
        "p999_ms": round(waits(found, seconds, 0.999) * 1e3, 3),
        "longest_ms": round(max(found, default=0.0) * 1e3, 3),
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
