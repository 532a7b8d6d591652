"""What a host says of itself."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import importlib.metadata
import os
import platform
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

SIOCGIFADDR: Final = 0x8915
SIOCGIFMTU: Final = 0x8921
PACKAGES: Final = ("fptps", "numpy", "torch")
THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What torch and numpy read; the first that is set counts."""
SETTINGS: Final = ("tcp_window_scaling", "tcp_sack", "tcp_mtu_probing")


@dataclasses.dataclass
class Interface:
    """A network interface with an IPv4 address."""

    name: str
    address: str
    mtu: int
    speed: int
    """Mbit/s; 0: not known."""
    duplex: str
    """ "full", "half" or ""."""


@dataclasses.dataclass
class Facts:
    """A host."""

    versions: dict[str, str]
    """Of Python and packages; those that are not installed are missing."""
    cores: int
    """Of the machine."""
    usable: float
    """Of them, those that this process may use: by its affinity, and by the quota of its cgroup."""
    quota: bool
    """A cgroup's quota is the lower of the two."""
    threads: int
    """Threads that torch and numpy start."""
    threads_by: str
    """The variable that says so; "": they count the cores of the affinity."""
    memory: int
    """Bytes that the cgroup allows; 0: no bound."""
    memory_used: int
    interfaces: list[Interface]
    announced: str
    """The address, or name, that a node on this host gives the others."""
    announced_by: str
    """The setting that says so; "": the route to the scheduler."""
    names: dict[str, list[str]]
    """The addresses of each host, as this one resolves its name; empty: it does not."""
    reverse: dict[str, str]
    """The name of each of those addresses, as this host resolves it; without those that have none."""
    routes: dict[str, str]
    """This host's own address on the route to each host."""
    congestion: str
    tcp: dict[str, int]
    """Of SETTINGS those that the kernel has, and the largest buffers: rmem, wmem; bytes."""
    unknown: dict[str, str]
    """Names in the environment that fptps does not know, each with the setting that it resembles."""


def facts(hosts: Sequence[str], environment: Mapping[str, str], root: Path = Path("/")) -> Facts:
    """This host's. hosts: all of the cluster; root: of /proc and /sys."""
    from .._environment import unknown

    usable, quota = _usable(root)
    threads_by = next((name for name in THREADS if environment.get(name, "").isdigit()), "")
    names = {host: resolve(host) for host in hosts}
    scheduler = environment.get("DMLC_PS_ROOT_URI") or next((host for host in hosts if not is_here(host)), "")
    interfaces = _interfaces(root)
    announced, announced_by = _announced(environment, scheduler, interfaces)
    memory, used = _memory(root)
    return Facts(
        versions=_versions(),
        cores=os.cpu_count() or 1,
        usable=usable,
        quota=quota,
        threads=int(environment[threads_by]) if threads_by else len(os.sched_getaffinity(0)),
        threads_by=threads_by,
        memory=memory,
        memory_used=used,
        interfaces=interfaces,
        announced=announced,
        announced_by=announced_by,
        names=names,
        reverse=_reverse(names),
        routes={host: local for host in hosts if (local := route(host))},
        congestion=_read(root / "proc/sys/net/ipv4/tcp_congestion_control"),
        tcp=_tcp(root),
        unknown=unknown(environment),
    )


def resolve(host: str) -> list[str]:
    """The IPv4 addresses of a host, in the resolver's order."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(address[0]) for *_, address in found]


def is_here(host: str) -> bool:
    """Whether a host's address is one of this machine."""
    for address in resolve(host):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound, contextlib.suppress(OSError):
            bound.bind((address, 0))
            return True
    return False


def route(host: str) -> str:
    """This host's own address on the route to another one; "" without a route. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way, contextlib.suppress(OSError, UnicodeError):
        way.connect((host, 9))
        return str(way.getsockname()[0])
    return ""


def _announced(environment: Mapping[str, str], scheduler: str, interfaces: list[Interface]) -> tuple[str, str]:
    """As gocore/node does: DMLC_NODE_HOST, DMLC_INTERFACE, or the address on the route to the scheduler."""
    if environment.get("DMLC_NODE_HOST"):
        return environment["DMLC_NODE_HOST"], "DMLC_NODE_HOST"
    name = environment.get("DMLC_INTERFACE")
    if name:
        return next((each.address for each in interfaces if each.name == name), ""), "DMLC_INTERFACE"
    return route(scheduler) if scheduler else "", ""


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def _interfaces(root: Path) -> list[Interface]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                asked = struct.pack("256s", name.encode()[:15])
                raw = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, asked)
                (mtu,) = struct.unpack_from("i", fcntl.ioctl(any_socket.fileno(), SIOCGIFMTU, asked), 16)
                folder = root / "sys/class/net" / name
                duplex = _read(folder / "duplex")
                found.append(
                    Interface(
                        name=name,
                        address=socket.inet_ntoa(raw[20:24]),
                        mtu=mtu,
                        speed=max(0, _number(folder / "speed")),
                        duplex=duplex if duplex in ("full", "half") else "",
                    )
                )
    return found


def _reverse(names: dict[str, list[str]]) -> dict[str, str]:
    reverse = {}
    for address in {address for addresses in names.values() for address in addresses}:
        with contextlib.suppress(OSError):
            reverse[address] = socket.gethostbyaddr(address)[0]
    return reverse


def _usable(root: Path) -> tuple[float, bool]:
    """Cores that this process may use, and whether a cgroup's quota is what bounds them."""
    affinity = float(len(os.sched_getaffinity(0)))
    quotas = []
    for folder in _cgroup(root, "cpu"):
        words = _read(folder / "cpu.max").split()  # version 2: "200000 100000", or "max 100000"
        if not words:
            words = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    least = min(quotas, default=affinity)
    return min(least, affinity), least < affinity


def _memory(root: Path) -> tuple[int, int]:
    """The bytes that the cgroup with the least room left allows, and those in use; zeros: there is no bound."""
    bounds = []
    for folder in _cgroup(root, "memory"):
        for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit = _number(folder / most)
            if 0 < limit < 1 << 60:
                bounds.append((limit - _number(folder / used), limit, _number(folder / used)))
    _, limit, used_bytes = min(bounds, default=(0, 0, 0))
    return limit, used_bytes


def _cgroup(root: Path, controller: str) -> list[Path]:
    """The folders of this process's cgroup and of all above it, of version 2 and of version 1."""
    folders = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        own = top / path.lstrip("/")
        # A container sees its own cgroup at the top, whatever /proc says.
        folders += [own, *[parent for parent in own.parents if parent == top or top in parent.parents], top]
    return folders


def _tcp(root: Path) -> dict[str, int]:
    """The settings that the kernel has."""
    folder = root / "proc/sys/net/ipv4"
    found = {name: _number(folder / name) for name in SETTINGS if _read(folder / name)}
    for name in ("rmem", "wmem"):
        words = _read(folder / f"tcp_{name}").split()
        if len(words) == 3 and words[2].isdigit():
            found[name] = int(words[2])
    return found


def _number(path: Path) -> int:
    """The number in a file; 0 if there is none."""
    try:
        return int(_read(path))
    except ValueError:
        return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
