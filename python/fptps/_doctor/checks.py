"""What is wrong: facts and measurements in, findings out. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from .facts import Facts, Interface
from .gather import Report
from .measure import Dial

CLOCK_S: Final = 0.5
"""Clocks may differ by so much."""
SLOW: Final = 0.25
"""A pair's rate, as a part of the median of all pairs."""
FULL: Final = 0.95
"""The part of a cgroup's memory in use from which on it is almost full."""
HEADERS: Final = 52
"""Bytes of IP and TCP, with time stamps, before a segment's."""


class Finding(NamedTuple):
    """Something to be mended."""

    where: str
    """A host, or two."""
    what: str
    why: str
    mend: str
    """A command for `where`, or what to do."""


def findings(report: Report) -> list[Finding]:
    """All of a report, the ones first from which others follow."""
    return [finding for check in CHECKS for finding in check(report)]


def silent(report: Report) -> Iterator[Finding]:
    for host, error in report.silent.items():
        yield Finding(
            report.hosts[host],
            f"its doctor does not answer on port {report.port}: {error or 'no answer'}",
            "nothing is known of this host, and a node on it may be unreachable",
            f"run the same `fptps doctor --hosts ...` on it at the same time, and open port {report.port} there",
        )


MENDS: Final = {
    "refused": "on {there}: `ss -ltn` shows who listens; if the doctor does, `nft list ruleset` shows who rejects",
    "timeout": "open the port, on {there}: `ufw allow from {here} to any port {port} proto tcp`, or in the cloud's "
    "security group",
    "unreachable": "on {here}: `ip route get {address}` shows the route",
    "name": "put the name into the DNS, or on {here}: `echo 'ADDRESS {address}' >> /etc/hosts`",
    "stranger": "choose another port for the doctor with --port, or correct the name",
    "other": "on {here}: `ip route get {address}`, and on {there}: `ss -ltn`",
}


def ports(report: Report) -> Iterator[Finding]:
    """Connections by the hosts' names, both ways."""
    attempts = [(pair.first, pair.second, pair.dial) for pair in report.pairs]
    attempts += [(reach.first, reach.second, reach.dial) for reach in report.back]
    for first, second, dial in sorted(attempts, key=lambda each: each[:2]):
        if dial.error:
            yield Finding(
                f"{report.hosts[first]} to {report.hosts[second]}",
                f"no connection to {report.hosts[second]}:{report.port}: {dial.error}",
                "nodes connect to each other's ports (PORT, FPTPS_DATA_PORT): the cluster would not come together",
                _mend(report, first, second, report.hosts[second], dial),
            )


def _mend(report: Report, first: int, second: int, address: str, dial: Dial) -> str:
    here, there = report.hosts[first], report.hosts[second]
    return MENDS.get(dial.kind, MENDS["other"]).format(here=here, there=there, port=report.port, address=address)


def announced(report: Report) -> Iterator[Finding]:
    """The address that a node gives the others: that of the wrong interface cannot be reached by them."""
    by_name = {(pair.first, pair.second): pair.dial for pair in report.pairs}
    by_name |= {(reach.first, reach.second): reach.dial for reach in report.back}
    bad: dict[int, list[tuple[int, Dial]]] = {}
    for reach in report.reaches:
        works = by_name.get((reach.first, reach.second))
        if reach.dial.error and (works is None or not works.error):
            bad.setdefault(reach.second, []).append((reach.first, reach.dial))
    for host, attempts in bad.items():
        facts, name = report.facts[host], report.hosts[host]
        others, dial = ", ".join(report.hosts[first] for first, _ in attempts), attempts[0][1]
        way = _interface(
            facts, next((facts.routes[other] for other in report.hosts if other in facts.routes and other != name), "")
        )
        by = f"by {facts.announced_by}" if facts.announced_by else "the one on the route to the scheduler"
        use = (
            f"`export DMLC_INTERFACE={way.name}`"
            if way
            else "`export DMLC_NODE_HOST=` the address that the others reach"
        )
        yield Finding(
            name,
            f"a node announces {facts.announced}{_of(facts)} ({by}), which {others} cannot connect to: {dial.error}",
            "the others connect to the announced address: they would wait for this host until FPTPS_TIMEOUT",
            (f"unset {facts.announced_by}, or {use}" if facts.announced_by else use)
            + (f" ({way.address})" if way else ""),
        )
    for host, facts in report.facts.items():
        if facts.announced_by == "DMLC_INTERFACE" and not facts.announced:
            names = ", ".join(each.name for each in facts.interfaces)
            yield Finding(
                report.hosts[host],
                "DMLC_INTERFACE names an interface that is not there, or has no IPv4 address",
                "a node does not start",
                f"unset DMLC_INTERFACE, or set it to one of: {names}",
            )


