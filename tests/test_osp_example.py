"""examples/osp: each algorithm trains, on a cluster and alone. That it follows its equations is in test_local*.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from warm import PYTHON

# Processes that import PyTorch, several at a time, beside other tests.
pytestmark = [pytest.mark.demo, pytest.mark.timeout(300)]

MAIN = Path(__file__).parents[1] / "examples" / "osp" / "main.py"


@pytest.mark.parametrize(
    ("algorithm", "workers"), [("localSGD", 2), ("OSP", 2), ("LOSP", 2), ("DQLOSP", 2), ("DQLOSP", 0)]
)
def test_the_example_trains(algorithm: str, workers: int) -> None:
    run = [sys.executable, "-m", "fptps", "run", "-n", str(workers), "-s", "0", "--"] if workers else []
    program = [*PYTHON, str(MAIN), "--algorithm", algorithm, "--steps", "8", "--iterations", "320"]
    done = subprocess.run([*run, *program], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rounds = [int(number) for number in re.findall(r"round (\d+): \d+ iterations", done.stdout)]
    assert rounds == list(range(1, len(rounds) + 1))
    (accuracy, count) = re.findall(rf"{algorithm}: accuracy (0\.\d+) after (\d+) rounds", done.stdout)[0]
    assert int(count) == len(rounds)
    assert float(accuracy) > 0.85
