"""What all tests share. No test waits by sleeping, and none can hang: pytest-timeout interrupts it, and where that does
not help the whole run is ended with the stacks of all threads."""

import contextlib
import faulthandler
import os
import subprocess
import sys
import threading

import pytest
from helpers import Gate

import fptps
from fptps.launch import HOST, reserved_port

HARD_LIMIT_S = 360  # longer than any test's own timeout


@pytest.fixture(autouse=True)
def hard_limit():
    """Ends the run if a test is stuck where no signal reaches it."""
    faulthandler.dump_traceback_later(HARD_LIMIT_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """No setting of the person who runs the tests."""
    for name in list(os.environ):
        if name.startswith(("DMLC_", "PS_", "FPTPS_")) or name == "PORT":
            monkeypatch.delenv(name)


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


@contextlib.contextmanager
def running_scheduler(workers, servers=0):
    """A scheduler's process; gives its address."""
    with reserved_port() as port:
        settings = {
            **os.environ,
            "DMLC_PS_ROOT_URI": HOST,
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
        }
        process = subprocess.Popen([sys.executable, "-m", "fptps", "scheduler"], env=settings)
        try:
            yield f"{HOST}:{port}"
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def workers_of_one_process(count, timeout=60.0):
    """All workers of a cluster without servers, in this process, by rank."""
    with running_scheduler(count) as scheduler:
        joined = []

        def join():
            joined.append(fptps.KVWorker(scheduler, count, 0, timeout))

        threads = [threading.Thread(target=join) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(joined) == count
        joined.sort(key=lambda kv: kv.rank)
        try:
            yield joined
        except BaseException:
            for kv in joined:
                kv._leave(orderly=False)
            raise
        closing = [threading.Thread(target=kv.close) for kv in joined]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()


@pytest.fixture
def pair():
    """The two workers of one cluster, both in this process."""
    with workers_of_one_process(2) as workers:
        yield workers
