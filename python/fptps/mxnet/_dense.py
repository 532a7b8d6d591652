"""A tensor of a store: NDArrays that are pushed, summed and received as a whole."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np

from .._keys import Key
from ..consistency import Consistency
from ..namespace import Namespace
from ..ticket import Ticket
from ..worker import KVWorker
from ._arguments import Arrays, check
from ._compression import wire_of
from ._engine import memory_of, share_memory, submit
from ._optimizer import Steps


class Dense:
    """One key. Its operations take effect in the order of the calls, and no call waits for the network.

    They are given the NDArrays of all this worker's devices: what is pushed is summed over them, and what is received
    is written to all.
    """

    def __init__(self, kv: Namespace, worker: KVWorker, key: Key, like: mx.nd.NDArray, compression: str | None) -> None:
        self.shape, self.dtype = like.shape, np.dtype(like.dtype)
        self.kept = True
        """Whether the last sum, or the first value, can be pulled."""
        self._kv, self._worker, self._key = kv, worker, key
        self._pushed = False
        self._steps: Steps | None = None
        self._wire = wire_of(compression, self.shape, self.dtype, f"{key} {worker.rank}")
        self._order = mx.nd.zeros((1,))  # which every operation writes to, so that one begins after the other

    def declare(self, value: mx.nd.NDArray, consistency: Consistency) -> None:
        """Declares the tensor with rank 0's value. Waits for all workers."""
        if self._wire.array is None:
            self._kv.init(self._key, self._read(value), consistency)
        else:
            self._kv.declare_all({self._key: self._wire.array})
            self.kept = False

    def broadcast(self, value: mx.nd.NDArray, outs: Arrays) -> None:
        """Writes rank 0's value, that of declare(), to outs."""
        if self.kept:
            self.pull(outs)
            return
        values = self._read(value).copy()
        self._worker.broadcast([values])
        for out in outs:
            out[:] = values

    def start_steps(self, optimizer: Any, rank: int, sync: bool) -> None:
        """From now on the aggregators apply the optimizer."""
        if self._pushed and self._steps is None:
            raise ValueError(f"key {self._key!r} was pushed: the optimizer comes before the first push")
        self._steps = Steps(optimizer, self._kv, self._key, rank, sync)

    def first_value(self) -> np.ndarray[Any, Any] | None:
        """Rank 0's value, for a table in the place of this tensor; None on other ranks. ValueError after a push."""
        if self._pushed:
            raise ValueError(f"key {self._key!r}: a row-sparse value after dense ones")
        return np.asarray(self._kv.pull(self._key).result()) if self._worker.rank == 0 else None

    def push(self, values: Arrays, priority: int) -> None:
        """Contributes values to the next sum, for pull()."""
        source, change = self._merged(values), self._next()
        self.kept = True

        def begin() -> Ticket[Any]:
            if change is not None:
                change()
            return self._kv.push(self._key, self._wire.encode(self._memory(source)), priority)

        submit(begin, None, [source], [self._order], priority)

    def pull(self, outs: Arrays, priority: int = 0) -> None:
        """Writes the sum of the last push, or before it rank 0's value, to outs."""
        if not self.kept:
            raise ValueError(f"key {self._key!r}: nothing is kept for pull(): pushpull() gives its result to its `out`")
        target = self._target(outs)

        def begin() -> Ticket[Any]:
            return self._kv.pull(self._key, out=self._wire.into(self._memory(target)))

        self._submit(begin, [], target, outs, priority)

    def push_pull(self, values: Arrays, outs: Arrays, priority: int) -> None:
        """Contributes values to the next sum, and writes it to outs."""
        source = self._merged(values)
        target = source if len(outs) == 1 and outs[0] is source else self._target(outs)
        if source is not target and share_memory(source, target):
            source = source.copy()
        self.kept, change = False, self._next()

        def begin() -> Ticket[Any]:
            if change is not None:
                change()
            here = self._memory(source)
            there = here if source is target else self._memory(target)
            return self._kv.push_pull(self._key, self._wire.encode(here), self._wire.into(there), priority=priority)

        self._submit(begin, [] if source is target else [source], target, outs, priority)

    def _next(self) -> Callable[[], None] | None:
        self._pushed = True
        return self._steps.next() if self._steps is not None else None

    def _submit(
        self, begin: Callable[[], Ticket[Any]], reads: Arrays, target: mx.nd.NDArray, outs: Arrays, priority: int
    ) -> None:
        decode = None if self._wire.array is None else lambda: self._wire.decode(self._memory(target))
        submit(begin, decode, reads, [self._order, target], priority)
        for out in outs:
            if out is not target:
                target.copyto(out)

    def _merged(self, values: Arrays) -> mx.nd.NDArray:
        """The sum of the devices' values, in the CPU's memory."""
        check(self._key, self.shape, self.dtype, values)
        return functools.reduce(operator.add, [value.as_in_context(mx.cpu()) for value in values])

    def _target(self, outs: Arrays) -> mx.nd.NDArray:
        """The one of outs to receive into, or a new array if none is in the CPU's memory."""
        check(self._key, self.shape, self.dtype, outs)
        here = [out for out in outs if out.context == mx.cpu()]
        return here[0] if here else mx.nd.empty(self.shape, dtype=self.dtype)

    def _read(self, value: mx.nd.NDArray) -> np.ndarray[Any, Any]:
        """The elements of an array, when they are computed."""
        here = value.as_in_context(mx.cpu())
        here.wait_to_read()
        # A copy made above has to live as long as its memory is in use.
        return self._memory(here) if here is value else self._memory(here).copy()

    def _memory(self, array: mx.nd.NDArray) -> np.ndarray[Any, Any]:
        """The memory of an array that check() has accepted."""
        return memory_of(array, self.shape, self.dtype)
