"""When a worker's push is applied to a tensor's value: "sync", "async", or Bounded(n)."""

from __future__ import annotations

import dataclasses
import operator
from typing import Final, Literal, Union

SYNC: Final = 0
ASYNC: Final = 65535
MAX_DELAY: Final = 32768
"""The largest bound: far more than any training tolerates; wire.MaxDelay of the core."""


@dataclasses.dataclass(frozen=True)
class Bounded:
    """As "async", but a worker that is more than rounds ahead of the slowest waits for it.

    rounds: 0 to 32768. ValueError or TypeError for another one.
    """

    rounds: int

    def __post_init__(self) -> None:
        if not 0 <= operator.index(self.rounds) <= MAX_DELAY:
            raise ValueError(f"Bounded({self.rounds}): 0 to {MAX_DELAY} rounds are expected")


Consistency = Union[Literal["sync", "async"], Bounded]


def number(consistency: Consistency) -> int:
    """The core's number (wire.Policy) of a consistency. ValueError for any other object."""
    if isinstance(consistency, Bounded):
        return operator.index(consistency.rounds) + 1
    if isinstance(consistency, str) and consistency in ("sync", "async"):
        return SYNC if consistency == "sync" else ASYNC
    raise ValueError(f"consistency={consistency!r}: 'sync', 'async' or fptps.Bounded(n) is expected")
