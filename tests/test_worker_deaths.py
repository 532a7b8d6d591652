"""FPTPS_RECOVERY=1: a training goes on after the deaths of workers. All that are left have the same sums."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers import Gate, pass_gate

import fptps

COUNT, ROUNDS = 300_000, 14
RECOVERS = {"FPTPS_RECOVERY": "1"}
HEARTBEATS = {"PS_HEARTBEAT_INTERVAL": "0.5", "PS_HEARTBEAT_TIMEOUT": "4"}


def gradient(rank, key, step):
    return ((np.arange(COUNT) % 11 + 1) * (rank + 2) * (key + 1) + step).astype(np.float32)


def train(gate, killers, deterministic=False):
    """In a worker: rounds of four tensors. killers: {round: (rank, node)}: this rank kills that node in mid-round.

    Returns the workers of each sum, and how many sums were not those of these workers.
    """
    with fptps.KVWorker(deterministic=deterministic) as kv:
        pids = pass_gate(gate)
        for key in range(4):
            kv.init(key, np.zeros(COUNT, np.float32))
        wrong, took_part = 0, []
        for step in range(ROUNDS):
            arrays = {key: gradient(kv.rank, key, step) for key in range(4)}
            tickets = {0: kv.push(0, arrays[0]), 3: kv.skip(3) if kv.rank == step % 3 else kv.push_pull(3, arrays[3])}
            if killers.get(step, (None, 0))[0] == kv.rank:
                os.kill(pids[killers[step][1]], signal.SIGKILL)
            tickets[1] = kv.push_pull(1, arrays[1], out=arrays[1])
            tickets[2] = kv.push_pull(2, arrays[2], out=np.empty(COUNT, np.float32), op="mean")
            results = {key: ticket.result() for key, ticket in tickets.items()}
            results[0] = kv.pull(0).result()
            for key in range(4):
                workers = tickets[key].workers
                took_part.append(workers)
                if key == 3 and kv.rank == step % 3:
                    continue
                want = sum(gradient(rank, key, step) for rank in workers if key != 3 or rank != step % 3)
                wrong += not np.array_equal(
                    results[key], (want / len(workers)).astype(np.float32) if key == 2 else want
                )
        assert kv.workers == took_part[-1]
        assert kv.num_workers == len(kv.workers)
        return took_part, wrong


def run_with_deaths(workers, servers, killers, deterministic=False, **environment):
    """Checks the results of train() on the workers that are left, and returns which took part in the last round."""
    names = [("worker", rank) for rank in range(workers)] + [("server", rank) for rank in range(servers)]
    with Gate() as gate:
        cluster = fptps.LocalCluster(workers, servers, 60, {**RECOVERS, **environment})
        places = {step: (killer, names.index(victim)) for step, (killer, victim) in killers.items()}
        with cluster.start(train, gate.address, places, deterministic) as run:
            gate.wait(workers)
            gate.open([run.process(*name).pid for name in names])
            results = run.results()
    left = [rank for rank in range(workers) if ("worker", rank) not in [victim for _, victim in killers.values()]]
    assert [rank for rank, result in enumerate(results) if result is not None] == left
    assert [results[rank][1] for rank in left] == [0] * len(left)
    assert all(results[rank][0] == results[left[0]][0] for rank in left)
    took_part = results[left[0]][0]
    assert took_part[-1] == tuple(left)
    return took_part


@pytest.mark.parametrize("van", ["tcp", "auto"])
@pytest.mark.parametrize(
    ("workers", "servers", "killers"),
    [
        (3, 1, {4: (1, ("worker", 2))}),
        (3, 2, {4: (1, ("worker", 0))}),
        (3, 0, {3: (0, ("worker", 1))}),
        (2, 1, {3: (1, ("worker", 0))}),
        (4, 2, {2: (0, ("worker", 1)), 5: (2, ("server", 0)), 8: (2, ("worker", 0))}),
        (4, 1, {3: (0, ("worker", 1)), 4: (0, ("worker", 2)), 5: (0, ("worker", 3))}),
        (3, 2, {4: (0, ("worker", 0))}),
        (3, 0, {0: (1, ("worker", 2))}),
    ],
    ids=["one", "rank 0", "an aggregator", "to one", "one after another", "all others", "itself", "in the first round"],
)
def test_a_worker_dies(workers, servers, killers, van):
    run_with_deaths(workers, servers, killers, FPTPS_VAN=van)


def test_deterministic_sums_without_a_worker():
    took_part = run_with_deaths(3, 1, {4: (1, ("worker", 0))}, deterministic=True)
    assert (0, 1, 2) in took_part


def test_a_worker_and_a_server_die_at_once():
    def both(gate):
        with fptps.KVWorker() as kv:
            pids = pass_gate(gate)
            kv.init(1, np.zeros(COUNT, np.float32))
            for step in range(ROUNDS):
                array = gradient(kv.rank, 1, step)
                ticket = kv.push_pull(1, array, out=array)
                if step == 4 and kv.rank == 0:
                    for pid in pids:
                        os.kill(pid, signal.SIGKILL)
                if not np.array_equal(ticket.result(), sum(gradient(rank, 1, step) for rank in ticket.workers)):
                    return step
            return ticket.workers

    with Gate() as gate, fptps.LocalCluster(4, 2, 60, RECOVERS).start(both, gate.address) as run:
        gate.wait(4)
        gate.open([run.process("server", 1).pid, run.process("worker", 2).pid, run.process("worker", 3).pid])
        assert run.results() == [(0, 1), (0, 1), None, None]


def test_a_stopped_worker_is_given_up_and_hears_so_when_it_wakes():
    def steps(gate):
        with fptps.KVWorker() as kv:
            kv.init(1, np.zeros(1000, np.float32))
            pass_gate(gate, os.getpid())
            for _ in range(3):
                ticket = kv.push_pull(1, np.full(1000, kv.rank + 1, np.float32))
                total = ticket.result()
            pass_gate(gate)
            return float(total[0]), ticket.workers

    with Gate() as gate, fptps.LocalCluster(3, 1, 60, {**RECOVERS, **HEARTBEATS}).start(steps, gate.address) as run:
        gate.wait(3)
        stopped = run.process("worker", 2)
        os.kill(stopped.pid, signal.SIGSTOP)
        gate.open()
        gate.wait(2)
        os.kill(stopped.pid, signal.SIGCONT)
        gate.open()
        outcomes = run.outcomes()
    assert [outcome.value for outcome in outcomes] == [(3.0, (0, 1)), (3.0, (0, 1)), None]
    assert "worker 2 was lost: it was silent for" in str(outcomes[2].error)


def test_membership():
    def watch(gate):
        with fptps.KVWorker() as kv:
            seen, heard = [], threading.Event()

            def changed(workers):
                seen.append(workers)
                heard.set()

            kv.on_membership(changed)
            assert kv.workers == (0, 1, 2)
            kv.init(1, np.zeros(3, np.float32))
            pid = pass_gate(gate)
            if kv.rank == 0:
                os.kill(pid, signal.SIGKILL)
            heard.wait(30)
            ticket = kv.push_pull(1, np.ones(3, np.float32))
            total = ticket.result()[0]
            return seen, kv.workers, kv.num_workers, ticket.workers, float(total)

    with Gate() as gate, fptps.LocalCluster(3, 1, 60, RECOVERS).start(watch, gate.address) as run:
        gate.wait(3)
        gate.open(run.process("worker", 1).pid)
        assert run.results() == [([(0, 2)], (0, 2), 2, (0, 2), 2.0), None, ([(0, 2)], (0, 2), 2, (0, 2), 2.0)]


def test_collective_calls_without_a_worker():
    def meet(gate):
        with fptps.KVWorker() as kv:
            pid = pass_gate(gate)
            before = kv.allgather_object("x" * 2000 * (kv.rank + 1))
            if kv.rank == 1:
                os.kill(pid, signal.SIGKILL)
            lost = None
            while lost is None:
                try:
                    kv.broadcast_object(kv.rank, root=0)
                except fptps.NodeLostError as error:
                    lost = str(error)
            values = np.full(100_000, kv.rank, np.float32)
            kv.broadcast([values], root=2)
            kv.barrier()
            return len(before), lost, kv.allgather_object(kv.rank), float(values.sum())

    with Gate() as gate, fptps.LocalCluster(3, 1, 60, RECOVERS).start(meet, gate.address) as run:
        gate.wait(3)
        gate.open(run.process("worker", 0).pid)
        none, *results = run.results()
    assert none is None
    lost = "broadcast_object() ended with worker 0, which has died: call it again"
    assert results == [(3, lost, [1, 2], 200_000.0)] * 2


def push_until_the_death(kv, key):
    """Rounds until one without a worker, the same on all that are left."""
    workers = (0, 1, 2)  # not kv.workers, of which another worker may hear one round later
    while len(workers) == 3:
        ticket = kv.push_pull(key, np.ones(5))
        ticket.result()
        workers = ticket.workers


def test_the_values_of_rank_0_are_those_of_the_next_after_its_death():
    def init(gate):
        with fptps.KVWorker() as kv:
            pid = pass_gate(gate)
            kv.init("before", np.zeros(5))
            if kv.rank == 1:
                os.kill(pid, signal.SIGKILL)
            push_until_the_death(kv, "before")
            kv.init("after", np.full(5, kv.rank + 10.0))
            return float(kv.pull("after").result()[0])

    with Gate() as gate, fptps.LocalCluster(3, 1, 60, RECOVERS).start(init, gate.address) as run:
        gate.wait(3)
        gate.open(run.process("worker", 0).pid)
        assert run.results() == [None, 11.0, 11.0]


PROGRAM = """
import os, signal, sys
import numpy as np
import fptps
with fptps.KVWorker() as kv:
    kv.init("w", np.ones(100_000, np.float32))
    if sys.argv[1] == "optimizer":
        kv.set_optimizer(fptps.optim.SGD(lr=0.5))
    kv.barrier()
    for step in range(40):
        ticket = kv.push_pull("w", np.ones(100_000, np.float32))
        if step == 20 and kv.rank == 1:
            if sys.argv[1] == "error":
                raise KeyError("a mistake")
            os.kill(os.getpid(), signal.SIGKILL)
        total = ticket.result()
        if sys.argv[1] != "optimizer":
            assert total[0] == len(ticket.workers), (total, ticket.workers)
    print("worker", kv.rank, "of", kv.num_workers, "at the end")
