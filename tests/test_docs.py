"""The Python programs in README.md and docs/, run unchanged."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from warm import PYTHON

# Processes that import PyTorch, several at a time, beside other tests.
pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[1]

# What the reader of the snippet on tickets is to imagine around it.
TICKETS = """
import asyncio
import fptps
import numpy as np

async def snippet(kv, grad):
{snippet}
    return t.result()

with fptps.KVWorker() as kv:
    kv.init(3, np.zeros(2))
    print(asyncio.run(snippet(kv, np.ones(2))))
"""


def snippets(page):
    """The Python programs of a page."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def run(folder, program, *cluster):
    """Runs a program, on a cluster where one is given; gives its lines of output."""
    path = folder / "program.py"
    path.write_text(program)
    launcher = [sys.executable, "-m", "fptps", "run", *cluster] if cluster else []
    command = [*launcher, *(PYTHON if "import torch" in program else [sys.executable]), str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.demo
@pytest.mark.parametrize("workers", [1, 2])
def test_train_of_the_readme(tmp_path, workers):
    (train,) = snippets("README.md")
    lines = run(tmp_path, train, *(["-n", str(workers), "-s", "1"] if workers > 1 else []))
    pattern = re.compile(r"worker (\d) of (\d): (\[.*\])$")
    found = [pattern.search(line).groups() for line in lines]
    assert [each[:2] for each in found] == [(str(r), str(workers)) for r in range(workers)]
    assert len({bias for *_, bias in found}) == 1
    assert len([line for line in train.splitlines() if line]) == 13


def test_store(tmp_path):
    train, table, saving = snippets("docs/store.md")
    lines = run(tmp_path, train, "-n", "2", "-s", "1")
    pattern = re.compile(r"worker (\d): \[1\.0, 2\.0, 3\.0\]$")
    assert [pattern.search(line)[1] for line in lines] == ["0", "1"]
    assert run(tmp_path, table, "-n", "2", "-s", "1") == [f"[worker {r}] worker {r}: [20, 20]" for r in range(2)]
    assert run(tmp_path, saving, "-n", "2") == [f"[worker {r}] worker {r} goes on from step 1" for r in range(2)]


@pytest.mark.demo
def test_local_updates(tmp_path):
    (train,) = snippets("docs/local.md")
    lines = run(tmp_path, train, "-n", "3", "-s", "1")
    pattern = re.compile(r"worker (\d): loss 0\.\d{3} after (\d+) rounds$")
    found = [pattern.search(line).groups() for line in lines]
    assert [rank for rank, _ in found] == ["0", "1", "2"]
    assert len({rounds for _, rounds in found}) == 1


@pytest.mark.demo
@pytest.mark.parametrize("snippet", [0, 1])
def test_torch_distributed(tmp_path, snippet):
    """The gradients are averaged: all have the same."""
    program = snippets("docs/torch-distributed.md")[snippet]
    lines = run(tmp_path, program, "-n", "2", "-s", "1")
    found = [re.search(r"rank (\d): (\[.*\])$", line).groups() for line in lines]
    assert [rank for rank, _ in found] == ["0", "1"]
    assert found[0][1] == found[1][1]


@pytest.mark.demo
@pytest.mark.parametrize("cluster", [[], ["-n", "2", "-s", "1"]])
def test_torch(tmp_path, cluster):
    train, _ = snippets("docs/torch.md")
    lines = run(tmp_path, train, *cluster)
    prefix, workers = ("[worker {}] ", 2) if cluster else ("", 1)
    assert lines == [prefix.format(r) + f"worker {r} of {workers} took 100 steps" for r in range(workers)]


def test_every_snippet_is_tested():
    pages = ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    found = {page: len(snippets(page)) for page in pages if snippets(page)}
    assert found == {
        "README.md": 1,
        "docs/counters.md": 1,
        "docs/failures.md": 1,
        "docs/first-steps.md": 3,
        "docs/index.md": 1,
        "docs/local.md": 1,
        "docs/mxnet.md": 1,  # test_mxnet.py
        "docs/ps-lite.md": 1,
        "docs/python.md": 6,
        "docs/store.md": 3,
        "docs/torch-distributed.md": 2,
        "docs/torch.md": 2,
    }


@pytest.mark.parametrize("page", ["docs/index.md", "docs/first-steps.md"])
def test_hello(tmp_path, page):
    hello = snippets(page)[0]
    assert run(tmp_path, hello) == ["worker 0 of 1: [1. 1. 1.]"]
    expected = [f"[worker {rank}] worker {rank} of 3: [6. 6. 6.]" for rank in range(3)]
    assert run(tmp_path, hello, "-n", "3", "-s", "1") == expected
    assert "\n".join(expected) in "\n".join(sorted((ROOT / page).read_text().splitlines()))


@pytest.mark.demo
def test_train_of_the_first_steps(tmp_path):
    lines = run(tmp_path, snippets("docs/first-steps.md")[1], "-n", "2", "-s", "1")
    assert [re.search(r"worker (\d): loss 0\.\d{3}$", line)[1] for line in lines] == ["0", "1"]


def test_a_test_of_the_first_steps(tmp_path):
    assert run(tmp_path, snippets("docs/first-steps.md")[2] + "test_total()\nprint('passed')\n") == ["passed"]


def test_counters(tmp_path):
    lines = run(tmp_path, snippets("docs/counters.md")[0], "-n", "2", "-s", "1")
    found = [re.search(r"worker (\d)\] (pushed \d+ MB/s|waited \d+% of the time)$", line).groups() for line in lines]
    assert [(rank, text.split()[0]) for rank, text in found] == [
        ("0", "pushed"), ("0", "waited"), ("1", "pushed"), ("1", "waited"),
    ]  # fmt: skip


def test_worker(tmp_path):
    worker = snippets("docs/python.md")[0] + "print(start[0], mean[0], t.done())\n"
    assert run(tmp_path, worker, "-n", "2", "-s", "1") == [f"[worker {rank}] 0.0 1.0 True" for rank in range(2)]
    assert run(tmp_path, worker) == ["0.0 1.0 True"]


def test_ps_lite(tmp_path):
    (program,) = snippets("docs/ps-lite.md")
    assert run(tmp_path, program, "-n", "2", "-s", "1") == [f"[worker {rank}] [1.  0.5]" for rank in range(2)]


def test_tickets(tmp_path):
    snippet = textwrap.indent(snippets("docs/python.md")[1], "    ")
    lines = run(tmp_path, TICKETS.format(snippet=snippet), "-n", "2")
    assert lines == [f"[worker {rank}] [2. 2.]" for rank in range(2)]


def test_which_workers_took_part(tmp_path):
    program = snippets("docs/python.md")[2]
    lines = run(tmp_path, program, "-n", "2", "-s", "1")
    assert lines == [f"[worker {rank}] (0, 1){count}" for rank in range(2) for count in ("", " 2")]


@pytest.mark.demo
@pytest.mark.parametrize("cluster", [[], ["-n", "2", "-s", "1"]])
def test_failures(tmp_path, cluster):
    (train,) = snippets("docs/failures.md")
    run(tmp_path, train, *cluster)


@pytest.mark.demo
@pytest.mark.parametrize("cluster", [[], ["-n", "2", "-s", "1"]])
def test_workers_that_come_later(tmp_path, cluster, monkeypatch):
    monkeypatch.setenv("FPTPS_RECOVERY", "1")
    assert run(tmp_path, snippets("docs/torch.md")[1] + "\nprint(state.step)", *cluster)[-1].endswith("20")
    lines = run(tmp_path, snippets("docs/python.md")[3] + "\nprint(f'{weights[0]:.1f}')", *cluster)
    assert all(line.endswith("-15.0" if cluster else "-10.0") for line in lines)


def test_values_of_one_worker(tmp_path):
    program = snippets("docs/python.md")[4]
    assert run(tmp_path, program) == ["1.0 1 0.1 1"]
    assert run(tmp_path, program, "-n", "2", "-s", "1") == [f"[worker {rank}] 1.0 1 0.1 2" for rank in range(2)]


def test_clusters_in_tests(tmp_path):
    assert run(tmp_path, snippets("docs/python.md")[5] + "test_it()\nprint('passed')\n") == ["passed"]
