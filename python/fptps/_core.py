"""The one door to the core, the extension module that is written in Go.

Importing this module starts the Go runtime, which does not live on in a forked child: a call into it there would
hang. So the package imports it no earlier than at the first use (a process that forked before may use fptps in the
child), and from then on a child gets a ClosedError. gopy's wrappers release the GIL around every call.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from .errors import ClosedError, from_core

# Go's threads inherit this mask. A signal that one of them took would not interrupt the main thread: Python's handler
# would wait for the end of what that is blocked in.
_mask = signal.pthread_sigmask(
    signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2}
)
try:
    from . import _fptps as raw
except ImportError as error:
    raise ImportError(
        f"the core of fptps, the extension module fptps._fptps, cannot be loaded ({error}): "
        "build and install the package with `pip install .`"
    ) from error
finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask)

IN_CHILD: Final = (
    "fptps was in use when this process was forked, and its core does not live on in a forked child: use it in a "
    "process started by subprocess, or by multiprocessing with the method 'spawn'"
)

_forked = False
_handles = itertools.count(1)
_open: set[int] = set()  # the handles that may have sockets
_sockets: list[tuple[int, int, int]] = []  # file descriptor, device, inode of each, as of the last fork

Function = TypeVar("Function", bound=Callable[..., Any])


def _door(function: Function) -> Function:
    """Gives a raw function our exceptions, and keeps a forked child out."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if _forked:
            raise ClosedError(IN_CHILD)
        try:
            return function(*arguments)
        except RuntimeError as error:
            raise from_core(str(error)) from None

    return cast(Function, call)


version = _door(raw.pybind_Version)
configuration = _door(raw.pybind_Configuration)
joined = _door(raw.pybind_Joined)
wait = _door(raw.pybind_Wait)
failure = _door(raw.pybind_Failure)
ended = _door(raw.pybind_Ended)
explain = _door(raw.pybind_Explain)
init = _door(raw.pybind_Init)
push = _door(raw.pybind_Push)
pull = _door(raw.pybind_Pull)
push_pull = _door(raw.pybind_PushPull)
skip = _door(raw.pybind_Skip)
push_pull_all = _door(raw.pybind_PushPullAll)
push_rows = _door(raw.pybind_PushRows)
pull_rows = _door(raw.pybind_PullRows)
clock = _door(raw.pybind_Clock)
resume = _door(raw.pybind_Resume)
state = _door(raw.pybind_State)
restore = _door(raw.pybind_Restore)
keep = _door(raw.pybind_Keep)
check_optimizer = _door(raw.pybind_CheckOptimizer)
set_optimizer = _door(raw.pybind_SetOptimizer)
set_learning_rate = _door(raw.pybind_SetLearningRate)
set_tensor_count = _door(raw.pybind_SetTensorCount)
tensor_info = _door(raw.pybind_TensorInfo)
barrier = _door(raw.pybind_Barrier)
_close = _door(raw.pybind_Close)
withdraw = _door(raw.pybind_Withdraw)
info = _door(raw.pybind_Info)
stack_asked = _door(raw.pybind_StackAsked)
stack = _door(raw.pybind_Stack)
present = _door(raw.pybind_Present)
come = _door(raw.pybind_Come)
arrive = _door(raw.pybind_Arrive)
fetch = _door(raw.pybind_Fetch)
state_size = _door(raw.pybind_StateSize)
take_state = _door(raw.pybind_TakeState)
stats = _door(raw.pybind_Stats)
status = _door(raw.pybind_Status)
ask_status = _door(raw.pybind_AskStatus)
start_trace = _door(raw.pybind_StartTrace)
stop_trace = _door(raw.pybind_StopTrace)
sockets = _door(raw.pybind_Sockets)
notify_fd = _door(raw.pybind_NotifyFd)
block_values = _door(raw.pybind_BlockValues)
quantise = _door(raw.pybind_Quantise)
dequantise = _door(raw.pybind_Dequantise)
ps_enter = _door(raw.pybind_PSEnter)
ps_barrier = _door(raw.pybind_PSBarrier)
ps_place = _door(raw.pybind_PSPlace)
ps_bounds = _door(raw.pybind_PSBounds)
ps_customer = _door(raw.pybind_PSCustomer)
ps_sum = _door(raw.pybind_PSSum)
ps_close = _door(raw.pybind_PSClose)
ps_next = _door(raw.pybind_PSNext)
ps_take = _door(raw.pybind_PSTake)
ps_wait = _door(raw.pybind_PSWait)
ps_result = _door(raw.pybind_PSResult)
ps_fill = _door(raw.pybind_PSFill)
ps_request = _door(raw.pybind_PSRequest)
ps_exchange = _door(raw.pybind_PSExchange)
ps_respond = _door(raw.pybind_PSRespond)
ps_fail = _door(raw.pybind_PSFail)
ps_missing = _door(raw.pybind_PSMissing)


def new_handle() -> int:
    """A handle for open() or open_ps(), known to the caller before the node begins, whatever interrupts the call."""
    return next(_handles)


def open(handle: int, options: str) -> None:
    """Opens a node with settings in a JSON object, named as in the environment; it begins to join."""
    _open.add(handle)
    _door(raw.pybind_Open)(handle, options)


def open_ps(handle: int, options: str, customer: int) -> None:
    """As open(), for a program of ps-lite's classes, whose customer it is that starts its node."""
    _open.add(handle)
    _door(raw.pybind_OpenPS)(handle, options, customer)


def close(handle: int, ticket: int, orderly: int, why: str = "") -> None:
    """Leaves the cluster; why is for the other nodes, where it does not leave in good order."""
    _close(handle, ticket, orderly, why or "it left without waiting for the others")


def free(handle: int) -> None:
    """Forgets a node that is closed."""
    _open.discard(handle)
    _door(raw.pybind_Free)(handle)


def _list_sockets() -> None:
    """Before a fork: records the descriptors that the child has to close, as it must not call the core. Numbers
    alone are not enough: the child may have reused them."""
    _sockets.clear()
    for handle in tuple(_open):
        with contextlib.suppress(RuntimeError, OSError):
            for number in raw.pybind_Sockets(handle).split(","):
                if number:
                    status = os.fstat(int(number))
                    _sockets.append((int(number), status.st_dev, status.st_ino))


def _close_sockets() -> None:
    """In the child: closes the copies of the data sockets, or the peers of a dead parent would not see its end."""
    global _forked
    _forked = True
    for number, device, inode in _sockets:
        with contextlib.suppress(OSError):
            status = os.fstat(number)
            if (status.st_dev, status.st_ino) == (device, inode):
                os.close(number)
    _sockets.clear()
    _open.clear()


os.register_at_fork(before=_list_sockets, after_in_child=_close_sockets)
