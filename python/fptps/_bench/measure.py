"""Sleeping, and statistics of measured times."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

QUANTILES: Final = 1001
"""Number of values that represent a worker's measurements, of which there may be millions."""

WAIT_S: Final = 600.0
"""Timeout of a tensor: everything in flight may be sent before it, over a slow link. A dead node is found earlier."""


def sleep_until(end: float) -> None:
    """Sleeps until a time of time.perf_counter(). It may wake late, but not early."""
    left = end - time.perf_counter()
    while left > 0:
        time.sleep(left)
        left = end - time.perf_counter()


def quantiles(samples: Sequence[float]) -> NDArray[np.float64]:
    """Evenly spaced quantiles, from minimum to maximum. Their number does not depend on the number of samples, so that
    the quantiles of several workers can be gathered and combined."""
    spaced: NDArray[np.float64] = np.quantile(np.asarray(samples, np.float64), np.linspace(0, 1, QUANTILES))
    return spaced


def percentiles_us(seconds: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """The median and the 99th percentile, in microseconds."""
    p50, p99 = np.percentile(np.asarray(seconds), [50, 99])
    return {"p50_us": round(float(p50) * 1e6, 1), "p99_us": round(float(p99) * 1e6, 1)}


def progress(rank: int, total: int, name: str) -> Any:
    """A progress bar on rank 0's stderr; invisible on other ranks."""
    return tqdm(total=total, desc=name, file=sys.stderr, disable=rank != 0)


def iterations_for(seconds: float, run: Callable[[int], float], agree: Callable[[float], float]) -> int:
    """The number of iterations that take the given time, the same on all ranks.

    run(count) runs count iterations and returns the seconds they took; agree(number) returns rank 0's number on all
    ranks. The trial iterations also warm up.
    """
    run(2)
    count = 1
    while True:
        elapsed = agree(run(count))
        if elapsed >= seconds / 10:
            return max(1, round(count * seconds / elapsed))
        count *= 2
