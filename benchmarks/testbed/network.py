"""A network of namespaces on one machine: one for each node, with a shaped link to a bridge in one of its own.

Nothing of it has a name outside: each namespace lives as long as a process that holds it, and that ends with the
process that made the network, even if this one is killed. The kernel then removes the links.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fptps.launch import SPAWN

PACKAGES: Final = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
"""The tools and where they come from."""
SBIN: Final = "/usr/sbin:/sbin"
"""Where tc is on Debian; not on the PATH of users other than root."""
WAYS: Final[tuple[list[str], ...]] = ([], ["--user", "--map-root-user"])
"""Options of unshare to try: root needs none, others need a user namespace in which they are root."""
PROBE: Final = """
"$1" link add probe0 type bridge && "$1" link add probe1 type veth peer name probe2 || exit 3
"$2" qdisc add dev probe1 root tbf rate 1gbit burst 128kb limit 1mb || exit 4
"""
BURST: Final = "128kb"
BURST_BYTES: Final = 128 * 1024
QUEUE: Final = "1mb"
INTERFACE: Final = "eth0"
"""The end of a link at the node. The other end, at the bridge, is named after the node."""
MOST_PER_ROLE: Final = 250
"""So many servers, or workers, fit into the addresses 10.77.1.1 and on, 10.77.2.1 and on."""
ROLES: Final = ("scheduler", "server", "worker")
UNITS: Final = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class TestBedError(Exception):
    """The test bed cannot be made, or a tool that it uses failed."""


def bits(rate: str) -> float:
    """The bits per second of a rate as tc writes it: "1gbit", "500mbit"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?bit)", rate)
    if match is None or not float(match[1]):
        raise ValueError(f"{rate!r} is no rate: a number and bit, kbit, mbit or gbit are expected, as in 500mbit")
    return float(match[1]) * UNITS[match[2]]


class Rate(NamedTuple):
    """How fast a node may send and receive, in tc's words."""

    send: str
    receive: str

    @classmethod
    def parse(cls, text: str) -> Rate:
        """From "1gbit", for both directions, or "1gbit,500mbit": the first to send, the second to receive."""
        send, _, receive = text.partition(",")
        rate = cls(send, receive or send)
        for each in rate:
            bits(each)
        return rate


class Link(NamedTuple):
    """One direction of a node's link."""

    node: str
    sends: bool

    def __str__(self) -> str:
        return f"{self.node} {'sends' if self.sends else 'receives'}"


def tool(name: str) -> str:
    """Where a tool is. TestBedError if it is missing."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), SBIN]))
    if path is None:
        raise TestBedError(f"the test bed needs {name}, which is not here: install {PACKAGES[name]}")
    return path


def find_way() -> list[str]:
    """The options of unshare that make a namespace with shaped links here. TestBedError says why there are none."""
    ip, tc, unshare = tool("ip"), tool("tc"), tool("unshare")
    tool("nsenter")
    for way in WAYS:
        command = [unshare, *way, "--net", "sh", "-c", PROBE, "sh", ip, tc]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return way
    said = " ".join(done.stderr.split())
    if done.returncode == 3:
        raise TestBedError(f"no bridge or veth can be made ({said}): try `modprobe -a bridge veth` as root")
    if done.returncode == 4:
        raise TestBedError(f"no link can be shaped by tc's tbf ({said}): try `modprobe sch_tbf` as root")
    raise TestBedError(
        f"no network namespace can be made ({said}): become root (in a container: one with --privileged), "
        "or have user namespaces allowed (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
        "kernel.apparmor_restrict_unprivileged_userns)"
    )


class Holder:
    """A process that keeps a network namespace until it is told to end, or the thread that started it has ended."""

    def __init__(self, unshare: list[str]) -> None:
        # In a session of its own: Ctrl-C is for the cluster, whose processes need their links until they have ended.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", SPAWN, str(os.getpid()), *unshare, "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def wait_until_ready(self) -> None:
        """Returns when the namespace is there: cat answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with contextlib.suppress(BrokenPipeError):  # then the answer is missing, too
            self._process.stdin.write(b"\n")
        if not self._process.stdout.read(1):
            said = self._process.stderr.read().decode(errors="replace").strip()
            raise TestBedError(f"a network namespace could not be made: {said}")

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        with self._process:  # closes the pipes and waits
            pass


def run_all(jobs: Iterable[tuple[list[str], str]]) -> list[str]:
    """Runs commands, each with its input, at the same time; gives their outputs."""
    started = []
    for command, text in jobs:
        pipe = subprocess.PIPE
        started.append((command, text, subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)))
    results = [(command, *process.communicate(text), process.returncode) for command, text, process in started]
    for command, _, err, code in results:
        if code != 0:
            raise TestBedError(f"{' '.join(command)}: {err.strip() or f'exit code {code}'}")
    return [out for _, out, _, _ in results]


