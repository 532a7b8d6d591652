"""What all tests share. No test waits by sleeping, and none can hang: pytest-timeout interrupts it, and where that does
not help the whole run is ended with the stacks of all threads."""

import faulthandler
import itertools
import os

import pytest
from helpers import Gate, workers_of_one_process

import fptps

HARD_LIMIT_S = 360  # longer than any test's own timeout


@pytest.fixture(autouse=True)
def hard_limit():
    """Ends the run if a test is stuck where no signal reaches it."""
    faulthandler.dump_traceback_later(HARD_LIMIT_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True, scope="session")
def plain_environment():
    """No setting of the person who runs the tests."""
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
