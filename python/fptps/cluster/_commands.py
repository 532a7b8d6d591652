"""The commands that start a cluster on this machine: a scheduler, servers, workers."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from .._environment import REPORT
from ._process import Command

HOST: Final = "127.0.0.1"
NODE: Final = (sys.executable, "-m", "fptps")
RANKS: Final = ("DMLC_WORKER_ID", "DMLC_SERVER_ID", "RANK")
"""What names the rank of a process from the start. One that comes later has the rank that the scheduler gives it."""


@contextlib.contextmanager
def reserved_port(host: str = HOST) -> Iterator[int]:
    """A free TCP port of an address of this host for the scheduler, which no other program gets meanwhile.

    It is bound here but not listened on, with SO_REUSEADDR: Linux lets another such socket that names this very port
    bind it too and listen, as ZeroMQ's does, and gives it to nobody who asks for any free one.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as reservation:
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
    shared.pop(REPORT, None)  # of a worker that runs a cluster of its own
    commands = [Command("scheduler", 0, [*NODE, "scheduler", "--quiet"], {**shared, "DMLC_ROLE": "scheduler"})]
    for rank in range(servers):
        own = {"DMLC_ROLE": "server", "DMLC_SERVER_ID": str(rank)}
        commands.append(Command("server", rank, [*NODE, "server"], {**shared, **own}))
    for rank in range(workers):
        own = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)}
        commands.append(Command("worker", rank, worker_arguments(rank), {**shared, **own}))
    return commands


def later(command: Command, role: str = "", arguments: Sequence[str] = ()) -> Command:
    """A process like another one, or with another role and program, that joins the cluster when it runs."""
    environment = {name: value for name, value in command.environment.items() if name not in RANKS}
    role = role or command.role
    return Command(role, None, list(arguments) or command.arguments, {**environment, "DMLC_ROLE": role})


def name_torch_group(commands: list[Command], port: int) -> None:
    """Adds to the workers' environment what torch.distributed.init_process_group() reads: the members of the default
    process group are the workers, and its store is at a port of this machine."""
    workers = [command for command in commands if command.role == "worker"]
    size = str(len(workers))
    for worker in workers:
        rank = str(worker.rank)
        worker.environment.update(
            MASTER_ADDR=HOST, MASTER_PORT=str(port), RANK=rank, WORLD_SIZE=size, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=size
        )