def _of(facts: Facts) -> str:
    own = _interface(facts, facts.announced)
    return f" of {own.name}" if own else ""


def _interface(facts: Facts, address: str) -> Interface | None:
    return next((each for each in facts.interfaces if address and each.address == address), None)


def names(report: Report) -> Iterator[Finding]:
    """Names that lead elsewhere: to loopback, or to another host."""
    for host, facts in report.facts.items():
        here = report.hosts[host]
        for name, addresses in facts.names.items():
            loop = [address for address in addresses if address.startswith("127.")]
            if loop and name not in addresses and len(report.hosts) > 1:
                whose = "its own name" if name == here else f"the name {name}"
                yield Finding(
                    here,
                    f"{whose} resolves to {loop[0]}",
                    "a scheduler or node that uses this name listens on loopback only, or connects to "
                    "itself: no other host reaches it",
                    f"in /etc/hosts give {name} its address in the network: "
                    f"`sed -i 's/^{loop[0]}\\(.*{name}\\)/{_outside(report, name)}\\1/' /etc/hosts`",
                )
            elif not addresses and len(report.hosts) > 1:
                yield Finding(
                    here,
                    f"the name {name} does not resolve",
                    "this host cannot connect to it",
                    f"`echo '{_outside(report, name)} {name}' >> /etc/hosts`, or put it into the DNS",
                )
        for name, addresses in facts.names.items():
            for address in addresses:
                back = facts.reverse.get(address, "")
                if back != name and back in report.hosts and name != address:
                    yield Finding(
                        here,
                        f"{name} resolves to {address}, and {address} to {back}, which is another one of the hosts",
                        "logs and errors name the wrong host",
                        "correct /etc/hosts, or the DNS",
                    )


def _outside(report: Report, name: str) -> str:
    """A host's address as others see it."""
    for facts in report.facts.values():
        for address in facts.names.get(name, []):
            if not address.startswith("127."):
                return address
    host = report.hosts.index(name)
    own = report.facts.get(host)
    return (
        next((each.address for each in own.interfaces if not each.address.startswith("127.")), "ADDRESS")
        if own
        else "ADDRESS"
    )


def packets(report: Report) -> Iterator[Finding]:
    """Large packets that are lost, and interfaces whose packets have different sizes."""
    for pair in report.pairs:
        if pair.lost:
            first, second = report.hosts[pair.first], report.hosts[pair.second]
            size = pair.passes + HEADERS
            yield Finding(
                f"{first} and {second}",
                "small packets arrive, large ones do not: an MTU black hole"
                + (f" (packets of {size} bytes arrive, the interfaces have {pair.dial.mtu})" if pair.passes else ""),
                "connections are made, and the first tensor stands still for ever: something on the way "
                "drops large packets, and the "
                "message about it (ICMP) too",
                f"on both: `ip link set dev {_device(report, pair.first, pair.dial.local)} "
                f"mtu {size if pair.passes else 1200}`, or "
                "`sysctl -w net.ipv4.tcp_mtu_probing=1`; let ICMP pass on the way",
            )
    mtus = {}
    for host, facts in report.facts.items():
        own = _interface(facts, facts.announced)
        if own and own.name != "lo":
            mtus[report.hosts[host]] = own.mtu
    if len(set(mtus.values())) > 1:
        usual = statistics.mode(mtus.values())
        odd = [host for host, mtu in mtus.items() if mtu != usual]
        yield Finding(
            ", ".join(odd),
            f"another MTU than the other hosts: {', '.join(f'{host} {mtu}' for host, mtu in mtus.items())}",
            "larger packets may be lost on the way to it, and smaller ones cost processor time",
            f"`ip link set dev {_device(report, report.hosts.index(odd[0]), '')} mtu {usual}`",
        )


