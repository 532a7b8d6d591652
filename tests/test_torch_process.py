"""fptps.torch.init() in real processes: under fptps run, as other launchers start them, and alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from warm import PYTHON

from fptps.cluster._commands import reserved_port

pytestmark = [pytest.mark.demo, pytest.mark.timeout(300)]

PROGRAM = """
import logging, os, sys
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
import torch
import fptps.torch as fptps

fptps.init()
fptps.init()  # does nothing
total = float(fptps.push_pull(torch.full((3,), 10.0**fptps.rank()), average=False)[0])
print("total", total, fptps.rank(), fptps.size(), fptps.local_rank(), fptps.local_size(), flush=True)
if os.environ.get("AGAIN"):
    fptps.shutdown()
    assert not fptps.is_initialized()
    fptps.init()
    print("again", fptps.allgather_object(os.environ["AGAIN"]), flush=True)
"""

FAILS = """
import os, signal, torch
import fptps.torch as fptps

fptps.init()
model, optimizer = fptps.prepare(m := torch.nn.Linear(2, 2), torch.optim.SGD(m.parameters(), 0.1))
for step in range(3):
    if str(fptps.rank()) == os.environ["FAILS"] and step == 1:
        if os.environ["HOW"] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("on purpose")
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""

FORKS = """
import torch
import fptps.torch as fptps

fptps.init()
model, optimizer = fptps.prepare(m := torch.nn.Linear(1, 1), torch.optim.SGD(m.parameters(), 0.1))
data = torch.utils.data.TensorDataset(torch.arange(8.0).view(8, 1))
for epoch in range(2):
    for (x,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):  # forks, with updates to come
        optimizer.zero_grad()
        model(x + fptps.rank()).sum().backward()
        optimizer.step()
fptps.check(model)
print("steps", optimizer.steps)
"""

DETERMINISTIC = """
import fptps.torch as fptps
from fptps.torch._process import current

fptps.init(deterministic=True)
fptps.init()
try:
    fptps.init(deterministic=False)
except ValueError as error:
    print(error, current().worker.deterministic, flush=True)
"""

LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun (Open MPI)": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpirun (MPICH, Intel MPI)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
}


@pytest.fixture
def program(tmp_path):
    def write(text):
        path = tmp_path / "program.py"
        path.write_text(text)
        return str(path)

    return write


def environment(**more):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more}


def under_fptps_run(path, workers, servers, **more):
    command = [sys.executable, "-m", "fptps", "run", "-n", str(workers), "-s", str(servers), *PYTHON, path]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**more), timeout=200, check=False)


def under_launcher(path, launcher, settings):
    """As many processes as there are settings, those of a launcher: output, errors and exit code of each, by rank."""
    processes, size = [], str(len(settings))
    with reserved_port() as port:
        for rank, more in enumerate(settings):
            values = [str(rank), size, str(rank), size]
            own = {name: value for name, value in zip(LAUNCHERS[launcher], values) if name} | more
            own |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
            processes.append(subprocess.Popen([*PYTHON, path], env=environment(**own), stdout=-1, stderr=-1, text=True))
        return [(*process.communicate(timeout=200), process.returncode) for process in processes]


def lines(text, word):
    return sorted(line for line in text.splitlines() if word in line)


