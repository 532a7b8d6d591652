"""FPTPS_RECOVERY=1: a training goes on after the deaths of servers, with the same sums."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from helpers import Gate, pass_gate

import fptps

COUNT, ROUNDS = 300_000, 12
HEARTBEATS = {"PS_HEARTBEAT_INTERVAL": "0.5", "PS_HEARTBEAT_TIMEOUT": "4"}


def gradient(rank, key, step, dtype=np.float32):
    return ((np.arange(COUNT) % 11 + 1) * (rank + 2) * (key + 1) + step).astype(dtype)


def train(gate, killers):
    """In a worker: rounds of four tensors. killers: {round: (rank, server)}: this rank kills that server in mid-round.

    Returns how many sums were wrong, and how long the longest round took, in seconds.
    """
    with fptps.KVWorker() as kv:
        pids = pass_gate(gate)
        for key in range(4):
            kv.init(key, np.zeros(COUNT, np.float32))
        wrong, longest = 0, 0.0
        for step in range(ROUNDS):
            began = time.monotonic()
            arrays = {key: gradient(kv.rank, key, step) for key in range(4)}
            tickets = {0: kv.push(0, arrays[0]), 3: kv.skip(3) if kv.rank == step % 3 else kv.push_pull(3, arrays[3])}
            if killers.get(step, (None, 0))[0] == kv.rank:
                os.kill(pids[killers[step][1]], signal.SIGKILL)
            tickets[1] = kv.push_pull(1, arrays[1], out=arrays[1])
            tickets[2] = kv.push_pull(2, arrays[2], out=np.empty(COUNT, np.float32), op="mean")
            results = {key: ticket.result() for key, ticket in tickets.items()}
            results[0] = kv.pull(0).result()
            longest = max(longest, time.monotonic() - began)
            workers = range(kv.num_workers)
            for key in (0, 1, 2):
                want = sum(gradient(rank, key, step) for rank in workers)
                wrong += not np.array_equal(results[key], want / kv.num_workers if key == 2 else want)
            if kv.rank != step % 3:
                wrong += not np.array_equal(
                    results[3], sum(gradient(rank, 3, step) for rank in workers if rank != step % 3)
                )
        return wrong, longest


def run_with_deaths(workers, servers, killers, **environment):
    """The results of train(), which have to be right."""
    with Gate() as gate:
        cluster = fptps.LocalCluster(workers, servers, 60, {"FPTPS_RECOVERY": "1", **environment})
        with cluster.start(train, gate.address, killers) as run:
            gate.wait(workers)
            gate.open([run.process("server", rank).pid for rank in range(servers)])
            results = run.results()
            died = [run.process("server", rank).returncode == -signal.SIGKILL for rank in range(servers)]
    assert [wrong for wrong, _ in results] == [0] * workers
    assert sum(died) == len(killers)
    return results


@pytest.mark.parametrize("van", ["tcp", "auto"])
@pytest.mark.parametrize(
    ("workers", "servers", "killers"),
    [
        (3, 2, {4: (1, 0)}),
        (3, 1, {3: (0, 0)}),
        (1, 1, {3: (0, 0)}),
        (2, 3, {2: (0, 1), 5: (1, 0), 6: (0, 2)}),
        (2, 2, {0: (0, 0)}),
    ],
    ids=["one of two", "the only one", "of a worker alone", "one after another", "in the first round"],
)
def test_a_server_dies(workers, servers, killers, van):
    results = run_with_deaths(workers, servers, killers, FPTPS_VAN=van)
    assert max(longest for _, longest in results) < 5


def test_two_servers_die_at_once():
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
                if not np.array_equal(ticket.result(), sum(gradient(rank, 1, step) for rank in range(kv.num_workers))):
                    return step
        return "all right"

    with Gate() as gate, fptps.LocalCluster(3, 3, 60, {"FPTPS_RECOVERY": "1"}).start(both, gate.address) as run:
        gate.wait(3)
        gate.open([run.process("server", rank).pid for rank in (0, 2)])
        assert run.results() == ["all right"] * 3


def test_the_bits_are_those_of_a_run_without_the_death():
    def digest(gate, kill):
        with fptps.KVWorker(deterministic=True) as kv:
            pid = pass_gate(gate)
            kv.init(1, np.zeros(COUNT, np.float32))
            all_sums = hashlib.sha256()
            for step in range(ROUNDS):
                rng = np.random.default_rng([kv.rank, step])
                array = (rng.standard_normal(COUNT) * np.exp(rng.uniform(-8, 8, COUNT))).astype(np.float32)
                ticket = kv.push_pull(1, array, out=array)
                if kill and step == 5 and kv.rank == 2:
                    os.kill(pid, signal.SIGKILL)
                all_sums.update(ticket.result().data)
            return all_sums.hexdigest()

    digests = set()
    for kill in (False, True):
        with (
            Gate() as gate,
            fptps.LocalCluster(3, 2, 60, {"FPTPS_RECOVERY": "1"}).start(digest, gate.address, kill) as run,
        ):
            gate.wait(3)
            gate.open(run.process("server", 1).pid)
            digests.update(run.results())
    assert len(digests) == 1


def test_a_stopped_server_is_given_up_and_ends_when_it_wakes():
    environment = {"FPTPS_RECOVERY": "1", **HEARTBEATS}
    with Gate() as gate, fptps.LocalCluster(2, 2, 60, environment).start(train_by_gates, gate.address) as run:
        gate.wait(2)
        server = run.process("server", 1)
        os.kill(server.pid, signal.SIGSTOP)
        gate.open()
        gate.wait(2)  # the workers have gone on
        os.kill(server.pid, signal.SIGCONT)
        gate.open()
        assert run.results() == [0, 0]
    assert server.returncode == 1


def test_a_server_is_ended_by_a_signal():
    with (
        Gate() as gate,
        fptps.LocalCluster(2, 2, 60, {"FPTPS_RECOVERY": "1"}).start(train_by_gates, gate.address) as run,
    ):
        gate.wait(2)
        server = run.process("server", 1)
        os.kill(server.pid, signal.SIGTERM)
        gate.open()
        gate.wait(2)
        while server.returncode is None:  # else the cluster may end first, in good order, and the server with it
            threading.Event().wait(0.01)
        gate.open()
        assert run.results() == [0, 0]
        assert server.returncode == 128 + signal.SIGTERM


def train_by_gates(gate):
    """In a worker: some rounds between two gates; the number of wrong sums."""
    with fptps.KVWorker() as kv:
        kv.init(1, np.zeros(COUNT, np.float32))
        pass_gate(gate)
        wrong = 0
        for step in range(5):
            total = kv.push_pull(1, gradient(kv.rank, 1, step)).result()
            wrong += not np.array_equal(total, sum(gradient(rank, 1, step) for rank in range(kv.num_workers)))
        pass_gate(gate)
        return wrong


PROGRAM = """
import os, signal, sys
import numpy as np
import fptps
with fptps.KVWorker() as kv:
    kv.init("w", np.ones(100_000, np.float32))
    if sys.argv[1] == "optimizer":
        kv.set_optimizer(fptps.optim.SGD(lr=0.5))
    elif sys.argv[1] == "table":
        kv.init_rows("rows", np.zeros((500, 3), np.float32))
    elif sys.argv[1] == "async":
        kv.init("a", np.zeros(10), consistency="async")
    kv.barrier()
    for step in range(40):
        total = kv.push_pull("w", np.ones(100_000, np.float32)).result()
        if step == 20 and kv.rank == 0:
            with open("/proc/%d/task/%d/children" % (os.getppid(), os.getppid())) as children:
                for pid in map(int, children.read().split()):
                    if b"server" in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0"):
                        os.kill(pid, signal.SIGKILL)
                        break
