"""What FPTPS_REPLICAS=1 costs a training whose optimiser is on the servers.

python -m benchmarks.replicas --output build/benchmarks/replicas.json      # some 4 minutes

All on this machine, over loopback or shared memory.
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

TENSORS: Final = 12
BYTES: Final = 50_000_000
"""Of a round, on each worker."""
SMALL: Final = 1024
"""Elements of the tensor whose rounds are timed alone: 4 KB."""
WARM_UP: Final = 5
"""Rounds that do not count."""
SIZE: Final = (4, 4)
VANS: Final = ("tcp", "shm")


def rounds(count: int, dies: int | None, address: str) -> dict[str, list[float]]:
    """In a worker: how long each round takes, and each round of the small tensor, in seconds. In round `dies`, rank 0
    kills a server."""
    with fptps.KVWorker() as kv:
        with Client(address) as connection:
            victim = connection.recv()
        arrays = [np.ones(BYTES // 4 // TENSORS, np.float32) for _ in range(TENSORS)]
        for key, array in enumerate(arrays):
            kv.init(key, np.zeros_like(array))
        small = np.ones(SMALL, np.float32)
        kv.init(TENSORS, np.zeros_like(small))
        kv.set_optimizer(fptps.optim.SGD(lr=0.125))
        took: dict[str, list[float]] = {"round": [], "small": []}
        for number in range(count):
            kv.barrier()
            began = time.monotonic()
            tickets = [kv.push_pull(key, array, out=array) for key, array in enumerate(arrays)]
            if number == dies and kv.rank == 0:
                os.kill(victim, signal.SIGKILL)
            for ticket in tickets:
                ticket.result()
            took["round"].append(time.monotonic() - began)
        for _ in range(300):
            began = time.monotonic()
            kv.push_pull(TENSORS, small, out=small).result()
            took["small"].append(time.monotonic() - began)
        return took


def run(van: str, replicas: int, dies: int | None) -> dict[str, list[float]]:
    """The times of the slowest worker, in its own cluster."""
    workers, servers = SIZE
    environment = {"FPTPS_VAN": van, "FPTPS_RECOVERY": "1", "FPTPS_REPLICAS": str(replicas)}
    with (
        Listener(family="AF_UNIX") as listener,
        fptps.LocalCluster(workers, servers, 120, environment).start(rounds, 20, dies, listener.address) as cluster,
    ):
        for _ in range(workers):
            with listener.accept() as connection:
                connection.send(cluster.process("server", servers - 1).pid)
        results = cluster.results()
    return {what: [max(each) for each in zip(*(r[what] for r in results), strict=True)] for what in ("round", "small")}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--clusters", type=click.IntRange(1), default=5, show_default=True, help="Of each kind.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON file.")
def main(clusters: int, output: Path | None) -> None:
    """Measure what replicas of the weights on servers cost, and the round in which a server dies."""
    now = datetime.now(timezone.utc)
    samples: list[dict[str, Any]] = []
    runs = [(van, *kind) for _ in range(clusters) for van in VANS for kind in ((0, None), (1, None), (1, 12))]
    with tqdm(runs) as bar:
        for van, replicas, dies in bar:
            took = run(van, replicas, dies)
            samples.append(
                {
                    "van": van,
                    "replicas": replicas,
                    "round_ms": 1e3 * statistics.median(took["round"][WARM_UP : dies or None]),
                    "small_us": None if dies else 1e6 * statistics.median(took["small"]),
                    "death_ms": None if dies is None else 1e3 * took["round"][dies],
                }
            )
    path = output or ROOT / "build" / "benchmarks" / f"replicas-{now:%Y-%m-%dT%H-%M-%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"date": now.isoformat(), "machine": machine(), "commit": commit(), "samples": samples}, indent=1)
    )
    click.echo(table(samples))


def table(samples: list[dict[str, Any]]) -> str:
    """Medians over the clusters of each kind; the worst of the rounds with a death."""
    rows = []
    for van in dict.fromkeys(sample["van"] for sample in samples):

        def median(what: str, replicas: int, van: str = van) -> float:
            values = [s[what] for s in samples if s["van"] == van and s["replicas"] == replicas and s[what] is not None]
            return float(statistics.median(values))

        deaths = [s["death_ms"] for s in samples if s["van"] == van and s["death_ms"] is not None]
        without, with_ = median("round_ms", 0), median("round_ms", 1)
        fast, slow = median("small_us", 0), median("small_us", 1)
        rows.append([van, without, with_, without / with_, fast, slow, slow / fast, median("death_ms", 1), max(deaths)])
    headers = (
        "4x4",
        "round, no replicas, ms",
        "replicas, ms",
        "goodput with / without",
        "4 KB, no replicas, us",
        "replicas, us",
        "ratio",
        "a server dies, ms",
        "the worst",
    )
    return str(tabulate(rows, headers, floatfmt=(".0f", ".0f", ".0f", ".2f", ".0f", ".0f", ".2f", ".0f", ".0f")))


if __name__ == "__main__":
    main()
