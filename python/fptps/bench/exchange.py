"""What the workers of a benchmark tell each other, over the parameter server itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..worker import KVWorker

FIRST_KEY: Final = 2**40
"""Keys from here on are not those of the tensors that are measured."""


class Exchange:
    """Tables to which every worker adds a row. All workers make the same calls in the same order."""

    def __init__(self, kv: KVWorker) -> None:
        self._kv = kv
        self._keys = itertools.count(FIRST_KEY)  # each table is a tensor of its own, so they may differ in width

    def gather(self, row: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
        """The rows of all workers, by rank."""
        table = np.zeros((self._kv.num_workers, len(row)))
        table[self._kv.rank] = row  # the others add zeros to it
        key = next(self._keys)
        self._kv.init(key, table)
        self._kv.push_pull(key, table, out=table).wait()
        return table

    def agree(self, number: float) -> float:
        """Rank 0's number."""
        return float(self.gather([number])[0, 0])
