"""FPTPS_RECOVERY=1: the scheduler dies, and another one goes on with its cluster."""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from helpers import Gate, pass_gate
from test_restarts import run

import fptps

COUNT = 50_000
RECOVERS = {"FPTPS_RECOVERY": "1"}


def gradient(rank, key, step):
    return ((np.arange(COUNT) % 11 + 1) * (rank + 2) * (key + 1) + step).astype(np.float32)


def rounds(kv, first, count, keys=(0, 1)):
    """Rounds with checked sums; returns the workers of the last one."""
    workers = None
    for step in range(first, first + count):
        tickets = {key: kv.push_pull(key, gradient(kv.rank, key, step)) for key in keys}
        for key, ticket in tickets.items():
            sum_ = ticket.result()
            workers = ticket.workers
            assert np.array_equal(sum_, sum(gradient(rank, key, step) for rank in workers)), (
                kv.rank,
                key,
                step,
                workers,
            )
    return workers


def kill(process):
    os.kill(process.pid, signal.SIGKILL)


def whole_life(gate):
    """In a worker: what a training does before, without and after its first scheduler."""
    with fptps.KVWorker() as kv:
        for key in (0, 1):
            kv.init(key, np.zeros(COUNT, np.float32))
        rounds(kv, 0, 3)
        pass_gate(gate)  # the scheduler is killed
        assert rounds(kv, 3, 4) == (0, 1, 2)
        pass_gate(gate)  # another one is started
        kv.barrier()
        kv.init("new", np.full(3, kv.rank, np.float32))
        assert list(kv.pull("new").result()) == [0, 0, 0]
        assert rounds(kv, 7, 2) == (0, 1, 2)
        if pass_gate(gate) == kv.rank:  # worker 1 dies
            os.kill(os.getpid(), signal.SIGKILL)
        workers, step = (0, 1, 2), 9
        while 1 in workers:
            workers, step = rounds(kv, step, 1), step + 1
        assert workers == (0, 2)
        pass_gate(gate)  # worker 3 comes
        workers, step = go_on(kv, workers, step)
        kv.barrier()
        return kv.rank, workers, step


def go_on(kv, workers, step):
    """Steps until worker 3 has taken part in some."""
    together = 0
    while together < 3:
        admitted = kv.admit(lambda: (step, together))  # noqa: B023
        if admitted and admitted.state:
            step, together = admitted.state
        workers = rounds(kv, step, 1)
        step, together = step + 1, together + (3 in workers)
    return workers, step


def later(gate):
    """In a worker that comes later."""
    with fptps.KVWorker() as kv:
        for key in (0, 1):
            kv.init(key, np.zeros(COUNT, np.float32))
        workers, step = go_on(kv, kv.workers, 0)
        kv.barrier()
        return kv.rank, workers, step


def test_another_scheduler_goes_on_with_the_cluster():
    with Gate() as gate, fptps.LocalCluster(3, 2, 120, RECOVERS).start(whole_life, gate.address) as run:
        gate.wait(3)
        kill(run.process("scheduler"))
        gate.open()
        gate.wait(3)
        run.restart_scheduler()
        gate.open()
        gate.wait(3)
        gate.open(1)
        gate.wait(2)
        run.add_worker(later, gate.address)
        gate.open()
        first, dead, third, fourth = run.results()
    assert dead is None
    assert [first[0], third[0], fourth[0]] == [0, 2, 3]
    assert first[1:] == third[1:] == fourth[1:]
    assert first[1] == (0, 2, 3)


def test_the_scheduler_dies_with_a_worker_and_a_server():
    def train(gate):
        with fptps.KVWorker() as kv:
            for key in (0, 1):
                kv.init(key, np.zeros(COUNT, np.float32))
            rounds(kv, 0, 3)
            pass_gate(gate)
            workers, step = kv.workers, 3
            while 2 in workers:
                workers, step = rounds(kv, step, 1), step + 1
            kv.barrier()
            return workers

    with Gate() as gate, fptps.LocalCluster(3, 2, 120, RECOVERS).start(train, gate.address) as run:
        gate.wait(3)
        for role, rank in [("scheduler", 0), ("worker", 2), ("server", 0)]:
            kill(run.process(role, rank))
        gate.open()
        run.restart_scheduler()
        assert run.results() == [(0, 1), (0, 1), None]


