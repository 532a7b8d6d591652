"""examples/torch with Lightning, accelerate and transformers, installed in an environment of their own."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "torch"
LINE = re.compile(r"worker (\d) of 2: (mean loss (\d\.\d+) to (\d\.\d+), sum of the weights [-+.\de]+)")
"""Under torchrun two of them may be in one line."""

pytestmark = [pytest.mark.demo, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with the pinned frameworks, which sees all that this one has, such as PyTorch."""
    folder = tmp_path_factory.mktemp("frameworks")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=100)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    (site / "outer.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
    fresh = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", fresh, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--group", f"{ROOT / 'pyproject.toml'}:frameworks"], check=True, timeout=500)
    return str(fresh)


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
    by_fptps = [sys.executable, "-m", "fptps", "run", "-n", "2", "-s", "1", "--", python]
    by_torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch = by_fptps if launcher == "fptps run" else by_torchrun
    (rank, text, first, last), (other_rank, other_text, *_) = run(*launch, str(EXAMPLES / name))
    assert (rank, other_rank) == ("0", "1")
    assert text == other_text
    assert float(last) < 0.6 * float(first)
