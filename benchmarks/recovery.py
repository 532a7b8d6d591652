"""What FPTPS_RECOVERY=1 costs, and how long a round takes in which a server or a worker dies.

python -m benchmarks.recovery --output build/benchmarks/recovery.json      # some 5 minutes

All on this machine, over loopback or shared memory: where links are slower than the processor, it costs less.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from datetime import datetime, timezone
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from tabulate import tabulate
from tqdm import tqdm

import fptps

from .compare import ROOT, commit, machine

ON: Final = {"FPTPS_RECOVERY": "1"}
TENSORS: Final = 12
BYTES: Final = 50_000_000
"""Of a round, on each worker."""
WARM_UP: Final = 5
"""Rounds that do not count."""
SIZES: Final = ((1, 1), (4, 4))
VANS: Final = ("tcp", "shm")


def rounds(count: int, dies: int | None, address: str) -> list[float]:
    """In a worker: how long each round takes, in seconds. In round `dies`, rank 0 kills a node."""
    with fptps.KVWorker() as kv:
        with Client(address) as connection:
            victim = connection.recv()
        arrays = [np.ones(BYTES // 4 // TENSORS, np.float32) for _ in range(TENSORS)]
        for key, array in enumerate(arrays):
            kv.init(key, np.zeros_like(array))
        took = []
        for number in range(count):
            for array in arrays:
                array.fill(1)
            kv.barrier()
            began = time.monotonic()
            tickets = [kv.push_pull(key, array, out=array) for key, array in enumerate(arrays)]
            if number == dies and kv.rank == 0:
                os.kill(victim, signal.SIGKILL)
            for ticket in tickets:
                ticket.result()
            took.append(time.monotonic() - began)
            assert all(a[0] == a[-1] == len(ticket.workers) for a, ticket in zip(arrays, tickets, strict=True))
        return took


def run(workers: int, servers: int, van: str, recovery: bool, dies: int | None, role: str) -> list[float]:
    """How long the slowest worker takes for each round, in seconds, in its own cluster. role: of the node that dies."""
    environment = {"FPTPS_VAN": van} | (ON if recovery else {})
    with (
        Listener(family="AF_UNIX") as listener,
        fptps.LocalCluster(workers, servers, 120, environment).start(rounds, 20, dies, listener.address) as cluster,
    ):
        for _ in range(workers):
            with listener.accept() as connection:
                connection.send(cluster.process(role, (servers if role == "server" else workers) - 1).pid)
        return [max(each) for each in zip(*filter(None, cluster.results()), strict=True)]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--clusters", type=click.IntRange(1), default=5, show_default=True, help="Of each kind.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON file.")
def main(clusters: int, output: Path | None) -> None:
    """Measure what it costs to survive the death of a server or a worker, and the round in which one dies."""
    now = datetime.now(timezone.utc)
    samples: list[dict[str, Any]] = []
    kinds = [(*size, van) for size in SIZES for van in VANS]
    runs = [
        (*kind, *run)
        for _ in range(clusters)
        for kind in kinds
        for run in ((False, None, "server"), (True, None, "server"), (True, 12, "server"), (True, 12, "worker"))
        if kind[0] > 1 or run[2] == "server"
    ]
    with tqdm(runs) as bar:
        for workers, servers, van, recovery, dies, role in bar:
            took = run(workers, servers, van, recovery, dies, role)
            calm = took[WARM_UP : dies or None]
            samples.append(
                {
                    "cluster": f"{workers}x{servers} {van}",
                    "recovery": recovery,
                    "role": role,
                    "round_ms": 1e3 * statistics.median(calm),
                    "death_ms": None if dies is None else 1e3 * took[dies],
                }
            )
    path = output or ROOT / "build" / "benchmarks" / f"recovery-{now:%Y-%m-%dT%H-%M-%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"date": now.isoformat(), "machine": machine(), "commit": commit(), "samples": samples}, indent=1)
    )
    click.echo(table(samples))


def table(samples: list[dict[str, Any]]) -> str:
    """Medians over the clusters of each kind; the worst of the rounds with a death."""
    rows = []
    for cluster in dict.fromkeys(sample["cluster"] for sample in samples):
        own = [sample for sample in samples if sample["cluster"] == cluster]
        off = statistics.median(s["round_ms"] for s in own if not s["recovery"])
        on = statistics.median(s["round_ms"] for s in own if s["recovery"])
        row = [cluster, off, on, off / on]
        for role in ("server", "worker"):
            deaths = [s["death_ms"] for s in own if s["death_ms"] is not None and s["role"] == role]
            row += [statistics.median(deaths), max(deaths)] if deaths else [None, None]
        rows.append(row)
    headers = (
        "cluster",
        "round off, ms",
        "on, ms",
        "goodput on / off",
        "a server dies, ms",
        "the worst",
        "a worker dies, ms",
        "the worst",
    )
    return str(tabulate(rows, headers, floatfmt=(".0f", ".0f", ".0f", ".2f", *[".0f"] * 4)))


if __name__ == "__main__":
    main()
