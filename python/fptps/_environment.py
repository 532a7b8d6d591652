"""Finds mistakes in the environment of a process: misspelt names, and launchers without a cluster."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Mapping
from typing import Final

from .errors import ConfigError

_log = logging.getLogger("fptps")

CLUSTER: Final = ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_ROLE")
"""The settings that name a cluster. A process with none of them is alone."""

LAUNCHERS: Final = {
    "OMPI_COMM_WORLD_SIZE": "mpirun (Open MPI)",
    "PMI_SIZE": "mpirun (MPICH, Intel MPI)",
    "WORLD_SIZE": "torchrun",
    "SLURM_NTASKS": "Slurm",
}
"""Other launchers, by the variable in which they give the number of processes."""

KEEP_GOING: Final = "FPTPS_KEEP_GOING"
"""Set by `fptps run --keep-going`, for its program."""

REPORT: Final = "FPTPS_REPORT"
"""Set by `fptps run` and LocalCluster for a worker without which its cluster may go on: the file of its Report; by
`fptps run` for its scheduler: the file of the last status."""

PREFIXES: Final = ("DMLC_", "PS_", "FPTPS_")

IGNORED: Final = frozenset(
    f"""
    {KEEP_GOING} {REPORT} DMLC_LOCAL DMLC_RANK DMLC_PS_VAN_TYPE DMLC_PS_WATER_MARK DMLC_ENABLE_RDMA DMLC_ENABLE_UCX
    DMLC_USE_KUBERNETES DMLC_GROUP_SIZE DMLC_NUM_PORTS DMLC_JOB_CLUSTER DMLC_TASK_ID DMLC_JOB_ARCHIVES
    DMLC_NUM_ATTEMPT DMLC_TRACKER_URI DMLC_TRACKER_PORT PS_RESEND PS_RESEND_TIMEOUT PS_DROP_MSG
    """.split()
)
"""Names of ps-lite and its launchers that fptps ignores without a warning."""


def unknown(environment: Mapping[str, str]) -> dict[str, str]:
    """The unknown names with the prefix of a setting, each with the setting that it resembles, or ""."""
    from . import _core

    known = [setting["name"] for setting in json.loads(_core.configuration())]
    names = (name for name, value in environment.items() if name.startswith(PREFIXES) and value)
    return {
        name: next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.8)), "")
        for name in sorted(names)
        if name not in known and name not in IGNORED
    }


def warning(names: Mapping[str, str]) -> str:
    """The warning about unknown names: one line."""
    asked = [f"{name} (did you mean {known}?)" if known else name for name, known in names.items()]
    return f"the environment has names that fptps does not know, and ignores: {', '.join(asked)}"


def warn(environment: Mapping[str, str]) -> None:
    """Logs a warning that names the unknown settings, if there are any."""
    names = unknown(environment)
    if names:
        _log.warning("%s", warning(names))


def check_alone(environment: Mapping[str, str]) -> None:
    """Logs that a process is about to run alone; ConfigError if its environment says that it is one of several."""
    given = [name for name in CLUSTER if environment.get(name)]
    if given:
        return  # an incomplete cluster: the core's error names the missing settings
    misspelt = {name: known for name, known in unknown(environment).items() if known in CLUSTER}
    if misspelt:
        raise ConfigError(f"this process would run alone, but {warning(misspelt)}. Correct the name, or unset it")
    for name, launcher in LAUNCHERS.items():
        size = environment.get(name, "")
        if size.isdecimal() and int(size) > 1:
            raise ConfigError(
                f"{name}={size}: {launcher} started {size} processes, but no fptps cluster is named: each would train "
                f"alone. Start `fptps scheduler --host HOST --port 9000 -n {size} -s 0` on one machine, and set "
                f"DMLC_PS_ROOT_URI=HOST DMLC_PS_ROOT_PORT=9000 DMLC_NUM_WORKER={size} DMLC_NUM_SERVER=0 for every "
                "process. To run alone all the same: KVWorker(num_workers=1)"
            )
    _log.warning(
        "running alone: the environment names no cluster (DMLC_PS_ROOT_URI), so every sum is this process's own push. "
        "`fptps run -n 4 PROGRAM` starts one; KVWorker(num_workers=1) says that this is meant"
    )
