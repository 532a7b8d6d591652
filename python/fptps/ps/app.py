"""SimpleApp: requests of a number and some bytes; the base of KVWorker and KVServer."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .._arguments import default_timeout
from ..errors import OF_CORE, BusyError, ClosedError, RemoteError, TimeoutError, from_core
from ..ticket import SLICE_S
from .postoffice import Postoffice

_log = logging.getLogger("fptps")

PATIENCE_S: Final = 5.0
"""How long a simple request waits for its handle: as long as the core keeps a request whose app is not open."""

SLICE_MS: Final = int(SLICE_S * 1000)

KEPT_OUTCOMES: Final = 1 << 14
"""How many ended requests keep their outcome for wait(), as in the core. The oldest makes room for the next."""

Event = dict[str, Any]
"""An event of the core, parsed: pybind/ps.go has the names."""


@dataclass(frozen=True)
class SimpleData:
    """A request, or the response to one."""

    head: int
    body: bytes
    sender: int
    """Id of the node."""
    timestamp: int
    customer_id: int
    _event: str = ""


class Outcome:
    """The state of a request, and its result once it has ended."""

    def __init__(self, finish: Callable[[Event], Any] | None, callback: Callable[[], None] | None) -> None:
        self.finish = finish
        self.callback = callback
        self.ended = False
        self.failure: BaseException | None = None
        self.result: Any = None


class SimpleApp:
    """One end of an app on this node: requests of a number (head) and bytes (body) to nodes and groups.

    app_id names the app on all nodes. A worker may have several customers of an app, each with its own requests;
    servers and the scheduler have one. Handles and callbacks run one at a time on a thread of the app, in the order
    of their priority, and those of one node for the same keys in its order. An exception in a handle is the
    requester's RemoteError.

    Raises ClosedError before start(), and ValueError if this customer exists already.
    """

    def __init__(self, app_id: int, customer_id: int) -> None:
        # Not at the top: a process that forks before its start() can use fptps in the child.
        from .. import _core

        self._core: Final = _core
        self._office: Final = Postoffice.get()
        self._handle: Final = self._office.handle
        self._id: Final = (app_id, customer_id)
        self._changed = threading.Condition()
        self._outcomes: dict[int, Outcome] = {}  # of requests that are under way
        self._kept: dict[int, Outcome] = {}  # of ended requests with a result or an error; at most KEPT_OUTCOMES
        self._stopped = False
        self._simple_handle: Callable[[SimpleData, SimpleApp], None] | None = None
        self._early: list[SimpleData] = []  # simple requests that came before their handle
        self._patience = time.monotonic() + PATIENCE_S
        self._response_handle: Callable[[SimpleData, SimpleApp], None] | None = None
        self._thread: threading.Thread | None = None
        _core.ps_customer(self._handle, app_id, customer_id)
        self._office.enter(self)
        self._begin()

    def request(self, head: int, body: bytes, recv_id: int) -> int:
        """Sends a request to a node by its id, or to each of a group; returns its timestamp for wait().

        wait() returns when all have responded. RemoteError there if one answers with an error.
        """
        data = np.frombuffer(body, np.uint8)
        address = data.ctypes.data if len(data) else 0
        with self._changed:  # so that its end is not reported before it is recorded
            return self._sent(self._core.ps_request(self._handle, *self._id, head, address, len(data), recv_id))

    def set_request_handle(self, handle: Callable[[SimpleData, SimpleApp], None]) -> None:
        """Sets the function that is called as handle(request, app) for each simple request. It has to call
        app.response(request), at once or later.

        Until 5 s after the app's start requests wait for a handle. From then on, without a handle, they are answered
        with an empty body.
        """
        self._simple_handle = handle

    def set_response_handle(self, handle: Callable[[SimpleData, SimpleApp], None]) -> None:
        """Sets the function that is called as handle(response, app) for each response to a request of this app."""
        self._response_handle = handle

    def response(self, request: SimpleData, body: bytes = b"") -> None:
        """Answers a request. Any thread may call it."""
        data = np.frombuffer(body, np.uint8)
        address = data.ctypes.data if len(data) else 0
        self._core.ps_respond(self._handle, *self._id, request._event, address, len(data), 0, 0, 0, 0, 0, 0, 0)

    def wait(self, timestamp: int) -> Any:
        """Waits until a request has ended, at most FPTPS_TIMEOUT; after TimeoutError one may wait again.

        Returns the values of a pull or push_pull that was given no array for them, once; else None. Raises what the
        request ended with: RemoteError, NodeLostError, or what its callback raised.
        """
        seconds = default_timeout()
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                outcome = self._outcomes.get(timestamp) or self._kept.get(timestamp)
                own_thread = threading.current_thread() is self._thread
                if outcome is None or (outcome.ended and (own_thread or outcome.callback is None)):
                    break
                if own_thread:
                    raise BusyError("wait() in a handle or callback of the same app would wait for itself")
                if (
                    not self._changed.wait(min(SLICE_MS / 1000, max(end - time.monotonic(), 0)))
                    and time.monotonic() > end
                ):
                    raise self._too_late(timestamp, seconds)
            self._outcomes.pop(timestamp, None)
            self._kept.pop(timestamp, None)
        if outcome is None:
            return None
        if outcome.failure is not None:
            raise outcome.failure
        return outcome.result

    def _too_late(self, timestamp: int, seconds: float) -> TimeoutError:
        names = self._core.ps_missing(self._handle, *self._id, timestamp)
        return TimeoutError(
            f"request {timestamp}: waited {seconds:g} s; no answer from {names or 'itself'}",
            missing=names.split(", ") if names else (),
        )

    def stop(self) -> None:
        """Ends the app, for finalize(). Requests that have not ended fail."""
        self._stopped = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._changed:
            for outcome in self._outcomes.values():
                if not outcome.ended:
                    outcome.ended, outcome.callback = True, None
                    outcome.failure = ClosedError("the node has left its cluster")
            self._changed.notify_all()

    def _sent(
        self, timestamp: int, finish: Callable[[Event], Any] | None = None, callback: Callable[[], None] | None = None
    ) -> int:
        """Records a request that is under way."""
        self._outcomes[timestamp] = Outcome(finish, callback)
        return timestamp

    def _begin(self) -> None:
        """Starts the thread that takes the core's events."""
        self._thread = threading.Thread(target=self._poll, name=f"fptps.ps app {self._id[0]}", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stopped:
            try:
                text = self._core.ps_next(self._handle, *self._id, SLICE_MS)
            except ClosedError:
                return
            self._serve_simple()
            if text:
                self._take(text, json.loads(text))

    def _take(self, text: str, event: Event) -> None:
        if event["kind"] == "result":
            self._end(event)
        elif event["kind"] == "response":
            handle = self._response_handle
            if handle is not None:
                self._guard("", handle, self._data(text, event), self)
        elif event["simple"]:
            self._early.append(self._data(text, event))
            self._serve_simple()
        else:
            self._guard(text, self._serve, text, event)

    def _guard(self, request: str, handle: Callable[..., None], *arguments: Any) -> None:
        """Calls a handle; an exception of it becomes the answer to the request ("": to none)."""
        try:
            handle(*arguments)
        except Exception as error:
            _log.exception("a handle of app %d failed", self._id[0])
            if request:
                self._fail(request, error)

    def _serve_simple(self) -> None:
        """Serves the simple requests, if there is a handle or the time to set one is over."""
        handle = self._simple_handle
        if handle is None and time.monotonic() < self._patience:
            return
        while self._early:
            request = self._early.pop(0)
            self._guard(request._event, handle or _acknowledge, request, self)

    def _fail(self, request: str, error: Exception) -> None:
        """Answers a request with an exception."""
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        try:
            self._core.ps_fail(self._handle, *self._id, request, text)
        except OF_CORE as unsent:
            _log.warning("an error could not be sent: %s", unsent)

    def _serve(self, text: str, event: Event) -> None:
        """Answers a push or pull."""
        raise RemoteError(f"app {self._id[0]} takes no pushes and pulls on this node")

    def _data(self, text: str, event: Event) -> SimpleData:
        body = base64.b64decode(event["body"] or "")
        return SimpleData(event["head"], body, event["peer"], event["timestamp"], event["customer"], text)

    def _end(self, event: Event) -> None:
        """Ends a request: fills in its values, calls its callback, then wakes its waiters."""
        with self._changed:
            outcome = self._outcomes.get(event["timestamp"])
        if outcome is None:
            return  # a signal handler's exception interrupted the call that made it
        try:
            if event["error"]:
                outcome.failure = from_core(event["error"])
            elif outcome.finish is not None:
                outcome.result = outcome.finish(event)
        except Exception as error:
            outcome.failure = error
        outcome.ended = True
        if outcome.callback is not None:
            try:
                outcome.callback()
            except Exception as error:
                _log.exception("a callback of app %d failed", self._id[0])
                outcome.failure = outcome.failure or error
        with self._changed:
            outcome.callback = None
            if self._outcomes.pop(event["timestamp"], None) and (outcome.failure or outcome.result is not None):
                self._kept[event["timestamp"]] = outcome
            while len(self._kept) > KEPT_OUTCOMES:
                self._kept.pop(next(iter(self._kept)))
            self._changed.notify_all()


def _acknowledge(request: SimpleData, app: SimpleApp) -> None:
    SimpleApp.response(app, request)
