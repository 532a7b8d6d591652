"""KVServer: serves the pushes and pulls of workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .._arrays import locate
from .app import Event, SimpleApp, SimpleData
from .values import Array, address, dtype_of, keys_of, lens_of


@dataclass(frozen=True)
class KVMeta:
    """Which request it is."""

    cmd: int
    push: bool
    pull: bool
    sender: int
    """Id of the worker."""
    timestamp: int
    customer_id: int
    priority: int
    _event: str = ""


@dataclass
class KVPairs:
    """Keys (uint64, ascending) and their values, one after the other."""

    keys: Array
    vals: Array
    lens: Array | None = None
    """int32: the number of elements of each key; None: all have the same."""


class KVServerDefaultHandle:
    """ps-lite's default handle: a push adds to the value of the key, a pull returns it; a key never pushed is zero.

    It runs in the core, for any dtype that can be summed. It answers simple requests with an empty body.
    """


Handle = Callable[[KVMeta, KVPairs, "KVServer"], None]


class KVServer(SimpleApp):
    """A server's end of the key-value app app_id. Requests wait until it has a handle."""

    def __init__(self, app_id: int = 0) -> None:
        self._kv_handle: Handle | None = None
        super().__init__(app_id, app_id)

    def set_request_handle(self, handle: Handle | KVServerDefaultHandle) -> None:  # type: ignore[override]
        """Sets, once, the function that is called as handle(meta, kvs, server) for each push and pull.

        It calls server.response(meta), with a KVPairs for a pull: then, or later and from any thread. kvs is the
        handle's own; its vals are empty in a pull, and have the dtype that the worker sent (uint8 for ps-lite's char).
        """
        if self._kv_handle is not None or self._thread is not None:
            raise ValueError("the KVServer has its handle already")
        if isinstance(handle, KVServerDefaultHandle):
            self._core.ps_sum(self._handle, *self._id)
            self._kv_handle = _of_core
        else:
            self._kv_handle = handle
            super()._begin()

    def set_command_handle(self, handle: Callable[[SimpleData, SimpleApp], None]) -> None:
        """Sets the function for simple requests, as SimpleApp.set_request_handle does."""
        if self._kv_handle is _of_core:
            raise ValueError("the default handle answers simple requests itself")
        self._simple_handle = handle

    def response(self, request: KVMeta | SimpleData, answer: KVPairs | bytes | None = None) -> None:
        """Answers a push or pull, with KVPairs if it is a pull; a simple request with bytes. Any thread may call it."""
        if isinstance(request, SimpleData):
            super().response(request, answer if isinstance(answer, bytes) else b"")
            return
        if not isinstance(answer, KVPairs):
            if request.pull:
                raise TypeError("a pull is answered with KVPairs")
            self._core.ps_respond(self._handle, *self._id, request._event, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            return
        keys = keys_of(answer.keys)
        lens = None if answer.lens is None else lens_of(answer.lens)
        vals = np.ascontiguousarray(answer.vals)
        number, place, nbytes, *_ = locate(vals, write=False)
        self._core.ps_respond(
            self._handle, *self._id, request._event, 0, 0, number, address(keys), keys.size, place, nbytes,
            address(lens), 0 if lens is None else lens.size,
        )  # fmt: skip

    def _begin(self) -> None:
        """The thread starts with the handle."""

    def _serve(self, text: str, event: Event) -> None:
        keys = np.empty(event["keys"], np.uint64)
        raw = np.empty(event["bytes"], np.uint8)
        lens = np.empty(event["lens"], np.int32) if event["lens"] else None
        self._core.ps_take(self._handle, *self._id, address(keys), address(raw), address(lens))
        vals = raw.view(dtype_of(event["dtype"])) if event["dtype"] else raw
        meta = KVMeta(
            event["head"], event["push"], event["pull"], event["peer"], event["timestamp"], event["customer"],
            event["priority"], text,
        )  # fmt: skip
        assert self._kv_handle is not None
        self._kv_handle(meta, KVPairs(keys, vals, lens), self)


def _of_core(meta: KVMeta, kvs: KVPairs, server: KVServer) -> None:
    """Stands for the default handle, which no request of Python's sees."""
