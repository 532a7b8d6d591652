"""One training to which workers and servers come, and which they leave, or in which they are killed, stand still, or
cannot reach each other.

Every sum is that of the workers that took part, and all that are there at the end have the weights of a run in which
nothing has happened. `make chaos` plays 1,000 events.
"""

import os
import random
import time

import churn_training
import pytest
from churn import MOST, SETTINGS, Churn, ManyHosts, OneHost
from on_testbed import needs_network, needs_resets

import fptps

EVENTS = int(os.environ.get("CHAOS_EVENTS", "100"))
SEEDS = [int(seed) for seed in os.environ.get("CHAOS_SEEDS", "0,1,2").split(",")]

pytestmark = pytest.mark.timeout(600 + 6 * EVENTS)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("place", [OneHost, pytest.param(ManyHosts, marks=[needs_network, needs_resets])])
def test_nodes_come_and_go(gate, tmp_path, place, seed):
    chance = random.Random(seed)
    workers, servers = chance.randint(1, MOST["worker"]), chance.randint(0, MOST["server"])
    settings = {
        **SETTINGS,
        "FPTPS_VAN": chance.choice(["tcp", "auto"]),
        "FPTPS_DETERMINISTIC": chance.choice(["0", "1"]),
    }
    began = time.monotonic()
    with place(workers, servers, settings, gate.address, tmp_path, 300 + 3 * EVENTS) as running:
        gate.wait(workers)
        gate.open()
        churn = Churn(running, chance)
        churn.play(EVENTS)
        left = churn.alive("worker")
        (tmp_path / "over").touch()
        outcomes = running.outcomes()
        seconds = time.monotonic() - began
        ends = {process: outcomes.get(process.pid, {}) for process in running.processes}
    for process, outcome in ends.items():
        error, text = outcome.get("error"), outcome.get("text", "")
        full = (
            error == "ConnectError" and "the cluster has its 4 workers already" in text
        )  # one has died, unnoticed yet
        assert error in (None, "NodeLostError") or (full and process.too_late), (process, error, text)
        if process in churn.buried and (process.role == "worker" or not process.later):
            assert process.returncode == 1, process
            assert process.role == "server" or f"worker {process.rank} was lost" in text, (process, text)
        elif process not in churn.gone:
            assert process.returncode == 0 or process.too_late or process.asked, (process, error, text)
    results = [tuple(ends[process]["result"]) for process in left]
    print(f"{workers}x{servers} {settings}, {seconds:.0f} s, {churn.done}, {len(results)} at the end")
    (result,) = set(results)
    steps = result[0]
    print(f"{steps} steps")
    assert fptps.LocalCluster(1, 0, 300 + 3 * EVENTS).run(churn_training.train, None, None, steps) == [result]
