"""CPU time and memory of the processes of this worker's cluster that run on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

import psutil

SAME: Final = ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "FPTPS_TOKEN")
"""Processes with equal values of these environment variables are in the same cluster."""


class Node(NamedTuple):
    """A process of the cluster."""

    name: str
    process: psutil.Process


def nodes_here() -> list[Node]:
    """The cluster's visible processes on this machine, this one included, sorted by name."""
    mine = psutil.Process()
    found = [Node(node_name(dict(os.environ), mine.cmdline()), mine)]
    for process in psutil.process_iter():
        try:
            if process.pid == mine.pid or not process.name().startswith(("python", "fptps")):
                continue
            environment = process.environ()
            if all(environment.get(name) == os.environ.get(name) for name in SAME):
                found.append(Node(node_name(environment, process.cmdline()), process))
        except psutil.Error:  # it has ended, or belongs to another user
            continue
    return sorted(found, key=lambda node: node.name)


def node_name(environment: dict[str, str], command: list[str]) -> str:
    """A node's role, with its rank if it was started with one."""
    role = environment.get("DMLC_ROLE")
    if not role:  # started by hand, as `fptps server`, or a worker
        role = next((word for word in ("scheduler", "server") if word in command), "worker")
    rank = environment.get(f"DMLC_{role.upper()}_ID")
    return f"{role} {rank}" if rank else role


class Usage:
    """Measures CPU time and memory of the cluster's processes on this machine."""

    def __init__(self) -> None:
        self._nodes = nodes_here()
        self._start = self._cpu_s()

    def cpu_s(self) -> float:
        """CPU seconds of all of them since this object was made."""
        return self._cpu_s() - self._start

    def peak_rss(self) -> int:
        """Peak memory in bytes of the process with the highest peak, since its start."""
        return max(_peak_rss(node.process.pid) for node in self._nodes)

    def names(self) -> list[str]:
        """Names of the measured nodes."""
        return [node.name for node in self._nodes]

    def _cpu_s(self) -> float:
        times = [node.process.cpu_times() for node in self._nodes]
        return float(sum(each.user + each.system for each in times))


def _peak_rss(pid: int) -> int:
    """Peak memory in bytes, which psutil does not report."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # a zombie
