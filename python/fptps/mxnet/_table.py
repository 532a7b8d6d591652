"""A table of a store: rows of it are pushed and received, as RowSparseNDArrays."""

from __future__ import annotations

import math
from typing import Any

import mxnet as mx
import numpy as np

from .._keys import Key
from ..consistency import Consistency
from ..namespace import Namespace
from ..ticket import Ticket
from ._arguments import Arrays, check, sparse
from ._optimizer import Steps


class Table:
    """One key. Unlike those of a dense tensor, its calls wait: a push for the gradient, a pull for the rows."""

    def __init__(self, kv: Namespace, key: Key, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._columns = math.prod(shape[1:])
        self._kv, self._key = kv, key
        self._steps: Steps | None = None
        self._pushed: Ticket[None] | None = None

    def declare(self, weights: np.ndarray[Any, Any] | None, consistency: Consistency) -> None:
        """Declares the table with rank 0's weights (None elsewhere). Waits for all workers."""
        if weights is None:
            weights = np.empty(self.shape, self.dtype)
        self._kv.init_rows(self._key, weights.reshape(-1, self._columns), consistency)

    def start_steps(self, optimizer: Any, rank: int, sync: bool) -> None:
        """From now on the aggregators apply the optimizer, to the rows that are pushed."""
        if self._pushed is not None and self._steps is None:
            raise ValueError(f"key {self._key!r} was pushed: the optimizer comes before the first push")
        if not getattr(optimizer, "lazy_update", False):
            raise ValueError(
                f"key {self._key!r}: the aggregators update the rows of a table that were pushed, and no others, as "
                "mx.optimizer.SGD and Adam do with lazy_update=True"
            )
        self._steps = Steps(optimizer, self._kv, self._key, rank, sync)

    def push(self, values: Arrays, priority: int) -> None:
        """Contributes the rows of the devices' arrays to the next round."""
        check(self._key, self.shape, self.dtype, values)
        if self._pushed is not None:
            self._pushed.result(math.inf)
        change = self._steps.next() if self._steps is not None else None
        rows = np.concatenate([value.indices.asnumpy() for value in values])
        data = np.concatenate([value.data.asnumpy().reshape(-1, self._columns) for value in values])
        if change is not None:
            change()
        if len(rows):
            self._pushed = self._kv.push_rows(self._key, rows, data, priority)
        else:
            self._pushed = self._kv.skip(self._key)

    def pull(self, outs: Arrays, priority: int = 0) -> None:
        """Writes the whole table to outs."""
        check(self._key, self.shape, self.dtype, outs)
        weights = mx.nd.array(self._rows(np.arange(self.shape[0]), priority), dtype=self.dtype)
        for out in outs:
            weights.tostype(out.stype).copyto(out)

    def pull_rows(self, outs: Arrays, ids: Arrays, priority: int) -> None:
        """Writes the rows of each array of ids, once each and in ascending order, to that of outs."""
        check(self._key, self.shape, self.dtype, outs)
        for out, rows in zip(outs, ids):
            if not sparse(out):
                raise TypeError(f"key {self._key!r}: `out` of row_sparse_pull() has to be a RowSparseNDArray")
            numbers = np.unique(rows.asnumpy().astype(np.int64))
            data = self._rows(numbers, priority)
            mx.nd.sparse.row_sparse_array((data, numbers), shape=self.shape, dtype=self.dtype).copyto(out)

    def _rows(self, numbers: np.ndarray[Any, Any], priority: int) -> np.ndarray[Any, Any]:
        rows = self._kv.pull_rows(self._key, numbers, priority=priority).result(math.inf)
        found: np.ndarray[Any, Any] = rows.reshape(len(numbers), *self.shape[1:])
        return found
