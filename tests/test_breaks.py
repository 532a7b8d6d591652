"""FPTPS_RECOVERY=1: connections that break between living nodes are made again. Nobody dies, and the sums are right."""

import json
import random
import sys
import time

import pytest
from benchmarks import testbed
from helpers import in_threads
from on_testbed import needs_network, needs_resets, run

TRAIN = """
import json, pathlib, sys
import numpy as np
import fptps, helpers

COUNT = 100_000
gate, over = sys.argv[1], pathlib.Path(sys.argv[2])


def gradient(rank, key, step):
    return ((np.arange(COUNT) % 11 + 1) * (rank + 2) * (key + 1) + step).astype(np.float32)


with fptps.KVWorker() as kv:
    workers = kv.workers
    for key in range(4):
        kv.init(key, np.zeros(COUNT, np.float32))
    kv.init("more", np.zeros(1, np.int32))
    helpers.pass_gate(gate)
    wrong, step, more = 0, 0, True
    while more:
        arrays = {key: gradient(kv.rank, key, step) for key in range(4)}
        tickets = [kv.push(0, arrays[0]), kv.push_pull(3, arrays[3], out=np.empty(COUNT, np.float32))]
        tickets += [kv.push_pull(key, arrays[key], out=arrays[key]) for key in (1, 2)]
        results = [ticket.result() for ticket in tickets]
        results[0] = kv.pull(0).result()
        wants = [sum(gradient(rank, key, step) for rank in workers) for key in (0, 3, 1, 2)]
        wrong += sum(not np.array_equal(result, want) for result, want in zip(results, wants))
        step += 1
        more = kv.push_pull("more", np.int32([not over.exists()])).result()[0] > 0
    print(json.dumps([wrong, kv.workers == workers, step, kv.stats().resumed]))
"""
"""A program that sums until a file exists, and compares every sum."""
SETTINGS = {"FPTPS_RECOVERY": "1", "PS_HEARTBEAT_INTERVAL": "0.5", "PS_HEARTBEAT_TIMEOUT": "4"}


@pytest.fixture
def train(gate, tmp_path, monkeypatch):
    """Trains on two workers and two servers, and calls a function meanwhile.

    Returns how often each worker's connections were made again, and the log.
    """

    def trained(disturb):
        def watch():
            gate.wait(2)
            gate.open()
            disturb(bed)
            (tmp_path / "over").touch()

        with testbed.TestBed(2, 2, "1gbit") as bed:
            program = [sys.executable, "-c", TRAIN, gate.address, str(tmp_path / "over")]
            (code, out, err), _ = in_threads(lambda: run(bed, program), watch)
        assert code == 0, err
        assert "lost" not in err
        reports = [json.loads(line.partition("] ")[2]) for line in out.splitlines()]
        assert [report[:2] for report in reports] == [[0, True]] * 2, (reports, err)
        return [resumed for _, _, _, resumed in reports], err

    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    return trained


@needs_network
@needs_resets
def test_connections_are_reset_again_and_again(train):
    def disturb(bed):
        for _ in range(100):
            bed.reset(random.choice(["server:0", "server:1", "worker:0", "worker:1"]))

    resumed, err = train(disturb)
    assert min(resumed) >= 20, (resumed, err)
    assert "data connection broke, and was made again" in err


@needs_network
@pytest.mark.parametrize("nodes", [(), ("worker:0", "server:1")], ids=["all", "two of five"])
@pytest.mark.parametrize("breaks", [False, pytest.param(True, marks=needs_resets)], ids=["silent", "with resets"])
def test_a_switch_that_starts_anew(train, breaks, nodes):
    """No packet passes for 2 s, or none between some nodes and the others. Of a connection that is reset then only one
    side hears it."""

    def disturb(bed):
        with bed.cut(nodes):
            if breaks:
                bed.reset("worker:0")
                bed.reset("server:1")
            time.sleep(2)  # nothing is waited for: this is the failure

    resumed, err = train(disturb)
    assert (max(resumed) > 0) == breaks, (resumed, err)