def _device(report: Report, host: int, address: str) -> str:
    facts = report.facts[host]
    own = _interface(facts, address) or _interface(facts, facts.announced)
    return own.name if own else "INTERFACE"


def clocks(report: Report) -> Iterator[Finding]:
    """Against the median of the hosts that the first one reaches."""
    offsets = {0: 0.0} if report.facts else {}
    doubt = {0: 0.0}
    for pair in report.pairs:
        if pair.first == 0 and pair.delay:
            offsets[pair.second], doubt[pair.second] = pair.offset, pair.delay / 2
    middle = statistics.median_low(sorted(offsets.values(), key=abs)) if len(offsets) > 2 else 0.0
    for host, offset in offsets.items():
        off = offset - middle
        if abs(off) - doubt[host] > CLOCK_S:
            than = f"{report.hosts[0]}'s" if len(offsets) == 2 else "most others'"
            yield Finding(
                report.hosts[host],
                f"its clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} {than}",
                "lines of the log and of a timeline seem to be in another order than they were, "
                "and files seem to be from the future",
                "`timedatectl set-ntp true`, or `chronyc makestep`",
            )


def rates(report: Report) -> Iterator[Finding]:
    """Links that are slower than they could be."""
    good = [pair for pair in report.pairs if pair.there > 0 and pair.back > 0]
    for pair in good:
        if pair.shared():
            where = f"{report.hosts[pair.first]} and {report.hosts[pair.second]}"
            device = _device(report, pair.first, pair.dial.local)
            yield Finding(
                where,
                f"half duplex: {pair.there:.0f} and {pair.back:.0f} Mbit/s one way at a time, "
                f"{pair.there_both:.0f} and {pair.back_both:.0f} both ways at once",
                "workers send gradients and receive sums at the same time: each iteration takes twice as long",
                f"on both: `ethtool {device}` shows the duplex, `ethtool -s {device} autoneg on` has it "
                f"negotiated anew; at a switch the same",
            )
    for host, facts in report.facts.items():
        own = _interface(facts, facts.announced)
        if own and (own.duplex == "half" or own.speed in (10, 100)):
            yield Finding(
                report.hosts[host],
                f"{own.name} runs at {own.speed} Mbit/s, {own.duplex or 'unknown'} duplex",
                "a cable, a port or the negotiation with the switch is bad: the link can do more",
                f"`ethtool -s {own.name} autoneg on`, another cable or port",
            )
    if len(good) > 1:
        usual = statistics.median(min(pair.there, pair.back) for pair in good)
        for pair in good:
            if min(pair.there, pair.back) < SLOW * usual:
                yield Finding(
                    f"{report.hosts[pair.first]} and {report.hosts[pair.second]}",
                    f"{pair.there:.0f} Mbit/s there and {pair.back:.0f} back, "
                    f"where pairs of hosts usually have {usual:.0f}",
                    "all workers wait for the slowest; fptps moves summing away from slow links, "
                    "but gradients still have to pass",
                    f"on both: `ethtool -S {_device(report, pair.first, pair.dial.local)}` counts errors and drops; "
                    f"look for other traffic",
                )


