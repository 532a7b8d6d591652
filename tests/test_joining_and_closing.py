"""fptps.KVWorker from the join to the end: how it finds its cluster, which arguments it refuses, how it closes."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import CALLS, in_threads, on_both, running_scheduler, workers_of_one_process

import fptps
from fptps._arguments import settings_of


def test_alone():
    with fptps.KVWorker() as kv:
        assert (kv.rank, kv.num_workers, kv.num_servers) == (0, 1, 0)
        a = np.arange(5.0)
        kv.init(0, a)
        assert kv.pull(0).result().tolist() == a.tolist()
        assert kv.push_pull(0, a, op="mean").result().tolist() == a.tolist()
        kv.skip(0).result()
        assert kv.pull(0).result().tolist() == [0] * 5
        kv.barrier()


def test_alone_as_the_arguments_say():
    with fptps.KVWorker(num_workers=1, num_servers=0) as kv:
        assert (kv.num_workers, kv.num_servers) == (1, 0)


def test_closed():
    kv = fptps.KVWorker()
    kv.init(0, np.ones(2))
    done = kv.push_pull(0, np.ones(2))
    done.result()
    kv.close()
    kv.close()
    for call in CALLS.values():
        for key in (0, "never initialised"):
            with pytest.raises(fptps.ClosedError) as caught:
                call(kv, key, np.ones(2))
            assert (caught.value.key, caught.value.role) == (key, None)
    with pytest.raises(fptps.ClosedError) as caught:
        call(kv.namespace("optimizer"), "momentum", np.ones(2))
    assert caught.value.key == "optimizer/momentum"
    for method in (kv.barrier, kv.stats, lambda: kv.set_tensor_count(1)):
        with pytest.raises(fptps.ClosedError) as caught:
            method()
        assert caught.value.key is None
    assert (kv.rank, kv.num_workers) == (0, 1)
    assert done.result().tolist() == [1, 1]
    assert repr(kv) == "<fptps.KVWorker closed>"


def test_a_thread_that_is_woken_while_another_closes():
    """It has read the handle, and asks the core for tickets that have ended, when the close has freed it."""
    kv = fptps.KVWorker()
    handle = kv._session.handle
    kv.close()
    kv._session.handle = handle
    kv._session.reap()
    kv._session.handle = 0


def test_close_waits_for_what_is_under_way():
    with workers_of_one_process(2) as pair:
        on_both(pair, lambda kv, rank: kv.init(0, np.ones(10**6)))
        tickets = [kv.push_pull(0, np.ones(10**6)) for kv in pair]
    assert [ticket.result()[-1] for ticket in tickets] == [2, 2]


def test_close_has_a_bound():
    with running_scheduler(2, exit_code=1) as scheduler:
        one, two = in_threads(*[lambda: fptps.KVWorker(scheduler, 2, 0, 30)] * 2)
        one._session.timeout = 0.2
        with pytest.raises(fptps.TimeoutError, match=r"waited 0\.\d\d? s:"):
            one.close()
        with pytest.raises(fptps.NodeLostError, match=f"worker {one.rank}"):
            two.barrier()
        with pytest.raises(fptps.NodeLostError, match=f"worker {one.rank}"):
            two.close()


def test_several_clusters_in_one_process(pair, key):
    with workers_of_one_process(2) as others, fptps.KVWorker() as single:
        for kv in (*pair, *others, single):
            assert kv.num_workers == (1 if kv is single else 2)
        every = [*pair, *others, single]
        in_threads(*(lambda kv=kv: kv.init(key, np.ones(3)) for kv in every))
        sums = in_threads(
            *(lambda kv=kv, n=n: kv.push_pull(key, np.full(3, 10.0**n)).result() for n, kv in enumerate(every))
        )
        assert [sum_[0] for sum_ in sums] == [11, 11, 1100, 1100, 10000]


def test_worker_that_is_dropped_leaves():
    kv = fptps.KVWorker()
    kv.init(0, np.ones(2))
    with pytest.warns(ResourceWarning, match="was not closed"):
        kv.__del__()
    with pytest.raises(fptps.ClosedError):
        kv.barrier()


def test_no_scheduler():
    with pytest.raises(fptps.ConnectError, match=r"worker.*127\.0\.0\.1:1\b|127\.0\.0\.1:1\b.*worker"):
        fptps.KVWorker("127.0.0.1:1", 1, 0, timeout=0.5)


@pytest.mark.parametrize("scheduler", ["", "host", ":9000", "host:", "host:port", "host:-1"])
def test_scheduler_argument(scheduler):
    with pytest.raises(ValueError, match="host:port"):
        fptps.KVWorker(scheduler)


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        ({"num_workers": 2}, {}, "no scheduler"),
        ({"num_servers": 1}, {}, "no scheduler"),
        ({}, {"DMLC_ROLE": "server"}, "DMLC_ROLE=server"),
        ({"scheduler": "localhost:1"}, {}, "DMLC_NUM_WORKER"),
        ({}, {"DMLC_ROLE": "boss"}, "^DMLC_ROLE=boss: a role is scheduler, server or worker$"),
        ({}, {"DMLC_PS_ROOT_URI": "localhost"}, "DMLC_PS_ROOT_PORT"),
        ({}, {"DMLC_PS_ROOT_PORT": "9000"}, "not set: DMLC_NUM_SERVER, DMLC_NUM_WORKER, DMLC_PS_ROOT_URI"),
        ({}, {"DMLC_NUM_WORKER": "2"}, "DMLC_PS_ROOT_URI"),
        ({}, {"DMLC_NUM_SERVER": "0"}, "DMLC_PS_ROOT_URI"),
        ({}, {"DMLC_ROLE": "worker"}, "DMLC_PS_ROOT_URI"),
        ({"num_workers": 1}, {"DMLC_NUM_WORKER": "2"}, "DMLC_PS_ROOT_URI"),
        ({"scheduler": "localhost:1", "num_workers": 0, "num_servers": 0}, {}, "DMLC_NUM_WORKER=0"),
    ],
)
def test_invalid_settings(monkeypatch, arguments, environment, text):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(fptps.ConfigError, match=text):
        fptps.KVWorker(**arguments)


def test_arguments_override_the_environment(monkeypatch):
    monkeypatch.setenv("DMLC_PS_ROOT_URI", "elsewhere")
    monkeypatch.setenv("DMLC_NUM_WORKER", "7")
    monkeypatch.setenv("DMLC_NUM_SERVER", "3")
    settings = settings_of("[::1]:99", 2, None, math.inf)
    assert settings["DMLC_PS_ROOT_URI"] == "::1"
    assert settings["DMLC_PS_ROOT_PORT"] == "99"
    assert (settings["DMLC_NUM_WORKER"], settings["DMLC_NUM_SERVER"]) == ("2", "3")
    assert float(settings["FPTPS_TIMEOUT"]) > 1e8


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), (math.nan, ValueError), ("5", TypeError)])
def test_invalid_timeouts(timeout, error):
    with pytest.raises(error, match=f"timeout={timeout!r}: a number of seconds"):
        fptps.KVWorker(timeout=timeout)


def test_timeout_of_the_environment(monkeypatch):
    with fptps.KVWorker() as kv:
        assert kv._session.timeout == 60
    monkeypatch.setenv("FPTPS_TIMEOUT", "0.5")
    with pytest.raises(fptps.ConnectError, match=r"within \d(\.\d+)? s"):
        fptps.KVWorker("127.0.0.1:1", 1, 0)
    with fptps.KVWorker() as kv:
        assert kv._session.timeout == 0.5
    with fptps.KVWorker(timeout=7) as kv:
        assert kv._session.timeout == 7


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_invalid_timeouts_of_the_environment(monkeypatch, text):
    monkeypatch.setenv("FPTPS_TIMEOUT", text)
    with pytest.raises(fptps.ConfigError, match=f"^FPTPS_TIMEOUT={text}: a number of seconds"):
        fptps.KVWorker()
    fptps.KVWorker(timeout=5).close()


def test_leaving_by_an_exception_raises_that_exception():
    kv = fptps.KVWorker()
    with pytest.raises(ZeroDivisionError), kv:
        raise ZeroDivisionError
    with pytest.raises(fptps.ClosedError):
        kv.barrier()


def test_leaving_by_an_exception_is_logged(capsys):
    def work():
        with fptps.KVWorker() as kv:
            if kv.rank == 1:
                sys.exit(0)
            kv.barrier()

    with fptps.LocalCluster(2, 0).start(work) as run:
        error = run.outcomes()[0].error
    assert isinstance(error, fptps.NodeLostError)
    assert (error.role, error.rank, error.key, error.missing) == ("worker", 1, None, ())
    logged = [line for line in capsys.readouterr().err.splitlines() if "left its `with` block" in line]
    text = "worker 1 left its `with` block by SystemExit(0), without waiting for the other nodes"
    assert len(logged) == 1, logged
    assert logged[0].startswith("[worker 1] ")
    assert f'level=WARN msg="{text}' in logged[0]


def test_closed_worker_cannot_be_entered():
    kv = fptps.KVWorker()
    kv.close()
    with pytest.raises(fptps.ClosedError), kv:
        pass


def test_worker_left_open_at_exit_says_so():
    code = "import fptps; kv = fptps.KVWorker(num_workers=1)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True, check=True
    )
    (line,) = done.stderr.splitlines()
    assert 'msg="<fptps.KVWorker 0 of 1> was not closed. Use `with fptps.KVWorker()`, or close()"' in line
