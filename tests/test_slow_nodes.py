"""Nodes that stop for a while, or whose processor is slow: what the plan makes of them."""

import json
import os
import sys
from pathlib import Path

import pytest
from benchmarks import testbed
from on_testbed import needs_network, run

CPU = Path("/sys/fs/cgroup/cpu")
"""Of control groups of version 1, as their quota can be set without moving other processes."""
needs_quota = pytest.mark.skipif(not os.access(CPU, os.W_OK), reason=f"{CPU}: no control group can be made")

TRAIN = """
import json, os, subprocess, sys
from pathlib import Path
import numpy as np
import fptps

kind, rounds, least = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with fptps.KVWorker() as kv:
    array = np.arange(1 << 18, dtype=np.float32) % 5
    for key in range(4):
        kv.init(key, np.zeros_like(array))
    kv.init(9, np.zeros(1, np.float32))
    before = kv.stats().shares
    for number in range(rounds):
        if number == 2 and kv.rank == 0 and kind == "stops":
            subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), 19)
        elif number == 2 and kv.rank == 0:
            (Path(kind) / "cgroup.procs").write_text(str(os.getpid()))
        sums = [kv.push_pull(key, array * (kv.rank + key)) for key in range(4)]
        done = kv.push_pull(9, np.full(1, kv.stats().plan >= least, np.float32))
        for key, total in enumerate(sums):
            assert (total.result() == array * sum(rank + key for rank in range(kv.num_workers))).all()
        if least and done.result()[0] == kv.num_workers:
            break
    if kv.rank == 0 and kind != "stops":
        (Path(kind).parent / "cgroup.procs").write_text(str(os.getpid()))
    print(json.dumps([before, kv.stats().shares]), flush=True)
"""


def shares(bed, *arguments):
    """Of each node, before and after the training; the same for all workers."""
    code, out, err = run(bed, [sys.executable, "-c", TRAIN, *map(str, arguments)])
    assert code == 0, err
    reports = [json.loads(line.partition("] ")[2]) for line in out.splitlines()]
    assert reports == [reports[0]] * 3
    return reports[0]


@needs_network
def test_shares_do_not_collapse_while_a_worker_is_stopped():
    with testbed.TestBed(3, 1, "200mbit") as bed:
        before, after = shares(bed, "stops", 12, 0)
    assert min(before.values()) > 0.1
    for node, share in before.items():
        assert after[node] > 0.5 * share


@pytest.fixture
def quota():
    """A control group with a twentieth of a processor."""
    group = CPU / f"fptps_test_{os.getpid()}"
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text("20000")
    (group / "cpu.cfs_quota_us").write_text("1000")
    yield group
    for pid in (group / "cgroup.procs").read_text().split():  # of a test that failed
        (CPU / "cgroup.procs").write_text(pid)
    group.rmdir()


@needs_network
@needs_quota
def test_a_slow_processor_sums_less(quota, monkeypatch):
    monkeypatch.setenv("PS_VERBOSE", "1")
    with testbed.TestBed(3, 0, "200mbit") as bed:
        before, after = shares(bed, quota, 60, 1)
    assert before == {
        "worker 0": pytest.approx(1 / 3),
        "worker 1": pytest.approx(1 / 3),
        "worker 2": pytest.approx(1 / 3),
    }
    assert after.get("worker 0", 0) < 0.15
