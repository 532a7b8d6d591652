"""How long the machine keeps a thread waiting that never sleeps: what no program's latency can be better than.

python -m benchmarks.stillness

Under a hypervisor the cores themselves stand still at times, and there is the kernel's own work. One process on each
core reads the clock as fast as it can; where two readings lie far apart, it did not run.
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
"""Two readings that lie further apart than this have a gap between them."""


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
    """What a thread that becomes ready at a moment of chance waits at most, in `share` of all cases, in seconds.

    A wait of more than w begins in all but the last w of each gap that is longer.
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
    """Of all cores together."""
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