def test_two_schedulers_die_one_after_the_other():
    def train(gate):
        with fptps.KVWorker() as kv:
            kv.init(0, np.zeros(COUNT, np.float32))
            for life in range(3):
                assert rounds(kv, 3 * life, 3, keys=[0]) == (0, 1)
                pass_gate(gate)
                kv.barrier()
                kv.init(f"of life {life}", np.full(1, 2 * life + kv.rank, np.float32))
            return [float(kv.pull(f"of life {life}").result()[0]) for life in range(3)]

    with Gate() as gate, fptps.LocalCluster(2, 1, 120, RECOVERS).start(train, gate.address) as run:
        for _ in range(3):
            gate.wait(2)
            run.restart_scheduler()
            gate.open()
        assert run.results() == [[0.0, 2.0, 4.0]] * 2


NEEDS = {
    "barrier": lambda kv: kv.barrier(),
    "init": lambda kv: kv.init("new", np.zeros(1, np.float32)),
    "close": lambda kv: kv.close(),
}


@pytest.mark.parametrize("need", NEEDS)
def test_what_needs_a_scheduler_waits_for_another_one_and_then_says_so(need):
    def train(gate, need):
        kv = fptps.KVWorker()
        kv.init(0, np.zeros(COUNT, np.float32))
        pass_gate(gate)
        assert rounds(kv, 0, 5, keys=[0]) == (0, 1)
        try:
            NEEDS[need](kv)
        except fptps.NodeLostError as error:
            return error.role, str(error)

    environment = {**RECOVERS, "FPTPS_SCHEDULER_TIMEOUT": "1"}
    with Gate() as gate, fptps.LocalCluster(2, 1, 60, environment).start(train, gate.address, need) as run:
        gate.wait(2)
        kill(run.process("scheduler"))
        gate.open()
        for outcome in run.outcomes():
            role, text = outcome.value
            assert role in ("scheduler", "worker")  # the one that gives up first leaves the other
            if role == "scheduler":
                assert "FPTPS_SCHEDULER_TIMEOUT" in text
                assert "fptps run --restarts" in text
        assert "scheduler" in [outcome.value[0] for outcome in run.outcomes()]


def test_a_stopped_scheduler_comes_back():
    def train(gate):
        with fptps.KVWorker(timeout=14) as kv:
            kv.init(0, np.zeros(COUNT, np.float32))
            address = pass_gate(
                gate, {name: os.environ[name] for name in os.environ if name.startswith(("DMLC", "FPTPS"))}
            )
            assert address is None
            with pytest.raises(fptps.TimeoutError, match="missing: scheduler"):
                kv.barrier()
            pass_gate(gate)
            kv.barrier()
            return rounds(kv, 0, 3, keys=[0])

    environment = {**RECOVERS, "PS_HEARTBEAT_INTERVAL": "0.5", "PS_HEARTBEAT_TIMEOUT": "3"}
    with Gate() as gate, fptps.LocalCluster(2, 1, 120, environment).start(train, gate.address) as run:
        settings = gate.wait(2)[0]
        os.kill(run.process("scheduler").pid, signal.SIGSTOP)
        second = subprocess.run(
            [sys.executable, "-m", "fptps", "scheduler"],
            env={**os.environ, **settings, "DMLC_ROLE": "scheduler"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode == 1
        assert "cannot listen at port" in second.stderr
        gate.open()
        gate.wait(2)
        os.kill(run.process("scheduler").pid, signal.SIGCONT)
        gate.open()
        assert run.results() == [(0, 1)] * 2


def test_run_starts_the_scheduler_again():
    program = """
steps = []

def strike(kv, step, workers):
    steps.append(step)
    if step == 5 and kv.rank == 0:
        kill("scheduler")
    if step in (6, 7):
        kv.barrier()

train(lambda kv, workers: len(steps) > 9, strike)
"""
    code, output = run(program, "-n", 2, "-s", 1, "--restarts", 1)
    assert code == 0, output
    assert re.search(r"fptps: scheduler \(pid \d+\) was killed by SIGKILL\n", output)
    text = r"started scheduler \(pid \d+\) in the place of scheduler, which was killed by SIGKILL; 0 restarts are left"
    assert re.search(text, output)
    assert output.count("ends with 0 1\n") == 2, output
