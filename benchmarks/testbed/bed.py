"""A cluster on this machine whose nodes have an IP address and a link of a set rate each. See docs/testbed.md.

with TestBed(workers=2, servers=2, rate="1gbit", rates={"server:0": "500mbit,100mbit"}) as bed:
    exit_code = bed.run(["python", "train.py"])
    print(bed.table())
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Final

from fptps.cluster._commands import NODE, cluster_commands, later
from fptps.cluster._process import Command, Process
from fptps.cluster._supervisor import Supervisor

from . import check, found, usage
from .director import TIMELINE, Director, Flows
from .network import MOST_PER_ROLE, OUTSIDE, QUEUE, Network, find_way
from .quantities import Hindrance, Link, Pair, Rate, TestBedError, bits, check_nodes, value_of
from .record import Record
from .script import Begin, Change, Entry, nodes_of
from .usage import INTERVAL_S, Sampler

PORT: Final = 9000
"""Port of the scheduler, which is alone in its namespace."""
DATA_PORTS: Final = range(9001, 32000)
"""Ports of data connections: the first one is that of the processes of the start. Each that comes later has one of its
own, as a node may have several."""
RATE: Final = "1gbit"


def why_not() -> str | None:
    """Why a test bed cannot be made on this machine, and what to do; None if it can."""
    try:
        find_way()
    except TestBedError as error:
        return str(error)
    return None


class TestBed:
    """A network for a scheduler, servers and workers, as a context manager; runs programs on it, one after the other.

    rate: of every server's and worker's link, for both directions ("1gbit") or to send and to receive
    ("1gbit,500mbit"); rates: of single ones ("server:0") or of a role ("server"); queue: how many bytes wait at each
    end of a link before packets are dropped; give_rates: have FPTPS_LINK_RATE set on each node to what its link sends;
    delays, losses: of nodes, roles or "all": {"all": "15ms", "worker:0": "5ms,20ms"}, {"server": "0.1%"}; seed: chooses
    the packets that are lost; script: what changes during each run (script.change() and script.traffic()); paths: the
    rates, in each direction, of pairs of nodes between which less passes than over their links:
    {"worker:0-server:0": "20mbit"}.
    The network ends with its block, or the thread that entered it.
    """

    def __init__(
        self,
        workers: int,
        servers: int,
        rate: str = RATE,
        rates: Mapping[str, str] | None = None,
        queue: str = QUEUE,
        give_rates: bool = False,
        delays: Mapping[str, str] | None = None,
        losses: Mapping[str, str] | None = None,
        seed: int = 0,
        script: Sequence[Entry] = (),
        paths: Mapping[str, str] | None = None,
    ) -> None:
        for role, count, least in (("workers", workers, 1), ("servers", servers, 0)):
            if not least <= count <= MOST_PER_ROLE:
                raise ValueError(f"{role}={count}: from {least} to {MOST_PER_ROLE} are possible")
        if re.fullmatch(r"\d+[kmg]?b", queue) is None:
            raise ValueError(f"{queue!r} is not a size: a number and b, kb, mb or gb are expected, as in 1mb")
        self.record = Record()
        """The last run; its samples grow during a run."""
        self._workers = workers
        self._servers = servers
        self._planned = plan(workers, servers, rate, rates or {})
        shaped = [node for node, rate in self._planned.items() if rate]
        self._hindrances = plan_hindrances(shaped, delays or {}, losses or {})
        self._paths = plan_paths(shaped, paths or {})
        self._script = checked(script, shaped)
        self._queue = queue
        self._give_rates = give_rates
        self._seed = seed
        self._network: Network | None = None
        self._director: Director | None = None
        self._running: tuple[Supervisor, Command] | None = None
        """During a run: what runs the processes, and the command of a worker of this machine."""
        self._added = 0  # processes
        self._lock = threading.Lock()

    def __enter__(self) -> TestBed:
        nodes = {**self._planned, OUTSIDE: None}
        self._network = Network(nodes, self._queue, self._hindrances, self._seed, self._paths)
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
        serve: Sequence[str] = (),
        workers: int | None = None,
        servers: int | None = None,
        interval_s: float = INTERVAL_S,
    ) -> int:
        """Runs a cluster with a program for each worker; returns the exit code of `fptps run`.

        environment: variables for all processes, besides those of this one; out, err: where their lines go; begin:
        gets what runs the processes before it does, for whoever is to call its stop(); serve: another system's program
        for the scheduler and the servers, which finds its role in DMLC_ROLE; workers, servers: how many of them there
        are, if not one at each node: the other nodes are for add(); interval_s: between two samples of the record.
        """
        network = self._open
        rates, passed = dict(network.rates), network.passed()
        flows = Flows(network, [each.action.traffic for each in self._script if isinstance(each.action, Begin)])
        try:
            with Sampler(network.counters, self._link_rates, interval_s) as sampler:
                self.record = Record(sampler.samples)
                with Director(self._script, flows, network.echo, sampler.start, self._change) as director:
                    self._director = director
                    self.record.events, self.record.spans = director.events, director.spans
                    base = {**os.environ, **(environment or {}), TIMELINE: network.echo.input_path}
                    workers = self._workers if workers is None else workers
                    servers = self._servers if servers is None else servers
                    commands = cluster_commands(workers, servers, PORT, lambda rank: list(program), base)
                    code = self._supervise(commands, list(serve), out, err, begin)
                self.record.missed = director.missed()
        finally:
            self._director = None
            flows.close()
        dropped = network.drops()
        self.record.drops = {link: count - self._dropped[link] for link, count in dropped.items()}
        self._dropped = dropped
        self.record.passed = {link: since(passed[link], now) for link, now in network.passed().items()}
        for node in {entry.action.node for entry in self._script if isinstance(entry.action, Change)}:
            self.set_rate(node, str(rates[node]))  # the next run begins as this one did
        return code

    def set_rate(self, node: str, rate: str) -> None:
        """Changes the rate of a node's link ("server:0", "100mbit" or "100mbit,1gbit"), also during a run."""
        self._change(Change(self._known(node), Rate.parse(rate)))

    def add(self, role: str, node: str, program: Sequence[str] = ()) -> Process | None:
        """Starts one more process during a run with FPTPS_RECOVERY=1, at a node, beside others that may be there.

        role: "worker" or "server"; program: a worker's, if not that of the others. None: the run ends.
        """
        if self._running is None:
            raise RuntimeError("add() works during a run only")
        supervisor, worker = self._running
        arguments = [*NODE, "server"] if role == "server" else list(program)
        self._added += 1
        command = self._at(self._known(node), later(worker, role, arguments), DATA_PORTS[self._added])
        return supervisor.add(command)

    def reset(self, node: str) -> None:
        """Resets a node's data connections."""
        self._open.reset(self._known(node), DATA_PORTS)

    def cut(self, nodes: Sequence[str] = ()) -> contextlib.AbstractContextManager[None]:
        """A block in which no packet passes between the nodes, as if their switch started anew; or none between some
        nodes and the others, as if a switch that joins the two parts did."""
        return self._open.cut([self._known(node) for node in nodes])

    def address(self, node: str) -> str:
        """A node's IP address."""
        return self._open.address(self._known(node))

    def check(self) -> list[check.Checked]:
        """Measures every shaped link with plain TCP, one after the other, while nothing else uses them."""
        return check.measure(self._open)

    def table(self) -> str:
        """The last run as a table: the use of the links, what happened to them, how iterations followed."""
        record = self.record
        parts = [usage.table(record.samples, record.drops), *record.lines()]
        if phases := found.phases(record.iterations(), record.events):
            parts.append(found.table(phases))
        return "\n".join(parts)

    @property
    def _open(self) -> Network:
        if self._network is None:
            raise RuntimeError("a TestBed works within its `with` block only")
        return self._network

    def _known(self, node: str) -> str:
        if node not in self._planned:
            raise KeyError(f"there is no {node}: {', '.join(self._planned)}")
        return node

    def _change(self, change: Change) -> None:
        begin = time.monotonic()
        with self._lock:
            self._open.set_rate(change.node, change.rate)
            if self._director is not None:
                self._director.record(str(change), begin)

    def _link_rates(self) -> dict[Link, float]:
        rates = {}
        for node, rate in self._open.rates.items():
            if rate is not None:
                rates[Link(node, True)], rates[Link(node, False)] = bits(rate.send), bits(rate.receive)
        return rates

    def _supervise(
        self,
        commands: list[Command],
        serve: list[str],
        out: IO[str] | None,
        err: IO[str] | None,
        begin: Callable[[Supervisor], object] | None,
    ) -> int:
        worker = commands[-1]
        if serve:
            commands = [each if each.role == "worker" else each._replace(arguments=serve) for each in commands]
        supervisor = Supervisor([self._at_its_node(command) for command in commands], out=out, err=err)
        if begin is not None:
            begin(supervisor)
        self._running = supervisor, worker
        try:
            return supervisor.run()
        finally:
            self._running = None

    def _at_its_node(self, command: Command) -> Command:
        """A command of the start, in the namespace of its node."""
        node = command.role if command.role == "scheduler" else f"{command.role}:{command.rank}"
        return self._at(node, command, DATA_PORTS[0])

    def _at(self, node: str, command: Command, data_port: int) -> Command:
        """The same command, in the namespace of a node."""
        network = self._open
        own = {"DMLC_PS_ROOT_URI": network.address("scheduler"), "FPTPS_DATA_PORT": str(data_port)}
        environment = {**command.environment, **own}
        del environment["DMLC_NODE_HOST"]  # of this machine; a process at its node finds its own
        environment.pop("DMLC_INTERFACE", None)
        rate = network.rates[node]
        if self._give_rates and rate is not None:
            environment["FPTPS_LINK_RATE"] = rate.send
        return command._replace(arguments=[*network.enter(node), *command.arguments], environment=environment)


