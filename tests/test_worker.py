"""fptps.KVWorker: what each method does, and what it refuses."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import MEANS, in_threads, running_scheduler, total, values, workers_of_one_process

import fptps
from fptps._arguments import settings_of


def on_both(pair, call):
    """Calls the same on both workers at the same time, with the worker and its rank; gives both results."""
    return in_threads(*(lambda kv=kv: call(kv, kv.rank) for kv in pair))


def test_who_it_is(pair):
    assert [kv.rank for kv in pair] == [0, 1]
    assert {kv.num_workers for kv in pair} == {2}
    assert {kv.num_servers for kv in pair} == {0}
    assert repr(pair[1]) == "<fptps.KVWorker 1 of 2>"


def test_init_gives_rank_0s_values(pair, key):
    arrays = [np.arange(6.0).reshape(2, 3) + 100 * rank for rank in range(2)]
    on_both(pair, lambda kv, rank: kv.init(key, arrays[rank]))
    for kv in pair:
        got = kv.pull(key).wait()
        assert type(got) is np.ndarray
        assert (got.shape, got.dtype) == ((2, 3), np.float64)
        assert got.tolist() == arrays[0].tolist()
    assert arrays[1][0, 0] == 100  # written nowhere


def test_push_and_pull(pair, key):
    dtype = np.dtype(np.int32)
    on_both(pair, lambda kv, rank: kv.init(key, values(rank, 1000, dtype)))
    for salt in range(3):

        def step(kv, rank, salt=salt):
            kv.push(key, values(rank, 1000, dtype, salt), priority=-salt).wait()
            out = np.zeros(1000, dtype)
            assert kv.pull(key, out).wait() is out
            return out, kv.pull(key).wait()

        for pulled in on_both(pair, step):
            for out in pulled:
                assert np.array_equal(out, total(2, 1000, dtype, salt))


def test_pull_into_the_array_that_is_being_pushed(pair, key):
    dtype = np.dtype(np.float32)

    def step(kv, rank):
        kv.init(key, values(rank, 10**5, dtype))
        a = values(rank, 10**5, dtype, 1)
        kv.push(key, a)
        return kv.pull(key, out=a).wait()

    for out in on_both(pair, step):
        assert np.array_equal(out, total(2, 10**5, dtype, 1))


def test_push_pull(pair, key):
    dtype = np.dtype(np.float32)
    on_both(pair, lambda kv, rank: kv.init(key, values(rank, 77, dtype)))

    def in_place(kv, rank):
        a = values(rank, 77, dtype)
        assert kv.push_pull(key, a, out=a).wait() is a
        return a

    def into_another(kv, rank):
        out = np.zeros((7, 11), dtype)
        kv.push_pull(key, values(rank, 77, dtype), out=out).wait()
        return out.ravel()

    def into_a_new_one(kv, rank):
        return kv.push_pull(key, values(rank, 77, dtype).reshape(7, 11)).wait()

    for way in (in_place, into_another, into_a_new_one):
        for out in on_both(pair, way):
            assert np.array_equal(out.ravel(), total(2, 77, dtype))
    assert out.shape == (7, 11)


@pytest.mark.parametrize("dtype", MEANS, ids=str)
def test_mean(pair, key, dtype):
    on_both(pair, lambda kv, rank: kv.init(key, values(rank, 50, dtype)))
    for out in on_both(pair, lambda kv, rank: kv.push_pull(key, values(rank, 50, dtype), op="mean").wait()):
        assert np.array_equal(out, (total(2, 50, dtype) / 2).astype(dtype))


def test_skip(pair, key):
    a = np.arange(1.0, 5.0)

    def step(kv, rank):
        kv.init(key, a)
        (kv.push(key, a) if rank == 0 else kv.skip(key)).wait()
        pulled = kv.pull(key).wait()
        mean = (kv.push_pull(key, a, op="mean") if rank == 0 else kv.skip(key)).wait()
        return pulled, mean

    (first, mean), (second, nothing) = on_both(pair, step)
    assert first.tolist() == second.tolist() == a.tolist()
    assert mean.tolist() == (a / 2).tolist()
    assert nothing is None


def test_barrier(pair):
    on_both(pair, lambda kv, rank: kv.barrier())
    on_both(pair, lambda kv, rank: kv.barrier(timeout=math.inf))


def test_barrier_that_times_out(pair):
    with pytest.raises(fptps.TimeoutError, match="barrier"):
        pair[0].barrier(timeout=0.2)
    # The call that timed out still counts.
    pair[1].barrier()


def test_kinds_of_keys(alone):
    for key in (0, 2**63 - 1, np.int64(5), np.uint8(6)):
        alone.init(key, np.ones(2))
        assert alone.pull(int(key)).wait().tolist() == [1, 1]


CALLS = {
    "init": lambda kv, key, a: kv.init(key, a),
    "push": lambda kv, key, a: kv.push(key, a),
    "pull": lambda kv, key, a: kv.pull(key, a),
    "pull_new": lambda kv, key, a: kv.pull(key),
    "push_pull": lambda kv, key, a: kv.push_pull(key, a, out=a),
    "skip": lambda kv, key, a: kv.skip(key),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("key", "error"), [(-1, ValueError), (2**63, ValueError), (1.0, TypeError), ("a", TypeError), (None, TypeError)]
)
def test_keys_that_make_no_sense(alone, call, key, error):
    with pytest.raises(error):
        call(alone, key, np.ones(2))


@pytest.mark.parametrize("name", [name for name in CALLS if name != "init"])
def test_key_without_init(alone, name):
    with pytest.raises(KeyError, match="key 7"):
        CALLS[name](alone, 7, np.ones(2))


@pytest.mark.parametrize("name", ["push", "pull", "push_pull"])
def test_array_that_is_not_like_inits(alone, name):
    alone.init(3, np.ones(4, np.float32))
    with pytest.raises(ValueError, match=r"key 3.*20.*16|key 3.*16.*20"):
        CALLS[name](alone, 3, np.ones(5, np.float32))
    with pytest.raises(TypeError, match=r"key 3.*(int32.*float32|float32.*int32)"):
        CALLS[name](alone, 3, np.ones(4, np.int32))


@pytest.mark.parametrize("name", ["push", "push_pull"])
def test_push_of_none(alone, name):
    alone.init(0, np.ones(4))
    with pytest.raises(TypeError, match=r"'NoneType' is no array.*skip\(key\)"):
        getattr(alone, name)(0, None)


def test_init_twice(alone):
    alone.init(0, np.ones(4))
    with pytest.raises(ValueError, match="key 0"):
        alone.init(0, np.ones(4))


@pytest.mark.parametrize("name", ["push", "push_pull"])
@pytest.mark.parametrize(("priority", "error"), [(2**31, ValueError), (-(2**31) - 1, ValueError), (0.5, TypeError)])
def test_priorities_that_make_no_sense(alone, name, priority, error):
    alone.init(0, np.ones(2))
    with pytest.raises(error):
        getattr(alone, name)(0, np.ones(2), priority=priority)


def test_push_pull_refuses(alone):
    alone.init(0, np.ones(4))
    a = np.ones(4)
    read_only = np.ones(4)
    read_only.flags.writeable = False
    for out, error, text in (
        (np.ones(5), ValueError, "32 bytes, and out 40"),
        (np.ones(4, np.int64), TypeError, "differ in dtype"),
        (np.ones(8)[::2], ValueError, "not C-contiguous"),
        (read_only, ValueError, "read-only"),
    ):
        with pytest.raises(error, match=text):
            alone.push_pull(0, a, out=out)
    with pytest.raises(ValueError, match="op='max'"):
        alone.push_pull(0, a, op="max")
    alone.init(1, np.ones(4, np.int32))
    with pytest.raises(TypeError, match="int32"):
        alone.push_pull(1, np.ones(4, np.int32), op="mean")
    assert alone.push_pull(0, read_only).wait().tolist() == [1] * 4  # what is read only may be read-only


def test_sum_of_push_pull_is_not_kept(alone):
    alone.init(0, np.ones(4))
    alone.push_pull(0, np.ones(4)).wait()
    with pytest.raises(ValueError, match="key 0"):
        alone.pull(0)
    alone.push(0, np.full(4, 2.0))
    assert alone.pull(0).wait().tolist() == [2.0] * 4


def test_array_in_flight_cannot_be_used_again(pair, key):
    one, two = pair
    memory = np.ones(100)
    others = [10**6 + key, 2 * 10**6 + key]
    for each, size in ((key, 50), (others[0], 50), (others[1], 10)):
        on_both(pair, lambda kv, rank, each=each, size=size: kv.init(each, np.ones(size)))
    ticket = one.push(key, memory[:50])
    for busy in (memory[:50], memory[25:75], memory[49:99]):
        with pytest.raises(fptps.BusyError):
            one.push_pull(others[0], busy)
    with pytest.raises(fptps.BusyError):
        one.pull(others[1], memory[10:20])
    fine = one.push(others[0], memory[50:])
    for each in (key, others[0]):
        two.push(each, np.ones(50))
    ticket.wait()
    fine.wait()
    on_both(pair, lambda kv, rank: kv.push(key, memory[:50] if rank == 0 else np.ones(50)).wait())


def test_torch_tensors(pair, key):
    torch = pytest.importorskip("torch")

    def step(kv, rank):
        start = torch.nn.Parameter(torch.full((3, 2), 5.0, dtype=torch.bfloat16))
        kv.init(key, start)
        pulled = kv.pull(key).wait()
        gradient = torch.full((3, 2), rank + 1.0, dtype=torch.bfloat16)
        new = kv.push_pull(key, gradient).wait()
        kv.push_pull(key, gradient, out=start).wait()
        return pulled, new, start

    for pulled, new, start in on_both(pair, step):
        for tensor, value in ((pulled, 5.0), (new, 3.0), (start.detach(), 3.0)):
            assert torch.equal(tensor, torch.full((3, 2), value, dtype=torch.bfloat16))


def test_buffers(alone):
    alone.init(0, bytearray(b"\1\2\3"))
    out = bytearray(3)
    assert alone.push_pull(0, b"\4\5\6", out=out).wait() is out
    assert out == b"\4\5\6"


def test_set_tensor_count(alone):
    alone.set_tensor_count(3)
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError)):
        with pytest.raises(error):
            alone.set_tensor_count(wrong)


def test_stats(pair, key):
    before = pair[0].stats()
    on_both(pair, lambda kv, rank: kv.init(key, np.ones(1000)))
    on_both(pair, lambda kv, rank: kv.push_pull(key, np.ones(1000)).wait())
    after = pair[0].stats()
    assert after["bytes_pushed"] - before["bytes_pushed"] >= 8000
    assert after["bytes_pulled"] - before["bytes_pulled"] >= 8000
    assert after["wait_s"] >= before["wait_s"]
    json.dumps(after)


def test_alone():
    with fptps.KVWorker() as kv:
        assert (kv.rank, kv.num_workers, kv.num_servers) == (0, 1, 0)
        a = np.arange(5.0)
        kv.init(0, a)
        assert kv.pull(0).wait().tolist() == a.tolist()
        assert kv.push_pull(0, a, op="mean").wait().tolist() == a.tolist()
        kv.skip(0).wait()
        assert kv.pull(0).wait().tolist() == [0] * 5
        kv.barrier()


def test_alone_as_the_arguments_say():
    with fptps.KVWorker(num_workers=1, num_servers=0) as kv:
        assert (kv.num_workers, kv.num_servers) == (1, 0)


def test_closed():
    kv = fptps.KVWorker()
    kv.init(0, np.ones(2))
    done = kv.push_pull(0, np.ones(2))
    done.wait()
    kv.close()
    kv.close()
    for call in CALLS.values():
        with pytest.raises(fptps.ClosedError):
            call(kv, 0, np.ones(2))
    for method in (kv.barrier, kv.stats, lambda: kv.set_tensor_count(1)):
        with pytest.raises(fptps.ClosedError):
            method()
    assert (kv.rank, kv.num_workers) == (0, 1)
    assert done.wait().tolist() == [1, 1]
    assert repr(kv) == "<fptps.KVWorker closed>"


def test_close_waits_for_what_is_under_way():
    with workers_of_one_process(2) as pair:
        on_both(pair, lambda kv, rank: kv.init(0, np.ones(10**6)))
        tickets = [kv.push_pull(0, np.ones(10**6)) for kv in pair]
    assert [ticket.result()[-1] for ticket in tickets] == [2, 2]


def test_close_has_a_bound():
    with running_scheduler(2, exit_code=1) as scheduler:
        one, two = in_threads(*[lambda: fptps.KVWorker(scheduler, 2, 0, 30)] * 2)
        one._timeout = 0.2
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
            *(lambda kv=kv, n=n: kv.push_pull(key, np.full(3, 10.0**n)).wait() for n, kv in enumerate(every))
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
def test_settings_that_make_no_sense(monkeypatch, arguments, environment, text):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(fptps.ConfigError, match=text):
        fptps.KVWorker(**arguments)


def test_arguments_go_before_the_environment(monkeypatch):
    monkeypatch.setenv("DMLC_PS_ROOT_URI", "elsewhere")
    monkeypatch.setenv("DMLC_NUM_WORKER", "7")
    monkeypatch.setenv("DMLC_NUM_SERVER", "3")
    settings = settings_of("[::1]:99", 2, None, math.inf)
    assert settings["DMLC_PS_ROOT_URI"] == "::1"
    assert settings["DMLC_PS_ROOT_PORT"] == "99"
    assert (settings["DMLC_NUM_WORKER"], settings["DMLC_NUM_SERVER"]) == ("2", "3")
    assert float(settings["FPTPS_TIMEOUT"]) > 1e8


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), (math.nan, ValueError), ("5", TypeError)])
def test_timeouts_that_make_no_sense(timeout, error):
    with pytest.raises(error, match=f"timeout={timeout!r}: a number of seconds"):
        fptps.KVWorker(timeout=timeout)


def test_timeout_of_the_environment(monkeypatch):
    with fptps.KVWorker() as kv:
        assert kv._timeout == 60
    monkeypatch.setenv("FPTPS_TIMEOUT", "0.5")
    with pytest.raises(fptps.ConnectError, match=r"within \d(\.\d+)? s"):
        fptps.KVWorker("127.0.0.1:1", 1, 0)
    with fptps.KVWorker() as kv:
        assert kv._timeout == 0.5
    with fptps.KVWorker(timeout=7) as kv:
        assert kv._timeout == 7


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_timeouts_of_the_environment_that_make_no_sense(monkeypatch, text):
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


def test_leaving_by_an_exception_is_told(capsys):
    def work():
        with fptps.KVWorker() as kv:
            if kv.rank == 1:
                sys.exit(0)
            kv.barrier()

    with fptps.LocalCluster(2, 0).start(work) as run:
        error = run.outcomes()[0].error
    assert isinstance(error, fptps.NodeLostError)
    told = [line for line in capsys.readouterr().err.splitlines() if "left its `with` block" in line]
    text = "worker 1 left its `with` block by SystemExit(0), without waiting for the other nodes"
    assert len(told) == 1, told
    assert told[0].startswith(f"[worker 1] {text}")


def test_closed_worker_cannot_be_entered():
    kv = fptps.KVWorker()
    kv.close()
    with pytest.raises(fptps.ClosedError), kv:
        pass


def test_worker_left_open_at_exit_says_so():
    code = "import fptps; kv = fptps.KVWorker()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == [
        "<fptps.KVWorker 0 of 1> was not closed. Use `with fptps.KVWorker()`, or close()"
    ]
