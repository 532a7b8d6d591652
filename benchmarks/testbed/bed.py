"""Runs a whole fptps cluster on this machine, each node with an IP address and a link of a set rate of its own.

    python -m benchmarks.testbed -n 4 -s 4 --rate 1gbit -- python train.py

See docs/testbed.md. From Python:

    with TestBed(workers=2, servers=2, rate="1gbit", rates={"server:0": "500mbit,100mbit"}) as bed:
        exit_code = bed.run(["python", "train.py"])
        print(bed.table())
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Final

import click

from fptps.launch import Command, Supervisor, cluster_commands

from .network import MOST_PER_ROLE, QUEUE, Link, Network, Rate, TestBedError, bits, find_way
from .usage import Sample, Sampler, table, write_json

PORT: Final = 9000
"""Of the scheduler, which is alone in its namespace."""
RATE: Final = "1gbit"


def why_not() -> str | None:
    """Why there can be no test bed here, in a sentence that says what to do; None if there can be one."""
    try:
        find_way()
    except TestBedError as error:
        return str(error)
    return None


class TestBed:
    """A network for a scheduler, servers and workers, as a context manager; runs programs on it, one after the other.

    rate: of every server's and worker's link, for both directions ("1gbit") or to send and to receive
    ("1gbit,500mbit"); rates: of single ones ("server:0") or of a role ("server"); queue: how many bytes wait at each
    end of a link before packets are dropped. The network ends with its block, or the thread that entered it.
    """

    def __init__(
        self,
        workers: int,
        servers: int,
        rate: str = RATE,
        rates: Mapping[str, str] | None = None,
        queue: str = QUEUE,
    ) -> None:
        for role, count, least in (("workers", workers, 1), ("servers", servers, 0)):
            if not least <= count <= MOST_PER_ROLE:
                raise ValueError(f"{role}={count}: from {least} to {MOST_PER_ROLE} are possible")
        if re.fullmatch(r"\d+[kmg]?b", queue) is None:
            raise ValueError(f"{queue!r} is no size: a number and b, kb, mb or gb are expected, as in 1mb")
        self.samples: list[Sample] = []
        """What the links carried in the last run; grows during a run."""
        self.drops: dict[Link, int] = {}
        """How many packets each link dropped in the last run."""
        self._workers = workers
        self._servers = servers
        self._planned = plan(workers, servers, rate, rates or {})
        self._queue = queue
        self._network: Network | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> TestBed:
        self._network = Network(self._planned, self._queue)
        self._dropped = dict.fromkeys(self._network.drops(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()
        self._network = None

    def run(
        self,
        program: Sequence[str],
        environment: Mapping[str, str] | None = None,
        out: IO[str] | None = None,
        err: IO[str] | None = None,
        begin: Callable[[Supervisor], object] | None = None,
    ) -> int:
        """Runs a cluster with a program for each worker; gives the exit code that `fptps run` would.

        environment: variables for all processes, besides those of this one; out, err: where their lines go; begin:
        gets what runs the processes before it does, for whoever is to call its stop().
        """
        network = self._open
        base = {**os.environ, **(environment or {})}
        commands = cluster_commands(self._workers, self._servers, PORT, lambda rank: list(program), base)
        supervisor = Supervisor([self._at_its_node(command) for command in commands], out=out, err=err)
        if begin is not None:
            begin(supervisor)
        with Sampler(network.counters, self._link_rates) as sampler:
            self.samples = sampler.samples
            code = supervisor.run()
        dropped = network.drops()
        self.drops = {link: count - self._dropped[link] for link, count in dropped.items()}
        self._dropped = dropped
        return code

    def set_rate(self, node: str, rate: str) -> None:
        """Changes the rate of a node's link ("server:0", "100mbit" or "100mbit,1gbit"), also during a run."""
        with self._lock:
            self._open.set_rate(self._known(node), Rate.parse(rate))

    def address(self, node: str) -> str:
        """A node's IP address."""
        return self._open.address(self._known(node))

    def table(self) -> str:
        """The use of the links in the last run, for a person."""
        return table(self.samples, self.drops)

    def write_json(self, path: Path) -> None:
        """Writes what the links carried in the last run."""
        write_json(path, self.samples, self.drops)

    @property
    def _open(self) -> Network:
        if self._network is None:
            raise RuntimeError("a TestBed works within its `with` block only")
        return self._network

    def _known(self, node: str) -> str:
        if node not in self._planned:
            raise KeyError(f"there is no {node}: {', '.join(self._planned)}")
        return node

    def _link_rates(self) -> dict[Link, float]:
        rates = {}
        for node, rate in self._open.rates.items():
            if rate is not None:
                rates[Link(node, True)], rates[Link(node, False)] = bits(rate.send), bits(rate.receive)
        return rates

    def _at_its_node(self, command: Command) -> Command:
        """The same command, in the namespace of its node."""
        network = self._open
        node = command.role if command.role == "scheduler" else f"{command.role}:{command.rank}"
        own = {"DMLC_PS_ROOT_URI": network.address("scheduler"), "DMLC_NODE_HOST": network.address(node)}
        rate = network.rates[node]
        environment = {**command.environment, **own}
        environment.pop("DMLC_INTERFACE", None)
        environment.pop("FPTPS_LINK_RATE", None)
        if rate is not None:
            environment["FPTPS_LINK_RATE"] = rate.send
        return command._replace(arguments=[*network.enter(node), *command.arguments], environment=environment)


