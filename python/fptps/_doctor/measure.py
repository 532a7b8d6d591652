"""Measurements between this host and another one: connections, delay, clocks, rates, the size of packets."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import socket
import threading
import time
from typing import Any, Final

from .wire import BrokenPeerError, Channel

CONNECT_S: Final = 3.0
RATE_S: Final = 0.5
"""How long one rate is measured."""
SETTLE: Final = 0.3
"""The part of it that TCP takes to open its window, which does not count."""
STUCK_S: Final = 2.0
"""Longer than it no data is on its way, unless the network drops it."""
PINGS: Final = 20
CHUNK: Final = 256 * 1024
SIZES: Final = (1400, 1300, 1200, 1000, 800, 536)
"""Bytes of TCP segments to try where those of the interface are lost."""
HALF: Final = 0.65
"""Both directions at once carry at least so much of what each carries alone, unless they share the medium."""
HALF_MBIT: Final = 1000.0
"""No faster medium is shared by both directions; there a processor may be what is too slow for both."""
ATTEMPTS: Final = 4
"""How often both directions are measured at once while they seem to share the medium: another program may have used the
link, or the processor."""
IP_MTU: Final = 14
SOL_IP: Final = 0


@dataclasses.dataclass
class Target:
    """Where another host's doctor listens."""

    host: int
    address: str
    """An address or a name."""
    port: int


@dataclasses.dataclass
class Dial:
    """An attempt to connect."""

    error: str = ""
    """Why it failed; "": it did not."""
    kind: str = ""
    """ "refused", "timeout", "unreachable", "name", "other", or "stranger": no doctor of that host answers."""
    local: str = ""
    """This host's address on the connection."""
    mtu: int = 0
    """Of the route."""


@dataclasses.dataclass
class Pair:
    """A pair of hosts, by their numbers, as the first one measures it. Rates: Mbit/s, 0 if nothing came."""

    first: int
    second: int
    dial: Dial
    delay: float = 0.0
    """Seconds there and back, the least of some."""
    offset: float = 0.0
    """Seconds by which the second host's clock is ahead, to half the delay."""
    there: float = 0.0
    back: float = 0.0
    there_both: float = 0.0
    """Like there, while back is measured, too."""
    back_both: float = 0.0
    lost: bool = False
    """Large packets do not arrive."""
    passes: int = 0
    """If lost: bytes of the largest TCP segments that do arrive, of some that were tried; 0: none."""

    def shared(self) -> bool:
        """Whether both directions together carry so little more than one alone that they share the medium."""
        alone, both = self.there + self.back, self.there_both + self.back_both
        return 0 < alone < 2 * HALF_MBIT and both < HALF * alone


@dataclasses.dataclass
class Hello:
    """The first message of a connection."""

    doctor: int
    """1"""
    host: int
    """Of the sender."""
    to: int
    """Of the receiver."""
    token: str


def connect(me: Hello, target: Target, segment: int = 0) -> tuple[Channel | None, Dial]:
    """A connection with the doctor of another host, or why there is none. segment: bytes at most; 0: as the kernel
    chooses."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.settimeout(CONNECT_S)
        if segment:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
        connection.connect((target.address, target.port))
        channel = Channel(connection)
        answer = channel.ask(dataclasses.asdict(dataclasses.replace(me, to=target.host)), CONNECT_S)
        if answer.get("host") != target.host:
            raise BrokenPeerError(str(answer.get("refused", "the doctor of another host answers there"))[:200])
        mtu = connection.getsockopt(SOL_IP, IP_MTU)
        return channel, Dial(local=connection.getsockname()[0], mtu=mtu)
    except (OSError, UnicodeError, BrokenPeerError) as error:
        connection.close()
        return None, Dial(error=_text(error), kind=_kind(error))


def _text(error: Exception) -> str:
    if isinstance(error, socket.timeout):
        return f"no answer within {CONNECT_S:g} s"
    return getattr(error, "strerror", None) or str(error)


def _kind(error: Exception) -> str:
    if isinstance(error, BrokenPeerError):
        return "stranger"
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return "name"
    if isinstance(error, socket.timeout) or getattr(error, "errno", None) == errno.ETIMEDOUT:
        return "timeout"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    unreachable = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM)
    return "unreachable" if getattr(error, "errno", None) in unreachable else "other"


def pair(me: Hello, target: Target) -> Pair:
    """Measures all between this host and another one, in some 2 s; some 10 s if large packets are lost."""
    channel, dial = connect(me, target)
    found = Pair(me.host, target.host, dial)
    if channel is None:
        return found
    with contextlib.closing(channel), contextlib.suppress(BrokenPeerError):
        found.delay, found.offset = _clocks(channel)
        found.there = _send(me, target, RATE_S)
        found.back = _fetch(me, target, RATE_S)
        if not found.there or not found.back:
            found.lost = True
            works = (size for size in SIZES if _send(me, target, 0.1, size) and _fetch(me, target, 0.1, size))
            found.passes = next(works, 0)
        else:
            for _ in range(ATTEMPTS):
                _both(me, target, found)
                if not found.shared():
                    break
    return found


def _both(me: Hello, target: Target, found: Pair) -> None:
    """Measures both directions at once."""
    rates = [0.0]
    other = threading.Thread(target=lambda: rates.append(_fetch(me, target, RATE_S)))
    other.start()
    there = _send(me, target, RATE_S)
    other.join()
    if there + rates[-1] > found.there_both + found.back_both:
        found.there_both, found.back_both = there, rates[-1]


def clock() -> dict[str, float]:
    """This host's, as an answer."""
    return {"time": time.time()}