"""


@pytest.mark.parametrize(
    ("kind", "least", "code", "text"),
    [
        ("death", 1, 0, "worker 1 was lost; the others go on without it"),
        ("death", 2, 137, "It leaves 1 worker, and FPTPS_MIN_WORKERS=2"),
        ("error", 1, 1, "worker 1 was lost; the others go on without it"),
        ("optimizer", 1, 137, 'cannot be repeated without it, as the aggregators keep the optimiser of key "w"'),
    ],
)
def test_fptps_run(kind, least, code, text, monkeypatch):
    monkeypatch.setenv("FPTPS_RECOVERY", "1")
    monkeypatch.setenv("FPTPS_MIN_WORKERS", str(least))
    command = [sys.executable, "-m", "fptps", "run", "-n", "2", "-s", "1", "--", sys.executable, "-c", PROGRAM, kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert text in done.stderr.replace('\\"', '"')  # a field of the log is quoted
    assert ("worker 0 of 1 at the end" in done.stdout) == ("go on" in text)


def test_a_tensor_that_is_not_sync_after_a_death():
    def declare(gate):
        with fptps.KVWorker() as kv:
            pid = pass_gate(gate)
            kv.init("w", np.zeros(5))
            if kv.rank == 1:
                os.kill(pid, signal.SIGKILL)
            push_until_the_death(kv, "w")
            kv.init("a", np.zeros(5), consistency=fptps.Bounded(0))
            return kv.push_pull("a", np.full(5, float(kv.rank))).result().tolist()

    with Gate() as gate, fptps.LocalCluster(3, 1, 60, RECOVERS).start(declare, gate.address) as run:
        gate.wait(3)
        gate.open(run.process("worker", 0).pid)
        assert run.results() == [None, [3.0] * 5, [3.0] * 5]


def open_worker():
    with fptps.KVWorker() as kv:
        return kv.num_workers


def test_least_workers_that_make_no_sense(capfd):
    with pytest.raises(fptps.FptpsError):
        fptps.LocalCluster(2, 0, 60, {**RECOVERS, "FPTPS_MIN_WORKERS": "3"}).run(open_worker)
    assert "FPTPS_MIN_WORKERS=3, but DMLC_NUM_WORKER=2" in capfd.readouterr().err
    assert fptps.LocalCluster(2, 0, 60, {"FPTPS_MIN_WORKERS": "2"}).run(open_worker) == [2, 2]
    assert "FPTPS_MIN_WORKERS=2 has no effect without FPTPS_RECOVERY=1" in capfd.readouterr().err
