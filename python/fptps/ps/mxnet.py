"""A server for MXNet's kvstore (`dist_sync`, `dist_async`), in place of MXNet's own.

    python -m fptps.ps.mxnet     with DMLC_ROLE=server, in a cluster of MXNet's workers

serves plain pushes and pulls: the sum of all workers' pushes takes the place of the key's value, as in a kvstore
without an optimizer. A program of its own gives an updater, such as one that keeps adding up:

    ps.start()
    MXNetStore(ps.KVServer(0), updater=lambda key, pushed, stored: np.add(stored, pushed, out=stored))
    ps.finalize()

MXNet is not needed here. Its clients send, as bytes: one key a request, which is the server's first key plus the
kvstore's; as command the Cantor pairing of the kind of request and the number of the dtype. Arrays above
MXNET_KVSTORE_BIGARRAY_BOUND elements are cut among all servers, each part a value of its own here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np

from .app import SimpleApp, SimpleData
from .postoffice import Postoffice, finalize, start
from .server import KVMeta, KVPairs, KVServer
from .values import Array

__all__ = ["MXNetStore", "Updater"]

Updater = Callable[[int, Array, Array], None]
"""updater(key, pushed, stored) changes stored, in place. Both are 1-D and of the key's dtype."""

DTYPES: Final = (
    "float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool", "int16", "uint16", "uint32", "uint64",
)  # fmt: skip
"""By MXNet's number."""


class Command(IntEnum):
    """The simple requests of MXNet's workers, by head."""

    CONTROLLER = 0
    SET_MULTI_PRECISION = 1
    STOP_SERVER = 2
    SYNC_MODE = 3
    SET_GRADIENT_COMPRESSION = 4
    SET_PROFILER_PARAMS = 5


class Kind(IntEnum):
    """The kinds of pushes and pulls."""

    DEFAULT = 0
    ROW_SPARSE = 1
    COMPRESSED = 2


def pair(kind: int, dtype: int) -> int:
    """The command of a push or pull: Cantor's pairing function of its kind and the number of its dtype."""
    return (kind + dtype) * (kind + dtype + 1) // 2 + dtype


def unpair(command: int) -> tuple[int, int]:
    """The kind and the number of the dtype in a command."""
    total = (math.isqrt(8 * command + 1) - 1) // 2
    dtype = command - total * (total + 1) // 2
    return total - dtype, dtype


@dataclass
class Round:
    """The pushes of a key that wait for those of the other workers."""

    sum: Array
    requests: list[KVMeta] = field(default_factory=list)


class MXNetStore:
    """Serves MXNet's workers on a KVServer of app 0.

    With an updater, it is given the sum of all workers' pushes (`dist_sync`) or each push by itself (`dist_async`,
    which needs one). An optimizer, row-sparse arrays and compressed gradients are refused: MXNet's worker, which
    cannot be told why, then ends at its next pull; the reason is in this server's log.
    """

    def __init__(self, server: KVServer, updater: Updater | None = None) -> None:
        self._updater = updater
        self._sync = False
        self._refusal = ""  # why nothing is served any more
        self._stored: dict[int, Array] = {}  # by the key on the wire
        self._rounds: dict[int, Round] = {}
        office = Postoffice.get()
        self._first_key = office.server_key_ranges()[office.rank].begin
        self._workers = office.num_workers
        server.set_command_handle(self._command)
        server.set_request_handle(self._serve)

    def _command(self, request: SimpleData, app: SimpleApp) -> None:
        if request.head == Command.SYNC_MODE:
            self._sync = True
        elif request.head in (Command.CONTROLLER, Command.SET_MULTI_PRECISION, Command.SET_GRADIENT_COMPRESSION):
            self._refusal = f"the command {Command(request.head).name} of MXNet's kvstore is not served here"
            raise ValueError(self._refusal)
        elif request.head != Command.STOP_SERVER:
            raise ValueError(f"command {request.head} of MXNet's kvstore is not known here")
        app.response(request)

    def _serve(self, meta: KVMeta, kvs: KVPairs, server: KVServer) -> None:
        dtype = self._dtype(meta.cmd)
        if len(kvs.keys) != 1:
            raise ValueError(f"a request for {len(kvs.keys)} keys, MXNet's are for one")
        key = int(kvs.keys[0])
        if meta.push:
            pushed = kvs.vals.view(dtype)
            if key in self._stored:
                self._push(key, pushed, meta, server)
                return
            self._stored[key] = pushed.copy()
        self._answer(key, meta, server)

    def _dtype(self, command: int) -> np.dtype[Any]:
        if self._refusal:
            raise ValueError(self._refusal)
        kind, number = unpair(command) if command >= 0 else (-1, -1)
        if kind != Kind.DEFAULT or number >= len(DTYPES):
            name = Kind(kind).name if kind in list(Kind) else "unknown"
            raise ValueError(f"command {command} of MXNet's kvstore (kind {name}, dtype {number}) is not served here")
        return np.dtype(DTYPES[number])

    def _push(self, key: int, pushed: Array, meta: KVMeta, server: KVServer) -> None:
        stored = self._stored[key]
        if (pushed.size, pushed.dtype) != (stored.size, stored.dtype):
            was = f"{stored.size} of {stored.dtype}"
            raise ValueError(
                f"key {key - self._first_key}: {pushed.size} values of {pushed.dtype} pushed, it has {was}"
            )
        if not self._sync:
            if self._updater is None:
                raise ValueError("dist_async needs an updater")
            self._updater(key - self._first_key, pushed, stored)
            self._answer(key, meta, server)
            return
        now = self._rounds.get(key)
        if now is None:
            now = self._rounds[key] = Round(pushed)
        elif any(other.sender == meta.sender for other in now.requests):
            raise ValueError(f"key {key - self._first_key}: a second push of node {meta.sender} before all have pushed")
        else:
            np.add(now.sum, pushed, out=now.sum)
        now.requests.append(meta)
        if len(now.requests) == self._workers:
            del self._rounds[key]
            if self._updater is None:
                self._stored[key] = now.sum
            else:
                self._updater(key - self._first_key, now.sum, stored)
            for request in now.requests:
                self._answer(key, request, server)

    def _answer(self, key: int, meta: KVMeta, server: KVServer) -> None:
        """Answers a request: with the value, if it is a pull too."""
        if not meta.pull:
            server.response(meta)
            return
        if key not in self._stored:
            raise ValueError(f"key {key - self._first_key} has no value yet: init it first")
        value = self._stored[key].view(np.uint8)
        server.response(meta, KVPairs(np.array([key], np.uint64), value, np.array([value.size], np.int32)))


def main() -> int:
    """Serves MXNet's workers until the cluster has ended."""
    start()
    MXNetStore(KVServer(0))
    finalize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