def plan(workers: int, servers: int, rate: str, rates: Mapping[str, str]) -> dict[str, Rate | None]:
    """The nodes of a cluster and their links' rates. The scheduler's link is not shaped."""
    known = {"server", "worker"}
    planned: dict[str, Rate | None] = {"scheduler": None}
    for role, count in (("server", servers), ("worker", workers)):
        for node in (f"{role}:{rank}" for rank in range(count)):
            planned[node] = Rate.parse(rates.get(node, rates.get(role, rate)))
            known.add(node)
    for node in rates:
        if node not in known:
            raise ValueError(f"there is no {node!r} to give a rate to: {', '.join(sorted(known))} are expected")
    return planned


def stop_by_signals(supervisor: Supervisor) -> None:
    """Has signals end a run. Before it, they just end this process, and with it all that there is."""

    def stop(number: int, frame: FrameType | None) -> None:
        supervisor.stop(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False})
@click.option("-n", "--workers", type=click.IntRange(1), default=1, show_default=True, help="Number of workers.")
@click.option("-s", "--servers", type=click.IntRange(0), default=0, show_default=True, help="Number of servers.")
@click.option(
    "--rate",
    "texts",
    multiple=True,
    metavar="[NODE=]SEND[,RECEIVE]",
    help=f"Rate of every link [{RATE}], or of NODE's: server:0, worker:3, server (all of them).",
)
@click.option(
    "--queue", default=QUEUE, show_default=True, help="Bytes that wait for a link before packets are dropped."
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the samples here.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def main(
    workers: int, servers: int, texts: tuple[str, ...], queue: str, json_file: Path | None, program: tuple[str, ...]
) -> None:
    """Run PROGRAM on a cluster whose nodes have a shaped link each, as `fptps run` does without them.

    \b
        python -m benchmarks.testbed -n 4 -s 4 --rate 1gbit --rate server:0=500mbit,100mbit -- python train.py
    """
    every = [text for text in texts if "=" not in text] or [RATE]
    rates = dict(text.split("=", 1) for text in texts if "=" in text)
    try:
        with TestBed(workers, servers, every[-1], rates, queue) as bed:
            code = bed.run(program, begin=stop_by_signals)
    except (TestBedError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    if json_file is not None:
        bed.write_json(json_file)
    try:
        print(bed.table(), flush=True)
    except BrokenPipeError:  # nobody reads on; what stdout still holds has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
