"""What metrics and the nodes' reports cost.

python -m benchmarks.seeing --before OTHER/bin/python --output build/benchmarks/seeing.json      # some 3 minutes

All on this machine. OTHER is an environment with an fptps from before there were reports. Without it the reports, which
are always on, run on both sides, and the figures show the metrics alone.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timezone
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
PORT: Final = 19400
"""Of the scheduler's metrics."""
SCRAPE_S: Final = 1.0


def rounds(count: int, small_count: int) -> dict[str, list[float]]:
    """In a worker: how long each round takes, and each round of the small tensor, in seconds."""
    with fptps.KVWorker() as kv:
        arrays = [np.ones(BYTES // 4 // TENSORS, np.float32) for _ in range(TENSORS)]
        for key, array in enumerate(arrays):
            kv.init(key, np.zeros_like(array))
        small = np.ones(SMALL, np.float32)
        kv.init(TENSORS, np.zeros_like(small))
        took: dict[str, list[float]] = {"round": [], "small": []}
        for _ in range(count):
            kv.barrier()
            began = time.monotonic()
            for ticket in [kv.push_pull(key, array, out=array, op="mean") for key, array in enumerate(arrays)]:
                ticket.result()
            took["round"].append(time.monotonic() - began)
        for _ in range(small_count):
            began = time.monotonic()
            kv.push_pull(TENSORS, small, out=small, op="mean").result()
            took["small"].append(time.monotonic() - began)
        return took


@contextmanager
def scraped() -> Iterator[None]:
    """Reads the metrics of all nodes each second, as Prometheus would."""
    end = threading.Event()

    def scrape() -> None:
        while not end.wait(SCRAPE_S):
            with suppress(OSError):  # they start, or have ended
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/targets") as answer:
                    targets = json.load(answer)[0]["targets"]
                for target in targets:
                    with urllib.request.urlopen(f"http://{target}/metrics") as answer:
                        answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def once(van: str, count: int, small_count: int) -> dict[str, float]:
    """The medians of the slowest worker, in a cluster of its own."""
    environment = {"FPTPS_VAN": van}
    if "FPTPS_METRICS_PORT" in os.environ:
        environment["FPTPS_METRICS_PORT"] = os.environ["FPTPS_METRICS_PORT"]
    results = fptps.LocalCluster(*SIZE, timeout=120, environment=environment).run(rounds, count, small_count)
    slowest = {
        what: [max(each) for each in zip(*(r[what] for r in results), strict=True)] for what in ("round", "small")
    }
    return {
        "round_ms": 1e3 * statistics.median(slowest["round"][WARM_UP:]),
        "small_us": 1e6 * statistics.median(slowest["small"]),
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--clusters", type=click.IntRange(1), default=7, show_default=True, help="Of each kind.")
@click.option("--count", type=click.IntRange(WARM_UP + 1), default=40, show_default=True, help="Rounds of a cluster.")
@click.option("--small-count", type=click.IntRange(1), default=2000, show_default=True, help="Rounds of 4 KB.")
@click.option("--before", default=sys.executable, help="Python with an fptps that sends no reports.")
@click.option("--once", "van", type=click.Choice(VANS), hidden=True, help="One cluster alone; prints its times.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON file.")
def main(clusters: int, count: int, small_count: int, before: str, van: str | None, output: Path | None) -> None:
    """Measure clusters with metrics, which are read each second, beside clusters without."""
    if van:
        click.echo(json.dumps(once(van, count, small_count)))
        return
    now = datetime.now(timezone.utc)
    samples: list[dict[str, Any]] = []
    with tqdm([(van, on) for _ in range(clusters) for van in VANS for on in (False, True)]) as bar:
        for each, on in bar:
            counts = ["--count", str(count), "--small-count", str(small_count)]
            command = [sys.executable if on else before, "-m", "benchmarks.seeing", "--once", each, *counts]
            environment = {**os.environ, **({"FPTPS_METRICS_PORT": str(PORT)} if on else {})}
            with scraped() if on else nullcontext():
                done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
            samples.append({"van": each, "on": on, **json.loads(done.stdout.splitlines()[-1])})
    path = output or ROOT / "build" / "benchmarks" / f"seeing-{now:%Y-%m-%dT%H-%M-%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"date": now.isoformat(), "machine": machine(), "commit": commit(), "samples": samples}, indent=1)
    )
    click.echo(table(samples))


def table(samples: list[dict[str, Any]]) -> str:
    """Medians over the clusters of each kind."""
    rows = []
    for van in dict.fromkeys(sample["van"] for sample in samples):

        def median(what: str, on: bool, van: str = van) -> float:
            return float(statistics.median(s[what] for s in samples if s["van"] == van and s["on"] == on))

        off, on = median("round_ms", False), median("round_ms", True)
        fast, slow = median("small_us", False), median("small_us", True)
        rows.append([van, off, on, off / on, fast, slow, slow / fast])
    headers = ("4x4", "round, off, ms", "on, ms", "goodput on / off", "4 KB, off, us", "on, us", "ratio")
    return str(tabulate(rows, headers, floatfmt=(".0f", ".1f", ".1f", ".3f", ".0f", ".0f", ".3f")))


if __name__ == "__main__":
    main()
