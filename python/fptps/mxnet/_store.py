"""DistFPTPS: MXNet's KVStore over a KVWorker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, Union

import mxnet as mx

from .._keys import Key
from ..consistency import Consistency, number
from ..worker import KVWorker
from . import _optimizer
from ._arguments import Arrays, Keys, by_key, sparse, unrecorded
from ._compression import kind_of
from ._dense import Dense
from ._process import current
from ._table import Table

Given = Union[mx.nd.NDArray, Arrays, "list[Arrays]"]
"""An NDArray, or one for each of this worker's devices; for a list of keys a list with one of these for each key."""


class DistFPTPS(mx.kvstore.KVStore):  # not KVStoreBase: Trainer takes sparse gradients with this class alone
    """A key-value store over fptps: for gluon's Trainer(kvstore=DistFPTPS()), a Module, or calls of a program's own.

    The first store of a process joins the cluster that the environment names, or runs alone; the others share its
    KVWorker. Each store has keys of its own, whole numbers from 0 or names; all workers make their stores in the same
    order.

    consistency: "sync": a round of a key sums the pushes of all workers. "async" or fptps.Bounded(N): each push is
    applied when it arrives (see KVWorker.init). Raises ValueError for any other, and what KVWorker() raises.

    Calls do not wait, as all of MXNet's: an NDArray has its new values when it is read, and there the error of a
    call that failed is raised, such as NodeLostError. Calls that wait are init(), broadcast(), set_optimizer(), and all
    of keys with row-sparse values. A wrong argument is a ValueError or a TypeError at once, a key without init() a
    KeyError.
    """

    def __init__(self, consistency: Consistency = "sync") -> None:
        number(consistency)
        process = current()
        self._worker = process.worker
        self._kv = self._worker.namespace("mxnet").namespace(str(next(process.numbers)))
        self._consistency: Consistency = consistency
        self._tensors: dict[Key, Dense | Table] = {}
        self._optimizer: Any = None
        self._compression: str | None = None
        self.handle = mx.base.KVStoreHandle()  # none of MXNet's own

    def __del__(self) -> None:
        """MXNet's own frees its handle."""

    @property
    def worker(self) -> KVWorker:
        """The KVWorker that all stores of this process share: for barrier(), broadcast_object(), stats() and others."""
        return self._worker

    @property
    def type(self) -> str:
        """By its parts MXNet knows how to scale gradients, and where the optimizer has to be."""
        return "dist_sync_fptps" if self._consistency == "sync" else "dist_async_fptps"

    @property
    def rank(self) -> int:
        """This worker's number, from 0 to num_workers - 1."""
        return self._worker.rank

    @property
    def num_workers(self) -> int:
        """The number of workers in the cluster at its start.

        Where workers die (FPTPS_RECOVERY=1) it stays: programs scale sums by it, and all have to scale alike.
        """
        return self._worker._session.ranks

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether the store has a capability: "optimizer", the only one that MXNet knows. ValueError for any other."""
        if capability.lower() != mx.kvstore.KVStoreBase.OPTIMIZER:
            raise ValueError(f"unknown capability {capability!r}: 'optimizer' is expected")
        return True

    def init(self, key: Keys, value: Given) -> None:
        """Declares keys with rank 0's values. Waits for all workers to call it, at most FPTPS_TIMEOUT.

        value: NDArrays of any shape and any dtype that can be summed. A RowSparseNDArray makes the key a table, for
        push(), pull() and row_sparse_pull(). Raises ValueError for a key that was declared, and what KVWorker.init()
        raises.
        """
        for one, values in by_key(key, value):
            self._init(one, values[0])

    @unrecorded
    def broadcast(self, key: Keys, value: Given, out: Given, priority: int = 0) -> None:
        """init(), and writes rank 0's values to out, on all workers."""
        for one, values, outs in by_key(key, value, out):
            tensor = self._init(one, values[0])
            if isinstance(tensor, Table):
                tensor.pull(outs, priority)
            else:
                tensor.broadcast(values[0], outs)

    @unrecorded
    def push(self, key: Keys, value: Given, priority: int = 0) -> None:
        """Contributes to the next sum over all workers and devices, or with an optimizer to the next gradient.

        value: of the key's shape and dtype. The first RowSparseNDArray makes the key a table, if nothing was pushed
        before. The largest priority is the most urgent.
        """
        for one, values in by_key(key, value):
            tensor = self._known(one)
            if any(map(sparse, values)):
                tensor = self._as_table(one, tensor)
                values = [array.tostype("row_sparse") for array in values]
            elif isinstance(tensor, Table):
                values = [array.tostype("row_sparse") for array in values]
            tensor.push(values, priority)

    @unrecorded
    def pull(self, key: Keys, out: Given = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Writes the sum (with an optimizer: the weights) after this worker's last push to out.

        Before the first push: rank 0's value. ignore_sparse: leaves outs that are RowSparseNDArrays as they are, as
        row_sparse_pull() is for them. ValueError after a pushpull() of the key, whose result went to its own out.
        """
        for one, outs in by_key(key, out):
            tensor = self._known(one)
            dense = [array for array in outs if not (ignore_sparse and sparse(array))]
            if dense:
                tensor.pull(dense, priority)

    @unrecorded
    def pushpull(self, key: Keys, value: Given, out: Given = None, priority: int = 0) -> None:
        """push() and pull() in one: the fastest way. out: by default value itself."""
        for one, values, outs in by_key(key, value, value if out is None else out):
            tensor = self._known(one)
            if isinstance(tensor, Table) or any(map(sparse, values)):
                self.push(one, values, priority)
                self.pull(one, outs, priority, ignore_sparse=False)
            else:
                tensor.push_pull(values, outs, priority)

    @unrecorded
    def row_sparse_pull(self, key: Keys, out: Given = None, priority: int = 0, row_ids: Given = None) -> None:
        """Writes rows of tables to out.

        out: RowSparseNDArrays; each gets the rows whose numbers are in its NDArray of row_ids, each once. One
        NDArray of row_ids is for all of out. Raises ValueError for a key that is no table and for rows that are not
        in it.
        """
        for one, outs, ids in by_key(key, out, row_ids):
            tensor = self._known(one)
            if isinstance(tensor, Dense):
                raise ValueError(f"key {one!r} is no table: init() it with a RowSparseNDArray")
            if len(ids) == 1:
                ids = ids * len(outs)
            if len(ids) != len(outs):
                raise ValueError(f"key {one!r}: {len(outs)} arrays and {len(ids)} row_ids")
            tensor.pull_rows(outs, ids, priority)

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """Moves the optimizer to the aggregators: from now on a push is a gradient, and a pull gives the weights.

        optimizer: an SGD, NAG or Adam, for all keys of this store. It stays in use: its learning rate, schedule and
        multipliers hold from the next push of rank 0 on. Raises ValueError for another optimizer and for settings that
        the aggregators do not have, after set_gradient_compression(), and for a key that was pushed before.
        """
        _optimizer.check(optimizer)
        if self._compression is not None:
            raise ValueError(
                f"gradient compression {self._compression!r} and an optimizer on the aggregators exclude each other, "
                f"as the weights would be compressed: {_optimizer.HERE}"
            )
        for tensor in self._tensors.values():
            self._start_steps(tensor, optimizer)
        self._optimizer = optimizer

    def set_gradient_compression(self, compression_params: Mapping[str, Any]) -> None:
        """What pushpull() and push() send in the place of values: less bytes for less precision.

        compression_params: {"type": "fp16"}, each value rounded to 16 bits, or {"type": "int8"} or {"type": "int4"},
        codes with error feedback, for float32 (fptps.codec). To be called before the first init(). Raises ValueError
        for other types ("2bit" is one), after the first init(), and with an optimizer on the aggregators.
        """
        kind = kind_of(compression_params)
        if self._tensors or self._optimizer is not None:
            raise ValueError("set_gradient_compression() comes before the first init(), and not with set_optimizer()")
        if self._consistency != "sync":
            raise ValueError("compressed gradients are summed, which needs consistency='sync'")
        self._compression = kind

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> NoReturn:
        """RuntimeError, as with MXNet's own distributed stores."""
        raise RuntimeError(
            "the optimizer's state is on the aggregators: save it with store.worker.save(path) on all workers, or "
            f"{_optimizer.HERE}"
        )

    def load_optimizer_states(self, fname: str) -> NoReturn:
        """RuntimeError, as with MXNet's own distributed stores."""
        raise RuntimeError(
            "the optimizer's state is on the aggregators: load it with store.worker.load(path) on all workers, or "
            f"{_optimizer.HERE}"
        )

    def _barrier(self) -> None:
        """Waits until all workers have called it; MXNet's name for it."""
        self._worker.barrier()

    def _set_updater(self, updater: Any) -> NoReturn:
        raise RuntimeError("a function cannot run on the aggregators: call set_optimizer()")

    def _send_command_to_servers(self, head: int, body: str) -> NoReturn:
        raise RuntimeError("fptps's servers have no commands")

    def _known(self, key: Key) -> Dense | Table:
        tensor = self._tensors.get(key)
        if tensor is None:
            raise KeyError(f"key {key!r} was never initialised: call broadcast() or init() on every worker first")
        return tensor

    def _init(self, key: Key, value: mx.nd.NDArray) -> Dense | Table:
        if key in self._tensors:
            raise ValueError(f"key {key!r} is initialised already: give each Trainer or Module a DistFPTPS of its own")
        tensor: Dense | Table
        if sparse(value):
            tensor = Table(self._kv, key, value.shape, value.dtype)
            tensor.declare(value.asnumpy() if self.rank == 0 else None, self._consistency)
        else:
            tensor = Dense(self._kv, self._worker, key, value, self._compression)
            tensor.declare(value, self._consistency)
        return self._declared(key, tensor)

    def _as_table(self, key: Key, tensor: Dense | Table) -> Table:
        """The table of a key whose weights were declared as dense, but whose gradients are row-sparse."""
        if isinstance(tensor, Table):
            return tensor
        table = Table(self._kv.namespace("rows"), key, tensor.shape, tensor.dtype)
        table.declare(tensor.first_value(), self._consistency)
        self._declared(key, table)
        return table

    def _declared(self, key: Key, tensor: Dense | Table) -> Dense | Table:
        self._tensors[key] = tensor
        if self._optimizer is not None:
            self._start_steps(tensor, self._optimizer)
        return tensor

    def _start_steps(self, tensor: Dense | Table, optimizer: Any) -> None:
        tensor.start_steps(optimizer, self.rank, self._consistency == "sync")
        if self._consistency != "sync":
            self._worker.barrier()  # else another worker's push could come before the optimizer


mx.kvstore.KVStoreBase.register(DistFPTPS)
