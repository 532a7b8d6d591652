"""benchmarks.training.mxnet: the order of its runs, its training alone, its report; all kvstores on a small test bed.

`make peers` installs MXNet in .venv-mxnet, and fptps beside it; without it the last of these tests is skipped.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks import shaped
from benchmarks.training import common, names
from benchmarks.training import report as report_of_torch
from benchmarks.training.mxnet import report, runs, worker
from benchmarks.training.runs import Setting
from on_testbed import needs_network

from fptps._bench.profile import Layer

ROOT = Path(__file__).parents[1]


# Runs


def test_every_round_has_all_runs_and_begins_with_another_system():
    made = runs.all_runs(2)
    systems = [run.arguments[2] for run in made]
    per_round = 3 * len(runs.SETTINGS)
    assert systems[:3] == [names.DIST_SYNC, names.P3, names.MXNET]
    assert systems[per_round : per_round + 3] == [names.P3, names.MXNET, names.DIST_SYNC]
    assert len(made) == 2 * per_round
    assert {run.name for run in made} == {
        *(f"MXNet {size}, {rate}" for size in ("2x2", "4x4") for rate in ("100mbit", "1gbit")),
        "MXNet 8x8, 20mbit",
    }


def test_mxnets_own_kvstores_have_their_own_servers():
    by_dist_sync, by_p3, ours = (runs.run_of(runs.SETTINGS[0], system) for system in names.KVSTORES)
    assert by_dist_sync.serve == by_p3.serve == (runs.PYTHON, "-c", "import mxnet")
    assert ours.serve == ()
    vans = [run.environment.get("DMLC_PS_VAN_TYPE") for run in (by_dist_sync, by_p3, ours)]
    assert vans == ["zmq", "p3", None]
    assert by_dist_sync.environment["MXNET_KVSTORE_BIGARRAY_BOUND"] == "10000"
    assert by_p3.environment["MXNET_KVSTORE_SLICE_THRESHOLD"] == "4096"


# A training


class Array(np.ndarray):
    """What a training uses of NDArray."""

    def wait_to_read(self) -> None:
        pass

    def asnumpy(self) -> np.ndarray:
        return np.asarray(self)


class Store:
    """Two workers, of which this is the first; the second has twice its gradients."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.lost: int | None = None

    def pushpull(self, key: int, value: Array, out: Array, priority: int) -> None:
        self.calls.append((key, priority))
        if key != self.lost:
            out[:] = 3 * value


def training_over(store: Store) -> worker.Training:
    keys = iter(range(1, 9))  # key 0 is for the workers' numbers
    made: Any = SimpleNamespace(
        store=store,
        rank=0,
        workers=2,
        key=lambda value: next(keys),
        mx=SimpleNamespace(nd=SimpleNamespace(zeros=lambda shape: np.zeros(shape, np.float32).view(Array))),
    )
    return worker.Training(made, [Layer((3, 1), 0, 0), Layer((), 0, 0), Layer((5,), 0, 0)])


def test_gradients_leave_from_the_last_layer_on_and_the_first_are_urgent():
    store = Store()
    training = training_over(store)
    training.iteration(1)
    assert store.calls == [(3, -2), (1, 0), (2, -1)]
    training.verify(1)


def test_a_sum_that_has_not_come_is_seen():
    store = Store()
    training = training_over(store)
    for number, lost in ((1, None), (2, 3)):
        store.lost = lost
        training.iteration(number)
    with pytest.raises(common.WrongWeights, match=r"the sum of key 3 is .*, and not 6"):
        training.verify(2)


# The report


def sample(run: str, system: str, iteration_ms: float) -> dict[str, Any]:
    row = {"model": "vgg16", "system": system, "iteration_ms": iteration_ms, "bound_ms": 100.0, "cpu_ms": 10.0}
    return {"run": run, "figures": {"trainings": [{**row, "idle_share": 0.25}]}}


SAMPLES = [
    sample("MXNet 4x4, 1gbit", system, iteration_ms)
    for times in ((220, 150, 110), (400, 160, 100), (150, 240, 120))  # a slow moment in the second round
    for system, iteration_ms in zip(names.KVSTORES, times)
]


def test_systems_are_compared_within_a_round():
    assert list(report.target_rows(SAMPLES)) == [
        ["4x4, 1gbit", "vgg16", "2.00", "1.60", "1.10", "100", "220", "160", "110", "10", "10", "10", "25%"]
    ]
    assert len(report.TARGET_HEADERS) == 13


def test_a_cluster_without_all_systems_is_left_out():
    assert list(report.target_rows(SAMPLES[:2])) == []


def test_pytorchs_tables_do_not_have_mxnets_rows():
    found = report_of_torch.trainings(SAMPLES)
    assert list(report_of_torch.target_rows(found)) == list(report_of_torch.time_rows(found)) == []


# Clusters


@pytest.mark.mxnet
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not Path(runs.PYTHON).exists(), reason="MXNet is not installed: `make peers` puts it in .venv-mxnet"
)
@needs_network
@pytest.mark.parametrize("system", names.KVSTORES)
def test_workers_train_by_each_kvstore(system, monkeypatch):
    monkeypatch.chdir(ROOT)
    setting = Setting(2, 2, "1gbit", (system,), {"resnet50": 0.001, "vgg16": 0.001})
    rows = shaped.sample(runs.run_of(setting, system))["figures"]["trainings"]
    assert [(row["model"], row["system"]) for row in rows] == [("resnet50", system), ("vgg16", system)]
    for row in rows:
        assert row["bound_ms"] > 87  # the profile's compute time
        assert row["iteration_ms"] > 60  # an iteration after a late one catches up
        assert row["cpu_ms"] > 0
