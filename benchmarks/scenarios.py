"""The scenarios of compare.py, as data, and the command of each system."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

FPTPS: Final = "fptps"
FPTPS_TCP: Final = "fptps tcp"
"""fptps over TCP instead of shared memory."""
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
"""Each peer's runner in benchmarks/peers, with the options that only it has."""


@dataclass(frozen=True)
class Scenario:
    """Sizes of the cluster and of the tensors, and the peers that fptps is compared with."""

    name: str
    workers: int
    servers: int
    size: int
    tensors: int
    peers: tuple[str, ...]
    bench: str = "push_pull"
    """The subcommand of `fptps bench`; "kv" measures ps-lite's classes."""


STORES: Final = ("mxnet", "mxnet p3")
REDUCERS: Final = ("gloo", "mpi", "mpi tcp")

SCENARIOS: Final = (
    Scenario("1x1", 1, 1, 4 * MIB, 16, (*STORES, "epoll", "epoll one way", "ring", "iperf3", "iperf3 bidir")),
    Scenario("2x2", 2, 2, 4 * MIB, 16, (*STORES, *REDUCERS)),
    Scenario("4x4", 4, 4, 4 * MIB, 16, (*STORES, *REDUCERS, "epoll", "ring")),
    # Without servers fptps has as many processes as an all-reduce.
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
    """fptps's commands, by system. program: the command `fptps`, or a replacement."""
    command = [*program, "bench", scenario.bench, "-n", str(scenario.workers), "-s", str(scenario.servers)]
    command += ["--size", str(scenario.size), "--tensors", str(scenario.tensors), "--seconds", str(seconds)]
    return {FPTPS: [*command, "--json"], FPTPS_TCP: [*command, "--van", "tcp", "--json"]}


def peer_command(peer: str, scenario: Scenario, seconds: float) -> list[str]:
    """A peer's command, to be run in the repository's root."""
    runner, *own = PEERS[peer]
    command = [sys.executable, "-m", f"benchmarks.peers.{runner}", *own, "--workers", str(scenario.workers)]
    # A peer without servers ignores their number, but 0 is not a valid number.
    command += ["--servers", str(max(scenario.servers, 1)), "--size", str(scenario.size)]
    return [*command, "--tensors", str(scenario.tensors), "--seconds", str(seconds)]
