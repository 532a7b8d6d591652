"""Brings the facts of all hosts and the measurements of all pairs to the first host, which asks for them.

Every host listens, and tries to connect to the first one, as that tries to connect to it: one way is enough to be
asked. The pairs are measured in rounds in which each host belongs to one pair.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from . import wire
from .facts import Facts
from .listener import Answers, Listener
from .measure import Dial, Hello, Pair, Target, connect
from .wire import BrokenPeerError, Channel

AGAIN_S: Final = 0.3
"""Between two attempts to connect to a host whose doctor may not have been started yet."""
ANSWER_S: Final = 20.0
PAIR_S: Final = 60.0


@dataclasses.dataclass
class Reach:
    """An attempt of a host to connect to another one at the address that nodes there announce."""

    first: int
    second: int
    dial: Dial


@dataclasses.dataclass
class Report:
    """All that is known of a cluster's hosts; they are numbered in the order of --hosts."""

    hosts: list[str]
    port: int
    facts: dict[int, Facts]
    pairs: list[Pair]
    """Each pair once, its first host being the lower number, as far as both answer."""
    back: list[Reach]
    """The second hosts' attempts to connect to the first ones, by name."""
    reaches: list[Reach]
    silent: dict[int, str]
    """Hosts that do not answer, and what came of the attempt to connect to them."""


def rounds(hosts: Sequence[int]) -> list[list[tuple[int, int]]]:
    """All pairs, in rounds in which each host belongs to one pair at most (the circle method)."""
    ring: list[int | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    found = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]))
        found.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


class Gatherer:
    """The first host's part."""

    def __init__(self, me: Hello, hosts: list[str], port: int, answers: Answers) -> None:
        self._me = me
        self._answers = answers
        self._arrived: queue.Queue[tuple[int, Channel]] = queue.Queue()
        self._controls: dict[int, Channel] = {}
        self._errors: dict[int, str] = {}
        self._complete = threading.Event()
        self.report = Report(hosts, port, {}, [], [], [], {})

    def offered(self, host: int, channel: Channel) -> None:
        """Takes a connection over which a host wants to be asked."""
        if 0 < host < len(self.report.hosts):
            self._arrived.put((host, channel))
        else:
            channel.close()

    def gather(self, timeout: float, say: Callable[[str], None]) -> Report:
        """Waits until all hosts answer, at most timeout seconds, and asks those that do. say: shows what is done."""
        self._meet(timeout, say)
        asked = {host: self._ask(host, {"do": "facts"}, ANSWER_S) for host in (0, *sorted(self._controls))}
        for host, answer in asked.items():
            self._decode(host, Facts, answer, functools.partial(self.report.facts.__setitem__, host))
        for number, pairs in enumerate(all_ := rounds(sorted(self.report.facts))):
            say(f"measures {len(pairs)} of the pairs of hosts, round {number + 1} of {len(all_)}")
            threads = [threading.Thread(target=self._measure, args=pair) for pair in pairs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for found in (self.report.pairs, self.report.back, self.report.reaches):
            found.sort(key=lambda each: (each.first, each.second))
        return self.report

    def end(self, findings: int) -> None:
        """Tells the others that all is there."""
        for host in sorted(self._controls):
            with contextlib.suppress(BrokenPeerError):  # one that is silent by now
                self._controls[host].send({"do": "end", "findings": findings})

    def _meet(self, timeout: float, say: Callable[[str], None]) -> None:
        others = set(range(1, len(self.report.hosts)))
        for host in others:
            threading.Thread(target=self._call, args=(host,), daemon=True).start()
        end = time.monotonic() + timeout
        said = time.monotonic() + 2.0
        while others - self._controls.keys() and time.monotonic() < end:
            try:
                host, channel = self._arrived.get(timeout=0.5)
            except queue.Empty:
                if time.monotonic() > said:
                    names = ", ".join(self.report.hosts[host] for host in sorted(others - self._controls.keys()))
                    say(f"waits for {names}: run the same command there")
                    said = end
                continue
            if host in self._controls:
                channel.close()
            else:
                self._controls[host] = channel
        self._complete.set()
        for host in sorted(others - self._controls.keys()):
            self.report.silent[host] = self._errors.get(host, "no answer")

    def _call(self, host: int) -> None:
        """Tries to connect to a host until all answer."""
        target = Target(host, self.report.hosts[host], self.report.port)
        while host not in self._controls and not self._complete.is_set():
            channel, dial = connect(self._me, target)
            self._errors[host] = dial.error
            if channel:
                self._arrived.put((host, channel))
                return
            self._complete.wait(AGAIN_S)

    def _measure(self, first: int, second: int) -> None:
        """One pair; each host is asked by one thread at a time."""
        by_name = {"do": "pair", "target": wire.encode(self._target(second, self.report.hosts[second]))}
        self._decode(first, Pair, self._ask(first, by_name, PAIR_S), self.report.pairs.append)
        self._dial(second, first, self.report.hosts[first], self.report.back)
        for one, other in ((first, second), (second, first)):
            if address := self.report.facts[other].announced:
                self._dial(one, other, address, self.report.reaches)

    def _dial(self, first: int, second: int, address: str, found: list[Reach]) -> None:
        message = {"do": "dial", "target": wire.encode(self._target(second, address))}
        answer = self._ask(first, message, ANSWER_S)
        self._decode(first, Dial, answer, lambda dial: found.append(Reach(first, second, dial)))

    def _target(self, host: int, address: str) -> Target:
        return Target(host, address, self.report.port)

    def _ask(self, host: int, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer of a host; {} from one that does not answer, and is not asked again."""
        if host in self.report.silent:
            return {}
        try:
            return self._controls[host].ask(message, seconds) if host else self._answers.to(message)
        except BrokenPeerError as error:
            self.report.silent[host] = str(error)
            return {}

    def _decode(self, host: int, kind: type[Any], answer: dict[str, Any], keep: Callable[[Any], None]) -> None:
        if not answer:
            return
        try:
            keep(wire.decode(kind, answer))
        except BrokenPeerError as error:
            self.report.silent[host] = str(error)


def attend(me: Hello, first: Target, listener: Listener, answers: Answers, timeout: float) -> str:
    """The part of every other host: lets the first one ask. Returns why it has not; "": it has everything."""
    stop = threading.Event()
    errors = [""]

    def call() -> None:
        while not stop.is_set():
            channel, dial = connect(me, first)
            errors[0] = dial.error
            if channel:
                try:
                    channel.send({"do": "offer"})
                    listener.serve(channel, first.host)
                except BrokenPeerError:  # the first host has another connection with this one, or has ended
                    pass
                finally:
                    channel.close()
                return
            stop.wait(AGAIN_S)

    threading.Thread(target=call, daemon=True).start()
    try:
        if not answers.asked.wait(timeout):
            return errors[0] or "it does not ask"
        return "" if answers.ended.wait(PAIR_S * 10) else "it has not come to the end"
    finally:
        stop.set()