def versions(report: Report) -> Iterator[Finding]:
    packages = sorted({package for facts in report.facts.values() for package in facts.versions})
    for package in packages:
        found = {report.hosts[host]: facts.versions.get(package, "none") for host, facts in report.facts.items()}
        short = {_minor(version) if package == "python" else version for version in found.values()}
        if len(short) > 1:
            same = statistics.mode(found.values())
            mend = "install the same Python on all hosts" if package == "python" else f"`pip install {package}=={same}`"
            yield Finding(
                ", ".join(host for host, version in found.items() if version != same),
                f"{package} differs: {', '.join(f'{host} {version}' for host, version in found.items())}",
                "nodes of different versions may refuse each other, or compute different values",
                mend,
            )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def tcp(report: Report) -> Iterator[Finding]:
    for host, facts in report.facts.items():
        for name in ("tcp_window_scaling", "tcp_sack"):
            if facts.tcp.get(name) == 0:
                yield Finding(
                    report.hosts[host],
                    f"net.ipv4.{name} is off",
                    "a connection carries 64 KB per round trip"
                    if "window" in name
                    else "each lost packet costs a round trip",
                    f"`sysctl -w net.ipv4.{name}=1`",
                )
    kinds = {report.hosts[host]: facts.congestion for host, facts in report.facts.items() if facts.congestion}
    if len(set(kinds.values())) > 1:
        usual = statistics.mode(kinds.values())
        yield Finding(
            ", ".join(host for host, kind in kinds.items() if kind != usual),
            f"the congestion control differs: {', '.join(f'{host} {kind}' for host, kind in kinds.items())}",
            "where two kinds share a link, one of them gets far less",
            f"`sysctl -w net.ipv4.tcp_congestion_control={usual}`",
        )
    for pair in report.pairs:
        needs = int(max(pair.there, pair.back) * 1e6 / 8 * pair.delay)
        for host in (pair.first, pair.second):
            least = min((report.facts[host].tcp.get(name, 0) for name in ("rmem", "wmem")), default=0)
            if 0 < least < needs:
                yield Finding(
                    report.hosts[host],
                    f"the largest TCP buffer has {least} bytes, "
                    f"and {needs} are on the way at once to or from "
                    f"{report.hosts[pair.first + pair.second - host]}",
                    "the rate is bounded by the buffer, not by the link",
                    f"`sysctl -w net.ipv4.tcp_rmem='4096 131072 {2 * needs}' "
                    f"net.ipv4.tcp_wmem='4096 65536 {2 * needs}'`",
                )


def cores(report: Report) -> Iterator[Finding]:
    for host, facts in report.facts.items():
        by = "a cgroup's quota" if facts.quota else "the affinity"
        if facts.usable < 2 and facts.cores > 1:
            yield Finding(
                report.hosts[host],
                f"{by} allows {facts.usable:g} of {facts.cores} cores",
                "the program, the receive loop that sums and the send loop take turns: "
                "rates drop, and delays grow to the quota's period",
                "give the container more: `docker update --cpus 4 NAME`, or resources.limits.cpu in Kubernetes"
                if facts.quota
                else "`taskset -cp 0-3 PID`, or the job manager's --cpus-per-task",
            )
        most = max(1, math.floor(facts.usable))
        if facts.threads > max(1, math.ceil(facts.usable)):
            said = f"{facts.threads_by}={facts.threads}" if facts.threads_by else f"they count {facts.threads} cores"
            yield Finding(
                report.hosts[host],
                f"torch and numpy start {facts.threads} threads ({said}), and {by} allows {facts.usable:g} cores",
                "threads that wait for each other are stopped in turn: a step takes several times as long",
                f"`export OMP_NUM_THREADS={most}`, and divide it by the number of workers on the host",
            )
        if facts.memory and facts.memory_used > FULL * facts.memory:
            yield Finding(
                report.hosts[host],
                f"{facts.memory_used >> 20} of the {facts.memory >> 20} MB that a cgroup allows are in use",
                "the kernel kills a process of it when a tensor is allocated",
                "give the container more memory, for example `docker update --memory 32g NAME`",
            )


def settings(report: Report) -> Iterator[Finding]:
    for host, facts in report.facts.items():
        for name, known in facts.unknown.items():
            if known:
                yield Finding(
                    report.hosts[host],
                    f"{name} is set, which fptps does not know",
                    f"it has no effect; {known} may be meant",
                    f'`export {known}="${name}"; unset {name}`',
                )


CHECKS: Final[tuple[Callable[[Report], Iterable[Finding]], ...]] = (
    silent,
    ports,
    announced,
    names,
    packets,
    clocks,
    rates,
    versions,
    tcp,
    cores,
    settings,
)
