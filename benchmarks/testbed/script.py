"""What happens during a run: changes of rates, and traffic of other programs. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from .quantities import Rate, assignment, bits, both_ways, seconds

NOTHING: Final = "0"
"""The rate of a direction in which no traffic flows."""


class When(NamedTuple):
    """A time of a run: seconds since it began, or how many iterations worker 0 has finished."""

    seconds: float = math.inf
    iterations: float = math.inf

    @classmethod
    def parse(cls, text: str) -> When:
        """From "3s" or "iteration:20"."""
        match = re.fullmatch(r"iteration:(\d+)", text)
        if match is not None:
            return cls(iterations=int(match[1]))
        try:
            return cls(seconds=seconds(text))
        except ValueError:
            raise ValueError(f"{text!r} is not a time of a run: 3s or iteration:20 are expected") from None

    def __str__(self) -> str:
        return f"{self.seconds:g}s" if self.seconds < math.inf else f"iteration:{self.iterations:g}"

    def before(self, other: When) -> bool:
        """Whether it comes before another time that is of the same kind."""
        return self.seconds < other.seconds < math.inf or self.iterations < other.iterations < math.inf

    def reached(self, now: float, iterations: int) -> bool:
        """Whether it is past."""
        return self.seconds <= now or self.iterations <= iterations


class Change(NamedTuple):
    """A link gets another rate."""

    node: str
    rate: Rate

    def __str__(self) -> str:
        return f"{self.node}={self.rate}"


class Traffic(NamedTuple):
    """A flow of another program over a node's link each way, in bits per second; 0 for none."""

    kind: str
    """tcp or udp"""
    node: str
    send: float
    receive: float
    span: str
    """When, as it was asked for; tells apart flows that are alike."""
    rates: str
    """As they were asked for."""

    def __str__(self) -> str:
        return f"{self.kind} {self.rates}"


class Begin(NamedTuple):
    """Traffic begins."""

    traffic: Traffic

    def __str__(self) -> str:
        return f"{self.traffic} begins"


class End(NamedTuple):
    """Traffic ends."""

    traffic: Traffic

    def __str__(self) -> str:
        return f"{self.traffic} ends"


class Entry(NamedTuple):
    """What happens, and when."""

    when: When
    action: Change | Begin | End


def change(when: str, what: str) -> list[Entry]:
    """Of "3s" and "worker:1=250mbit"."""
    node, rate = assignment(what)
    return [Entry(When.parse(when), Change(node, Rate.parse(rate)))]


def traffic(kind: str, when: str, what: str) -> list[Entry]:
    """Of "udp", "3s..9s" and "worker:1=200mbit,0". Without an end, "3s..", it flows until the run ends."""
    begin, dots, end = when.partition("..")
    if not dots:
        raise ValueError(f"{when!r} is not a span: BEGIN..END is expected, as in 3s..9s, or BEGIN.. for no end")
    node, rates = assignment(what)
    send, receive = (0.0 if rate == NOTHING else bits(rate) for rate in both_ways(rates))
    if not send + receive:
        raise ValueError(f"{what!r} sends nothing and receives nothing")
    flow = Traffic(kind, node, send, receive, when, what)
    entries = [Entry(When.parse(begin), Begin(flow))]
    if end:
        entries.append(Entry(When.parse(end), End(flow)))
        if not entries[0].when.before(entries[1].when):
            raise ValueError(f"{when!r}: the end is to come after the begin, both in seconds or both in iterations")
    return entries


def nodes_of(entries: Iterable[Entry]) -> list[str]:
    """The nodes that a script names."""
    return [e.action.node if isinstance(e.action, Change) else e.action.traffic.node for e in entries]


class Timetable:
    """The entries of a script that are still to come."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.left = sorted(entries, key=lambda entry: entry.when)  # those by iterations keep their order too

    def take(self, now: float, iterations: int) -> list[Entry]:
        """The entries whose time has come, which leave the timetable. now: seconds since the run began."""
        due = [entry for entry in self.left if entry.when.reached(now, iterations)]
        self.left = [entry for entry in self.left if not entry.when.reached(now, iterations)]
        return due

    def wait_s(self, now: float) -> float:
        """Seconds until the next entry's time; infinity if none is known."""
        return max(0.0, min((entry.when.seconds for entry in self.left), default=math.inf) - now)
