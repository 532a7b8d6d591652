"""FPTPS_REPLICAS=1: a training goes on after deaths, with the weights that its servers kept."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from helpers import Gate, pass_gate

import fptps

COUNT, ROUNDS = 100_000, 16
SETTINGS = {"FPTPS_RECOVERY": "1", "FPTPS_REPLICAS": "1"}


def gradient(rank, key, step, dtype=np.float32):
    return (((np.arange(COUNT) + key) % 7 - 3) * (rank + 1) + step % 3).astype(dtype)


def train(gate, optimizer, killers):
    """In a worker: rounds of three tensors with an optimiser. killers: {round: (rank, process)}: this rank kills that
    process in mid-round.

    Returns the weights after each round of the first key, those of all keys at the end, and the workers at the end.
    """
    with fptps.KVWorker() as kv:
        pids = pass_gate(gate)
        for key in range(3):
            kv.init(key, np.full(COUNT, key, np.float32))
        kv.set_optimizer(optimizer)
        out = [np.empty(COUNT, np.float32) for _ in range(3)]
        history = []
        for step in range(ROUNDS):
            if step == 12:
                kv.set_learning_rate(0.25)
            tickets = [kv.push_pull(0, gradient(kv.rank, 0, step), out=out[0], op="mean")]
            if killers.get(step, (None, 0))[0] == kv.rank:
                os.kill(pids[killers[step][1]], signal.SIGKILL)
            tickets += [kv.push_pull(key, gradient(kv.rank, key, step), out=out[key], op="mean") for key in (1, 2)]
            for ticket in tickets:
                ticket.result()
            history.append(out[0].copy())
        return np.array(history), np.array(out), kv.workers


def run_with_deaths(workers, servers, optimizer, killers, **environment):
    with Gate() as gate:
        cluster = fptps.LocalCluster(workers, servers, 60, {**SETTINGS, **environment})
        with cluster.start(train, gate.address, optimizer, killers) as run:
            gate.wait(workers)
            processes = [("server", rank) for rank in range(servers)] + [("worker", rank) for rank in range(workers)]
            gate.open([run.process(*process).pid for process in processes])
            return run.results()


OPTIMIZERS = [
    fptps.optim.SGD(lr=0.125, momentum=0.5),
    fptps.optim.Adam(lr=0.01),
]


@pytest.mark.parametrize("van", ["tcp", "auto"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["momentum", "adam"])
def test_no_update_is_lost_with_a_server(van, optimizer):
    calm = run_with_deaths(3, 2, optimizer, {}, FPTPS_VAN=van)
    hit = run_with_deaths(3, 2, optimizer, {5: (1, 0)}, FPTPS_VAN=van)
    for (history, weights, workers), (calm_history, calm_weights, _) in zip(hit, calm):
        assert np.array_equal(history, calm_history)
        assert np.array_equal(weights, calm_weights)
        assert workers == (0, 1, 2)


def test_the_only_server_dies_in_the_first_round():
    optimizer = OPTIMIZERS[1]
    calm = run_with_deaths(2, 1, optimizer, {})
    hit = run_with_deaths(2, 1, optimizer, {0: (0, 0)})
    assert [np.array_equal(a[1], b[1]) for a, b in zip(calm, hit)] == [True, True]


def test_the_scheduler_dies_with_a_server():
    """The next scheduler knows from the others which node has the dead server's weights."""

    def train(gate):
        with fptps.KVWorker() as kv:
            kv.init(0, np.zeros(COUNT, np.float32))
            kv.set_optimizer(fptps.optim.SGD(lr=1.0, momentum=0.5))
            weights, want, velocity = np.empty(COUNT, np.float32), np.zeros(COUNT, np.float32), 0.0
            for step in range(6):
                if step == 3:
                    pass_gate(gate)
                velocity = 0.5 * velocity + sum(gradient(rank, 0, step) for rank in (0, 1))
                want = want - velocity
                kv.push_pull(0, gradient(kv.rank, 0, step), out=weights).result()
                assert np.array_equal(weights, want), step
            kv.barrier()
            return kv.rank

    with Gate() as gate, fptps.LocalCluster(2, 2, 120, SETTINGS).start(train, gate.address) as run:
        gate.wait(2)
        for role, rank in [("scheduler", 0), ("server", 0)]:
            os.kill(run.process(role, rank).pid, signal.SIGKILL)
        gate.open()
        run.restart_scheduler()
        assert run.results() == [0, 1]


SGD = """
import os, signal, sys
import numpy as np
import fptps

count, rounds, dies, table = 50_000, 12, int(sys.argv[1]), 9
with fptps.KVWorker() as kv:
    kv.init(0, np.zeros(count, np.float32))
    kv.init(1, np.zeros(count, np.int32), consistency="async")
    kv.init(2, np.zeros(count, np.int32), consistency=fptps.Bounded(1))
    kv.init_rows(table, np.zeros((3000, 4), np.float32))
    kv.set_optimizer(fptps.optim.SGD(lr=1.0), keys=[0, table])
    kv.barrier()
    rows = np.arange(kv.rank, 3000, 3)
    weights = np.empty(count, np.float32)
    for step in range(rounds):
        if step == 5 and kv.rank == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        kv.push_pull(0, np.full(count, 16.0**kv.rank, np.float32), out=weights).result()
        for key in (1, 2):
            kv.push(key, np.full(count, 16**kv.rank, np.int32)).result()
        kv.push_rows(table, rows, np.ones((len(rows), 4), np.float32)).result()
    kv.barrier()
    digits = lambda value, rank: int(value) // 16**rank % 16
    for key in (0, 1, 2):
        value = -weights if key == 0 else kv.push_pull(key, np.zeros(count, np.int32)).result()
        assert len(np.unique(value[:4096])) == 1, key  # of a packet
        for rank in (0, 1, 2):
            got = sorted({digits(number, rank) for number in value})
            assert got == [rounds] if rank != dies else 5 <= got[0] and got[-1] <= 6, (key, rank, got)
    pulled = -kv.pull_rows(table, np.arange(3000)).result()[:, 0]
    for rank in (0, 1, 2):
        got = set(pulled[rank::3])
        assert got == {rounds} if rank != dies else got <= {5, 6}, (rank, got)
    kv.set_learning_rate(0.5, keys=[0])
    last = kv.push_pull(0, np.ones(count, np.float32)).result()
    assert np.array_equal(last, weights - 0.5 * kv.num_workers), (last, weights)
    path = os.environ["CHECKPOINT"]
    kv.save(path)
    kv.load(path)
    assert np.array_equal(kv.pull(0).result(), last)
    print("right", kv.workers)
"""


