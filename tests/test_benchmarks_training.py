"""benchmarks.training: the order of its runs, its models alone, its report; a worker's program on a small cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.training import common, names, report, runs
from warm import PYTHON

ROOT = Path(__file__).parents[1]


# Runs


def test_every_round_has_all_runs_and_begins_with_another_system():
    made = runs.all_runs(2)
    per_round = len(runs.SETTINGS) + 1
    assert [run.name for run in made[:per_round]] == [*(setting.name for setting in runs.SETTINGS), "1x0"]
    first, second = ([word for word in run.arguments if word in names.LIBRARY] for run in made[::per_round])
    assert first == [names.GLOO, names.HOOK, names.NONE, names.FORWARD]
    assert second == [names.HOOK, names.NONE, names.FORWARD, names.GLOO]
    assert {run.rate for run in made} == {runs.SLOW, runs.SCARCE, runs.FAST}


# Models

PROFILE = {
    "name": "tiny",
    "layers": [
        {"fp_ms": 0, "bp_ms": 0, "tensors": [{"elements": 3}, {"elements": 1}]},
        {"fp_ms": 0, "bp_ms": 0, "tensors": []},
        {"fp_ms": 0, "bp_ms": 0, "tensors": [{"elements": 5}]},
    ],
}


@pytest.mark.demo
def test_a_replayed_model_has_the_profiles_tensors_and_knows_its_weights(tmp_path):
    torch = pytest.importorskip("torch")
    from benchmarks.training import models

    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(PROFILE))
    job = models.Replay(path, scale=2.0, rank=0, workers=1)
    net = job.build()
    assert [parameter.numel() for parameter in net.parameters()] == [6, 2, 10]
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    for _ in range(3):
        optimizer.zero_grad()
        job.loss(net).backward()
        optimizer.step()
    job.verify(net, steps=3)
    with pytest.raises(common.WrongWeights, match=r"^0\.tensors\.0 is"):
        job.verify(net, steps=2)
    with torch.no_grad():
        next(reversed(list(net.parameters())))[-1] = 0  # the last element of the last one
    with pytest.raises(common.WrongWeights, match=r"^2\.tensors\.0 is"):
        job.verify(net, steps=3)
    models.same_weights([b"a", b"a"])
    with pytest.raises(common.WrongWeights, match=r"workers \[2\]"):
        models.same_weights([b"a", b"a", b"b"])


def test_a_device_works_on_while_the_program_is_busy_and_idles_while_it_sleeps(monkeypatch):
    now, slept, ends = [100.0], [0], []

    def sleep_until(end):
        ends.append(end)
        now[0] = max(now[0], end)
        slept[0] += 1

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("fptps._bench.trainer.sleep_until", sleep_until)
    monkeypatch.setattr(common, "sleeps", lambda: slept[0])
    device = common.Device()
    device.compute(2.0)
    now[0] += 0.5  # the program computes
    device.compute(1.0)
    now[0] += 0.25  # it waits for a sum
    slept[0] += 1
    device.compute(1.0)
    assert ends == [102.0, 103.0, 104.25]


# A worker's program


@pytest.mark.demo
@pytest.mark.timeout(300)
@pytest.mark.parametrize("systems", [names.LIBRARY, names.AS_BACKEND])
def test_workers_train_by_each_system(systems, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}")
    options = ["--master", "127.0.0.1", "--interface", "lo", "--link", "1gbit", "--iterations", "1"]
    options += ["--model", "resnet50=0.001", *(part for name in systems for part in ("--system", name))]
    command = [*PYTHON, "-m", "benchmarks.training.worker", *options]
    launch = [sys.executable, "-m", "fptps", "run", "-n", "2", "-s", "1", "--"]
    done = subprocess.run([*launch, *command], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[worker 0] {")]
    rows = json.loads(line.partition("] ")[2])["trainings"]
    assert [row["system"] for row in rows] == list(systems)
    for row in rows:
        assert row["model"] == "resnet50"
        assert row["bound_ms"] > 87  # the profile's compute time
        assert row["iteration_ms"] > 60  # an iteration after a late one catches up
        assert row["cpu_ms"] > 0


# The report


def row(system: str, iteration_ms: float, cpu_ms: float = 10.0) -> dict[str, Any]:
    figures = {"iteration_ms": iteration_ms, "bound_ms": 100.0, "cpu_ms": cpu_ms, "idle_share": 0.25}
    return {"model": "vgg16", "system": system, **figures}


def sample(run: str, *rows: dict[str, Any]) -> dict[str, Any]:
    return {"run": run, "figures": {"trainings": list(rows)}}


ALONE = [
    {"model": names.CNN, "system": system, "cpu_ms": cpu_ms}
    for system, cpu_ms in ((names.PLAIN, 10.0), (names.FORWARD, 10.1))
]
TRAINED = {
    "date": "2026-01-04",
    "commit": "ghi",
    "samples": [
        sample("4x4, 1gbit", row(names.GLOO, 220), row(names.FORWARD, 110, 30)),
        sample("4x4, 1gbit", row(names.GLOO, 400), row(names.FORWARD, 100, 20)),  # a slow moment for all but one
        sample("4x4, 1gbit", row(names.GLOO, 150), row(names.FORWARD, 120, 40)),
        sample("4x4, 1gbit", row(names.GLOO, 300), row(names.BACKEND, 200)),
        sample("1x0", *ALONE),
    ],
}


def test_systems_are_compared_within_a_round():
    found = report.trainings(TRAINED["samples"])
    assert found["4x4, 1gbit", "vgg16", names.FORWARD] == (110, 30, 0.25, 100, 2)  # of 2, 4 and 1.25
    assert found["4x4, 1gbit", "vgg16", names.BACKEND].against_gloo == 1.5
    assert list(report.target_rows(found)) == [
        ["4x4, 1gbit", "vgg16", "1.10", "2.00", "-", "1.50", "10", "30", "25%"],
    ]
    assert list(report.time_rows(found)) == [["4x4, 1gbit", "vgg16", "100", "260", "-", "200", "-", "110"]]
    assert report.alone(TRAINED["samples"]) == "+1.0%"
