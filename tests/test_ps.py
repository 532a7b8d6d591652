"""fptps.ps: ps-lite's classes, on clusters of real processes."""

import json
import signal
import sys

import numpy as np
import pytest
from ps_cluster import SCHEDULER, SERVER, cluster, run

import fptps
from fptps import ps


def program(name):
    """The command of one of ps_programs."""
    return [sys.executable, "-m", "ps_programs", name]


def said(outputs):
    """The lines that the nodes printed."""
    return [json.loads(line) for out, _ in outputs for line in out.splitlines()]


@pytest.mark.parametrize("server", [SERVER, program("summing_server")], ids=["plain server", "fptps.ps"])
def test_every_dtype(server):
    workers = [("worker", program("dtypes_worker"))] * 2
    outputs = run(2, 3, ("scheduler", SCHEDULER), *[("server", server)] * 3, *workers)
    assert sorted(line["rank"] for line in said(outputs)) == [0, 1]


def test_place():
    roles = ["scheduler", "server", "server", "worker", "worker"]
    found = said(run(2, 2, *[(role, program("place")) for role in roles]))
    assert sorted((f["role"], f["rank"], f["id"]) for f in found) == [
        ("scheduler", 0, 1), ("server", 0, 8), ("server", 1, 10), ("worker", 0, 9), ("worker", 1, 11),
    ]  # fmt: skip
    half = (2**64 - 1) // 2
    for f in found:
        assert (f["workers"], f["servers"], f["dead"], f["mine"]) == (2, 2, [], [f["id"]])
        assert (f["all"], f["pair"]) == ([1, 8, 9, 10, 11], [1, 8, 10])
        assert f["ranges"] == [[0, half], [half, 2 * half]]


def test_simple_app():
    roles = ["scheduler", "server", "worker", "worker"]
    assert said(run(2, 1, *[(role, program("simple")) for role in roles])) == [{"answers": 12}]


def test_handles():
    worker = ("worker", program("handles_worker"))
    outputs = run(2, 1, ("scheduler", SCHEDULER), ("server", program("handles_server")), worker, worker)
    found = said(outputs)
    assert sorted(f["rank"] for f in found) == [0, 1]
    for f in found:
        missing, seven = f["errors"]
        assert "server 0" in missing
        assert "KeyError: 'no such thing'" in missing
        assert seven.endswith("RuntimeError: seven")
    assert "a handle of app 0 failed" in outputs[1][1]


def test_customers_of_one_process():
    """DMLC_NUM_WORKER counts the customers."""
    outputs = run(
        4, 1, ("scheduler", SCHEDULER), ("server", program("summing_server")), *[("worker", program("customers"))] * 2
    )
    assert said(outputs) == [{"results": [[20.0, 22.0]] * 2}] * 2


def test_apps_of_one_process():
    outputs = run(1, 1, ("scheduler", SCHEDULER), ("server", program("two_apps")), ("worker", program("two_apps")))
    assert said(outputs) == [{"values": [[1.0], [2.0]]}]


def test_unknown_app():
    """It is answered after 5 s; the log has a line, and the others notice nothing."""
    outputs = run(
        1, 1, ("scheduler", SCHEDULER), ("server", program("summing_server")), ("worker", program("unknown_app_worker"))
    )
    assert said(outputs) == [{"error": "server 0 answered request 0 with an error: there is no app 9 here"}]
    assert outputs[1][1].count("a message was rejected") == 1


def test_server_is_killed():
    with cluster(1, 1) as made:
        scheduler = made.start("scheduler", SCHEDULER)
        server = made.start("server", program("hanging_server"))
        worker = made.start("worker", program("waiting_worker"))
        while "ready" not in made.output(worker):
            assert made.processes[worker].poll() is None, made.errors(worker)
        made.processes[server].send_signal(signal.SIGKILL)
        made.wait(worker)
        made.wait(scheduler, code=1)
        ready, end = map(json.loads, made.output(worker).splitlines())
        assert ready == {"ready": True}
        assert "server 0 was lost" in end["error"]
        assert end["dead"] == [8]


def test_no_answer_in_time():
    """A wait ends, and names the server."""
    with cluster(1, 1, FPTPS_TIMEOUT="5") as made:
        made.start("scheduler", SCHEDULER)
        made.start("server", program("hanging_server"))
        worker = made.start("worker", program("waiting_worker"))
        made.wait(worker, code=1)
        assert "TimeoutError: request 0: waited 5 s; no answer from server 0" in made.errors(worker)


