"""A network of namespaces on one machine: one for each node, with a shaped link to a bridge in one of its own.

Nothing of it has a name outside: each namespace lives as long as a process that holds it, and that ends with the
process that made the network, even if this one is killed. The kernel then removes the links.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fptps.cluster._supervisor import SPAWN

from .program import Program
from .quantities import Hindrance, Link, Pair, Rate, TestBedError

PACKAGES: Final = {
    "ip": "iproute2",
    "ss": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}
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
"""Name of the link's end at the node. The other end, at the bridge, is named after the node."""
MOST_PER_ROLE: Final = 250
"""Limit of servers and of workers: their addresses start at 10.77.1.1 and 10.77.2.1."""
OUTSIDE: Final = "outside"
"""Another machine of the network, whose link is not shaped: where other programs' traffic comes from and goes to."""
ROLES: Final = ("scheduler", "server", "worker", OUTSIDE)
RECEIVED_BYTES: Final = 0
SENT_BYTES: Final = 8
SENT_DROPS: Final = 11
"""Columns of /proc/net/dev."""
FASTEST: Final = 10e9
"""Bits per second that a delayed link has room for."""
SLACK_BYTES: Final = 1 << 24
TAP_QUEUE: Final = 10000
"""Frames that wait at a delayed link until the program that forwards them reads."""


def tool(name: str) -> str:
    """Where a tool is. TestBedError if it is missing."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), SBIN]))
    if path is None:
        raise TestBedError(f"the test bed needs {name}, which is not installed: install {PACKAGES[name]}")
    return path


def find_way() -> list[str]:
    """The options of unshare that make a namespace with shaped links. Raises TestBedError if none do."""
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
    """A process that keeps a network namespace alive until it is stopped, or until the thread that started it ends."""

    def __init__(self, unshare: list[str]) -> None:
        # In its own session: Ctrl-C must reach only the cluster, whose processes need their links until they end.
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
        """Waits until the namespace exists: then cat echoes a line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with contextlib.suppress(BrokenPipeError):  # the missing echo is reported below
            self._process.stdin.write(b"\n")
        if not self._process.stdout.read(1):
            said = self._process.stderr.read().decode(errors="replace").strip()
            raise TestBedError(f"a network namespace could not be made: {said}")

    @property
    def input_path(self) -> str:
        """A file for the processes of the user namespace: what they write to it comes out of output, cat's."""
        return f"/proc/{self.pid}/fd/0"

    @property
    def output(self) -> int:
        """The file descriptor to read from."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def write(self, line: bytes) -> None:
        """Writes a line of this process's own, which comes out after all that was written before."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has been killed, and the output ends
            self._process.stdin.write(line)

    def devices(self) -> dict[str, list[int]]:
        """The counters of the namespace's interfaces, as in /proc/net/dev."""
        devices = {}
        for line in Path(f"/proc/{self.pid}/net/dev").read_text().splitlines()[2:]:
            name, _, numbers = line.partition(":")
            devices[name.strip()] = [int(number) for number in numbers.split()]
        return devices

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        with self._process:  # closes the pipes and waits
            pass