"""


@pytest.mark.parametrize(
    ("kind", "lost"),
    [
        ("sums", None),
        ("optimizer", 'Nobody else has its part of the optimiser of key "w"'),
        ("table", 'Nobody else has its part of the table of key "rows"'),
        ("async", 'Nobody else has its part of the async values of key "a"'),
    ],
)
def test_fptps_run(kind, lost, monkeypatch):
    monkeypatch.setenv("FPTPS_RECOVERY", "1")
    command = [sys.executable, "-m", "fptps", "run", "-n", "2", "-s", "2", "--", sys.executable, "-c", PROGRAM, kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "was killed by SIGKILL" in done.stderr
    if lost is None:
        assert done.returncode == 0, done.stderr
        assert "was lost; the others go on without it" in done.stderr
    else:
        assert done.returncode != 0
        assert lost in done.stderr.replace('\\"', '"'), done.stderr  # a field of the log is quoted


def test_without_recovery_a_death_is_the_end():
    with Gate() as gate, fptps.LocalCluster(2, 2, 60).start(train, gate.address, {4: (0, 0)}) as run:
        gate.wait(2)
        gate.open([run.process("server", rank).pid for rank in range(2)])
        with pytest.raises(fptps.NodeLostError, match="server 0 was lost"):
            run.results()


def test_a_pull_of_an_initial_value_that_was_lost():
    def pull(gate):
        with fptps.KVWorker() as kv:
            kv.init(1, np.ones(COUNT, np.float32))
            kv.init(2, np.zeros(4, np.float32))
            kv.barrier()
            pass_gate(gate)
            while True:  # until the news of the death is here
                try:
                    kv.pull(1).result()
                except fptps.NodeLostError as error:
                    text = str(error)
                    break
            kv.push(1, np.full(COUNT, kv.rank + 1, np.float32))
            assert (kv.pull(1).result() == 3).all()
            return text

    with Gate() as gate, fptps.LocalCluster(2, 1, 60, {"FPTPS_RECOVERY": "1"}).start(pull, gate.address) as run:
        gate.wait(2)
        os.kill(run.process("server", 0).pid, signal.SIGKILL)
        gate.open()
        for text in run.results():
            assert "key 1" in text
            assert "initial value was lost with server 0" in text


def test_fifo_and_recovery_contradict_each_other():
    with pytest.raises(fptps.ConfigError, match="FPTPS_SCHEDULE=fifo in a cluster with FPTPS_RECOVERY=1"):
        fptps.LocalCluster(2, 1, 60, {"FPTPS_RECOVERY": "1", "FPTPS_SCHEDULE": "fifo"}).run(open_worker)


def open_worker():
    with fptps.KVWorker() as kv:
        return kv.rank


def test_the_setting_on_a_worker_alone_is_named(capfd):
    def work():
        if os.environ["DMLC_WORKER_ID"] == "1":
            os.environ["FPTPS_RECOVERY"] = "1"
        return open_worker()

    assert fptps.LocalCluster(2, 1, 60).run(work) == [0, 1]
    assert capfd.readouterr().err.count("FPTPS_RECOVERY=1 has no effect here: the scheduler has to run with it") == 1
