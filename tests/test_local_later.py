"""fptps.LocalCluster: workers and servers that are added to a run."""

import os
import signal
import threading

import numpy as np
import pytest
from helpers import Gate, pass_gate

import fptps

RECOVERS = {"FPTPS_RECOVERY": "1", "FPTPS_MAX_WORKERS": "3"}
ROUNDS = 5


def train(gate, over, name="start"):
    """Rounds up to ROUNDS of those in which over(kv) is true on worker 0. Returns name, and the workers at the end."""
    with fptps.KVWorker() as kv:
        kv.init("w", np.zeros(10_000, np.float32))
        kv.init("over", np.zeros(1, np.float32))
        if kv.newcomer:
            step, rounds = kv.admit(tuple).state
        else:
            step = rounds = 0
            pass_gate(gate)
        while rounds < ROUNDS:
            ticket = kv.push_pull("w", np.full(10_000, kv.rank + 2 + step, np.float32))
            flag = kv.push_pull("over", np.full(1, kv.rank == 0 and over(kv), np.float32))
            assert (ticket.result() == sum(rank + 2 + step for rank in ticket.workers)).all()
            rounds += bool(flag.result()[0])
            step += 1
            kv.admit(lambda state=(step, rounds): state)
        return name, kv.rank, ticket.workers


def test_workers_are_added(gate):
    address = gate.address
    cluster = fptps.LocalCluster(2, 1, 60, {**RECOVERS, "FPTPS_MAX_WORKERS": "4"})
    with cluster.start(train, address, lambda kv: len(kv.workers) == 4) as run:
        gate.wait(2)
        gate.open()
        one, two = run.add_worker(), run.add_worker(train, address, None, "added")
        assert (one.name, two.name) == ("worker +1", "worker +2")
        *first, third, fourth = run.results()
    everybody = (0, 1, 2, 3)
    assert first == [("start", 0, everybody), ("start", 1, everybody)]
    assert third == ("start", one.rank, everybody)
    assert fourth == ("added", two.rank, everybody)
    assert {one.rank, two.rank} == {2, 3}
    assert run.process("worker", one.rank) is one


def test_a_worker_takes_the_place_of_a_dead_one(gate):
    with fptps.LocalCluster(2, 1, 60, {"FPTPS_RECOVERY": "1"}).start(train, gate.address, came) as run:
        gate.wait(2)
        os.kill(run.process("worker", 1).pid, signal.SIGKILL)
        gate.open()
        while run.process("worker", 1).returncode is None:
            threading.Event().wait(0.01)
        run.add_worker()
        assert run.results() == [("start", 0, (0, 2)), None, ("start", 2, (0, 2))]


def came(kv):
    return 2 in kv.workers


def test_a_server_is_added(gate):
    def summed(kv):
        return kv.stats().shares.get("server 1", 0) > 0

    with fptps.LocalCluster(2, 1, 60, RECOVERS).start(train, gate.address, summed) as run:
        gate.wait(2)
        server = run.add_server()
        gate.open()
        assert run.results() == [("start", 0, (0, 1)), ("start", 1, (0, 1))]
    assert (server.name, server.returncode) == ("server +1", 0)


def test_the_first_server_is_added(gate):
    def summed(kv):
        return kv.stats().shares.get("server 0", 0) > 0

    with fptps.LocalCluster(2, 0, 60, RECOVERS).start(train, gate.address, summed) as run:
        gate.wait(2)
        run.add_server()
        gate.open()
        assert run.results() == [("start", 0, (0, 1)), ("start", 1, (0, 1))]


def late(gate, error):
    """Comes, and waits until the others have ended."""
    with fptps.KVWorker() as kv:
        assert kv.newcomer
        pass_gate(gate)
        if error:
            raise KeyError("a mistake")
        kv.admit(tuple)


@pytest.mark.parametrize("error", [False, True])
def test_a_worker_that_is_not_admitted(gate, error):
    def others():
        with fptps.KVWorker() as kv:
            pass_gate(address)
            return kv.rank

    address = gate.address
    with fptps.LocalCluster(2, 1, 60, RECOVERS).start(others) as run:
        gate.wait(2)
        with Gate() as its:
            added = run.add_worker(late, its.address, error)
            its.wait()
            its.open()
        while error and added.returncode is None:
            threading.Event().wait(0.01)
        gate.open()
        if error:
            with pytest.raises(KeyError, match="a mistake"):
                run.results()
        else:
            assert run.results() == [0, 1, None]
            assert isinstance(run.outcomes()[2].error, fptps.NodeLostError)


def test_no_process_can_be_added(gate):
    address = gate.address
    with fptps.LocalCluster(1, 0, 60).start(pass_gate, address) as run:
        gate.wait()
        for add in (run.add_worker, run.add_server):
            with pytest.raises(ValueError, match="FPTPS_RECOVERY=1"):
                add()
    run = fptps.LocalCluster(1, 0, 60, RECOVERS).start(pass_gate, address)
    gate.wait()
    run.stop()
    for add in (run.add_worker, run.add_server):
        with pytest.raises(fptps.ClosedError, match="the run has ended, or ends"):
            add()
