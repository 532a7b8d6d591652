"""Arrays with a known sum: a wrong, stale or duplicate contribution changes every element."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..errors import FptpsError

STEP: Final = 8
"""Difference between the values of two ranks; larger than the difference between iterations."""
CYCLE: Final = 7


class WrongSum(FptpsError):
    """A sum differs from the sum of the workers' pushes."""


def fill(array: NDArray[np.float32], rank: int, iteration: int, tensor: int) -> None:
    """Sets array to a rank's values: small integers that differ between ranks and between successive iterations.

    float32 represents their sum exactly for up to 2000 workers.
    """
    array[:] = _common(len(array), iteration, tensor)
    array += STEP * (rank + 1)


def verify(total: NDArray[np.float32], workers: int, iteration: int, tensor: int) -> None:
    """Raises WrongSum unless total is the sum of all ranks' values."""
    expected = workers * _common(len(total), iteration, tensor)
    expected += STEP * workers * (workers + 1) // 2
    wrong = np.flatnonzero(total != expected)
    if len(wrong):
        first = int(wrong[0])
        raise WrongSum(
            f"iteration {iteration}, tensor {tensor}: {len(wrong)} of {len(total)} elements are wrong; element {first} "
            f"is {float(total[first])!r}, and the sum over {workers} workers is {int(expected[first])}"
        )


def _common(count: int, iteration: int, tensor: int) -> NDArray[np.int32]:
    """The part of the values that is the same on all ranks."""
    numbers = np.arange(count, dtype=np.int32)
    numbers += (iteration + 3 * tensor) % CYCLE
    numbers %= CYCLE
    return numbers
