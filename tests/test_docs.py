"""The programs in README.md, docs/python.md, docs/store.md and docs/ps-lite.md, run as they stand there."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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
    launcher = ["-m", "fptps", "run", *cluster] if cluster else []
    command = [sys.executable, *launcher, *([sys.executable] if cluster else []), str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.demo
@pytest.mark.parametrize("workers", [1, 2])
def test_train_of_the_readme(tmp_path, workers):
    (train,) = snippets("README.md")
    lines = run(tmp_path, train, *(["-n", str(workers), "-s", "1"] if workers > 1 else []))
    pattern = re.compile(r"worker (\d) of (\d): loss \d\.\d{3}$")
    assert [pattern.search(line).groups() for line in lines] == [(str(r), str(workers)) for r in range(workers)]


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


def test_every_snippet_is_tested():
    assert len(snippets("docs/python.md")) == 3


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


def test_clusters_in_tests(tmp_path):
    assert run(tmp_path, snippets("docs/python.md")[2] + "test_it()\nprint('passed')\n") == ["passed"]
