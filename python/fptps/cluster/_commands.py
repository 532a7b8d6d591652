"""The commands that start a cluster on this machine: a scheduler, servers, workers."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ._process import Command

HOST: Final = "127.0.0.1"


@contextlib.contextmanager
def reserved_port(host: str = HOST) -> Iterator[int]:
    """A free TCP port of an address of this host for the scheduler, which no other program gets meanwhile.

    It is bound here but not listened on, with SO_REUSEADDR: Linux lets another such socket that names this very port
    bind it too and listen, as ZeroMQ's does, and gives it to nobody who asks for any free one.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((host, 0))
        yield reservation.getsockname()[1]


def cluster_commands(
    workers: int,
    servers: int,
    port: int,
    worker_arguments: Callable[[int], list[str]],
    environment: Mapping[str, str],
) -> list[Command]:
    """The processes of a cluster with its scheduler at a port of this machine; environment is the base of theirs."""
    shared = {
        "PYTHONUNBUFFERED": "1",  # output arrives as it is made
        **environment,
        "DMLC_PS_ROOT_URI": HOST,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": HOST,
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "FPTPS_TOKEN": secrets.token_hex(16),
    }
    for one in ("PORT", "FPTPS_DATA_PORT"):  # which all of them would ask for, and one would get
        shared.pop(one, None)
    node = [sys.executable, "-m", "fptps"]
    commands = [Command("scheduler", 0, [*node, "scheduler", "--quiet"], {**shared, "DMLC_ROLE": "scheduler"})]
    for rank in range(servers):
        own = {"DMLC_ROLE": "server", "DMLC_SERVER_ID": str(rank)}
        commands.append(Command("server", rank, [*node, "server"], {**shared, **own}))
    for rank in range(workers):
        own = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)}
        commands.append(Command("worker", rank, worker_arguments(rank), {**shared, **own}))
    return commands
