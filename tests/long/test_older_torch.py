"""The backend of torch.distributed on the newest PyTorch before 2.14: the same tests, in an environment of its own."""

import subprocess
import tempfile
from pathlib import Path

import pytest
from environments import ROOT, environment_with

TESTS = ["tests/test_torch_backend.py", "tests/test_torch_trainings.py", "tests/test_torch_failures.py"]
# PyTorch's own optimizers use torch.jit, which this PyTorch deprecates.
PYTEST = ["pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore:`torch.jit:DeprecationWarning"]

pytestmark = [pytest.mark.demo, pytest.mark.timeout(1000)]


def test_the_backends_tests_pass():
    with tempfile.TemporaryDirectory() as folder:  # of some GB, which pytest would keep
        python = environment_with("older-torch", Path(folder))
        version = subprocess.check_output(
            [python, "-c", "import torch; print(torch.__version__)"], text=True, timeout=100
        )
        assert version.startswith("2.13.")
        command = [python, "-m", *PYTEST, *TESTS]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