def since(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """What has passed since a time; late_s, the longest lateness, is that of all times."""
    return {name: count if name == "late_s" else count - before[name] for name, count in now.items()}


def plan(workers: int, servers: int, rate: str, rates: Mapping[str, str]) -> dict[str, Rate | None]:
    """The nodes of a cluster and their links' rates. The scheduler's link is not shaped."""
    roles = (("server", servers), ("worker", workers))
    nodes = [f"{role}:{rank}" for role, count in roles for rank in range(count)]
    check_nodes(rates, nodes)
    return {"scheduler": None, **{node: Rate.parse(value_of(node, rates, rate)) for node in nodes}}


def plan_hindrances(nodes: Sequence[str], delays: Mapping[str, str], losses: Mapping[str, str]) -> dict[str, Hindrance]:
    """The delay and loss of those nodes that have any; nodes: those whose links are shaped."""
    check_nodes(delays, nodes)
    check_nodes(losses, nodes)
    planned = {node: Hindrance.parse(value_of(node, delays, "0s"), value_of(node, losses, "0%")) for node in nodes}
    return {node: hindrance for node, hindrance in planned.items() if any(hindrance)}


def plan_paths(nodes: Sequence[str], paths: Mapping[str, str]) -> dict[Pair, str]:
    """The rates of pairs of nodes, in tc's words; nodes: those whose links are shaped."""
    planned: dict[Pair, str] = {}
    for text, rate in paths.items():
        pair = Pair.parse(text, nodes)
        if pair in planned:
            raise ValueError(f"{text!r}: the path between the two is given twice")
        bits(rate)
        planned[pair] = rate
    return planned


def checked(script: Sequence[Entry], nodes: Sequence[str]) -> Sequence[Entry]:
    """A script, if all the nodes in it are there, and nothing twice."""
    for node in nodes_of(script):
        if node not in nodes:
            raise ValueError(f"there is no {node!r}: {', '.join(nodes)} are expected")
    for number, entry in enumerate(script):
        if entry in script[:number]:
            raise ValueError(f"{entry.action}: it is in the script twice")
    return script
