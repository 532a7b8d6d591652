"""examples/digits: `make demo`, and that its result does not depend on the number of workers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from warm import PYTHON

# Processes that import PyTorch, several at a time, beside other tests.
pytestmark = [pytest.mark.demo, pytest.mark.timeout(300)]

TRAIN = Path(__file__).parents[1] / "examples" / "digits" / "train.py"
LAST_LINE = re.compile(
    r"demo (ok|failed) accuracy=(\d\.\d\d) iterations=(\d+) pushed_mb=(\d+\.\d) wait_share=(\d\.\d\d)$"
)


def demo(save: Path, *args: str, workers: int = 0, servers: int = 0) -> tuple[int, re.Match[str]]:
    """Runs the demo (alone when workers is 0): its exit code and the parts of its last line."""
    run = [sys.executable, "-m", "fptps", "run", "-n", str(workers), "-s", str(servers), "--"] if workers else []
    done = subprocess.run(
        [*run, *PYTHON, str(TRAIN), "--save", str(save), *args],
        capture_output=True,
        text=True,
        timeout=240,
    )
    # `fptps run` puts the role and rank before each line.
    last = LAST_LINE.search(done.stdout.rstrip().rpartition("\n")[2])
    assert last, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.returncode, last


def assert_same_weights(path: Path, other: Path) -> None:
    """Each tensor within 1e-4 of the other's norm."""
    import torch

    a, b = torch.load(path), torch.load(other)
    assert a.keys() == b.keys()
    for name in a:
        distance = float((a[name] - b[name]).norm() / a[name].norm())
        assert distance < 1e-4, f"{name} differs by {distance:.1e}"


def test_as_make_demo_runs_it(tmp_path: Path) -> None:
    code, last = demo(tmp_path / "weights.pt", workers=2, servers=1)
    verdict, accuracy, iterations, pushed, wait_share = last.groups()
    assert (code, verdict) == (0, "ok")
    assert float(accuracy) >= 0.96
    assert int(iterations) == 460  # 20 epochs of 23 batches
    assert float(pushed) > 250  # 460 times 0.6 MB
    assert 0 <= float(wait_share) < 1


def test_two_workers_train_what_one_process_trains(tmp_path: Path) -> None:
    """For one epoch, which is too little."""
    joined, alone = tmp_path / "joined.pt", tmp_path / "alone.pt"
    for code, last in (demo(joined, "--epochs=1", workers=2, servers=1), demo(alone, "--epochs=1")):
        assert (code, last[1], last[3]) == (1, "failed", "23")
        assert float(last[2]) < 0.96
    assert_same_weights(joined, alone)


def test_batches_that_do_not_divide_evenly(tmp_path: Path) -> None:
    """1437 samples in batches of 50 over 3 workers: shares of 17 and 16, and a last batch of 37."""
    joined, alone = tmp_path / "joined.pt", tmp_path / "alone.pt"
    demo(joined, "--epochs=2", "--batch-size=50", workers=3)
    demo(alone, "--epochs=2", "--batch-size=50")
    assert_same_weights(joined, alone)
