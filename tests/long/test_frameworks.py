"""examples/torch with Lightning, accelerate and transformers, installed in an environment of their own."""

import os
import re
import subprocess
import sys

import pytest
from environments import ROOT, environment_with

EXAMPLES = ROOT / "examples" / "torch"
LINE = re.compile(r"worker (\d) of 2: (mean loss (\d\.\d+) to (\d\.\d+), sum of the weights [-+.\de]+)")
"""Under torchrun two of them may be in one line."""

pytestmark = [pytest.mark.demo, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with the pinned frameworks."""
    return environment_with("frameworks", tmp_path_factory.mktemp("frameworks"))


def lacks_mpi():
    """Whether mpi4py, of `make peers`, is here without an MPI library."""
    program = "import importlib.util as u\nif u.find_spec('mpi4py'):\n from mpi4py import MPI"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode != 0


def run(*command):
    """The lines that workers 0 and 1 print at their end."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}  # no model is fetched
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return sorted(LINE.findall(done.stdout))


@pytest.mark.parametrize("launcher", ["fptps run", "torchrun"])
@pytest.mark.parametrize("name", ["lightning_ddp.py", "accelerate_loop.py", "transformers_trainer.py"])
def test_workers_learn_and_agree(python, name, launcher):
    if name == "lightning_ddp.py" and lacks_mpi():
        pytest.skip("Lightning loads mpi4py, which `make peers` installed, but no MPI: apt-get install openmpi-bin")
    by_fptps = [sys.executable, "-m", "fptps", "run", "-n", "2", "-s", "1", "--", python]
    by_torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch = by_fptps if launcher == "fptps run" else by_torchrun
    (rank, text, first, last), (other_rank, other_text, *_) = run(*launch, str(EXAMPLES / name))
    assert (rank, other_rank) == ("0", "1")
    assert text == other_text
    assert float(last) < 0.6 * float(first)
