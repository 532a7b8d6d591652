"""A process of a cluster: the command that starts it, and its state."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import NamedTuple


class Command(NamedTuple):
    """A process to start."""

    role: str
    rank: int | None
    arguments: list[str]
    environment: dict[str, str]


@dataclass(eq=False)  # two may have the same name, and even the same pid, one after the other
class Process:
    """A process of the cluster."""

    role: str
    rank: int | None
    """None for a process that was started later, until it takes part: the scheduler gives it its rank."""
    pid: int
    returncode: int | None = None
    """None while it runs; the exit code, or the negative number of the signal that killed it."""
    asked: bool = field(default=False, repr=False)
    """This run has sent it a signal, so that its end is no failure."""
    spare: bool = field(default=False, repr=False)
    """The cluster may go on without it: a server or a worker, with FPTPS_RECOVERY=1."""
    later: int = field(default=0, repr=False)
    """Its number among those of its role that were started later, from 1; 0: it was there from the start."""
    takes_part: bool = field(default=False, repr=False)
    """For a worker with spare: it has joined, and was admitted if it came later."""
    left: bool = field(default=False, repr=False)
    """For a worker with spare: it has left the cluster in good order."""
    replaced: bool = field(default=False, repr=False)
    """Another one takes its place."""

    @property
    def name(self) -> str:
        """Its role and rank, "scheduler", "server 0", "worker 3"; or "worker +1": the first one started later, whatever
        rank the scheduler gives it."""
        return f"{self.role} +{self.later}" if self.later else name_of(self.role, self.rank)

    @property
    def died_alone(self) -> bool:
        """The cluster may go on without it, and it did not end itself with an error, as after a mistake."""
        code = self.returncode or 0
        return self.spare and (self.role == "server" or code < 0 or code > 128)

    @property
    def too_late(self) -> bool:
        """A worker that was started later and has not taken part."""
        return self.role == "worker" and self.later > 0 and not self.takes_part

    @property
    def given_up(self) -> bool:
        """A worker that took part and has not left in good order: once the cluster has ended so, without it."""
        return self.role == "worker" and self.takes_part and not self.left

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


def name_of(role: str, rank: int | None) -> str:
    """A process's name in output and errors."""
    return role if role == "scheduler" else f"{role} {rank}"
