"""Time: how it is waited for, and what is made of many measurements of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

QUANTILES: Final = 1001
"""So many values stand for one worker's measurements, of which there may be millions."""

WAIT_S: Final = 600.0
"""How long a tensor may take: all that is in flight goes before it, maybe over a slow link. A dead node is noticed
without it."""


def sleep_until(end: float) -> None:
    """Sleeps to a moment of time.perf_counter(); late by what the kernel adds, never early."""
    left = end - time.perf_counter()
    while left > 0:
        time.sleep(left)
        left = end - time.perf_counter()


def quantiles(samples: Sequence[float]) -> NDArray[np.float64]:
    """Evenly spaced quantiles, from the least to the greatest: of equal number however many samples there are, so
    that those of several workers can be gathered and taken together."""
    spaced: NDArray[np.float64] = np.quantile(np.asarray(samples, np.float64), np.linspace(0, 1, QUANTILES))
    return spaced


def percentiles_us(seconds: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """The median and the 99th percentile, in microseconds."""
    p50, p99 = np.percentile(np.asarray(seconds), [50, 99])
    return {"p50_us": round(float(p50) * 1e6, 1), "p99_us": round(float(p99) * 1e6, 1)}


def progress(rank: int, total: int, name: str) -> Any:
    """A progress bar on rank 0's stderr; on other ranks one that shows nothing."""
    return tqdm(total=total, desc=name, file=sys.stderr, disable=rank != 0)


def iterations_for(seconds: float, run: Callable[[int], float], agree: Callable[[float], float]) -> int:
    """How many iterations take so long: rank 0's number, on all ranks.

    run(count) runs so many and gives what they took; agree(number) gives rank 0's. Iterates until the speed is known,
    which warms up, too.
    """
    run(2)
    count = 1
    while True:
        elapsed = agree(run(count))
        if elapsed >= seconds / 10:
            return max(1, round(count * seconds / elapsed))
        count *= 2