def test_under_fptps_run(program):
    done = under_fptps_run(program(PROGRAM), 2, 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines(done.stdout, "total") == [f"[worker {r}] total 11.0 {r} 2 {r} 2" for r in range(2)]
    assert lines(done.stdout, "started by") == [
        f"[worker {r}] worker {r} of 2, started by fptps; on this host {r} of 2" for r in range(2)
    ]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_as_another_launcher_starts_it(program, launcher):
    """Without a scheduler's address: rank 0 runs the scheduler. The launcher's ranks are fptps's."""
    done = under_launcher(program(PROGRAM), launcher, [{"AGAIN": f"of {rank}"} for rank in range(2)])
    assert [code for _, _, code in done] == [0, 0], done
    for rank, (out, *_) in enumerate(done):
        assert lines(out, "total") == [f"total 11.0 {rank} 2 {rank} 2"]
        assert lines(out, "again") == ["again ['of 0', 'of 1']"]
        assert f"worker {rank} of 2, started by {launcher}; on this host {rank} of 2" in out


def test_deterministic(program):
    refused = "deterministic=False, but fptps.torch is initialised already, with deterministic=True: .* True"
    for out, errors, code in under_launcher(program(DETERMINISTIC), "torchrun", [{}, {}]):
        assert code == 0, errors
        assert re.search(refused, out)
    done = under_fptps_run(program(DETERMINISTIC), 2, 1)
    assert len(re.findall(refused, done.stdout)) == 2, done.stdout + done.stderr


def test_a_launcher_that_names_no_place_to_meet(program):
    own = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    done = subprocess.run(
        [*PYTHON, program(PROGRAM)], capture_output=True, text=True, env=environment(**own), timeout=100, check=False
    )
    assert done.returncode == 1
    assert "ConfigError: mpirun (Open MPI) started 2 processes, but MASTER_ADDR=''" in done.stderr


def test_alone(program):
    done = subprocess.run(
        [*PYTHON, program(PROGRAM)], capture_output=True, text=True, env=environment(), timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout, "total") == ["total 1.0 0 1 0 1"]
    assert "worker 0 of 1, started alone" in done.stdout


def test_the_others_hear_whose_exception_it_was(program):
    """Worker 0 raises where it needs worker 1: in the forward pass."""
    done = under_fptps_run(program(FAILS), 2, 0, FAILS="1", HOW="raises")
    assert done.returncode == 1
    assert "[worker 1] ValueError: on purpose" in done.stderr
    cause, consequence = [line for line in done.stderr.splitlines() if line.startswith("fptps: worker")]
    assert re.match(r"fptps: worker 1 \(pid \d+\) ended with exit code 1", cause)
    assert consequence.startswith("fptps: worker 0 ")
    assert consequence.endswith("as worker 1 was lost")


@pytest.mark.parametrize(("how", "code"), [("raises", 1), ("killed", -9)])
def test_rank_0_fails_with_the_scheduler_in_it(program, how, code):
    """The others hear that it was rank 0, and its exception: the scheduler outlives the worker."""
    (*_, first), (_, errors, second) = under_launcher(program(FAILS), "torchrun", [{"FAILS": "0", "HOW": how}] * 2)
    assert (first, second) == (code, 1), errors
    (lost,) = lines(errors, "fptps.errors.NodeLostError")
    assert "the cluster of torchrun: " in lost
    assert "rank 0" in lost
    assert ("it left by ValueError: on purpose" in lost) == (how == "raises")


def test_a_process_that_does_not_come(program):
    """Rank 1 never calls init()."""
    meeting = program("import os\nif os.environ['RANK'] == '0':\n    import fptps.torch\n    fptps.torch.init()")
    (_, errors, code), _ = under_launcher(meeting, "torchrun", [{"FPTPS_TIMEOUT": "1"}] * 2)
    assert code == 1
    (failed,) = lines(errors, "fptps.errors.ConnectError: the cluster of torchrun: rank 0 did not meet the 1 others")
    assert "Does every process call" in failed


def test_loaders_that_fork(program):
    done = under_fptps_run(program(FORKS), 2, 0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines(done.stdout, "steps") == [f"[worker {r}] steps 4" for r in range(2)]


def test_every_example_is_tested():
    """Those of examples/torch, by test_torch_examples.py, and in the long part those that need other frameworks."""
    root = Path(__file__).parents[1]
    text = "".join(
        (root / "tests" / name).read_text() for name in ("test_torch_examples.py", "long/test_frameworks.py")
    )
    assert [path.name for path in (root / "examples/torch").glob("*.py") if f'"{path.name}"' not in text] == []