class Network:
    """The network of some nodes ("scheduler", "server:0", "worker:3"); rates: theirs, or None for a link of any rate.

    It ends with the thread that makes it, at the latest.
    """

    def __init__(self, rates: Mapping[str, Rate | None], queue: str = QUEUE) -> None:
        self.rates = dict(rates)
        self.nodes = list(rates)
        self._queue = queue
        self._way = find_way()
        self._holders: list[Holder] = []
        try:
            self._make_namespaces()
            self._make_links()
            self._shape("add", {node: rate for node, rate in rates.items() if rate})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the namespaces and, with them, the links. Processes in them are left alone."""
        while self._holders:
            self._holders.pop().end()

    def address(self, node: str) -> str:
        """The node's IP address."""
        role, _, rank = node.partition(":")
        return f"10.77.{ROLES.index(role)}.{int(rank or 0) + 1}"

    def enter(self, node: str) -> list[str]:
        """What goes before a command that is to run at the node."""
        return self._enter(self._holders[1 + self.nodes.index(node)])

    def set_rate(self, node: str, rate: Rate) -> None:
        """Changes the rate of a link that has one. For any thread."""
        if self.rates[node] is None:
            raise ValueError(f"the link of {node} is not shaped")
        self._shape("change", {node: rate})
        self.rates[node] = rate

    def counters(self) -> dict[Link, int]:
        """How many bytes each link has carried. They have passed the link: what waits or was dropped is not counted."""
        ends = {}
        for line in Path(f"/proc/{self._holders[0].pid}/net/dev").read_text().splitlines()[2:]:
            name, _, numbers = line.partition(":")
            ends[name.strip()] = numbers.split()
        counters = {}
        for node in self.nodes:  # at the bridge: what it receives is what the node has sent
            counters[Link(node, True)] = int(ends[end_of(node)][0])
            counters[Link(node, False)] = int(ends[end_of(node)][8])
        return counters

    def drops(self) -> dict[Link, int]:
        """How many packets each shaped link has dropped, because its queue was full."""
        command = [tool("tc"), "-s", "-j", "qdisc", "show"]
        shaped = [node for node in self.nodes if self.rates[node]]
        outputs = run_all(([*enter, *command], "") for enter in (self._bridge, *map(self.enter, shaped)))
        at_bridge, *at_nodes = [{each["dev"]: each for each in json.loads(out)} for out in outputs]
        drops = {}
        for node, at_node in zip(shaped, at_nodes):
            drops[Link(node, True)] = dropped(at_node[INTERFACE])
            drops[Link(node, False)] = dropped(at_bridge[end_of(node)])
        return drops

    @property
    def _bridge(self) -> list[str]:
        return self._enter(self._holders[0])

    def _enter(self, holder: Holder) -> list[str]:
        return [tool("nsenter"), *self._enter_user, f"--net=/proc/{holder.pid}/ns/net", "--"]

    @functools.cached_property
    def _enter_user(self) -> list[str]:
        """Options of nsenter for the user namespace, which all share, if there is one: the bridge's holder made it."""
        if not self._way:
            return []
        return [f"--user=/proc/{self._holders[0].pid}/ns/user", "--preserve-credentials"]

    def _make_namespaces(self) -> None:
        unshare = [tool("unshare"), *self._way, "--net", "--"]
        self._holders.append(Holder(unshare))
        if self._way:
            self._holders[0].wait_until_ready()
            unshare = [tool("nsenter"), *self._enter_user, "--", tool("unshare"), "--net", "--"]
        for _ in self.nodes:
            self._holders.append(Holder(unshare))
        for holder in self._holders[1 if self._way else 0 :]:
            holder.wait_until_ready()

    def _make_links(self) -> None:
        ip = [tool("ip"), "-batch", "-"]
        bridge = ["link add br0 type bridge mcast_snooping 0", *up("br0")]
        for node, holder in zip(self.nodes, self._holders[1:]):
            bridge.append(f"link add name {end_of(node)} type veth peer name {INTERFACE} netns {holder.pid}")
            bridge += [f"link set dev {end_of(node)} master br0", *up(end_of(node))]
        run_all([([*self._bridge, *ip], "\n".join(bridge))])
        run_all(
            (
                [*self.enter(node), *ip],
                "\n".join([*up("lo"), f"addr add {self.address(node)}/16 dev {INTERFACE}", *up(INTERFACE)]),
            )
            for node in self.nodes
        )

    def _shape(self, verb: str, rates: Mapping[str, Rate]) -> None:
        """Tells tc the rates of nodes: at their own end what they send, at the bridge's end what they receive."""
        tc = [tool("tc"), "-batch", "-"]
        at_bridge = [self._qdisc(verb, end_of(node), rate.receive) for node, rate in rates.items()]
        jobs = [([*self._bridge, *tc], "\n".join(at_bridge))]
        for node, rate in rates.items():
            jobs.append(([*self.enter(node), *tc], self._qdisc(verb, INTERFACE, rate.send)))
        run_all(jobs)

    def _qdisc(self, verb: str, interface: str, rate: str) -> str:
        return f"qdisc {verb} dev {interface} root tbf rate {rate} burst {BURST} limit {self._queue}"


def end_of(node: str) -> str:
    """The bridge's end of a node's link: an interface's name has no colon."""
    return node.replace(":", "")


def up(interface: str) -> list[str]:
    """Lines for `ip -batch`. Without IPv6 addresses of its own, an interface is silent until someone uses it."""
    return [f"link set dev {interface} addrgenmode none", f"link set dev {interface} up"]


def dropped(qdisc: Mapping[str, Any]) -> int:
    """The drops of a qdisc, as `tc -s -j` tells of it."""
    return int(qdisc["drops"])
