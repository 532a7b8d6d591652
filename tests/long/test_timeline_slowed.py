"""`fptps timeline` names the cause of a training that is slowed on purpose, on clusters of real processes."""

import io
import os
import re
import sys
from pathlib import Path

import pytest
import slowed
from benchmarks import testbed
from on_testbed import ENVIRONMENT, needs_network
from test_cli import fptps_command

PROGRAM = [sys.executable, str(Path(slowed.__file__))]
STEPS = 12


def named(*files):
    """The causes that the command names: kind and place, in order."""
    done = fptps_command("timeline", *files)
    assert done.returncode == 0, done.stderr
    causes = re.findall(r"^\d\. (.*): (.*) \(\S+ ms of a step, \d+%\)$", done.stdout, re.MULTILINE)
    assert len(causes) <= 3
    return causes, done.stdout


def on_this_machine(tmp_path, workers, servers, *program):
    """Runs a program with --timeline: the causes that are named."""
    file = tmp_path / "out.json"
    done = fptps_command("run", "-n", workers, "-s", servers, "--timeline", file, *program)
    assert done.returncode == 0, done.stderr
    return named(file)


def on_links(tmp_path, how, workers, servers, *rates):
    """Runs slowed.py where every node has a link of a set rate: the causes that are named."""
    err = io.StringIO()
    settings = {"FPTPS_TRACE": "1/4", "FPTPS_TRACE_DIR": str(tmp_path)}
    with testbed.TestBed(workers, servers, *rates) as bed:
        code = bed.run([*PROGRAM, how, str(STEPS)], {**ENVIRONMENT, **settings}, io.StringIO(), err)
    assert code == 0, err.getvalue()
    assert len(os.listdir(tmp_path)) == 1 + workers + servers
    return named(tmp_path)


@needs_network
def test_slow_link(tmp_path):
    causes, report = on_links(tmp_path, "link", 3, 1, "400mbit", {"worker:1": "20mbit"})
    assert ("slow link", "worker 1") in causes, report


@needs_network
def test_wrong_plan(tmp_path):
    causes, report = on_links(tmp_path, "plan", 3, 1, "50mbit")
    assert ("wrong plan", "server 0") in causes, report


@needs_network
def test_huge_tensor_of_high_priority(tmp_path):
    causes, report = on_links(tmp_path, "priority", 2, 1, "200mbit")
    assert ("priority", "layer 2") in causes, report


def test_slow_worker(tmp_path):
    causes, report = on_this_machine(tmp_path, 2, 1, *PROGRAM, "worker", STEPS)
    assert ("slow worker", "worker 1") in causes, report


def test_busy_aggregator(tmp_path):
    causes, report = on_this_machine(tmp_path, 3, 1, *PROGRAM, "aggregator", STEPS)
    assert ("busy aggregator", "server 0") in causes, report


def test_slow_data_loader(tmp_path):
    pytest.importorskip("torch")
    causes, report = on_this_machine(tmp_path, 2, 0, sys.executable, "-c", slowed.LOADER)
    assert ("data", "every worker") in causes, report
