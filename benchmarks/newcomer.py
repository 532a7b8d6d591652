"""How long a worker that comes later needs from its start to its first round.

python -m benchmarks.newcomer --output build/benchmarks/newcomer.json      # some 30 seconds
python -m benchmarks.newcomer --rate 1gbit                                 # on the test bed

Without --rate all is on one host.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
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
from .testbed import TestBed

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


def report(address: str, result: object) -> None:
    """In a process of the test bed: hands over a result."""
    with Client(address) as connection:
        connection.send(result)


def on_one_host(size: int) -> list[Any]:
    """The results of the workers, the newcomer's last."""
    with (
        Listener(family="AF_UNIX") as listener,
        fptps.LocalCluster(2, 1, 120, SETTINGS).start(train, size, listener.address) as run,
    ):
        for _ in range(2):
            listener.accept().close()
        run.add_worker(come, time.monotonic())
        return run.results()


def over_links(rate: str, size: int) -> list[Any]:
    """The same, of nodes with a link each."""
    with Listener(family="AF_UNIX") as listener, TestBed(3, 1, rate) as bed:
        address = str(listener.address)

        def program(call: str) -> list[str]:
            return [sys.executable, "-c", f"from benchmarks.newcomer import *; report({address!r}, {call})"]

        environment = SETTINGS | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        arguments = program(f"train({size}, {address!r})"), environment, None, None, None, (), 2
        running = threading.Thread(target=bed.run, args=arguments)
        running.start()
        for _ in range(2):
            listener.accept().close()
        bed.add("worker", "worker:2", program(f"come({time.monotonic()})"))
        results = []
        for _ in range(3):
            with listener.accept() as connection:
                results.append(connection.recv())
        running.join()
        return sorted(results, key=lambda result: isinstance(result, list))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--megabytes", type=click.IntRange(1), default=100, show_default=True, help="Of the state.")
@click.option("--rate", help="Of a link for each node: 1gbit. Without it all nodes are on one host.")
@click.option("--clusters", type=click.IntRange(1), default=5, show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON file.")
def main(megabytes: int, rate: str | None, clusters: int, output: Path | None) -> None:
    """Measure how long a worker that comes later needs until it takes part."""
    now = datetime.now(timezone.utc)
    samples, size = [], megabytes * 1_000_000
    for _ in tqdm(range(clusters)):
        *longest, times = over_links(rate, size) if rate else on_one_host(size)
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
                "rate": rate,
                "samples": samples,
            }
        )
    )
    rows = [(part, statistics.median(times), max(times)) for part, times in zip(PARTS, zip(*samples), strict=True)]
    click.echo(tabulate(rows, headers=["s", "median", "slowest"], floatfmt=".2f"))


if __name__ == "__main__":
    main()
