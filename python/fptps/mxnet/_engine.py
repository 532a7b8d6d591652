"""Operations of MXNet's engine that end when a ticket of fptps ends.

MXNet computes asynchronously: an NDArray is a promise, and the engine runs what reads or writes it in the right order.
An operation is queued like any of MXNet's own. It begins when its arrays are ready, and whatever uses their new values
waits for its end. No thread waits: the engine calls back when it may begin, fptps when its ticket has ended.

The interface is that of MXNet's headers c_api.h and engine.h, as in all releases of 1.9, the last ones.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import mxnet as mx
import numpy as np

from ..errors import ClosedError
from ..ticket import Ticket

_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

PRIORITIZED: Final = ctypes.c_int(3)
"""FnProperty::kCPUPrioritized: threads of the engine that do not compute, so that nothing queues behind a backward."""
CPU: Final = (ctypes.c_int * 2)(1, 0)
"""The context cpu(0)."""
ERROR: Final = "fptps.error"
"""The name by which MXNet's errors of ours are known."""


class _OnComplete(ctypes.Structure):
    """engine::CallbackOnComplete: to be called once, when the operation has ended."""

    _fields_ = (("callback", _Function), ("engine", ctypes.c_void_p), ("parameter", ctypes.c_void_p))


class _Operation:
    """One operation, from submit() until the engine deletes it."""

    def __init__(self, begin: Callable[[], Ticket[Any]], finish: Callable[[], object] | None, arrays: object) -> None:
        self._work: Any = begin, finish, arrays
        self._ends: list[_OnComplete] = []

    def run(self, complete: _OnComplete) -> None:
        """Begins, on a thread of the engine's."""
        self._ends.append(complete)
        try:
            ticket = self._work[0]()
            if _synchronous():
                ticket.exception(math.inf)
            ticket.add_done_callback(self._ended)
        except BaseException as error:  # MXNet raises it where the values are read
            self.end(error)

    def _ended(self, ticket: Ticket[Any]) -> None:
        try:
            ticket.result(0.0)
            finish = self._work[1]
            if finish is not None:
                finish()
        except BaseException as error:
            self.end(error)
        else:
            self.end(None)

    def end(self, error: BaseException | None) -> None:
        """Reports the end to the engine, unless that was done."""
        with contextlib.suppress(IndexError):  # whichever thread pops it
            complete = self._ends.pop()
            complete.callback(complete.engine, complete.parameter, None if error is None else _dmlc_error(error))

    def free(self) -> None:
        """Gives up the arrays."""
        self._work = None


_numbers = itertools.count(1)
_operations: dict[int, _Operation] = {}
_beginning: set[int] = set()  # those of which a thread of the engine's is in run()


def submit(
    begin: Callable[[], Ticket[Any]],
    finish: Callable[[], object] | None,
    reads: Sequence[mx.nd.NDArray],
    writes: Sequence[mx.nd.NDArray],
    priority: int,
) -> None:
    """Queues an operation on arrays in the CPU's memory; no two of them may share memory.

    begin is called when the arrays are ready, and finish when its ticket has ended well. Then others may use the
    arrays. An exception of either, or of the ticket, is raised where somebody waits for the values of writes.
    """
    number = next(_numbers)
    _operations[number] = _Operation(begin, finish, (reads, writes))
    mx.base.check_call(
        mx.base._LIB.MXEnginePushAsyncND(
            RUN,
            ctypes.c_void_p(number),
            DELETE,
            ctypes.byref(CPU),
            mx.base.c_handle_array(reads),
            len(reads),
            mx.base.c_handle_array(writes),
            len(writes),
            ctypes.byref(PRIORITIZED),
            priority,
            b"fptps",
            False,
        )
    )


def settle() -> None:
    """Waits until no operation is left, and no thread of the engine's runs Python."""
    left = True
    while left:
        left = bool(_operations or _beginning)
        time.sleep(0.001)  # without the GIL: a thread that has just removed the last one returns from Python


def abandon() -> None:
    """Ends all operations that have begun: after the worker has closed their tickets no longer call back, and MXNet,
    which waits for them at the program's end, would wait for ever."""
    for operation in list(_operations.values()):
        operation.end(ClosedError("this process has left the cluster"))


# Before a fork MXNet joins the engine's threads, while this thread has the GIL, which their calls back need.
os.register_at_fork(before=settle)


def _run(_engine: int, complete: int, number: int) -> None:
    _beginning.add(number)
    _operations[number].run(_OnComplete.from_buffer_copy(_OnComplete.from_address(complete)))
    _beginning.discard(number)


def _delete(number: int) -> None:
    """The engine is through with an operation, or has skipped it because of an earlier error."""
    _operations[number].free()  # before settle() sees that it is gone: MXNet frees an array without the GIL
    del _operations[number]


RUN: Final = _Function(_run)
DELETE: Final = _Deleter(_delete)


def _synchronous() -> bool:
    """Whether the engine is the one for debugging, in which every operation ends before the call returns."""
    return os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"


_errors: dict[str, BaseException] = {}


def _dmlc_error(error: BaseException) -> ctypes.Array[ctypes.c_char]:
    """A dmlc::Error, which is a std::runtime_error. MXNet copies it, and makes an exception of its text again."""
    text = f"{ERROR}: {type(error).__name__}: {error}"
    _errors[text] = error
    memory = ctypes.create_string_buffer(64)
    _standard_library()._ZNSt13runtime_errorC1EPKc(memory, ctypes.c_char_p(text.encode()))
    return memory


@functools.lru_cache(maxsize=1)
def _standard_library() -> ctypes.CDLL:
    return ctypes.CDLL("libstdc++.so.6")


def _original(text: str) -> BaseException:
    error = _errors.get(text)
    return mx.base.MXNetError(text) if error is None else copy.copy(error)


mx.error.register(ERROR, _original)


def memory_of(array: mx.nd.NDArray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The memory of an NDArray of this shape and dtype as a numpy array.

    To be called, and used, while nothing else writes to the NDArray. MXNet is not asked for shape and dtype: each
    question takes microseconds, and an iteration may push hundreds of arrays.
    """
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    memory: Any = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(address.value or 0)
    return np.ndarray(shape, dtype, memory)


def share_memory(one: mx.nd.NDArray, other: mx.nd.NDArray) -> bool:
    """Whether two NDArrays are views of one array: the engine orders operations by array, not by view, and an operation
    that read one and wrote the other would wait for itself."""
    return _chunk(one) == _chunk(other)


def _chunk(array: mx.nd.NDArray) -> int | None:
    """The address of the memory's owner: the first member of MXNet's class NDArray (ndarray.h)."""
    return ctypes.c_void_p.from_address(array.handle.value).value
