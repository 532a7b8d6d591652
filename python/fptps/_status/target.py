"""Which cluster `fptps status` asks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .runs import Run


class Target(NamedTuple):
    """Where a scheduler listens, and the secret of its cluster."""

    host: str
    port: int
    token: str


class NoTarget(Exception):
    """No cluster is named, or several are."""


def choose(scheduler: str | None, environment: Mapping[str, str], runs: Sequence[Run]) -> Target:
    """The cluster whose scheduler is at "HOST:PORT", else that of DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT, else the only
    run of this user. Raises NoTarget."""
    token = environment.get("FPTPS_TOKEN", "")
    address = scheduler
    if address is None and environment.get("DMLC_PS_ROOT_URI"):
        address = f"{environment['DMLC_PS_ROOT_URI']}:{environment.get('DMLC_PS_ROOT_PORT', '')}"
    if address is not None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise NoTarget(f"{address}: HOST:PORT of a scheduler is expected, as 10.0.0.1:9000")
        host = host.strip("[]")
        own = next((run for run in runs if (run.host, run.port) == (host, int(port))), None)
        return Target(host, int(port), own.token if own else token)
    if len(runs) == 1:
        return Target(runs[0].host, runs[0].port, runs[0].token)
    if not runs:
        raise NoTarget(
            "no cluster: no `fptps run` of this user is under way on this machine, DMLC_PS_ROOT_URI is not set, and no "
            "--scheduler HOST:PORT was given"
        )
    lines = [f"  fptps status --scheduler {run.address}   # {describe(run)}" for run in runs]
    raise NoTarget("\n".join([f"{len(runs)} runs are under way; choose one:", *lines]))


def describe(run: Run) -> str:
    """A run in a few words."""
    program = run.program if len(run.program) <= 40 else run.program[:39] + "…"
    return f"pid {run.pid}, since {time.strftime('%H:%M:%S', time.localtime(run.since))}: {program}"
