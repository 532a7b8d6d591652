"""Why processes failed: the first cause in full and first, and each end that follows from it in one line. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ._process import Process

HOLD_S: Final = 2.0
"""How long last words are held back while their process still runs: it may go on after them."""
MOST: Final = 1000
"""Lines that are held back."""

BEGIN: Final = b"Traceback (most recent call last):"
NODE: Final = r"(?P<node>(?:worker|server) \d+|scheduler) was lost: (?P<why>.*)"
LOST: Final = re.compile(rf"(?:[\w.]*NodeLostError|fptps \w+): {NODE}")
RECORD: Final = re.compile(rf'{{"time":.*"level":"ERROR","msg":"{NODE}')


class Loss(NamedTuple):
    """That a node was lost, as the last words of another one say."""

    node: str
    why: str


class LastWords:
    """What a process says last on stderr: a traceback, or the line with which a server or the scheduler ends.

    While they tell only that another node was lost, they are held back: if the process ends so, one line stands for
    them.
    """

    def __init__(self) -> None:
        self.loss: Loss | None = None
        self.error = ""
        """The last line of the last traceback."""
        self._held: list[bytes] = []
        self._open = False  # a traceback has begun, and not come to its last line
        self._since = 0.0

    def feed(self, lines: list[bytes], now: float) -> list[bytes]:
        """Lines that the process has written; returns those to pass on. now: monotonic seconds."""
        out: list[bytes] = []
        for line in lines:
            if not self._open or len(self._held) >= MOST:
                out += self.release()
                self.loss, self.error = None, ""
            self._line(line, out)
            self._since = now
        return out

    def _line(self, line: bytes, out: list[bytes]) -> None:
        self._held.append(line)
        if self._open and (not line or line[:1].isspace()):
            return
        if line == BEGIN:
            self._open = True
            return
        text = line.decode(errors="replace")
        if self._open:
            self.error = text
        self._open = False
        found = LOST.match(text)
        record = None if found else RECORD.match(text)
        if found or record:
            match = found or record
            assert match
            self.loss = Loss(match["node"], match["why"])
        if not found:  # records of JSON are one line each, as they are
            out += self.release()

    def release(self) -> list[bytes]:
        """What is held back, to be passed on."""
        held, self._held, self._open = self._held, [], False
        return held

    def expire(self, now: float) -> list[bytes]:
        """What was held back for too long, as the process goes on."""
        return self.release() if self._held and now >= self._since + HOLD_S else []

    def drop(self) -> None:
        """Forgets what is held back, as another line stands for it."""
        self._held = []


class Causes:
    """The order in which the ends of processes are told. An end that follows from another's waits for that."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._waiting: list[tuple[Loss, str]] = []

    def ended(self, process: Process, text: str, words: LastWords) -> list[str]:
        """The lines to print now that a process has failed; text: how."""
        self._told.add(process.name)
        if words.loss is None or words.loss.node == process.name:
            own = [f"{text}: {words.error}" if words.error else text]
        else:
            own = []
            self._waiting.append((words.loss, f"{text}, as {words.loss.node} was lost"))
        due = [line for loss, line in self._waiting if loss.node in self._told]
        self._waiting = [(loss, line) for loss, line in self._waiting if loss.node not in self._told]
        return own + due

    def rest(self) -> list[str]:
        """The lines to print when the run has ended. The lost nodes have not failed by themselves: the others gave them
        up, or they are not of this run."""
        lines: list[str] = []
        for loss, line in self._waiting:
            lost = f"fptps: {loss.node} was lost: {loss.why.removesuffix('. The cluster cannot go on without it')}"
            lines += [line] if lost in lines else [lost, line]
        self._waiting = []
        return lines
