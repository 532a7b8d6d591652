"""Namespace: the tensors of one user of a KVWorker."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, overload

import numpy as np

from ._arguments import priority_of
from ._arrays import Place, locate, locate_contiguous, maker
from ._keys import Key, canonical, name_of, number_of, text_of
from ._session import Session
from ._tensors import Declared, Tensor, Tensors, declare
from .consistency import Consistency
from .optim import Optimizer, rule
from .ticket import Ticket

if TYPE_CHECKING:
    import torch

Array = Any
"""A numpy array, a PyTorch CPU tensor, or an object with the DLPack or the buffer protocol; see fptps._arrays."""

Operation = Literal["sum", "mean"]

Out = TypeVar("Out")
AnyKey = TypeVar("AnyKey", bound=Key)
DType = TypeVar("DType", bound="np.dtype[Any]")

OPERATIONS: Final = {"sum": 0, "mean": 1}


class Exchange(NamedTuple):
    """A push_pull, as the core takes it."""

    number: int
    place: Place
    target: int
    op: int
    priority: int
    arrays: object
    out: Any
    key: Key


class Namespace:
    """Tensors by key: no key of one namespace meets one of another. KVWorker is the root; namespace() makes others.

    Arrays that are pushed, and those that are received into, have the shape and dtype of init()'s, and their axes in
    the same order in memory: all C-contiguous, say, or all channels_last.
    """

    def __init__(self, session: Session, tensors: Tensors, path: tuple[str, ...], owner: object) -> None:
        self._session = session
        self._tensors = tensors
        self._path = path
        self._owner = owner  # the KVWorker, which is open as long as any of its namespaces is in use; None: this is it

    def namespace(self, name: str) -> Namespace:
        """The namespace of that name within this one: two libraries on one KVWorker take one each. It may be asked for
        any number of times."""
        return Namespace(self._session, self._tensors, (*self._path, name_of(name)), self._owner or self)

    def _known(self, key: Key) -> Tensor:
        """Returns an initialised tensor."""
        number = key if type(key) is int and not self._path else number_of(self._path, canonical(key))
        known = self._tensors.known.get(number)
        if known is None:
            key = canonical(key)
            name = number if number >= 0 else text_of(self._path, key)
            self._session.entered(name)
            text = f'key "{name}"' if isinstance(name, str) else f"key {name}"
            raise KeyError(f"{text} was never initialised: call init() on every worker first")
        return known

    def _numbers(self, keys: Iterable[Key] | None) -> str:
        """Keys as the core reads them: a JSON list. None: all of this namespace and those within it."""
        if keys is not None:
            return json.dumps([self._known(key).number for key in keys])
        if not self._path:
            return "null"
        inside = [n for n, known in self._tensors.known.items() if known.path[: len(self._path)] == self._path]
        return json.dumps(inside)

    def init(self, key: Key, array: Array, consistency: Consistency = "sync") -> None:
        """Declares a tensor; its value is rank 0's array, which pull() then gives at every worker.

        Waits for all workers to call it, at most the worker's timeout. The array (any shape, any dtype that can be
        summed) is read on rank 0 and written nowhere; its shape, the order of its axes in memory and its kind are those
        of the arrays that pull() makes. MismatchError if the workers' arrays differ in shape, order of axes or dtype,
        or if the workers name different consistencies. Units of timedelta64 are not compared. After a TimeoutError it
        may be called again, and goes on waiting.

        key: a whole number from 0 to 2**63 - 1, or a name. 7 and "7" are two keys.

        consistency: "sync": a round is the sum of all workers' pushes. "async": each push is added to the tensor's
        value (or applied by the optimiser) when it arrives, and answered at once with the value as it is then.
        fptps.Bounded(N): as async, but a worker that is more than N rounds ahead of the slowest waits for it. All
        workers have to name the same.
        """
        self.init_all({key: array}, consistency)

    def init_all(self, arrays: Mapping[AnyKey, Array], consistency: Consistency = "sync") -> None:
        """init() for many tensors, which takes one exchange with the scheduler for all of them.

        All workers call it with the same keys, or reach the same tensors by other calls. Where it times out, it may be
        called again: the values are then those of rank 0's first call.
        """
        declare(
            self._session, self._tensors, [self._declared(key, array) for key, array in arrays.items()], consistency
        )

    def declare_all(self, arrays: Mapping[AnyKey, Array]) -> None:
        """init_all() of tensors whose first value nobody needs, since all workers push them before they pull: the value
        is zeros, whatever the arrays hold, and no elements travel."""
        declare(self._session, self._tensors, [self._declared(k, a) for k, a in arrays.items()], "sync", zeros=True)

    def _declared(self, key: Key, array: Array, table: bool = False) -> Declared:
        key = canonical(key)
        number = number_of(self._path, key)
        name = "" if number >= 0 else text_of(self._path, key)
        return Declared(number, self._path, name, array, locate(array, write=False), maker(array), table)

    def push(self, key: Key, array: Array, priority: int = 0) -> Ticket[None]:
        """Contributes an array, of the shape and dtype of init(), to the next sum of the tensor.

        The ticket is done when the sum has arrived, for pull(). Do not write to the array until then. Raises KeyError
        for a key without init(), ValueError or TypeError for an array that differs from init()'s, and BusyError if a
        part of the array is in flight.
        """
        known = self._known(key)
        place = locate(array, write=False)
        known.check(place, write=False)
        return self._session.submit(
            self._session.core.push,
            (array, place.keep),
            known.number,
            *place[:3],
            0,
            priority_of(priority),
            key=known.key,
        )

    @overload
    def pull(self, key: Key, out: None = None) -> Ticket[Any]: ...
    @overload
    def pull(self, key: Key, out: Out) -> Ticket[Out]: ...
    def pull(self, key: Key, out: Array | None = None) -> Ticket[Any]:
        """Receives the sum of this worker's last push of the tensor; after init() and before a push, rank 0's value.

        The ticket's result is out, or without it a new array of the shape, dtype and kind (numpy or PyTorch) of
        init(). out may be the array of that push, and in flight: the sum then overwrites it. Pulling again gives the
        same sum again. Raises KeyError for a key without init(), ValueError for an out that is read-only or differs
        from init()'s array and after a push_pull() (its sum is not kept), and BusyError.

        The sum of a push is kept on this worker; rank 0's value is not, and is fetched from the nodes that sum the
        tensor (unless its consistency is "sync", with the pushes of others that were applied meanwhile).
        """
        known = self._known(key)
        if out is None:
            out = known.make()
        place = locate(out, write=True)
        known.check(place, write=True)
        return self._session.submit(
            self._session.core.pull, (out, place.keep), known.number, *place[:3], result=out, key=known.key
        )

    @overload
    def push_pull(
        self, key: Key, array: np.ndarray[Any, DType], out: None = None, op: Operation = "sum", priority: int = 0
    ) -> Ticket[np.ndarray[Any, DType]]: ...
    @overload
    def push_pull(
        self, key: Key, array: torch.Tensor, out: None = None, op: Operation = "sum", priority: int = 0
    ) -> Ticket[torch.Tensor]: ...
    @overload
    def push_pull(self, key: Key, array: Array, out: Out, op: Operation = "sum", priority: int = 0) -> Ticket[Out]: ...
    @overload
    def push_pull(
        self, key: Key, array: Array, out: None = None, op: Operation = "sum", priority: int = 0
    ) -> Ticket[Any]: ...
    def push_pull(
        self,
        key: Key,
        array: Array,
        out: Array | None = None,
        op: Operation = "sum",
        priority: int = 0,
    ) -> Ticket[Any]:
        """Pushes an array and receives the sum, straight into out: the fastest way.

        The ticket's result is out, or without it a new array of the shape, dtype and kind of array. out may be array
        itself. op "mean" divides the sum by the number of workers (those that skip count) and takes floats and
        complex numbers only. Every worker has to give the same op. The sum is not kept for pull().
        """
        x = self._exchange(key, array, out, op, priority)
        return self._session.submit(
            self._session.core.push_pull,
            x.arrays,
            x.number,
            *x.place[:3],
            x.target,
            x.op,
            x.priority,
            result=x.out,
            key=x.key,
        )

    @overload
    def push_pull_all(
        self,
        arrays: Mapping[AnyKey, np.ndarray[Any, DType]],
        out: Mapping[AnyKey, np.ndarray[Any, DType]] | None = None,
        op: Operation = "sum",
        priority: Mapping[AnyKey, int] | None = None,
    ) -> dict[AnyKey, Ticket[np.ndarray[Any, DType]]]: ...
    @overload
    def push_pull_all(
        self,
        arrays: Mapping[AnyKey, torch.Tensor],
        out: Mapping[AnyKey, torch.Tensor] | None = None,
        op: Operation = "sum",
        priority: Mapping[AnyKey, int] | None = None,
    ) -> dict[AnyKey, Ticket[torch.Tensor]]: ...
    @overload
    def push_pull_all(
        self,
        arrays: Mapping[AnyKey, Array],
        out: Mapping[AnyKey, Array] | None = None,
        op: Operation = "sum",
        priority: Mapping[AnyKey, int] | None = None,
    ) -> dict[AnyKey, Ticket[Any]]: ...
    def push_pull_all(
        self,
        arrays: Mapping[AnyKey, Array],
        out: Mapping[AnyKey, Array] | None = None,
        op: Operation = "sum",
        priority: Mapping[AnyKey, int] | None = None,
    ) -> dict[AnyKey, Ticket[Any]]:
        """push_pull() for many tensors, in one call of the core: all are pushed, or after an error none.

        out and priority: by key; without one, a new array, and 0. Returns the tickets by key: fptps.wait() takes their
        values().
        """
        out, priority = out or {}, priority or {}
        all_ = [self._exchange(key, array, out.get(key), op, priority.get(key, 0)) for key, array in arrays.items()]
        tickets = self._session.submit_all(
            self._session.core.push_pull_all,
            [(x.number, *x.place[:3], x.target, x.op, x.priority) for x in all_],
            [(x.arrays, x.out, x.key) for x in all_],
        )
        return dict(zip(arrays, tickets))

    def _exchange(self, key: Key, array: Array, out: Array | None, op: str, priority: int) -> Exchange:
        known = self._known(key)
        number = OPERATIONS.get(op)
        if number is None:
            raise ValueError(f"op={op!r}: 'sum' or 'mean' is expected")
        place = locate(array, write=out is array)
        known.check(place, write=out is array)
        if out is None:
            out = maker(array)()
        target = place
        if out is not array:
            target = locate(out, write=True)
            known.check(target, write=True)
            if target.dtype != place.dtype:
                raise TypeError("array and out differ in dtype")
            if target.nbytes != place.nbytes:
                raise ValueError(f"array has {place.nbytes} bytes, and out {target.nbytes}")
        return Exchange(
            known.number, place, target.address, number, priority_of(priority), (array, place.keep, target.keep), out,
            known.key,
        )  # fmt: skip

    def skip(self, key: Key) -> Ticket[None]:
        """Takes the place of a push where there is nothing to contribute this time: it counts as a push of zeros.

        As after a push, pull() gives the sum of the others' pushes, and the ticket is done when it has arrived.
        """
        known = self._known(key)
        return self._session.submit(self._session.core.skip, None, known.number, key=known.key)

    def set_optimizer(self, optimizer: Optimizer, keys: Iterable[Key] | None = None) -> None:
        """Moves the optimiser to the aggregators: from now on a push is a gradient, and its result are the new weights.

        optimizer: one of fptps.optim: SGD, Adam, AdamW or Adagrad. keys: those it is for; None means all that are
        initialised by now and were not pushed before. Rank 0's call takes effect, and returns when every aggregator
        has the optimiser; on other ranks it only checks the arguments, so that all may call it. A second call
        replaces the hyper-parameters; the optimiser's state stays if it is of the same kind.

        The other workers need not wait where the consistency is "sync", since no round is complete without rank 0's
        push. Where it is "async" or Bounded(N), they have to call barrier() after it, before their first push.

        float16 and bfloat16 tensors are kept in float32 and sent rounded. Raises TypeError for other tensors than
        floats, ValueError without a key, for hyper-parameters that make no sense and for a key that was pushed without
        an optimiser, KeyError for a key without init(), and BusyError while a push of a key is in flight.
        """
        self._session.submit(self._session.core.set_optimizer, None, self._numbers(keys), rule(optimizer)).result()

    def set_learning_rate(self, lr: float, keys: Iterable[Key] | None = None) -> None:
        """Changes the learning rate, from rank 0's next push on: that push and all that are applied after it.

        keys: those it is for; None means all that have an optimiser. Rank 0's call takes effect, on other ranks it only
        checks the arguments. The rate is rounded to float32. Raises ValueError for a rate that is negative or not
        finite and for a key without an optimiser.
        """
        if not 0 <= lr < math.inf:
            raise ValueError(f"lr={lr!r}: a learning rate is finite and 0 or more")
        self._session.core.set_learning_rate(self._session.usable(), self._numbers(keys), float(lr))

    def init_rows(self, key: Key, table: Array, consistency: Consistency = "sync") -> None:
        """Declares a table, such as an embedding: a 2-D tensor of which single rows are pushed and pulled.

        Its value is rank 0's table, which is read on rank 0 alone; no other worker receives or keeps any of it. Waits
        for all workers to call it, each with a table of the same shape and dtype, at most the worker's timeout.
        consistency is as for init(), and all else too: push_rows() is push(), pull_rows() is pull(), skip() contributes
        nothing. An optimiser is lazy, as torch.optim.SparseAdam is: it changes the rows that were pushed, and no other
        (no weight decay either, nor momentum), and counts every round as a step. Without one and with consistency
        "sync", the table is the sum of the last round, by row: zeros where nobody has pushed.

        Raises ValueError for a table that is not 2-D, not C-contiguous or has rows of more than 16384 bytes, TypeError
        for quantised codes, and what init() raises.
        """
        declared = self._declared(key, table, table=True)
        if len(declared.place.shape) != 2:
            raise ValueError(f"{declared.text}: a table of shape {declared.place.shape}: rows and columns are expected")
        locate_contiguous(table, write=False)
        declare(self._session, self._tensors, [declared], consistency)

    def push_rows(self, key: Key, rows: Any, values: Array, priority: int = 0) -> Ticket[None]:
        """Contributes rows to the next round of a table: values[i] to row rows[i]. Only they travel.

        rows: whole numbers, a list or a 1-D array; one that comes several times gets the sum of its values. values: of
        shape (len(rows), columns) and of the table's dtype. Both are copied, so that they may be written to at once.
        The ticket is done when the round is complete on all nodes; pull_rows() then gives the rows after it. Raises
        ValueError for a row that is not in the table and for another shape, TypeError and KeyError as push() does.
        """
        return self._move_rows(self._session.core.push_rows, key, _numbers(rows), values, priority, None)

    @overload
    def pull_rows(self, key: Key, rows: Any, out: None = None, priority: int = 0) -> Ticket[Any]: ...
    @overload
    def pull_rows(self, key: Key, rows: Any, out: Out, priority: int = 0) -> Ticket[Out]: ...
    def pull_rows(self, key: Key, rows: Any, out: Array | None = None, priority: int = 0) -> Ticket[Any]:
        """Receives rows of a table, as they are after this worker's last push_rows(): out[i] becomes row rows[i].

        The ticket's result is out, or without it a new array of shape (len(rows), columns). A row may be asked for
        several times. Raises what push_rows() raises, and BusyError if a part of out is in flight.
        """
        numbers = _numbers(rows)
        if out is None:
            like = self._known(key).table_row()
            out = maker(like, (len(numbers), like.shape[1]))()
        return self._move_rows(self._session.core.pull_rows, key, numbers, out, priority, out)

    def _move_rows(
        self, call: Callable[..., int], key: Key, numbers: Numbers, values: Array, priority: int, result: Any
    ) -> Ticket[Any]:
        known = self._known(key)
        row = known.table_row()
        shape = tuple(getattr(values, "shape", ()))
        if shape != (len(numbers), row.shape[1]):
            raise ValueError(
                f"{known.text}: {len(numbers)} rows of {row.shape[1]} columns, the array's shape is {shape}"
            )
        # Without any rows there is no memory, and locate() would refuse it.
        dtype, address, nbytes, keep, *_ = locate_contiguous(values if len(numbers) else row, write=result is not None)
        if not len(numbers):
            address = nbytes = 0
        place = locate(numbers, write=False) if len(numbers) else None
        return self._session.submit(
            call,
            (numbers, values, keep),
            known.number,
            dtype,
            place.address if place else 0,
            len(numbers),
            address,
            nbytes,
            priority_of(priority),
            result=result,
            key=known.key,
        )

    def clock(self, key: Key) -> list[int]:
        """How many rounds of each worker are applied to the tensor, by rank: to every packet of it, on every node.

        A worker that was admitted later has those before its admission, too; those of a dead one grow no more. Asks the
        nodes that sum it. Raises KeyError for a key without init().
        """
        return self._clock(self._known(key))

    def _clock(self, known: Tensor) -> list[int]:
        clock = np.empty(self._session.ranks_so_far(), np.uint64)
        address = locate(clock, write=True).address
        self._session.submit(
            self._session.core.clock, clock, known.number, address, clock.nbytes, key=known.key
        ).result()
        return [int(rounds) for rounds in clock]


Numbers = np.ndarray[Any, np.dtype[np.int64]]


def _numbers(rows: Any) -> Numbers:
    """Numbers of rows as the core reads them."""
    array = np.asarray(rows)
    if array.ndim != 1:
        raise ValueError(f"rows of shape {array.shape}: a list of numbers, or an array of one dimension is expected")
    if array.dtype.kind not in "iu" and len(array):
        raise TypeError(f"rows of dtype {str(array.dtype)!r}: whole numbers are expected")
    return np.ascontiguousarray(array, np.int64)
