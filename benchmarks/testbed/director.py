"""Makes happen what a script says, during a run, and records it with what the programs report of themselves."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, NamedTuple

from .network import OUTSIDE, Holder, Network
from .program import Program
from .quantities import TestBedError
from .script import Begin, Change, End, Entry, Timetable, Traffic

TIMELINE: Final = "TESTBED_TIMELINE"
"""Environment variable: the file to which a program may append a line of JSON for each of its iterations."""
ITERATION: Final = "iteration"
MOST_S: Final = 60.0


class Event(NamedTuple):
    """Something happened to the links: it began and had its effect between two times, in seconds of the run."""

    begin: float
    end: float
    text: str


class Span(NamedTuple):
    """What a worker says it did: an iteration, say, between two times, in seconds of the run."""

    name: str
    rank: int
    number: int
    begin: float
    end: float


class Flows:
    """The programs that are traffic: one that sends, for each direction, and one that receives, for each node."""

    def __init__(self, network: Network, traffic: Sequence[Traffic]) -> None:
        self._programs: list[Program] = []
        self._senders: dict[Traffic, list[Program]] = {}
        ways = [(flow, *way) for flow in traffic for way in ways_of(flow)]
        try:
            for node in {target for _, _, target, _ in ways}:
                self._start(Program(network.enter(node), "flow", "sink", network.address(node)))
            for flow, source, target, rate in ways:
                address = network.address(target)
                sender = self._start(Program(network.enter(source), "flow", flow.kind, address, str(rate)))
                self._senders.setdefault(flow, []).append(sender)
            for program in self._programs:
                program.read()
        except BaseException:
            self.close()
            raise

    def begin(self, flow: Traffic) -> None:
        """Lets traffic flow."""
        for sender in self._senders[flow]:
            sender.write()

    def end(self, flow: Traffic) -> int:
        """Ends traffic; returns the bytes that it has sent, both ways together."""
        return sum(int(sender.finish()) for sender in self._senders[flow])

    def close(self) -> None:
        """Ends all programs."""
        for program in self._programs:
            program.end()

    def _start(self, program: Program) -> Program:
        self._programs.append(program)
        return program


def ways_of(flow: Traffic) -> list[tuple[str, str, float]]:
    """The flow's directions: from where, to where, how fast."""
    ways = [(flow.node, OUTSIDE, flow.send), (OUTSIDE, flow.node, flow.receive)]
    return [way for way in ways if way[2]]


class Director:
    """Follows a script in a thread, during a `with` block.

    echo: brings what workers report; start: when the run began, by time.monotonic(); change: changes a link's rate.
    """

    def __init__(
        self, entries: Sequence[Entry], flows: Flows, echo: Holder, start: float, change: Callable[[Change], None]
    ) -> None:
        self.events: list[Event] = []
        self.spans: list[Span] = []
        self._timetable = Timetable(entries)
        self._flows = flows
        self._start = start
        self._change = change
        self._iterations = 0
        self._running: dict[Traffic, float] = {}
        self._unfinished = b""
        self._failure: BaseException | None = None
        self._echo = echo
        self._last = secrets.token_hex().encode()  # the line after all that workers have written
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="testbed-director", daemon=True)

    def __enter__(self) -> Director:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._echo.write(b"\n" + self._last + b"\n")
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def record(self, text: str, begin: float) -> None:
        """Records what has just had its effect; begin: by time.monotonic()."""
        self.events.append(Event(begin - self._start, time.monotonic() - self._start, text))

    def missed(self) -> list[Entry]:
        """What did not happen, as the run was over before."""
        return [entry for entry in self._timetable.left if not isinstance(entry.action, End)]

    def _run(self) -> None:
        try:
            self._follow()
        except BaseException as failure:
            self._failure = failure
        while not self._ended:  # a worker that nobody reads from would wait
            self._lines()

    def _follow(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._echo.output, selectors.EVENT_READ)
            while True:
                now = time.monotonic() - self._start
                for entry in self._timetable.take(now, self._iterations):
                    self._do(entry.action)
                if self._ended:  # what the last reports lead to is done, too
                    break
                wait_s = self._timetable.wait_s(time.monotonic() - self._start)
                if selector.select(min(wait_s, MOST_S)):
                    self._read()
        for flow in list(self._running):
            self._do(End(flow))

    def _do(self, action: Change | Begin | End) -> None:
        now = time.monotonic()
        if isinstance(action, Change):
            self._change(action)
        elif isinstance(action, Begin):
            self._flows.begin(action.traffic)
            self._running[action.traffic] = now
            self.record(str(action), now)
        else:
            sent = self._flows.end(action.traffic)
            seconds = now - self._running.pop(action.traffic)
            self.record(f"{action}, after {sent / 1e6:.1f} MB in {seconds:.2f} s", now)

    def _read(self) -> None:
        """Takes in what workers report."""
        for line in self._lines():
            span = span_of(line, self._start)
            self.spans.append(span)
            if span.name == ITERATION and span.rank == 0:
                self._iterations += 1

    def _lines(self) -> list[bytes]:
        """Reads the lines that there are, at least a part of one."""
        data = os.read(self._echo.output, 1 << 16)
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        self._ended = not data or self._last in lines
        return [line for line in lines if line not in (b"", self._last)]


def span_of(line: bytes, start: float) -> Span:
    """A span from a line of a worker's."""
    try:
        said = json.loads(line)
        begin, end = float(said["begin"]) - start, float(said["end"]) - start
        return Span(str(said["name"]), int(said["rank"]), int(said["number"]), begin, end)
    except (ValueError, TypeError, KeyError):
        raise TestBedError(
            f"a program has appended {line[:100]!r} to ${TIMELINE}: a line of JSON with name, rank, number, begin and "
            "end is expected, the last two by time.monotonic()"
        ) from None
