"""What `fptps timeline` says of trainings that are slowed on purpose, and are played without a cluster."""

import dataclasses

import numpy as np
import pytest
from traces import MS, Scene, part

from fptps._timeline.causes import Analysis
from fptps._timeline.part import Kind
from fptps._timeline.report import text
from fptps._timeline.trace import merge
from fptps._timeline.waits import What

SLOWED = {
    "slow link of a worker": ({"mbit": {"worker 1": 100}}, "slow link", "worker 1"),
    "slow link of a worker that sums": ({"share": 0.5, "mbit": {"worker 0": 100}}, "slow link", "worker 0"),
    "slow worker": ({"compute": [20, 20, 60]}, "slow worker", "worker 2"),
    "busy aggregator": ({"sums": 1}, "busy aggregator", "server 0"),
    "wrong plan": ({"workers": 6, "mbit": {"": 200}}, "wrong plan", "server 0"),
    "huge tensor of high priority": (
        {"tensors": ((4, 0), (4, 0), (160, 9)), "between": 70, "share": 0.4, "mbit": {"": 400}},
        "priority",
        "layer 2",
    ),
    "data loader": ({"idle": 60}, "data", "every worker"),
    "data loader of one": ({"idle": [0, 60, 0]}, "data", "worker 1"),
}


@pytest.mark.parametrize("name", SLOWED)
def test_causes(name):
    scene, kind, where = SLOWED[name]
    causes = Analysis(merge(Scene(**scene).play())).causes()
    assert [(c.kind, c.where) for c in causes[:1]] == [(kind, where)], causes


def test_a_training_that_only_computes():
    analysis = Analysis(merge(Scene(compute=500, tensors=((1, 0),)).play()))
    assert analysis.causes() == []
    assert "Nothing to change" in text(analysis.trace)


def test_links_that_are_loaded_alike():
    """Two workers share the summing: nothing is wrong, there is only much to send."""
    scene = Scene(workers=2, share=0.5, tensors=((40, 0),) * 2, mbit={"": 200})
    causes = Analysis(merge(scene.play())).causes()
    assert causes[0].kind == "network"


def test_the_pieces_of_a_step_are_all_of_it():
    for scene, _, _ in SLOWED.values():
        analysis = Analysis(merge(Scene(**scene).play()))
        for worker, pieces in analysis.pieces.items():
            steps = analysis.steps[worker]
            assert sum(p.ns for p in pieces) == pytest.approx(steps[-1].end - steps[0].begin)
            assert all(p.ns > 0 for p in pieces)


def test_a_play_that_can_be_followed_by_hand():
    """One packet of 16,384 bytes on links of 1,000 Mbit/s, 131 us each way, and worker 1 calls 40 ms later."""
    analysis = Analysis(merge(Scene(workers=2, tensors=((1, 0),), compute=[10, 50], sums=2).play()))
    sums = dict.fromkeys(What, 0.0)
    worker = analysis.trace.workers[0]
    for piece in analysis.pieces[worker.id]:
        key = "theirs" if piece.node != worker.id and piece.what == What.COMPUTE else piece.what
        sums[key] = sums.get(key, 0.0) + piece.ns / len(analysis.steps[worker.id]) / MS
    assert sums[What.COMPUTE] == pytest.approx(10, abs=0.5)
    assert sums["theirs"] == pytest.approx(40, abs=0.5)
    assert sums[What.AGGREGATOR] == pytest.approx(2, abs=0.1)
    assert sums[What.QUEUE] + sums[What.LINK] == pytest.approx(4 * 0.131 - 2 * 0.131 + 2 * 0.02, abs=0.15)
    assert analysis.step_ns == pytest.approx(52.3 * MS, rel=0.01)


def shifted(p, host, ahead, error):
    """A part as another host would have recorded it, whose clock shows less by `ahead`."""
    events = p.events.copy()
    events["time"] -= ahead
    head = {**p.head, "host_id": host, "clock": [[int(events["time"].min()), ahead + error, 2 * abs(error) + 1]]}
    return dataclasses.replace(p, head=head, events=events)


@pytest.mark.parametrize("name", SLOWED)
def test_causes_with_nodes_on_hosts_of_their_own(name):
    """Clocks that differ by seconds, and errors of 50 us in what is known about them, change no answer."""
    scene, kind, where = SLOWED[name]
    scheduler, *others = Scene(**scene).play()
    errors = np.random.default_rng(1).integers(-50_000, 50_000, len(others))
    parts = [shifted(p, f"host {i}", i * 3_000 * MS, int(errors[i])) for i, p in enumerate(others)]
    causes = Analysis(merge([scheduler, *parts])).causes()
    assert [(c.kind, c.where) for c in causes[:1]] == [(kind, where)], causes


def test_the_report():
    report = text(merge(Scene(compute=[20, 20, 60]).play()))
    assert "1. slow worker: worker 2 (" in report
    assert "worker 2 computes, and has not pushed it" in report
    lines = [line.split() for line in report.splitlines() if line.startswith("worker 0 ")]
    assert len(lines[0]) == 12
    assert max(map(len, report.splitlines())) <= 120


def test_the_report_of_a_trace_without_steps():
    assert "No steps are known" in text(
        merge([part("scheduler"), part("worker 0", [(5, Kind.CALLED, 0, 1, 0, 4, "")])])
    )
