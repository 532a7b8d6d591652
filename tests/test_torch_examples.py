"""examples/torch: each runs on two workers, and its training learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from warm import PYTHON

pytestmark = [pytest.mark.demo, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[1] / "examples" / "torch"


def run(name, *arguments, workers=2, left=None, **environment):
    """Runs an example; gives the texts that the workers print, by rank, which are the same but for the rank. left: the
    ranks of those that live at the end, unless all do."""
    launcher = [sys.executable, "-m", "fptps", "run", "-n", str(workers), "-s", "1"] if workers > 1 else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run(
        [*launcher, *PYTHON, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = sorted(re.findall(r"worker (\d) of (\d): (.*)$", done.stdout, re.MULTILINE))
    left = list(range(workers)) if left is None else left
    assert [each[:2] for each in found] == [(str(rank), str(len(left))) for rank in left]
    assert len({text for *_, text in found}) == 1
    return found[0][2]


@pytest.mark.parametrize("name", ["minimal.py", "optimizer.py", "amp.py", "embeddings.py", "server.py"])
def test_example(name):
    assert float(re.fullmatch(r"mean loss (\d\.\d{3})", run(name))[1]) < 0.6


def test_survive():
    alive = run("survive.py", "40", workers=3, FPTPS_RECOVERY="1")
    dead = run("survive.py", "40", "20", workers=3, left=[0, 2], FPTPS_RECOVERY="1")
    assert all(float(re.fullmatch(r"mean loss (\d\.\d{3})", text)[1]) < 0.4 for text in (alive, dead))


def test_elastic():
    """The others do not wait for a replacement, which may come too late for so few steps."""
    dead = run("elastic.py", "40", "20", workers=3, left=[0, 2], FPTPS_RECOVERY="1")
    assert float(re.fullmatch(r"mean loss (\d\.\d{3})", dead)[1]) < 0.4


def test_minimal_alone():
    assert run("minimal.py", workers=1).startswith("mean loss 0.")


def test_resume(tmp_path):
    """The second run ends with the checkpoint of one that was never interrupted, bit for bit."""
    torch = pytest.importorskip("torch")
    path, whole = str(tmp_path / "checkpoint.pt"), str(tmp_path / "whole.pt")
    assert run("resume.py", path, "20").startswith("steps 0 to 20, ")
    first = torch.load(path)
    torch.save({**first, "step": 0}, whole)  # both start from the same weights
    torch.save({**first, "step": 0}, path)
    run("resume.py", whole, "20")
    run("resume.py", path, "10")
    assert run("resume.py", path, "20").startswith("steps 10 to 20, ")
    got, wanted = torch.load(path), torch.load(whole)
    assert got["step"] == wanted["step"] == 20
    assert all(torch.equal(got["model"][name], wanted["model"][name]) for name in wanted["model"])
