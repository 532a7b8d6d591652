"""MXNet's own parameter server (ps-lite, over ZeroMQ): pushpull of all tensors at once on a kvstore `dist_sync`.

python -m benchmarks.peers.mxnet --workers 4 --servers 4 [--p3]

--p3 is its mode that slices tensors and sends them by priority. The processes run in .venv-mxnet, which
`make peers` sets up: MXNet needs a numpy older than fptps does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .common import (
    FLOAT_BYTES,
    ROOT,
    Options,
    PeerError,
    Result,
    add_worker_options,
    merged,
    options_of,
    parser,
    parts_written,
    read_parts,
    report,
    write_part,
)
from .loop import measure
from .processes import HOST, free_port, processes

ENVIRONMENT = ROOT / ".venv-mxnet"
# A process with the role of server or scheduler serves while it imports MXNet, and then ends.
SERVE = "import mxnet"
OTHERS = "PEER_OTHERS"


class MXNetWorker:
    """NDArrays, summed in place."""

    def __init__(self, options: Options) -> None:
        import mxnet

        self.mxnet: Any = mxnet
        self.kv: Any = mxnet.kv.create("dist_sync")
        length = options.size // FLOAT_BYTES
        self.tensors = [mxnet.nd.zeros((length,)) for _ in range(options.tensors)]
        for key, tensor in enumerate(self.tensors):
            self.kv.init(key, tensor)
        self.number_key = options.tensors
        self.kv.init(self.number_key, mxnet.nd.zeros((1,)))

    def start(self, tensor: int) -> None:
        """See loop.Worker."""
        self.kv.pushpull(tensor, self.tensors[tensor], out=self.tensors[tensor], priority=-tensor)

    def wait(self, tensor: int) -> None:
        """See loop.Worker."""
        self.tensors[tensor].wait_to_read()

    def fill(self, value: float) -> None:
        """See loop.Worker."""
        for tensor in self.tensors:
            tensor[:] = value
            tensor.wait_to_read()

    def elements(self, tensor: int) -> tuple[float, float]:
        """See loop.Worker."""
        return float(self.tensors[tensor][0].asscalar()), float(self.tensors[tensor][-1].asscalar())

    def agree(self, value: float) -> float:
        """See loop.Worker. The mean, because MXNet's servers can only sum."""
        number = self.mxnet.nd.array([value])
        self.kv.pushpull(self.number_key, number, out=number)
        return float(number.asscalar()) / int(self.kv.num_workers)


def work(options: Options, folder: str) -> None:
    """A worker's process."""
    worker = MXNetWorker(options)
    rank = int(worker.kv.rank)
    others = [int(pid) for pid in os.environ[OTHERS].split()] if rank == 0 else []
    write_part(folder, rank, measure(worker, rank, options, others))


def run(options: Options, p3: bool, python: Path) -> Result:
    """The scheduler, all servers, all workers."""
    if not python.exists():
        raise PeerError(f"{python} does not exist: `make peers` sets up MXNet in its own environment.")
    cluster = {
        "DMLC_PS_ROOT_URI": HOST,
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_WORKER": str(options.workers),
        "DMLC_NUM_SERVER": str(options.servers),
        "DMLC_NODE_HOST": HOST,
        "DMLC_PS_VAN_TYPE": "p3" if p3 else "zmq",
    }
    with processes() as started:
        helpers = ["scheduler", *(f"server {rank}" for rank in range(options.servers))]
        pids = [
            started.start(name, [str(python), "-c", SERVE], {**cluster, "DMLC_ROLE": name.split()[0]})
            for name in helpers
        ]
        workers = [f"worker {rank}" for rank in range(options.workers)]
        environment = {**cluster, "DMLC_ROLE": "worker", OTHERS: " ".join(map(str, pids))}
        for rank, name in enumerate(workers):
            command = [str(python), "-m", __spec__.name, *options.arguments()]
            command += ["--rank", str(rank), "--folder", str(started.folder)]
            started.start(name, command, environment)
        # Do not wait for their end: in P3 mode one process in ten hangs at exit.
        folder = str(started.folder)
        started.wait_until(lambda: parts_written(folder, options.workers), options.patience_s, "the workers")
        return merged(options, read_parts(folder, options.workers))


def main() -> None:
    """The command line."""
    made = parser("MXNet's kvstore dist_sync, that is ps-lite")
    made.add_argument("--p3", action="store_true", help="slices, sent by priority (DMLC_PS_VAN_TYPE=p3)")
    made.add_argument("--python", type=Path, default=ENVIRONMENT / "bin" / "python", help="a Python with MXNet")
    add_worker_options(made)
    parsed = made.parse_args()
    if parsed.rank is None:
        report(lambda: run(options_of(parsed), parsed.p3, parsed.python))
    else:
        work(options_of(parsed), parsed.folder)


if __name__ == "__main__":
    main()
