"""Gloo, by torch.distributed: all-reduces of all tensors at once, a process per worker, TCP over loopback.

python -m benchmarks.peers.gloo --workers 4 --size 4194304 --tensors 16
"""

from __future__ import annotations

import datetime
import importlib.util
import os
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


class GlooWorker:
    """Tensors of torch, summed in place."""

    def __init__(self, options: Options) -> None:
        import torch

        self.torch = torch
        self.distributed: Any = torch.distributed
        self.tensors = [torch.empty(options.size // FLOAT_BYTES) for _ in range(options.tensors)]
        self.works: list[Any] = [None] * options.tensors

    def start(self, tensor: int) -> None:
        """See loop.Worker."""
        self.works[tensor] = self.distributed.all_reduce(self.tensors[tensor], async_op=True)

    def wait(self, tensor: int) -> None:
        """See loop.Worker."""
        self.works[tensor].wait()

    def fill(self, value: float) -> None:
        """See loop.Worker."""
        for tensor in self.tensors:
            tensor.fill_(value)

    def elements(self, tensor: int) -> tuple[float, float]:
        """See loop.Worker."""
        return float(self.tensors[tensor][0]), float(self.tensors[tensor][-1])

    def agree(self, value: float) -> float:
        """See loop.Worker."""
        number = self.torch.tensor([value], dtype=self.torch.float64)
        self.distributed.all_reduce(number, op=self.distributed.ReduceOp.MAX)
        return float(number)


def work(options: Options, rank: int, folder: str) -> None:
    """A worker's process. The workers meet by a file: a port that is free now may be taken when they have started."""
    import torch.distributed

    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=options.workers,
        timeout=datetime.timedelta(seconds=options.patience_s),
    )
    write_part(folder, rank, measure(GlooWorker(options), rank, options))
    torch.distributed.destroy_process_group()


def run(options: Options) -> Result:
    """All workers."""
    if options.workers < 2:
        raise PeerError("gloo needs --workers 2 or more: a single worker sends nothing.")
    if importlib.util.find_spec("torch") is None:
        raise PeerError("gloo comes with PyTorch, which is not installed: pip install torch, or make setup.")
    with processes() as started:
        names = [f"worker {rank}" for rank in range(options.workers)]
        for rank, name in enumerate(names):
            command = [sys.executable, "-m", __spec__.name, *options.arguments()]
            command += ["--rank", str(rank), "--folder", str(started.folder)]
            # This host's name may resolve to an address outside loopback.
            started.start(name, command, {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")})
        started.wait(names, options.patience_s)
        return merged(options, read_parts(str(started.folder), options.workers))


def main() -> None:
    """The command line."""
    made = parser("Gloo's all_reduce")
    add_worker_options(made)
    parsed = made.parse_args()
    if parsed.rank is None:
        report(lambda: run(options_of(parsed)))
    else:
        work(options_of(parsed), parsed.rank, parsed.folder)


if __name__ == "__main__":
    main()
