"""What compare.py measures, as data: the scenarios, and the command of everyone who takes part in them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

FPTPS: Final = "fptps"
FPTPS_TCP: Final = "fptps tcp"
"""The same, kept off shared memory."""
KIB: Final = 1 << 10
MIB: Final = 1 << 20

PEERS: Final = {
    "gloo": ("gloo",),
    "mpi": ("mpi",),
    "mpi tcp": ("mpi", "--tcp"),
    "mxnet": ("mxnet",),
    "mxnet p3": ("mxnet", "--p3"),
    "epoll": ("native", "epoll"),
    "epoll one way": ("native", "epoll", "--one-way"),
    "ring": ("native", "ring"),
    "iperf3": ("iperf3",),
    "iperf3 bidir": ("iperf3", "--bidir"),
}
"""Each one's runner in benchmarks/peers, and the options that only it has."""


@dataclass(frozen=True)
class Scenario:
    """One size of cluster and of tensors, and who is compared with fptps there."""

    name: str
    workers: int
    servers: int
    size: int
    tensors: int
    peers: tuple[str, ...]
    bench: str = "push_pull"
    """Of fptps; "kv" is ps-lite's classes."""


STORES: Final = ("mxnet", "mxnet p3")
REDUCERS: Final = ("gloo", "mpi", "mpi tcp")

SCENARIOS: Final = (
    Scenario("1x1", 1, 1, 4 * MIB, 16, (*STORES, "epoll", "epoll one way", "ring", "iperf3", "iperf3 bidir")),
    Scenario("2x2", 2, 2, 4 * MIB, 16, (*STORES, *REDUCERS)),
    Scenario("4x4", 4, 4, 4 * MIB, 16, (*STORES, *REDUCERS, "epoll", "ring")),
    # Without servers fptps has as many processes as an all-reduce has.
    Scenario("2x0", 2, 0, 4 * MIB, 16, REDUCERS),
    Scenario("4x0", 4, 0, 4 * MIB, 16, REDUCERS),
    Scenario("1x1 16 KB", 1, 1, 16 * KIB, 16, ("mxnet", "epoll", "ring")),
    Scenario("1x1 256 KB", 1, 1, 256 * KIB, 16, ("mxnet", "epoll", "ring")),
    Scenario("1x1 4 KB", 1, 1, 4096, 1, (*STORES, "epoll", "ring")),
    Scenario("4x4 4 KB", 4, 4, 4096, 1, (*STORES, *REDUCERS)),
    *(
        Scenario(f"kv {nodes}x{nodes} {name}", nodes, nodes, size, 16, ("mxnet",), "kv")
        for nodes in (1, 4)
        for name, size in (("4 KB", 4 * KIB), ("64 KB", 64 * KIB), ("4 MB", 4 * MIB))
    ),
)


def fptps_commands(program: list[str], scenario: Scenario, seconds: float) -> dict[str, list[str]]:
    """`program` is the command fptps, or what stands in for it."""
    command = [*program, "bench", scenario.bench, "-n", str(scenario.workers), "-s", str(scenario.servers)]
    command += ["--size", str(scenario.size), "--tensors", str(scenario.tensors), "--seconds", str(seconds)]
    return {FPTPS: [*command, "--json"], FPTPS_TCP: [*command, "--van", "tcp", "--json"]}


def peer_command(peer: str, scenario: Scenario, seconds: float) -> list[str]:
    """Runs in the repository's root."""
    runner, *own = PEERS[peer]
    command = [sys.executable, "-m", f"benchmarks.peers.{runner}", *own, "--workers", str(scenario.workers)]
    # Who has no servers takes no notice of their number, but none at all is not a number of them.
    command += ["--servers", str(max(scenario.servers, 1)), "--size", str(scenario.size)]
    return [*command, "--tensors", str(scenario.tensors), "--seconds", str(seconds)]
