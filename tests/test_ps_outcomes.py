"""fptps.ps: requests without a wait(), and those that Ctrl-C interrupts."""

import gc
import itertools
import threading
import weakref

import numpy as np
import pytest

import fptps
from fptps import ps
from fptps.ps import app as apps


@pytest.fixture
def app(monkeypatch):
    """An app without a node, which keeps three outcomes."""
    monkeypatch.setattr(apps, "KEPT_OUTCOMES", 3)
    app = object.__new__(apps.SimpleApp)
    app._id = (0, 0)
    app._thread = None
    app._changed = threading.Condition()
    app._outcomes, app._kept = {}, {}
    return app


def test_outcomes_without_a_wait_are_bounded(app):
    for timestamp in range(10):
        app._sent(timestamp)
        app._end({"timestamp": timestamp, "error": f"fptps:remote{{}}: error {timestamp}"})
    assert app._outcomes == {}
    assert list(app._kept) == [7, 8, 9]
    with pytest.raises(fptps.RemoteError, match="error 9"):
        app.wait(9)
    assert list(app._kept) == [7, 8]


def test_outcomes_without_a_result_are_not_kept(app):
    for timestamp in range(10):
        app._sent(timestamp)
        app._end({"timestamp": timestamp, "error": ""})
    assert (app._outcomes, app._kept) == ({}, {})
    assert app.wait(5) is None


@pytest.mark.parametrize("callback", [None, lambda: None], ids=["awaited", "callback"])
def test_an_interrupted_pull_keeps_its_array(app, callback):
    """Ctrl-C comes when the core has the request and nothing is noted here yet: the core may write to the array."""

    class Core:
        def ps_exchange(self, *_arguments):
            raise KeyboardInterrupt

    worker = object.__new__(ps.KVWorker)
    vars(worker).update(vars(app), _handle=1, _core=Core(), dtype=np.dtype("float32"), _number=12)
    worker._pulls, worker._beginning, worker._begun, worker._crowd = {}, {}, itertools.count(), 8
    out = np.zeros(4, np.float32)
    alive = weakref.ref(out)
    with pytest.raises(KeyboardInterrupt):
        worker.pull([1, 2], out, callback=callback)
    del out
    gc.collect()
    assert alive() is not None
