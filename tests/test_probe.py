"""The probe of the links before the first iteration."""

import io
import json
import sys
import time

from benchmarks import testbed
from helpers import in_threads
from on_testbed import ENVIRONMENT, needs_network

WAIT = """
import json, sys, time
import numpy as np
import fptps, helpers

with fptps.KVWorker() as kv:
    plan = helpers.pass_gate(sys.argv[1])
    end = time.monotonic() + 30
    while kv.stats().plan != plan and time.monotonic() < end:
        time.sleep(0.01)
    stats = kv.stats()
    array = np.arange(100_000, dtype=np.float32) % 7 + kv.rank
    kv.init(0, array)
    total = kv.push_pull(0, array).result()
    assert (total == kv.num_workers * (array - kv.rank + (kv.num_workers - 1) / 2)).all()
    report = {"plan": stats.plan, "shares": stats.shares, "probe_bytes": stats.probe_bytes, "rounds": stats.rounds}
    print(json.dumps(report), flush=True)
"""
"""A program that trains nothing until the scheduler has decided, and then sums once. All numbers are exact."""

DECISIONS = {"scheduler: plan 1 of the summing: ": 1, "scheduler: the first plan of the summing stays": 0}


def decided(gate, err, workers):
    """Lets the workers go on with the plan that the scheduler has decided on, once all of them have come."""
    gate.wait(workers)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        plans = [plan for text, plan in DECISIONS.items() if text in err.getvalue()]
        if plans:
            break
        time.sleep(0.01)
    gate.open(max(plans))


def probe(gate, workers, servers, *rates):
    """What each worker knows before the first iteration, and what the nodes have logged."""
    out, err = io.StringIO(), io.StringIO()
    with testbed.TestBed(workers, servers, *rates) as bed:
        program = [sys.executable, "-c", WAIT, gate.address]
        code, _ = in_threads(lambda: bed.run(program, ENVIRONMENT, out, err), lambda: decided(gate, err, workers))
    assert code == 0, err.getvalue()
    return [json.loads(line.partition("] ")[2]) for line in out.getvalue().splitlines()], err.getvalue()


@needs_network
def test_the_first_plan_fits_the_links(monkeypatch, gate):
    monkeypatch.setenv("PS_VERBOSE", "1")
    for _ in range(5):  # on a busy machine a probe may find nothing
        reports, err = probe(gate, 4, 2, "200mbit", {"server:0": "50mbit"})
        if reports[0]["plan"] > 0:
            break
    assert len(reports) == 4
    for report in reports:
        assert report["plan"] == 1, err
        assert report["rounds"] == 0
        assert 0.05 < report["shares"]["server 0"] < 0.12
        assert 0.3 < report["shares"]["server 1"] < 0.4
        assert 0 < report["probe_bytes"] <= 8 << 20
    assert err.count("the probe of the links is over: ") == 6


@needs_network
def test_equal_links_keep_their_plan(monkeypatch, gate):
    monkeypatch.setenv("PS_VERBOSE", "1")
    reports, err = probe(gate, 4, 2, "200mbit")
    assert [(report["plan"], report["shares"]["server 0"]) for report in reports] == [(0, 0.3)] * 4
    assert all(report["probe_bytes"] > 1 << 20 for report in reports)
    assert err.count("the probe of the links is over: ") == 6
