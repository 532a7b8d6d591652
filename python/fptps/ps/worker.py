"""KVWorker: pushes and pulls values by key, at the servers whose keys they are."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._arguments import default_timeout
from .._arrays import Place, locate, locate_contiguous, number_of
from ..errors import OF_CORE, RemoteError, from_core
from .app import KEPT_OUTCOMES, SLICE_MS, Event, SimpleApp
from .values import Array, address, check_dtype, keys_of, lens_of, values_of

PUSH, PULL, AWAITED = 1, 2, 4
"""Flags of a request. With AWAITED the core reports its end to ps_wait(), and not to the app's thread."""
ENDED = 1
"""The core's state of a request that has ended without an error, with its values, if any, in the caller's array."""
NOWHERE = Place(0, 0, 0, None, (), ())
CROWD = 256
"""Up to so many pulls are kept without a check whether they have ended."""


class Pull(NamedTuple):
    """What the end of a pull needs. It keeps the arrays to fill until then."""

    keys: int
    place: Place | None
    lens: Array | None


class KVWorker(SimpleApp):
    """A worker's customer of the key-value app app_id; dtype is that of all its values.

    Keys are whole numbers from 0 to 2**64 - 2, ascending, each once. The value of a key is one or more elements: lens
    says how many each has, and without it all have the same number. A request is cut by the servers' key ranges and
    ends when all of them have answered. Requests for a common key are served in the order in which they were made.
    Larger priority is served first.
    """

    def __init__(self, app_id: int = 0, customer_id: int = 0, dtype: Any = "float32") -> None:
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._number = number_of(self.dtype)
        self._pulls: dict[int, Pull] = {}  # without a callback: under way, or with values for wait()
        self._crowd = CROWD
        # Pulls from before the call into the core until they are in _pulls or have their outcome. Where a signal
        # handler raises in between, one stays until the node has ended: the core may write to its arrays.
        self._beginning: dict[int, Pull] = {}
        self._begun = itertools.count()
        super().__init__(app_id, customer_id)

    def push(
        self,
        keys: Any,
        vals: Any,
        lens: Any = None,
        cmd: int = 0,
        callback: Callable[[], None] | None = None,
        priority: int = 0,
    ) -> int:
        """Sends values to the servers; returns the request's timestamp for wait().

        keys: 1-D, n whole numbers. vals: an array of the KVWorker's dtype, or a list. lens: None, or n whole numbers
        that add up to the number of values. cmd: for the server's handle. callback is called, without arguments and on
        the app's thread, when all servers have answered. The arrays may be changed as soon as push returns. ValueError
        or TypeError for arguments that do not fit together.
        """
        return self._exchange(PUSH, keys, vals, None, lens, None, cmd, callback, priority)

    def pull(
        self,
        keys: Any,
        vals: Any = None,
        lens: Any = None,
        cmd: int = 0,
        callback: Callable[[], None] | None = None,
        priority: int = 0,
    ) -> int:
        """Asks the servers for values; returns the request's timestamp for wait().

        vals: the array to fill, of the KVWorker's dtype and as many elements as the answer; without it wait() returns a
        new one. lens: None, or an int32 array of n elements to fill with each key's number of elements. Both are filled
        before the callback; until then, and where the request fails, vals may hold part of them.
        """
        if lens is not None and (
            not isinstance(lens, np.ndarray) or lens.dtype != np.int32 or not lens.flags.writeable
        ):
            raise TypeError("lens of a pull is an int32 array to fill")
        return self._exchange(PULL, keys, None, vals, None, lens, cmd, callback, priority)

    def push_pull(
        self,
        keys: Any,
        vals: Any,
        outs: Any = None,
        lens: Any = None,
        cmd: int = 0,
        callback: Callable[[], None] | None = None,
        priority: int = 0,
    ) -> int:
        """Pushes values and pulls the same keys in one request; vals and lens as in push(), outs as vals in pull()."""
        return self._exchange(PUSH | PULL, keys, vals, outs, lens, None, cmd, callback, priority)

    def _exchange(
        self,
        flags: int,
        keys: Any,
        vals: Any,
        out: Any,
        lens: Any,
        out_lens: Array | None,
        cmd: int,
        callback: Callable[[], None] | None,
        priority: int,
    ) -> int:
        asked = keys_of(keys)
        target = None
        if out is not None:
            target = locate_contiguous(out, write=True)
            check_dtype(target.dtype, self.dtype, "the array to fill")
        if out_lens is not None and out_lens.size != asked.size:
            raise ValueError(f"lens for {out_lens.size} keys, and there are {asked.size}")
        place = values_of(vals, self.dtype) if flags & PUSH and asked.size else NOWHERE
        sent = None if lens is None else lens_of(lens)
        pull = Pull(asked.size, target, out_lens) if flags & PULL else None

        def exchange(flags: int) -> int:
            timestamp: int = self._core.ps_exchange(
                self._handle, *self._id, flags, cmd, priority, self._number, address(asked), asked.size,
                place.address, place.nbytes, address(sent), 0 if sent is None else sent.size,
                *((target.address, target.nbytes) if target else (0, 0)),
            )  # fmt: skip
            return timestamp

        begun = next(self._begun)
        if pull is not None:
            self._beginning[begun] = pull
        try:
            if callback is None:
                timestamp = exchange(flags | AWAITED)
                if pull is not None:
                    self._pulls[timestamp] = pull
                    self._sweep()
            else:

                def finish(event: Event) -> Any:
                    return None if pull is None else self._fill(event, pull, self._core.ps_take, 0)

                with self._changed:  # so that its end is not reported before it is recorded
                    timestamp = self._sent(exchange(flags), finish, callback)
        except OF_CORE:  # refused: nothing is under way
            self._beginning.pop(begun, None)
            raise
        self._beginning.pop(begun, None)
        return timestamp

    def _sweep(self) -> None:
        """Releases the arrays of pulls that have ended, though no wait() has asked for them."""
        if len(self._pulls) < self._crowd:
            return
        for timestamp in list(self._pulls):
            if self._core.ps_wait(self._handle, *self._id, timestamp, 0) == ENDED:
                self._landed(self._pulls.pop(timestamp, None))
        self._crowd = 2 * len(self._pulls) + CROWD

    def wait(self, timestamp: int) -> Any:
        """See SimpleApp.wait."""
        with self._changed:
            of_app = timestamp in self._outcomes or timestamp in self._kept  # a SimpleApp request, or has a callback
        if of_app:
            return super().wait(timestamp)
        begin = time.monotonic()
        state = self._core.ps_wait(self._handle, *self._id, timestamp, SLICE_MS)
        while not state:
            if time.monotonic() > begin + default_timeout():
                raise self._too_late(timestamp, default_timeout())
            state = self._core.ps_wait(self._handle, *self._id, timestamp, SLICE_MS)
        pull = self._pulls.pop(timestamp, None)
        if state == ENDED:
            return self._landed(pull)
        text = self._core.ps_result(self._handle, *self._id, timestamp)
        if not text:
            raise RemoteError(
                f"the outcome of request {timestamp} was dropped: {KEPT_OUTCOMES} later ones have ended since"
            )
        event = json.loads(text)
        try:
            if event["error"]:
                raise from_core(event["error"])
            return None if pull is None else self._fill(event, pull, self._core.ps_fill, timestamp)
        finally:
            self._core.ps_fill(self._handle, *self._id, timestamp, 0, 0)

    def _landed(self, pull: Pull | None) -> Any:
        """Ends a request whose values, if any, the core has written to the caller's array already."""
        if pull is None:
            return None
        if pull.lens is not None and pull.place is not None:
            pull.lens[...] = pull.place.nbytes // self.dtype.itemsize // pull.keys
        return np.empty(0, self.dtype) if pull.place is None else None

    def _fill(self, event: Event, pull: Pull, take: Callable[..., int], name: int) -> Any:
        """Copies the values of an answer to the caller's array, or returns them in a new one if there is none."""
        if not pull.keys:
            return np.empty(0, self.dtype) if pull.place is None else None
        check_dtype(event["dtype"], self.dtype, "the values of the answer")
        count = event["bytes"] // self.dtype.itemsize
        made = np.empty(count, self.dtype) if pull.place is None else None
        place = NOWHERE if made is not None and not count else pull.place or locate(made, write=True)
        if place.nbytes != event["bytes"]:
            raise ValueError(f"the answer has {count} values, and the array to fill another number")
        lens = np.full(pull.keys, count // pull.keys, np.int32) if event["lens"] or pull.lens is not None else None
        values = 0 if event["landed"] else place.address
        take(self._handle, *self._id, name, values, address(lens) if event["lens"] else 0)
        if pull.lens is not None and lens is not None:
            pull.lens[...] = lens.reshape(pull.lens.shape)
        return made
