"""Joins a cluster: of `fptps run`, of processes started by hand, or of the processes left after a loss."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

import fptps

from .link import Link

TIMEOUT_S = 600.0  # of the start, which may be by hand
REJOIN_S = 60.0  # of the start of the cluster that continues without a lost worker


class Place(NamedTuple):
    """The address, size and rank with which a process joins a cluster whose scheduler is a child of the PS."""

    host: str
    port: int
    processes: int
    rank: int
    again: bool = False
    """A worker was lost: the scheduler of the last cluster may still run."""

    @classmethod
    def of_run(cls, processes: int, rank: int) -> Place:
        """In a process of `fptps run` whose first cluster has ended: at the same address."""
        return cls(os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"]), processes, rank, again=True)


@contextmanager
def join(place: Place | None) -> Iterator[Link]:
    """None: joins the cluster that `fptps run` describes in the environment."""
    if place is None:
        with fptps.KVWorker(timeout=TIMEOUT_S) as kv:
            yield Link(kv, kv.rank)
        return
    # The rank that it requests in the cluster: the PS has to be the first.
    if place.rank == 0 or not place.again:
        os.environ["DMLC_WORKER_ID"] = str(place.rank)
    else:
        os.environ.pop("DMLC_WORKER_ID", None)
    with ExitStack() as stack:
        if place.rank == 0:
            stack.enter_context(scheduler(place))
        yield Link(stack.enter_context(connect(place)), place.rank)


def connect(place: Place) -> fptps.KVWorker:
    end = time.monotonic() + REJOIN_S
    timeout = REJOIN_S if place.again else TIMEOUT_S
    while True:
        try:
            return fptps.KVWorker(f"{place.host}:{place.port}", place.processes, 0, timeout=timeout)
        except (fptps.ConnectError, fptps.NodeLostError):
            if not place.again or time.monotonic() > end:
                raise


@contextmanager
def scheduler(place: Place) -> Iterator[None]:
    """Runs the scheduler as a child of the PS. It ends when all nodes have left, or when one has died."""
    if place.again:
        wait_until_free(place)
    environment = {
        "DMLC_ROLE": "scheduler",
        "DMLC_PS_ROOT_URI": place.host,
        "DMLC_PS_ROOT_PORT": str(place.port),
        "DMLC_NUM_WORKER": str(place.processes),
        "DMLC_NUM_SERVER": "0",
        "FPTPS_TIMEOUT": str(TIMEOUT_S),
    }
    child = subprocess.Popen([sys.executable, "-m", "fptps", "scheduler"], env={**os.environ, **environment})
    try:
        yield
        with suppress(subprocess.TimeoutExpired):  # the training has succeeded, however long its scheduler takes to end
            child.wait(timeout=10)
    finally:
        child.terminate()
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def wait_until_free(place: Place) -> None:
    """Returns once nothing listens at the address."""
    end = time.monotonic() + REJOIN_S
    while time.monotonic() < end:
        try:
            socket.create_connection((place.host, place.port), timeout=1).close()
        except OSError:
            return
        time.sleep(0.05)