def _clocks(channel: Channel) -> tuple[float, float]:
    """The least delay, and the offset of the other clock in that exchange."""
    best = (float("inf"), 0.0)
    for _ in range(PINGS):
        began, wall = time.perf_counter(), time.time()
        answer = channel.ask({"do": "clock"}, CONNECT_S)
        took = time.perf_counter() - began
        there = answer.get("time")
        if not isinstance(there, (int, float)) or not abs(there) < 1e12:
            raise BrokenPeerError("its clock makes no sense")
        best = min(best, (took, there - wall - took / 2))
    return best


def _send(me: Hello, target: Target, seconds: float, segment: int = 0) -> float:
    """The rate at which the other host receives, Mbit/s; 0 if nothing comes, or not all in time."""
    channel, _ = connect(me, target, segment)
    if channel is None:
        return 0.0
    with contextlib.closing(channel), contextlib.suppress(BrokenPeerError):
        channel.ask({"do": "sink", "seconds": seconds}, CONNECT_S)
        pour(channel.socket, seconds)
        rate = channel.receive(seconds + 2 * STUCK_S).get("rate")
        return float(rate) if isinstance(rate, (int, float)) and 0 <= rate < 1e9 else 0.0
    return 0.0


def _fetch(me: Hello, target: Target, seconds: float, segment: int = 0) -> float:
    """The rate at which this host receives, Mbit/s; 0 if nothing comes."""
    channel, _ = connect(me, target, segment)
    if channel is None:
        return 0.0
    with contextlib.closing(channel), contextlib.suppress(BrokenPeerError):
        channel.send({"do": "source", "seconds": seconds})
        return drink(channel.socket, seconds)
    return 0.0


def pour(connection: socket.socket, seconds: float) -> None:
    """Sends bytes for some time, and then the end of the stream."""
    end = time.monotonic() + seconds
    chunk = bytes(CHUNK)
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            connection.settimeout(seconds + STUCK_S)
            connection.send(chunk)
        connection.shutdown(socket.SHUT_WR)


def drink(connection: socket.socket, seconds: float) -> float:
    """Reads what pour() sends, for little more than its time: Mbit/s."""
    room = bytearray(CHUNK)
    arrived: list[tuple[float, int]] = []  # when, and how many bytes so far
    total = 0
    end = time.monotonic() + seconds + STUCK_S
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            connection.settimeout(max(0.01, end - time.monotonic()))
            count = connection.recv_into(room)
            if not count:
                break
            total += count
            arrived.append((time.monotonic(), total))
            if arrived[-1][0] >= arrived[0][0] + 1.5 * seconds:  # the rest is what the sender's kernel has queued
                break
    return rate_of(arrived, seconds)


def rate_of(arrived: list[tuple[float, int]], seconds: float) -> float:
    """Mbit/s; arrived: times and the bytes until then. The first part, in which TCP opens its window, does not count if
    most comes after it."""
    if not arrived:
        return 0.0
    (first, _), (last, total) = arrived[0], arrived[-1]
    start, before = next((each for each in arrived if each[0] >= first + SETTLE * seconds), (last, total))
    if last - start < SETTLE * seconds:
        start, before = first, 0
    return (total - before) * 8e-6 / max(last - start, 1e-3)


def serve_rate(channel: Channel, message: dict[str, Any]) -> None:
    """The other end of a rate: "sink" reads, "source" sends."""
    seconds = message.get("seconds")
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= RATE_S:
        return
    if message.get("do") == "sink":
        channel.send({"ok": 1})
        channel.send({"rate": drink(channel.socket, seconds)})
    else:
        pour(channel.socket, seconds)
