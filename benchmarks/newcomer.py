"""How long a worker that comes later needs from its start to its first round.

python -m benchmarks.newcomer --output build/benchmarks/newcomer.json      # some 30 seconds

All on this machine: over a link, add the time that it needs for the state.
"""

from __future__ import annotations

import json
import statistics
import time
from datetime import datetime, timezone
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Final

import click
import numpy as np
from tabulate import tabulate
from tqdm import tqdm

import fptps

from .compare import ROOT, commit, machine

SETTINGS: Final = {"FPTPS_RECOVERY": "1", "FPTPS_MAX_WORKERS": "3"}
PARTS: Final = ("joined", "admitted", "first round", "longest round of the others")


def train(size: int, address: str) -> float:
    """In a worker: rounds of 1 MB with a state of so many bytes, until a newcomer is done. The longest round, in s."""
    state, longest = np.ones(size, np.uint8), 0.0
    with fptps.KVWorker() as kv:
        kv.init("gradient", np.zeros(1 << 18, np.float32))
        kv.init("done", np.zeros(1, np.int32))
        done = np.zeros(1, np.int32)
        step(kv, done, 0)
        Client(address).close()
        while not done[0]:
            began = time.monotonic()
            kv.admit(lambda: state)
            step(kv, done, 0)
            longest = max(longest, time.monotonic() - began)
    return longest


def step(kv: fptps.KVWorker, done: np.ndarray, mine: int) -> None:
    gradient = np.ones(1 << 18, np.float32)
    done[0] = mine
    fptps.wait([kv.push_pull("gradient", gradient, out=gradient), kv.push_pull("done", done, out=done)])
    assert gradient[0] == kv.num_workers


def come(began: float) -> list[float]:
    """In a newcomer that was started then: when it has joined, was admitted, and has had a round, in s."""
    with fptps.KVWorker() as kv:
        kv.init("gradient", np.zeros(1 << 18, np.float32))
        kv.init("done", np.zeros(1, np.int32))
        times = [time.monotonic() - began]
        admitted = kv.admit(tuple)
        assert admitted is not None
        assert admitted.state.all()
        times.append(time.monotonic() - began)
        done = np.zeros(1, np.int32)
        step(kv, done, 1)
        return [*times, time.monotonic() - began]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--megabytes", type=click.IntRange(1), default=100, show_default=True, help="Of the state.")
@click.option("--clusters", type=click.IntRange(1), default=5, show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON file.")
def main(megabytes: int, clusters: int, output: Path | None) -> None:
    """Measure how long a worker that comes later needs until it takes part."""
    now = datetime.now(timezone.utc)
    samples = []
    for _ in tqdm(range(clusters)):
        with (
            Listener(family="AF_UNIX") as listener,
            fptps.LocalCluster(2, 1, 120, SETTINGS).start(train, megabytes * 1_000_000, listener.address) as run,
        ):
            for _ in range(2):
                listener.accept().close()
            run.add_worker(come, time.monotonic())
            *longest, times = run.results()
        samples.append([*times, max(longest)])
    path = output or ROOT / "build" / "benchmarks" / f"newcomer-{now:%Y-%m-%dT%H-%M-%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {
                "date": now.isoformat(),
                "machine": machine(),
                "commit": commit(),
                "megabytes": megabytes,
                "samples": samples,
            }
        )
    )
    rows = [(part, statistics.median(times), max(times)) for part, times in zip(PARTS, zip(*samples), strict=True)]
    click.echo(tabulate(rows, headers=["s", "median", "slowest"], floatfmt=".2f"))


if __name__ == "__main__":
    main()
