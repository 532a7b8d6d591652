"""What all tests share. No test waits by sleeping, and none can hang: pytest-timeout interrupts it, and where that does
not help the whole run is ended with the stacks of all threads."""

import contextlib
import faulthandler
import itertools
import os
import tempfile
from pathlib import Path

import pytest
import warm
from helpers import Gate, workers_of_one_process

import fptps

HARD_LIMIT_S = 60.0
"""How much longer than its own timeout a test may take before the whole run is ended."""


def pytest_configure(config):
    # Processes that train share the machine's cores: PyTorch's threads, which spin while they wait, would take them
    # from one another.
    os.environ["OMP_NUM_THREADS"] = "1"
    if not hasattr(config, "workerinput"):  # one server for all of pytest's processes
        stack = contextlib.ExitStack()
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(warm.serving(Path(folder)))
        config.add_cleanup(stack.close)


@pytest.fixture(autouse=True)
def hard_limit(request):
    """Ends the run if a test is stuck where no signal reaches it."""
    own = request.node.get_closest_marker("timeout")
    seconds = own.args[0] if own else float(request.config.getoption("timeout"))
    faulthandler.dump_traceback_later(seconds + HARD_LIMIT_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True, scope="session")
def plain_environment():
    """Removes the settings of the user's own environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("DMLC_", "PS_", "FPTPS_")) or name == "PORT":
                patch.delenv(name)
        yield


@pytest.fixture
def gate():
    """Where worker processes report to the test, and wait for it."""
    with Gate() as opened:
        yield opened


@pytest.fixture
def alone():
    """A worker without a cluster."""
    with fptps.KVWorker() as kv:
        yield kv


@pytest.fixture(scope="module")
def pair():
    """The two workers of one cluster, by rank, both in this process. The tests of a module share it."""
    with workers_of_one_process(2) as workers:
        yield workers


@pytest.fixture(params=["tcp", "shm"])
def van(request, monkeypatch):
    """How tensors travel in the clusters of a test: it runs once with each."""
    monkeypatch.setenv("FPTPS_VAN", request.param)
    return request.param


KEYS = itertools.count()


@pytest.fixture
def key():
    """A key that no other test uses."""
    return next(KEYS)
