"""How processes that share a store of torch.distributed become workers of one cluster, without servers.

Member 0 runs the cluster's scheduler, within its process, and publishes its address and the cluster's token in the
store. fptps.torch.init() meets so under a launcher, and so does each process group of the backend.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from torch._C._distributed_c10d import PrefixStore

from .._arguments import LONGEST_S
from .._environment import warn
from .._session import Session
from ..cluster._commands import HOST, reserved_port
from ..errors import FptpsError, TimeoutError
from ..worker import CLOSED, KVWorker

OF_ONE_NODE: Final = ("PORT", "FPTPS_DATA_PORT", "DMLC_SERVER_ID")
"""Settings that cannot hold for all nodes of one process."""
POLL_S: Final = 0.02
END_S: Final = 10.0
"""How long the scheduler may take to end after this process's worker."""


class Place(NamedTuple):
    """A process's place among those that meet."""

    store: Any
    """torch.distributed.Store, of this meeting alone."""
    rank: int
    """The number of this member."""
    ranks: list[int]
    """The rank of each member in the whole program."""
    seconds: float
    """The bound of every wait without its own."""
    name: str
    """What errors call those that meet."""

    def within(self, name: str, members: list[int]) -> Place:
        """The place in a cluster of some of the members."""
        store = PrefixStore(f"{name}/", self.store)
        ranks = [self.ranks[member] for member in members]
        return Place(store, members.index(self.rank), ranks, self.seconds, f"{self.name}, {name}")

    def named(self, error: FptpsError, hosted: bool = True) -> FptpsError:
        """An error of the cluster in the words of the program: ranks instead of workers. hosted: the scheduler is in
        the process of member 0."""
        text, rank = self._text(str(error)), error.rank
        if error.role == "worker" and rank is not None:
            rank = self.ranks[rank]
        elif error.role == "scheduler" and hosted:
            text, rank = f"{text} (it is in the process of rank {self.ranks[0]})", self.ranks[0]
        missing = [self._text(name) for name in error.missing]
        text = f"{self.name}: {text}"
        return type(error)(text, role=error.role, rank=rank, key=error.key, missing=missing)

    def _text(self, text: str) -> str:
        names = {f"worker {number}": f"rank {rank}" for number, rank in enumerate(self.ranks)}
        return re.sub(r"\bworker \d+", lambda found: names.get(found[0], found[0]), text)


class Scheduler:
    """The scheduler of a cluster, in the process of its worker 0."""

    def __init__(self, settings: dict[str, str], name: str) -> None:
        self._session = Session(LONGEST_S, CLOSED, "It ends with the worker of this process", lonely=True)
        self._session.name = f"the scheduler of {name}"
        try:
            # Nobody can start another one: it lives in this process, whose end is that of worker 0, too.
            own = {"DMLC_ROLE": "scheduler", "FPTPS_SCHEDULER_TIMEOUT": "0"}
            self._session.start(self._session.core.open, json.dumps({**settings, **own}))
            self._life = self._session.submit(self._session.core.joined, None)
        except BaseException:
            self._session.drop()
            raise

    def end(self) -> None:
        """Waits until all nodes have left or have been told why they cannot go on, then ends it. To be called after
        this process's worker has left. In a forked child it does nothing: the scheduler is the parent's."""
        if self._session.handle:
            with contextlib.suppress(TimeoutError):
                self._life.exception(END_S)
            self.drop()

    def drop(self) -> None:
        """Ends it at once."""
        self._session.drop()


def meet(place: Place, own: Mapping[str, str] | None = None) -> tuple[KVWorker, Scheduler | None]:
    """Joins the cluster of all that meet, at most in the place's seconds; its worker numbers are those of the members.
    The scheduler is member 0's to end. own: settings that override the environment."""
    with contextlib.ExitStack() as joining:
        scheduler = _serve(place, joining, own or {}) if place.rank == 0 else None
        try:
            described = json.loads(_get(place, "cluster"))
            settings = {
                **_settings(place, described),
                "DMLC_ROLE": "worker",
                "DMLC_WORKER_ID": str(place.rank),
                **(own or {}),
            }
            warn(settings)
            return KVWorker._of(settings, place.seconds, place.named), scheduler
        except BaseException:
            if scheduler is not None:
                scheduler.drop()
            raise


def _serve(place: Place, joining: contextlib.ExitStack, own: Mapping[str, str]) -> Scheduler:
    """Starts the scheduler and publishes how to reach it. Its port is reserved as long as the members join."""
    host = _own_address(place.store)
    port = joining.enter_context(reserved_port(host))
    described = {"host": host, "port": port, "token": secrets.token_hex(16)}
    scheduler = Scheduler({**_settings(place, described), **own}, place.name)
    place.store.set("cluster", json.dumps(described))
    return scheduler


def _settings(place: Place, described: dict[str, Any]) -> dict[str, str]:
    """Settings of a node of the cluster."""
    settings = {name: value for name, value in os.environ.items() if name not in OF_ONE_NODE}
    return {
        **settings,
        "DMLC_PS_ROOT_URI": described["host"],
        "DMLC_PS_ROOT_PORT": str(described["port"]),
        "DMLC_NUM_WORKER": str(len(place.ranks)),
        "DMLC_NUM_SERVER": "0",
        "FPTPS_TOKEN": described["token"],
        "FPTPS_TIMEOUT": repr(min(place.seconds, LONGEST_S)),
    }


def _get(place: Place, key: str) -> bytes:
    """A value of the store, once it is there."""
    end = time.monotonic() + place.seconds
    while not place.store.check([key]):
        if time.monotonic() > end:
            raise TimeoutError(
                f"{place.name}: waited {place.seconds:g} s for rank {place.ranks[0]}, which has not published the "
                "address of the scheduler: does every member join, by the same calls in the same order?",
                missing=[f"rank {place.ranks[0]}"],
            )
        time.sleep(POLL_S)
    value: bytes = place.store.get(key)
    return value


def _own_address(store: Any) -> str:
    """The address of this machine that others reach: DMLC_NODE_HOST, or that on the route to the store."""
    named = os.environ.get("DMLC_NODE_HOST")
    if named:
        return named
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    server = getattr(store, "host", None)
    if not server:
        return HOST  # a store of one machine: a file, or memory
    for family, kind, _, _, address in socket.getaddrinfo(server, 9, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind) as probe:  # any port: UDP only asks the routing table
            probe.connect(address)
            return str(probe.getsockname()[0])
    return HOST