@pytest.mark.parametrize("dies", [0, 2], ids=["the leader", "another"])
def test_a_worker_dies_while_others_keep_its_part(tmp_path, dies):
    """Its pushes are counted once or not at all; the next leader sets the learning rate, and saves."""
    program = tmp_path / "train.py"
    program.write_text(SGD)
    done = subprocess.run(
        [sys.executable, "-m", "fptps", "run", "-n", "3", "-s", "2", "--", sys.executable, str(program), str(dies)],
        env={**os.environ, **SETTINGS, "CHECKPOINT": str(tmp_path / "weights.safetensors")},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right") == 2


@pytest.mark.parametrize("leaves", [0, 2], ids=["the leader", "another"])
@pytest.mark.parametrize("servers", [2, 0])
def test_a_worker_leaves(leaves, servers):
    """In good order, with its pushes behind it: all of them count, also those of its last round."""

    def train():
        with fptps.KVWorker() as kv:
            kv.init(0, np.zeros(COUNT, np.float32))
            kv.init(1, np.zeros(COUNT, np.int32), consistency="async")
            kv.set_optimizer(fptps.optim.SGD(lr=1.0), keys=[0])
            for step in range(8):
                if step == 4 and kv.rank == leaves:
                    kv.leave()
                    return None
                ticket = kv.push_pull(0, np.full(COUNT, 16**kv.rank, np.float32))
                weights = ticket.result()
                kv.push(1, np.full(COUNT, 16**kv.rank, np.int32)).result()
            kv.barrier()
            return set(weights), set(kv.push_pull(1, np.zeros(COUNT, np.int32)).result())

    results = fptps.LocalCluster(3, servers, 60, SETTINGS).run(train)
    total = sum((4 if rank == leaves else 8) * 16**rank for rank in range(3))
    assert [results[rank] for rank in range(3) if rank != leaves] == [({-float(total)}, {total})] * 2


ENDLESS = """
import numpy as np
import fptps

def train():
    with fptps.KVWorker() as kv:
        kv.init(0, np.zeros(200_000, np.float32))
        kv.set_optimizer(fptps.optim.Adam(lr=0.01))
        weights = np.empty(200_000, np.float32)
        for step in range(10**9):
            kv.push_pull(0, np.ones(200_000, np.float32), out=weights).result()
            if step % 20 == 0 and kv.rank == 0:
                print("goes on", flush=True)

if __name__ == "__main__":
    with fptps.LocalCluster(2, 3).start(train) as run:
        for rank in range(3):
            print(f"server {rank} has pid {run.process('server', rank).pid}", flush=True)
        run.results()
"""


class Endless:
    """A training without end on 2 workers and 3 servers; its scheduler tells of replicas."""

    def __init__(self, tmp_path):
        program = tmp_path / "train.py"
        program.write_text(ENDLESS)
        self.lines = []
        self.process = subprocess.Popen(
            [sys.executable, str(program)],
            env={**os.environ, **SETTINGS, "PS_VERBOSE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pids = [
            int(self.until(f"server {rank} has pid")[f"server {rank} has pid"].split()[-1]) for rank in range(3)
        ]
        self.until("goes on")

    def until(self, *texts):
        """Reads until each text has been in a line; the lines by text."""
        found = {}
        while len(found) < len(texts):
            line = self.process.stdout.readline()
            assert line, "".join(self.lines)
            self.lines.append(line)
            found |= {text: line for text in texts if text in line}
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=60)


def test_one_server_after_another(tmp_path):
    """When the log says that the heir's weights have a replica again, the next one may die."""
    with Endless(tmp_path) as training:
        os.kill(training.pids[0], signal.SIGKILL)  # its backup is server 1
        training.until("replica of all that server 1 stores", "replica of all that server 2 stores", "goes on")
        os.kill(training.pids[1], signal.SIGKILL)
        training.until("replica of all that server 2 stores", "goes on")
        os.kill(training.pids[2], signal.SIGKILL)
        training.until("server 2 was lost; the others go on without it", "goes on")


def test_a_server_and_its_backup_die_at_once(tmp_path):
    with Endless(tmp_path) as training:
        for server in (0, 1):
            os.kill(training.pids[server], signal.SIGSTOP)  # so that neither does anything before the other's death
        for server in (0, 1):
            os.kill(training.pids[server], signal.SIGKILL)
        training.until("Nobody else has its part of the optimiser of key 0", "NodeLostError")


def test_replicas_without_recovery():
    done = subprocess.run(
        [
            *(sys.executable, "-m", "fptps", "run", "-n", "1", "-s", "1", "--"),
            *(sys.executable, "-c", "import fptps; fptps.KVWorker().close()"),
        ],
        env={**os.environ, "FPTPS_REPLICAS": "1"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert "FPTPS_REPLICAS=1 has no effect without FPTPS_RECOVERY=1" in done.stderr
