"""Open MPI, by mpi4py: Iallreduces of all tensors at once, a process per worker.

python -m benchmarks.peers.mpi --workers 4 [--tcp] [--blocking]

Open MPI takes shared memory between processes of one machine; --tcp makes it take TCP over loopback, as between
machines. --blocking calls Allreduce for one tensor after the other instead.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from typing import Any

from .common import (
    FLOAT_BYTES,
    Options,
    PeerError,
    Result,
    add_worker_options,
    merged,
    options_of,
    parser,
    read_parts,
    report,
    write_part,
)
from .loop import measure
from .processes import processes

TCP = ("--mca", "btl", "tcp,self", "--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", "lo")


class MPIWorker:
    """numpy arrays, summed in place."""

    def __init__(self, options: Options, blocking: bool) -> None:
        import numpy
        from mpi4py import MPI

        self.mpi: Any = MPI
        self.world: Any = MPI.COMM_WORLD
        self.blocking = blocking
        self.tensors = [numpy.empty(options.size // FLOAT_BYTES, numpy.float32) for _ in range(options.tensors)]
        self.requests: list[Any] = [None] * options.tensors

    def start(self, tensor: int) -> None:
        """See loop.Worker."""
        if self.blocking:
            self.world.Allreduce(self.mpi.IN_PLACE, self.tensors[tensor])
        else:
            self.requests[tensor] = self.world.Iallreduce(self.mpi.IN_PLACE, self.tensors[tensor])

    def wait(self, tensor: int) -> None:
        """See loop.Worker."""
        if not self.blocking:
            self.requests[tensor].Wait()

    def fill(self, value: float) -> None:
        """See loop.Worker."""
        for tensor in self.tensors:
            tensor.fill(value)

    def elements(self, tensor: int) -> tuple[float, float]:
        """See loop.Worker."""
        return float(self.tensors[tensor][0]), float(self.tensors[tensor][-1])

    def agree(self, value: float) -> float:
        """See loop.Worker."""
        return float(self.world.allreduce(value, op=self.mpi.MAX))


def work(options: Options, folder: str, blocking: bool) -> None:
    """A worker's process."""
    worker = MPIWorker(options, blocking)
    rank = int(worker.world.rank)
    write_part(folder, rank, measure(worker, rank, options))


def run(options: Options, tcp: bool, blocking: bool) -> Result:
    """All workers, started by mpirun."""
    if options.workers < 2:
        raise PeerError("MPI needs --workers 2 or more: a single worker sends nothing.")
    if shutil.which("mpirun") is None:
        raise PeerError("mpirun is not installed: apt-get install openmpi-bin.")
    if importlib.util.find_spec("mpi4py") is None:
        raise PeerError("mpi4py is not installed: make peers, or pip install mpi4py.")
    with processes() as started:
        # By default Open MPI refuses more processes than cores, and root.
        command = ["mpirun", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
        command += ["--mca", "oob_tcp_if_include", "lo", *(TCP if tcp else ()), "-np", str(options.workers)]
        command += [sys.executable, "-m", __spec__.name, *options.arguments(), "--folder", str(started.folder)]
        command += ["--blocking"] if blocking else []
        started.start("mpirun", command)
        started.wait(["mpirun"], options.patience_s)
        return merged(options, read_parts(str(started.folder), options.workers))


def main() -> None:
    """The command line."""
    made = parser("Open MPI's Iallreduce")
    made.add_argument("--tcp", action="store_true", help="TCP over loopback instead of shared memory")
    made.add_argument("--blocking", action="store_true", help="Allreduce, one tensor after the other")
    add_worker_options(made)
    parsed = made.parse_args()
    if parsed.folder is None:
        report(lambda: run(options_of(parsed), parsed.tcp, parsed.blocking))
    else:
        work(options_of(parsed), parsed.folder, parsed.blocking)


if __name__ == "__main__":
    main()
