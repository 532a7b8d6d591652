"""A process of a cluster: the command that starts it, and its state."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import NamedTuple


class Command(NamedTuple):
    """A process to start."""

    role: str
    rank: int
    arguments: list[str]
    environment: dict[str, str]


@dataclass
class Process:
    """A process of the cluster."""

    role: str
    rank: int
    pid: int
    returncode: int | None = None
    """None while it runs; the exit code, or the negative number of the signal that killed it."""
    asked: bool = field(default=False, repr=False)
    """This run has sent it a signal, so that its end is no failure."""
    spare: bool = field(default=False, repr=False)
    """The cluster may go on without it: a server or a worker, with FPTPS_RECOVERY=1."""

    @property
    def name(self) -> str:
        """Its role and rank: "scheduler", "server 0", "worker 3"."""
        return name_of(self.role, self.rank)

    @property
    def died_alone(self) -> bool:
        """The cluster may go on without it, and it did not end itself with an error, as after a mistake."""
        code = self.returncode or 0
        return self.spare and (self.role == "server" or code < 0 or code > 128)

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it: 128 + n for signal n; 0 while it runs."""
        code = self.returncode or 0
        return code if code >= 0 else 128 - code

    def how_it_ended(self) -> str:
        """One clause for a person."""
        if self.returncode is None:
            return "is running"
        if self.returncode < 0:
            return f"was killed by {signal.Signals(-self.returncode).name}"
        return f"ended with exit code {self.returncode}"


def name_of(role: str, rank: int) -> str:
    """A process's name in output and errors."""
    return role if role == "scheduler" else f"{role} {rank}"