def run_all(jobs: Iterable[tuple[list[str], str]]) -> list[str]:
    """Runs commands at the same time, each with its input; returns their outputs."""
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

    hindrances: the delay and loss of some nodes' links; seed: chooses the packets that are lost; paths: the rates, each
    way, of some pairs. The network ends with the thread that makes it, at the latest.
    """

    def __init__(
        self,
        rates: Mapping[str, Rate | None],
        queue: str = QUEUE,
        hindrances: Mapping[str, Hindrance] | None = None,
        seed: int = 0,
        paths: Mapping[Pair, str] | None = None,
    ) -> None:
        self.rates = dict(rates)
        self.nodes = list(rates)
        self.hindrances = dict(hindrances or {})
        self._queue = queue
        self._forwarders: dict[str, Program] = {}
        self._way = find_way()
        self._holders: list[Holder] = []
        try:
            self._make_namespaces()
            self._start_forwarders(seed)
            self._make_links()
            for number, (pair, rate) in enumerate((paths or {}).items()):
                self._make_path(number, pair, rate)
            self._shape("add", {node: rate for node, rate in rates.items() if rate})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the namespaces and, with them, the links. Processes in them are left alone."""
        while self._forwarders:
            self._forwarders.popitem()[1].end()
        while self._holders:
            self._holders.pop().end()

    def address(self, node: str) -> str:
        """The node's IP address."""
        role, _, rank = node.partition(":")
        return f"10.77.{ROLES.index(role)}.{int(rank or 0) + 1}"

    def enter(self, node: str) -> list[str]:
        """Prefix of a command to run it at the node."""
        return self._enter(self._holders[1 + self.nodes.index(node)])

    def set_rate(self, node: str, rate: Rate) -> None:
        """Changes the rate of a shaped link. Any thread may call it."""
        if self.rates[node] is None:
            raise ValueError(f"the link of {node} is not shaped")
        self._shape("change", {node: rate})
        self.rates[node] = rate

    def reset(self, node: str, ports: range) -> None:
        """Resets the node's TCP connections from and to these ports. The kernel needs CONFIG_INET_DIAG_DESTROY."""
        ends = [f"( {end} ge :{ports[0]} and {end} le :{ports[-1]} )" for end in ("sport", "dport")]
        run_all([([*self.enter(node), tool("ss"), "--kill", "--tcp", "state", "connected", " or ".join(ends)], "")])

    @contextlib.contextmanager
    def cut(self, nodes: Sequence[str] = ()) -> Iterator[None]:
        """Within this block no packet passes the bridge; or none between these nodes and the others."""
        command = [*self._bridge, tool("ip"), "-batch", "-"]
        before, after = ["link set dev br0 down"], ["link set dev br0 up"]
        if nodes:  # they go to another bridge: no node loses its carrier, and none hears of it
            before = ["link add br1 type bridge mcast_snooping 0", *up("br1")]
            before += [f"link set dev {end_of(node)} master br1" for node in nodes]
            after = [*(f"link set dev {end_of(node)} master br0" for node in nodes), "link del br1"]
        run_all([(command, "\n".join(before))])
        try:
            yield
        finally:
            run_all([(command, "\n".join(after))])

    def counters(self) -> dict[Link, int]:
        """Bytes that each link has carried; queued and dropped bytes are not counted."""
        ends = self._holders[0].devices()
        counters = {}
        for node in self.nodes:  # at the bridge: what it receives is what the node has sent
            counters[Link(node, True)] = ends[end_of(node)][RECEIVED_BYTES]
            counters[Link(node, False)] = ends[end_of(node)][SENT_BYTES]
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
    def echo(self) -> Holder:
        """Brings what processes at the nodes write to its input_path to this one."""
        return self._holders[0]

    def passed(self) -> dict[Link, dict[str, float]]:
        """What the links with delay or loss have passed so far; see benchmarks.links.forward."""
        found = {}
        at_bridge = self._holders[0].devices()
        for node, forwarder in self._forwarders.items():
            forwarder.write()
            sent, received = json.loads(forwarder.read())
            # What the program did not read in time.
            at_node = self._holders[1 + self.nodes.index(node)].devices()
            sent["overflows"] += at_node[INTERFACE][SENT_DROPS]
            received["overflows"] += at_bridge[end_of(node)][SENT_DROPS]
            found[Link(node, True)], found[Link(node, False)] = sent, received
        return found

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

    def _start_forwarders(self, seed: int) -> None:
        """Starts a program for each link with delay or loss, between a device of the node's and one of the bridge's."""
        for node, h in self.hindrances.items():
            lines = [
                [delay, loss, f"{seed} {Link(node, sends)}", int(SLACK_BYTES + delay * FASTEST / 8)]
                for sends, delay, loss in (
                    (True, h.send_delay_s, h.send_loss),
                    (False, h.receive_delay_s, h.receive_loss),
                )
            ]
            options = {"node": device_of(node), "bridge": end_of(node), "lines": lines}
            self._forwarders[node] = Program(self._bridge, "forward", json.dumps(options))
        for forwarder in self._forwarders.values():
            forwarder.read()

    def _make_links(self) -> None:
        ip = [tool("ip"), "-batch", "-"]
        bridge = ["link add br0 type bridge mcast_snooping 0", *up("br0")]
        for node, holder in zip(self.nodes, self._holders[1:]):
            if node in self._forwarders:
                bridge.append(f"link set dev {device_of(node)} txqueuelen {TAP_QUEUE}")
                bridge.append(f"link set dev {device_of(node)} netns {holder.pid} name {INTERFACE}")
                bridge.append(f"link set dev {end_of(node)} txqueuelen {TAP_QUEUE}")
            else:
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

    def _make_path(self, number: int, pair: Pair, rate: str) -> None:
        """Makes two nodes send to each other through an interface of their own, shaped, on top of the link's.

        Its bytes therefore pass both links, too. The neighbour is set, as an interface that asked for it would also
        answer other nodes' questions for the node's address.
        """
        macs = [f"02:00:00:{number >> 8:02x}:{number & 255:02x}:{end:02x}" for end in range(2)]
        for node, peer, mac, peer_mac in zip(pair, reversed(pair), macs, reversed(macs)):
            device, address = end_of(peer), self.address(peer)
            lines = [
                f"link add link {INTERFACE} name {device} address {mac} type macvlan mode private",
                f"link set dev {device} arp off",
                *up(device),
                f"route add {address}/32 dev {device} src {self.address(node)}",
                f"neigh add {address} lladdr {peer_mac} dev {device} nud permanent",
            ]
            try:
                run_all([([*self.enter(node), tool("ip"), "-batch", "-"], "\n".join(lines))])
            except TestBedError as error:
                raise TestBedError(f"no path {pair} can be made ({error}): try `modprobe macvlan` as root") from None
            run_all([([*self.enter(node), tool("tc"), "-batch", "-"], self._qdisc("add", device, rate))])

    def _shape(self, verb: str, rates: Mapping[str, Rate]) -> None:
        """Sets rates by tc: the sending rate at the node's end, the receiving rate at the bridge's end."""
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


def device_of(node: str) -> str:
    """The name of a forwarded link's end at the node, until it is there and has the name of all."""
    return f"to{end_of(node)}"


def up(interface: str) -> list[str]:
    """Lines for `ip -batch`. Without IPv6 addresses of its own, an interface is silent until someone uses it."""
    return [f"link set dev {interface} addrgenmode none", f"link set dev {interface} up"]


def dropped(qdisc: Mapping[str, Any]) -> int:
    """The drops of a qdisc in the output of `tc -s -j`."""
    return int(qdisc["drops"])
