"""Process groups of torch.distributed in tests: several processes, each of which runs a function of a test module.

    python torch_group.py FOLDER BACKEND RANK SIZE MODULE FUNCTION

is one of them. The group meets by a file in the folder, and the function's result goes to another one. RANK "env" is
for a process of `fptps run`, whose environment says the rest.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import traceback
from datetime import timedelta
from pathlib import Path

TIMEOUT_S = 60


def start(folder, function, ranks, backend="fptps", prefix=(), environment=None):
    """Starts the processes of a group, in which function of its module runs."""
    from warm import PYTHON

    folder.mkdir(exist_ok=True)
    return [
        subprocess.Popen(
            [
                *prefix,
                *PYTHON,
                __file__,
                str(folder),
                backend,
                str(rank),
                str(ranks),
                function.__module__,
                function.__name__,
            ],
            env={**os.environ, **(environment or {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def results(folder, processes):
    """What the functions returned, by rank; AssertionError with the output of those that failed."""
    import torch

    ends = [(process.communicate(timeout=100)[1], process.returncode) for process in processes]
    assert all(code == 0 for _, code in ends), "\n".join(f"exit code {code}\n{text}" for text, code in ends)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(len(processes))]


def run(folder, function, ranks, backend="fptps"):
    """Runs function of its module in every process of a group, and returns the results by rank."""
    return results(folder, start(folder, function, ranks, backend))


def under_fptps_run(folder, function, workers, servers, backend="fptps"):
    """Runs function of its module in every worker of `fptps run`, and returns the results by rank."""
    import torch
    from warm import PYTHON

    program = [*PYTHON, __file__, str(folder), backend, "env", "", function.__module__, function.__name__]
    command = [sys.executable, "-m", "fptps", "run", "-n", str(workers), "-s", str(servers), "--", *program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(workers)]


def main(folder, backend, rank, size, module, function):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if rank == "env":
        place, rank = {}, os.environ["RANK"]
    else:
        place = {"init_method": f"file://{folder}/{backend}.store", "rank": int(rank), "world_size": int(size)}
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S), **place)
    result = getattr(importlib.import_module(module), function)()
    torch.save(result, Path(folder) / f"{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


def checked(functions):
    """Runs the functions one after the other; returns by name the traceback of those that failed."""
    failed = {}
    for function in functions:
        try:
            function()
        except Exception:
            failed[function.__name__] = traceback.format_exc()
    return failed


if __name__ == "__main__":
    main(*sys.argv[1:])
