"""One training to which workers and servers come, and which they leave, or in which they are killed or stand still.

Every sum is that of the workers that took part, and all that are there at the end have the same weights. `make chaos`
plays 1,000 events.
"""

import hashlib
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import pass_gate

import fptps

EVENTS = int(os.environ.get("CHAOS_EVENTS", "100"))
SEEDS = range(int(os.environ.get("CHAOS_SEEDS", "3")))
COUNTS = [1, 5_000, 300_000]
"""Elements of each tensor: in one packet, in two, in many."""
SETTINGS = {
    "FPTPS_RECOVERY": "1",
    "FPTPS_MAX_WORKERS": "4",
    "PS_HEARTBEAT_INTERVAL": "1",
    "PS_HEARTBEAT_TIMEOUT": "5",
}

pytestmark = pytest.mark.timeout(300 + 3 * EVENTS)


def train(address, over):
    """In a worker: rounds until the file over is there. Returns the last step, and a hash of the weights."""
    leaving = []
    signal.signal(signal.SIGUSR1, lambda *_: leaving.append(True))
    weights, step = [np.zeros(count, np.int64) for count in COUNTS], 0
    with fptps.KVWorker() as kv:
        for key, array in enumerate(weights):
            kv.init(key, np.zeros_like(array))
        kv.init("over", np.zeros(1, np.int64))
        if not kv.newcomer:
            pass_gate(address)
        stop = np.zeros(1, np.int64)
        while not stop[0]:
            admitted = kv.admit(lambda: (weights, step))  # noqa: B023
            if admitted and admitted.state:
                weights, step = admitted.state
            if leaving:
                kv.leave()
                return None
            arrays = [np.full(count, 7 ** (kv.rank % 20) + step, np.int64) for count in COUNTS]
            stop[0] = Path(over).exists()
            tickets = [kv.push_pull(key, array, out=array) for key, array in enumerate(arrays)]
            ended = kv.push_pull("over", stop, out=stop)
            for weight, array, ticket in zip(weights, arrays, tickets):
                ticket.result()
                assert (array == sum(7 ** (rank % 20) + step for rank in ticket.workers)).all(), (step, ticket.workers)
                weight += array
            ended.result()
            step += 1
        kv.barrier()
    return step, hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()


class Churn:
    """What happens to a run."""

    def __init__(self, run, chance):
        self.run = run
        self.chance = chance
        self.done = dict.fromkeys(["worker", "server", "kill", "kill server", "leave", "stop", "bury"], 0)
        self._gone = set()  # processes that are on their way out

    def alive(self, role):
        """The processes of a role that take part."""
        found = [p for p in self.run.processes if p.role == role and p.returncode is None and p not in self._gone]
        return [p for p in found if role == "server" or p.rank is not None]

    def event(self):
        """One event, if it is possible now."""
        what = self.chance.choices(list(self.done), [6, 3, 4, 3, 2, 3, 0.3])[0]
        role = "server" if what == "kill server" else "worker"
        victims = self.alive(role)
        if what == "worker" and sum(p.role == "worker" and p.returncode is None for p in self.run.processes) < 4:
            self.run.add_worker()
        elif what == "server" and len(self.alive("server")) < 3:
            self.run.add_server()
        elif (what in ("kill", "leave", "bury") and len(victims) > 1) or (what == "kill server" and victims):
            victim = self.chance.choice(victims)
            self._gone.add(victim)
            number = {"leave": signal.SIGUSR1, "bury": signal.SIGSTOP}.get(what, signal.SIGKILL)
            os.kill(victim.pid, number)
            if what == "bury":
                threading.Event().wait(7)
                os.kill(victim.pid, signal.SIGCONT)
        elif what == "stop" and victims:
            victim = self.chance.choice(victims)
            os.kill(victim.pid, signal.SIGSTOP)
            threading.Event().wait(self.chance.uniform(0, 1))
            os.kill(victim.pid, signal.SIGCONT)
        else:
            return
        self.done[what] += 1


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_come_and_go(gate, tmp_path, seed):
    chance = random.Random(seed)
    workers, servers = chance.randint(1, 4), chance.randint(0, 3)
    settings = {
        **SETTINGS,
        "FPTPS_VAN": chance.choice(["tcp", "auto"]),
        "FPTPS_DETERMINISTIC": chance.choice(["0", "1"]),
    }
    over = tmp_path / "over"
    began = time.monotonic()
    with fptps.LocalCluster(workers, servers, 240 + 3 * EVENTS, settings).start(train, gate.address, str(over)) as run:
        gate.wait(workers)
        gate.open()
        churn = Churn(run, chance)
        while sum(churn.done.values()) < EVENTS:
            threading.Event().wait(chance.uniform(0, 0.3))
            assert churn.alive("worker"), "no worker is left"
            churn.event()
        left = len(churn.alive("worker"))
        over.touch()
        outcomes = run.outcomes()
    wrong = [outcome for outcome in outcomes if outcome.error and not isinstance(outcome.error, fptps.NodeLostError)]
    assert not wrong
    results = [outcome.value for outcome in outcomes if outcome.value]
    assert len(results) >= left  # further ones may have been admitted meanwhile
    print(f"{time.monotonic() - began:.0f} s, {churn.done}, {len(results)} at the end, {results[0][0]} rounds")
    assert len(set(results)) == 1
