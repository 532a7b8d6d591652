"""What a host answers the others: its facts, its clock, bytes to measure rates with, and what it measures itself."""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from . import measure, wire
from .facts import Facts
from .measure import Hello, Target
from .wire import BrokenPeerError, Channel

IDLE_S: Final = 300.0
"""How long a connection may be silent: the first host measures other pairs meanwhile."""
MOST: Final = 256
"""Connections at a time."""


class Answers:
    """The answers of a host to the first one, which may be itself."""

    def __init__(self, me: Hello, mine: Facts) -> None:
        self._me = me
        self._facts = mine
        self.asked = threading.Event()
        """The first host has asked for the facts."""
        self.ended = threading.Event()
        """The first host has everything."""
        self.findings = 0
        """How many it has found."""

    def to(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request. BrokenPeerError if it makes no sense."""
        do = message.get("do")
        answer: Any = {"refused": "an unknown request"}
        if do == "facts":
            self.asked.set()
            answer = wire.encode(self._facts)
        elif do == "clock":
            answer = measure.clock()
        elif do == "dial":
            channel, dial = measure.connect(self._me, wire.decode(Target, message.get("target")))
            if channel:
                channel.close()
            answer = wire.encode(dial)
        elif do == "pair":
            answer = wire.encode(measure.pair(self._me, wire.decode(Target, message.get("target"))))
        elif do == "end":
            self.findings = wire.decode(int, message.get("findings"))
            self.ended.set()
            answer = {"ok": 1}
        return dict(answer)


class Listener:
    """Answers other hosts on a port until it is closed; on threads of its own.

    A stranger, which does not name this host's number and the token, gets one line and is closed.
    """

    def __init__(self, me: Hello, port: int, answers: Answers, offered: Callable[[int, Channel], None]) -> None:
        """offered: takes a connection over which another host wants to be asked. OSError if the port is taken."""
        self._me = me
        self._answers = answers
        self._offered = offered
        self._free = threading.BoundedSemaphore(MOST)
        self._socket = socket.create_server(("", port), backlog=MOST)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, name="fptps doctor", daemon=True).start()

    def close(self) -> None:
        """Ends the listening. Connections end with their other ends, or with the process."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._socket.accept()
                if self._free.acquire(blocking=False):
                    threading.Thread(target=self._greet, args=(Channel(connection),), daemon=True).start()
                else:
                    connection.close()

    def _greet(self, channel: Channel) -> None:
        taken = False
        try:
            with contextlib.suppress(BrokenPeerError):
                hello = wire.decode(Hello, channel.receive(measure.CONNECT_S))
                refused = self._refusal(hello)
                channel.send({"refused": refused} if refused else {"host": self._me.host})
                taken = not refused and self.serve(channel, hello.host)
        finally:
            self._free.release()
            if not taken:
                channel.close()

    def _refusal(self, hello: Hello) -> str:
        if not hmac.compare_digest(hello.token.encode(), self._me.token.encode()):
            return "it has another FPTPS_TOKEN"
        return "" if hello.to == self._me.host else "the doctor of another host answers there"

    def serve(self, channel: Channel, other: int) -> bool:
        """Answers requests over a connection; True once the other host wants to be asked over it."""
        while True:
            message = channel.receive(IDLE_S)
            if message.get("do") in ("sink", "source"):
                measure.serve_rate(channel, message)
                return False
            if message.get("do") == "offer":
                self._offered(other, channel)
                return True
            channel.send(self._answers.to(message))
