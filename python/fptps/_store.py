"""What KVWorker does with the values that the aggregators keep: tables, clocks, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import checkpoint
from . import consistency as consistencies
from ._arguments import key_of, priority_of
from .arrays import locate, maker
from .ticket import Ticket

if TYPE_CHECKING:
    from .worker import Array


class Store:
    """The part of KVWorker that is about them."""

    _core: Any
    _makers: dict[int, Callable[[], Any]]
    _tables: dict[int, Any]  # by key: an array of one row of the table
    _rank: int
    _num_workers: int

    if TYPE_CHECKING:  # KVWorker's

        def _submit(
            self, call: Callable[..., int], arrays: object, *arguments: int | str, result: Any = None
        ) -> Ticket[Any]: ...
        def _usable(self) -> int: ...
        def _seconds(self, timeout: float | None) -> float: ...
        def barrier(self, timeout: float | None = None) -> None: ...

    def init_rows(self, key: int, table: Array, consistency: str = "sync") -> None:
        """Declares a table, such as an embedding: a 2-D tensor of which single rows are pushed and pulled.

        Its value is rank 0's table, which is read on rank 0 alone; no other worker receives or keeps any of it. Waits
        for all workers to call it, each with a table of the same shape and dtype, at most the worker's timeout.
        consistency is as for init(), and all else too: push_rows() is push(), pull_rows() is pull(), skip() contributes
        nothing. An optimiser is lazy, as torch.optim.SparseAdam is: it changes the rows that were pushed, and no other
        (no weight decay either, nor momentum), and counts every round as a step. Without one and with consistency
        "sync", the table is the sum of the last round, by row: zeros where nobody has pushed.

        Raises ValueError for a table that is not 2-D or has rows of more than 16384 bytes, TypeError for quantised
        codes, and what init() raises.
        """
        key = key_of(key)
        policy = consistencies.number(consistency)
        dtype, address, nbytes, keep = locate(table, write=False)
        make = maker(table)
        shape = tuple(make().shape)
        if len(shape) != 2:
            raise ValueError(f"key {key}: a table of shape {shape}: rows and columns are expected")
        self._submit(
            self._core.init_table, (table, keep), key, dtype, policy, nbytes // shape[0], address, nbytes
        ).wait()
        self._makers[key] = make
        self._tables[key] = maker(table, (1, shape[1]))()

    def push_rows(self, key: int, rows: Any, values: Array, priority: int = 0) -> Ticket[None]:
        """Contributes rows to the next round of a table: values[i] to row rows[i]. Only they travel.

        rows: whole numbers, a list or a 1-D array; one that comes several times gets the sum of its values. values: of
        shape (len(rows), columns) and of the table's dtype. Both are copied, so that they may be written to at once.
        The ticket is done when the round is complete on all nodes: then pull_rows() gives what it led to. Raises
        ValueError for a row that is not in the table and for another shape, TypeError and KeyError as push() does.
        """
        return self._move_rows(self._core.push_rows, key, _numbers(rows), values, priority, None)

    def pull_rows(self, key: int, rows: Any, out: Array | None = None, priority: int = 0) -> Ticket[Any]:
        """Brings rows of a table, as they are after this worker's last push_rows(): out[i] becomes row rows[i].

        The ticket's result is out, or without it a new array of shape (len(rows), columns). A row may be asked for
        several times. Raises what push_rows() raises, and BusyError if a part of out is in flight.
        """
        numbers = _numbers(rows)
        if out is None:
            like = self._row(key)
            out = maker(like, (len(numbers), like.shape[1]))()
        return self._move_rows(self._core.pull_rows, key, numbers, out, priority, out)

    def _row(self, key: int) -> Any:
        """An array of one row of a table."""
        if key_of(key) in self._tables:
            return self._tables[key]
        if key in self._makers:
            raise ValueError(f"key {key} is no table: push() and pull() are for it")
        self._usable()
        raise KeyError(f"key {key} was never initialised: call init_rows({key}, table) on every worker first")

    def _move_rows(
        self, call: Callable[..., int], key: int, numbers: Numbers, values: Array, priority: int, result: Any
    ) -> Ticket[Any]:
        row = self._row(key)
        shape = tuple(getattr(values, "shape", ()))
        if shape != (len(numbers), row.shape[1]):
            raise ValueError(f"key {key}: {len(numbers)} rows of {row.shape[1]} columns, the array's shape is {shape}")
        # Without any rows there is no memory, and locate() would refuse it.
        dtype, address, nbytes, keep = locate(values if len(numbers) else row, write=result is not None)
        if not len(numbers):
            address = nbytes = 0
        place = locate(numbers, write=False) if len(numbers) else None
        return self._submit(
            call,
            (numbers, values, keep),
            key,
            dtype,
            place.address if place else 0,
            len(numbers),
            address,
            nbytes,
            priority_of(priority),
            result=result,
        )

    def clock(self, key: int) -> list[int]:
        """How many rounds of each worker are applied to the tensor, by rank: to every packet of it, on every node.

        Asks the nodes that sum it. Raises KeyError for a key without init().
        """
        clock = np.empty(self._num_workers, np.uint64)
        address = locate(clock, write=True).address
        self._submit(self._core.clock, clock, key_of(key), address, clock.nbytes).wait()
        return [int(rounds) for rounds in clock]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what the aggregators keep to a safetensors file: weights, the optimisers' state, clocks.

        Of a tensor that neither has an optimiser nor a consistency other than "sync" nothing outlives a round, so that
        it is only named. Rank 0's call takes effect; the path is on its machine. All workers have to be between two
        rounds: call barrier() before, and after where they go on at once. The old file stays until the new one is
        whole and on the disk. Memory: some MB, whatever the size. A long save tells the log ("fptps", INFO) how far
        it is.

        Raises BusyError while a push of rank 0 is in flight, ValueError where there is nothing to save, TypeError for
        quantised tensors, and OSError.
        """
        if self._rank == 0:
            checkpoint.save(self, path)

    def load(self, path: str | os.PathLike[str], timeout: float | None = None) -> None:
        """Gives the aggregators what save() has written, optimisers included, and every worker the weights, for pull().

        All workers have to call it, between two rounds, and with the same tensors initialised as at the save; the
        numbers of workers and servers may differ. Rank 0 reads the file; the others wait for it, at most timeout
        seconds, as with Ticket.wait(). clock() goes on from the saved one; in a cluster of another number of workers
        each of them goes on from the slowest.

        Raises on rank 0 CheckpointError for a file that is cut, foreign or does not fit, OSError for one that cannot be
        read, and BusyError while a push is in flight; nothing is changed then, on no node. The other ranks do not learn
        of it: they have the weights as they were.
        """
        seconds = self._seconds(timeout)
        failure: Exception | None = None
        if self._rank == 0:
            try:
                checkpoint.load(self, path)
            except Exception as error:
                failure = error  # raised when the others do not wait any more
        self.barrier(seconds)
        for key in self._makers:
            checkpoint.refresh(self, key)
        if failure is not None:
            raise failure


Numbers = np.ndarray[Any, np.dtype[np.int64]]


def _numbers(rows: Any) -> Numbers:
    """Numbers of rows as the core reads them."""
    array = np.asarray(rows)
    if array.ndim != 1:
        raise ValueError(f"rows of shape {array.shape}: a list of numbers, or an array of one dimension is expected")
    if array.dtype.kind not in "iu" and len(array):
        raise TypeError(f"rows of dtype {str(array.dtype)!r}: whole numbers are expected")
    return np.ascontiguousarray(array, np.int64)
