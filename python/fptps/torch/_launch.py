"""How this process was started: its place among the processes of a launcher, from the environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ..errors import ConfigError


class Launched(NamedTuple):
    """One of several processes that a launcher has started."""

    by: str
    """The launcher, for people."""
    rank: int
    size: int
    local_rank: int | None
    """Its number among those of its host; None if the launcher does not say."""
    local_size: int | None


LAUNCHERS: Final = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "mpirun (Open MPI)",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("mpirun (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
)
"""The launchers, by their variables: the rank, the number of processes, and the same two on this host."""

MASTER: Final = ("MASTER_ADDR", "MASTER_PORT")
"""Where the processes of a launcher meet, as for torch.distributed; torchrun sets both."""


def launched(environment: Mapping[str, str]) -> Launched | None:
    """The launcher that has started this process as one of several; None if there is none."""
    for by, rank, size, local_rank, local_size in LAUNCHERS:
        number, own = _number(environment, size), _number(environment, rank)
        if number is not None and number > 1 and own is not None:
            return Launched(by, own, number, _number(environment, local_rank), _number(environment, local_size))
    return None


def check_master(environment: Mapping[str, str], process: Launched) -> None:
    """ConfigError unless the environment names the host of rank 0 and a port of it."""
    host, port = (environment.get(name, "") for name in MASTER)
    if not host or not port.isdecimal():
        raise ConfigError(
            f"{process.by} started {process.size} processes, but MASTER_ADDR={host!r} and MASTER_PORT={port!r} do not "
            "name the host of rank 0 and a free port of it, where they would meet. Set both for every process "
            "(`mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29400`, or `export` before srun); or start "
            "`fptps scheduler` yourself and set DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_WORKER, DMLC_NUM_SERVER"
        )


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else None