@pytest.fixture(scope="module")
def kv(tmp_path_factory):
    """A KVWorker of this process, whose cluster is real."""
    with cluster(1, 2) as made, pytest.MonkeyPatch.context() as patch:
        for role, command in (("scheduler", SCHEDULER), ("server", SERVER), ("server", SERVER)):
            made.start(role, command)
        for name, value in made._settings.items():
            if name.startswith("DMLC_"):
                patch.setenv(name, value)
        ps.start()
        yield ps.KVWorker(0, 0)
        ps.finalize()
        made.wait(0, 1, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (([2, 1], [1.0, 2.0]), ValueError, "ascending"),
        (([1, 1], [1.0, 2.0]), ValueError, "each once"),
        (([-1], [1.0]), ValueError, "keys from -1"),
        ((np.array([-1]), [1.0]), ValueError, "0 or more"),
        (([1.5], [1.0]), TypeError, "integer"),
        ((np.array([1.5]), [1.0]), TypeError, "whole numbers"),
        (([2**64 - 1], [1.0]), ValueError, "keys are below"),
        (([1, 2], [1.0, 2.0, 3.0]), ValueError, "3 values for 2 keys"),
        (([1, 2], [1.0, 2.0], [1, 2]), ValueError, "add up to 3"),
        (([1, 2], [1.0, 2.0], [2]), ValueError, "1 lens for 2 keys"),
        (([1, 2], [1.0, 2.0], [3, -1]), ValueError, "length of -1"),
        (([1], np.ones(1)), TypeError, "float64"),
        (([1], None), TypeError, "no array"),
    ],
)
def test_wrong_arguments(kv, arguments, error, says):
    with pytest.raises(error, match=says):
        kv.push(*arguments)
    assert kv.wait(kv.pull([], np.ones(1, np.float32))) is None  # nothing is lost


def test_wrong_arrays_to_fill(kv):
    kv.wait(kv.push([5, 6], [1.0, 2.0]))
    with pytest.raises(TypeError, match="float64"):
        kv.pull([5, 6], np.zeros(2))
    with pytest.raises(ValueError, match="read-only"):
        kv.pull([5, 6], np.frombuffer(bytes(8), np.float32))
    with pytest.raises(ValueError, match="2 values"):
        kv.wait(kv.pull([5, 6], np.zeros(3, np.float32)))
    with pytest.raises(TypeError, match="int32"):
        kv.pull([5, 6], None, [0, 0])
    assert kv.wait(kv.pull([5, 6])).tolist() == [1.0, 2.0]


def test_wait_twice_and_for_an_unknown_request(kv):
    timestamp = kv.pull([5])
    assert kv.wait(timestamp) is not None
    assert kv.wait(timestamp) is None  # as in ps-lite: it has ended
    assert kv.wait(12345) is None


def test_callbacks(kv):
    """Exceptions of callbacks are raised by wait(); a wait in a callback for another request is refused."""

    def fail():
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        kv.wait(kv.push([7], [1.0], callback=fail))
    tried = []

    def wait_for_next():
        try:
            kv.wait(timestamps[1])
        except fptps.BusyError as error:
            tried.append(str(error))

    with kv._changed:  # both are under way before the first callback
        timestamps = [kv.push([7], [1.0], callback=wait_for_next), kv.push([7], [1.0])]
    for timestamp in timestamps:
        kv.wait(timestamp)
    assert len(tried) <= 1


def test_same_customer_twice(kv):
    with pytest.raises(ValueError, match="customer 0 already"):
        ps.KVWorker(0, 0)


def test_customer_too_many(kv):
    """The cluster is complete: it has no place for another customer. The first one goes on."""
    with pytest.raises(fptps.ConfigError, match="customer 1 started after"):
        ps.start(1)
    assert kv.wait(kv.push([8], [1.0])) is None


def test_before_start_and_after(monkeypatch):
    for name in ("DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER"):
        monkeypatch.delenv(name, raising=False)
    office = ps.Postoffice()
    with pytest.raises(fptps.ClosedError, match="start"):
        office.rank  # noqa: B018
    with pytest.raises(fptps.ConfigError, match="DMLC_ROLE"):
        office.start(0)
    office.finalize(0, True)  # no node is open
