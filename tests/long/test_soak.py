"""A cluster of 3 workers and 2 servers that works for a long time: every sum is right, and its memory does not grow.

A worker's memory hardly swings. A server's does, by its part of a round, which goes back to the system in pauses. The
table at the end, also in build/soak.txt, has each process's resident memory over time."""

import contextlib
import statistics
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers import init_all, sum_and_check
from tabulate import tabulate

import fptps

ROUNDS = 2800
TENSORS = 60
LARGEST = 400_000
"""Elements of the largest tensor, 1.6 MB; the others have fewer, in equal steps."""
SAMPLE_S = 0.5
COLUMNS = 10
"""Of the table: each the median of a tenth of the time."""
SWING = 1.3
"""How many times a worker's least memory its most may be, between the first tenth of the time and the last."""
GROWTH = 1.1
"""How many times the memory of the second quarter of the time the last quarter may have."""

pytestmark = pytest.mark.timeout(3600)


def work(rounds):
    """All tensors in every round, small ones as urgent; gives how many sums were right."""
    with fptps.KVWorker() as kv:
        arrays = [np.zeros(LARGEST * (key + 1) // TENSORS, np.float32) for key in range(TENSORS)]
        init_all(kv, arrays)
        for iteration in range(rounds):
            sum_and_check(kv, arrays, iteration)
        return rounds * TENSORS


def resident_mb(processes):
    """By name, of those that run: one that has ended has no memory, collected or not."""
    found = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found[process.name] = psutil.Process(process.pid).memory_info().rss / 1e6
    return {name: megabytes for name, megabytes in found.items() if megabytes}


def watched(run):
    """Samples of all processes' memory until the first has ended."""
    samples = []
    while True:
        found = resident_mb(run.processes)
        if len(found) < len(run.processes):
            return samples
        samples.append(found)
        threading.Event().wait(SAMPLE_S)


def test_memory_does_not_grow(capsys):
    begin = time.monotonic()
    with fptps.LocalCluster(3, 2, timeout=3500).start(work, ROUNDS) as run:
        samples = watched(run)
        assert run.results() == [ROUNDS * TENSORS] * 3
    memory = {name: [sample[name] for sample in samples] for name in samples[0]}
    text = table(memory, time.monotonic() - begin)
    Path("build").mkdir(exist_ok=True)
    Path("build/soak.txt").write_text(text)
    with capsys.disabled():
        print(f"\n{text}")
    for name, values in memory.items():
        quarter = len(values) // 4
        assert quarter >= 8, "too short to say anything"
        before, after = statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])
        assert after < GROWTH * before, name
        tenth = len(values) // COLUMNS
        settled = values[tenth:-tenth]
        assert not name.startswith("worker") or max(settled) < SWING * min(settled), name


def table(memory, seconds):
    """Medians over time, and the least and the most after the first tenth."""
    rows = []
    for name, values in memory.items():
        tenths = [values[len(values) * n // COLUMNS : len(values) * (n + 1) // COLUMNS] for n in range(COLUMNS)]
        settled = values[len(values) // COLUMNS :]
        medians = [f"{statistics.median(tenth):.0f}" for tenth in tenths]
        rows.append([name, *medians, f"{min(settled):.0f}", f"{max(settled):.0f}"])
    headers = ["MB", *(f"{n + 1}/{COLUMNS}" for n in range(COLUMNS)), "least", "most"]
    text = tabulate(rows, headers, tablefmt="github", disable_numparse=True)
    return f"{ROUNDS} rounds of {TENSORS} tensors, 3 workers, 2 servers, {seconds:.0f} s\n\n{text}\n"
