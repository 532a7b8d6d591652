"""What FPTPS_TRACE costs: goodput of 4 workers and 4 servers, and the latency of 4 KB with 2 workers and a server.

python -m benchmarks.tracing --output build/benchmarks/tracing.json      # some 5 minutes

All on this machine, over loopback or shared memory. The settings take turns; each is compared with the run of "0" in
its own turn, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
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
BYTES: Final = 25_000_000
"""Of a round, on each worker."""
SMALL: Final = 1024
"""Elements of the tensor whose rounds are timed alone: 4 KB."""
WARM_UP: Final = 5
"""Rounds that do not count."""
SETTINGS: Final = ("0", "1/64", "1")


def goodput(count: int) -> float:
    """In a worker: bytes that were summed per second, in the median round."""
    with fptps.KVWorker() as kv:
        arrays = [np.ones(BYTES // 4 // TENSORS, np.float32) for _ in range(TENSORS)]
        for key, array in enumerate(arrays):
            kv.init(key, np.zeros_like(array))
        kv.barrier()
        took = []
        for _ in range(WARM_UP + count):
            began = time.monotonic()
            for ticket in [kv.push_pull(key, array, op="mean", out=array) for key, array in enumerate(arrays)]:
                ticket.result()
            took.append(time.monotonic() - began)
        return BYTES / statistics.median(took[WARM_UP:])


def latency(count: int) -> float:
    """In a worker: seconds of the median round of a small tensor."""
    with fptps.KVWorker() as kv:
        small = np.ones(SMALL, np.float32)
        kv.init(0, np.zeros_like(small))
        kv.barrier()
        took = []
        for _ in range(100 + count):
            began = time.monotonic()
            kv.push_pull(0, small, op="mean", out=small).result()
            took.append(time.monotonic() - began)
        return statistics.median(took[100:])


def measure(setting: str) -> dict[str, float]:
    """One run with a setting of FPTPS_TRACE."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"FPTPS_TRACE": setting, "FPTPS_TRACE_DIR": folder}
        rates = fptps.LocalCluster(4, 4, 120, environment).run(goodput, 20)
        times = fptps.LocalCluster(2, 1, 120, environment).run(latency, 1000)
    return {"goodput": min(rates), "latency": max(times)}


@click.command()
@click.option("--turns", default=7, show_default=True, help="How often each setting is measured.")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "build/benchmarks/tracing.json")
def main(turns: int, output: Path) -> None:
    """Measures each setting in turn, and prints the medians of the ratios to tracing nothing."""
    runs: list[dict[str, dict[str, float]]] = []
    for turn in tqdm(range(turns)):
        order = SETTINGS if turn % 2 == 0 else SETTINGS[::-1]
        runs.append({setting: measure(setting) for setting in order})
    rows: list[list[Any]] = []
    for setting in SETTINGS:
        ratios = {
            what: statistics.median(run[setting][what] / run["0"][what] for run in runs)
            for what in ("goodput", "latency")
        }
        values = {what: statistics.median(run[setting][what] for run in runs) for what in ratios}
        rows.append([setting, values["goodput"] / 1e6, ratios["goodput"], values["latency"] * 1e6, ratios["latency"]])
    print(tabulate(rows, ["FPTPS_TRACE", "MB/s", "of off", "us of 4 KB", "of off"], floatfmt=".3f"))
    output.parent.mkdir(parents=True, exist_ok=True)
    about = {"date": datetime.now(timezone.utc).isoformat(), "machine": machine(), "commit": commit(), "runs": runs}
    output.write_text(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
