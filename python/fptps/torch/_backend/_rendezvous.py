"""How the members of a process group become workers of one fptps cluster, which is the group's own.

Member 0 runs the cluster's scheduler, within its process, and publishes its address and the cluster's token through the
group's store. The default group takes the cluster that the environment names instead (fptps run), if there is one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import socket
import threading
import time
from typing import Any, Final, NamedTuple

from torch._C._distributed_c10d import PrefixStore

from ..._arguments import LONGEST_S
from ..._session import Session
from ...cluster._commands import HOST, reserved_port
from ...errors import ConfigError, FptpsError, TimeoutError
from ...worker import CLOSED, KVWorker

ADVICE: Final = "Call torch.distributed.destroy_process_group() at the end of the program"
OF_ONE_NODE: Final = ("PORT", "FPTPS_DATA_PORT", "DMLC_SERVER_ID")
"""Settings that cannot hold for all nodes of one process."""
POLL_S: Final = 0.02

_log = logging.getLogger("fptps")
_joined_environment = False  # the cluster of the environment ends with the first default group


class Place(NamedTuple):
    """A member's place in its group."""

    store: Any
    """torch.distributed.Store of the group."""
    rank: int
    ranks: list[int]
    """The global rank of each member."""
    seconds: float
    """The group's timeout."""
    name: str

    def within(self, name: str, members: list[int]) -> Place:
        """The place in a cluster of some members of the group."""
        store = PrefixStore(f"{name}/", self.store)
        ranks = [self.ranks[member] for member in members]
        return Place(store, members.index(self.rank), ranks, self.seconds, f"{self.name}, {name}")


class Membership:
    """A worker of a group's cluster, and the cluster's scheduler where it runs in this process."""

    def __init__(self, kv: KVWorker, scheduler: Session | None, ranks: list[int], seconds: float, name: str) -> None:
        self.kv = kv
        self.ranks = ranks
        """The global rank of each worker."""
        self._scheduler = scheduler
        self._seconds = seconds
        self._name = name

    def leave(self) -> None:
        """Leaves in good order, on a thread: it needs the other members, and they may first do something else."""
        threading.Thread(target=self._leave, name="fptps leaves a process group").start()

    def _leave(self) -> None:
        try:
            self.kv.close()
            if self._scheduler is not None:
                self._end_scheduler(self._scheduler)
        except FptpsError as error:
            _log.warning("process group %s did not end in good order: %s", self._name, self._named(str(error)))
        finally:
            self.abort()

    def _end_scheduler(self, scheduler: Session) -> None:
        for ticket in list(scheduler.live.values()):  # its life, which ends when all have left
            ticket.exception(self._seconds)

    def translated(self, error: BaseException) -> BaseException:
        """An error of the cluster, with the names of the program: ranks instead of workers."""
        if not isinstance(error, FptpsError):
            return error
        text, rank = self._named(str(error)), error.rank
        if error.role == "worker" and rank is not None:
            rank = self.ranks[rank]
        elif error.role == "scheduler":
            text, rank = f"{text} (it is in the process of rank {self.ranks[0]})", self.ranks[0]
        missing = [self._named(name) for name in error.missing]
        return type(error)(f"process group {self._name}: {text}", role=error.role, rank=rank, missing=missing)

    def _named(self, text: str) -> str:
        return re.sub(r"\bworker (\d+)", lambda found: f"rank {self.ranks[int(found[1])]}", text)

    def abort(self) -> None:
        """Leaves at once; the other members see this one as lost."""
        self.kv._session.drop("its program aborted the process group")
        if self._scheduler is not None:
            self._scheduler.drop()


def join(place: Place, default: bool) -> Membership:
    """Joins the cluster of a group; default: it is the default group. Waits for all members, at most its timeout."""
    global _joined_environment
    if default and os.environ.get("DMLC_PS_ROOT_URI") and not _joined_environment:
        _joined_environment = True
        return _join_environment(place)
    with contextlib.ExitStack() as stack:
        scheduler = _serve(place, stack) if place.rank == 0 else None
        try:
            described = json.loads(_get(place, "cluster"))
            settings = {**_settings(place, described), "DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(place.rank)}
            return _membership(place, KVWorker._of(settings, place.seconds), scheduler, place.ranks)
        except BaseException:
            if scheduler is not None:
                scheduler.drop()
            raise


def _join_environment(place: Place) -> Membership:
    named, size = os.environ.get("DMLC_NUM_WORKER"), len(place.ranks)
    if named != str(size):
        raise ConfigError(
            f"the process group has {size} members, and the environment's cluster DMLC_NUM_WORKER={named} workers: "
            "start as many processes as it has workers, or unset DMLC_PS_ROOT_URI, and the group makes its own cluster"
        )
    kv = KVWorker(timeout=place.seconds)
    return _membership(place, kv, None, kv.allgather_object(place.rank))


def _membership(place: Place, kv: KVWorker, scheduler: Session | None, ranks: list[int]) -> Membership:
    kv._session.name, kv._session.advice = f"process group {place.name}", ADVICE
    return Membership(kv, scheduler, ranks, place.seconds, place.name)


def _serve(place: Place, joining: contextlib.ExitStack) -> Session:
    """Starts the scheduler and publishes how to reach it. Its port is reserved as long as the members join."""
    scheduler = Session(LONGEST_S, CLOSED, ADVICE, lonely=True)
    scheduler.name = f"the scheduler of process group {place.name}"
    host = _own_address(place.store)
    port = joining.enter_context(reserved_port(host))
    described = {"host": host, "port": port, "token": secrets.token_hex(16)}
    settings = {**_settings(place, described), "DMLC_ROLE": "scheduler"}
    scheduler.start(scheduler.core.open, json.dumps(settings))
    scheduler.submit(scheduler.core.joined, None)
    place.store.set("cluster", json.dumps(described))
    return scheduler


def _settings(place: Place, described: dict[str, Any]) -> dict[str, str]:
    """Settings of a node of the group's own cluster."""
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
                f"process group {place.name}: waited {place.seconds:g} s for rank {place.ranks[0]}, which has not "
                "published the address of the group's scheduler: does every member make the group?",
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
