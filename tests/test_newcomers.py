"""FPTPS_RECOVERY=1: workers and servers come to a training that runs, and take part in it with the same sums as all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import Gate, pass_gate

import fptps
from fptps._failures import failure_of

COUNT = 100_000
RECOVERS = {"FPTPS_RECOVERY": "1"}
MORE_STEPS = 3
"""How many steps a training goes on when what the test waits for has happened."""


def gradient(rank, key, step):
    return ((np.arange(COUNT) % 11 + 1) * (rank + 2) * (key + 1) + step).astype(np.float32)


def training(kv, act=lambda kv, step, workers: None, happened=lambda kv, workers: False):
    """Steps of a training with checked sums, until happened has been true for some steps on the lowest rank.

    Returns the first step of this worker, the workers of each step, and the sum of the weights, which all have alike.
    """
    weights, step, workers = np.zeros(COUNT, np.float32), 0, kv.workers
    for key, dtype in enumerate([np.float32, np.float32, np.int32]):
        kv.init(key, np.zeros(COUNT if key < 2 else 1, dtype))
    first, took_part, seen = None, [], 0
    while True:
        admitted = kv.admit(lambda: {"weights": weights, "step": step})  # noqa: B023
        if admitted:
            workers = admitted.workers
        if admitted and admitted.state:
            weights, step = admitted.state["weights"].copy(), admitted.state["step"]
        first = step if first is None else first
        if kv.rank == workers[0]:
            act(kv, step, workers)
            seen = seen + 1 if happened(kv, workers) else 0
        a, b = gradient(kv.rank, 0, step), gradient(kv.rank, 1, step)
        mean = kv.push_pull(0, a, out=a, op="mean")
        other = kv.push(1, b) if step % 3 else kv.skip(1)
        stop = kv.push_pull(2, np.full(1, seen >= MORE_STEPS, np.int32), out=np.zeros(1, np.int32))
        mean.result()
        workers = mean.workers
        want = sum(gradient(rank, 0, step) for rank in workers) / len(workers)
        assert np.array_equal(a, want.astype(np.float32)), (kv.rank, step, workers)
        other.result()
        sum_ = kv.pull(1).result()
        if step % 3:
            want = sum(gradient(rank, 1, step) for rank in other.workers)
            assert np.array_equal(sum_, want), (kv.rank, step, other.workers)
        took_part.append(workers)
        weights -= a
        step += 1
        if stop.result()[0]:
            return {"rank": kv.rank, "first": first, "took_part": took_part, "weights": float(weights.sum(dtype=float))}


def start(role, **environment):
    """A newcomer with the settings of this process: a worker runs newcomer(), and prints what training() gives."""
    shared = {name: value for name, value in os.environ.items() if name not in ("DMLC_WORKER_ID", "DMLC_SERVER_ID")}
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_newcomers as t; t.newcomer()"
    command = [sys.executable, "-c", code] if role == "worker" else [sys.executable, "-m", "fptps", "server"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**shared, "DMLC_ROLE": role, **environment}, stdout=pipe, stderr=pipe)


def newcomer():
    with fptps.KVWorker() as kv:
        assert kv.newcomer
        assert kv.rank not in kv.workers
        print(json.dumps(training(kv)))


def play(gate, plan, happened):
    """In a worker: a training in which the leader acts. plan: {step: [(action, argument)]}: "come" starts a newcomer of
    a role, "kill" kills a process of the start.

    The result of a worker that has started newcomers has theirs, too.
    """
    with fptps.KVWorker() as kv:
        pids = pass_gate(gate)
        came = []

        def act(kv, step, workers):
            for action, argument in plan.get(step, []):
                if action == "kill":
                    os.kill(pids[argument], 9)
                else:
                    came.append(start(argument))

        result = training(kv, act, happened)
    result["came"] = []
    for process in came:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err.decode()
        result["came"].append(json.loads(out) if out.startswith(b"{") else None)
    return result


def run(workers, servers, plan, happened, **environment):
    """Plays, checks that all that live have the same weights, and returns the results: of the start by rank, and of
    newcomers."""
    names = [("worker", rank) for rank in range(workers)] + [("server", rank) for rank in range(servers)]
    placed = {
        step: [(action, names.index(argument) if action == "kill" else argument) for action, argument in actions]
        for step, actions in plan.items()
    }
    with Gate() as gate:
        cluster = fptps.LocalCluster(workers, servers, 90, {**RECOVERS, **environment})
        with cluster.start(play, gate.address, placed, happened) as started:
            gate.wait(workers)
            gate.open([started.process(*name).pid for name in names])
            results = started.results()
    lived = [result for result in results if result]
    came = [one for result in lived for one in result.pop("came") if one]
    ends = [result["first"] + len(result["took_part"]) for result in lived + came]
    assert len(set(ends)) == 1
    assert len({result["weights"] for result in lived + came}) == 1
    for result in lived + came:
        before = ends[0] - len(result["took_part"])
        assert [tuple(w) for w in result["took_part"]] == [tuple(w) for w in lived[0]["took_part"][before:]]
    return results, came


def all_of(*ranks):
    """What happens: these workers take part."""
    return lambda kv, workers: tuple(workers) == ranks


def sums(server, part=0.0):
    """What happens: a server sums more than a part."""
    return lambda kv, workers: kv.stats().shares.get(server, 0) > part


@pytest.mark.parametrize("van", ["tcp", "auto"])
@pytest.mark.parametrize(
    ("workers", "servers", "plan", "happened"),
    [
        (2, 1, {2: [("kill", ("worker", 1))], 4: [("come", "worker")]}, all_of(0, 2)),
        (2, 1, {2: [("kill", ("worker", 1)), ("come", "worker")]}, all_of(0, 2)),
        (3, 0, {2: [("kill", ("worker", 1))], 4: [("come", "worker")]}, all_of(0, 2, 3)),
        (
            3,
            0,
            {2: [("kill", ("worker", 2)), ("kill", ("worker", 1))], 3: [("come", "worker"), ("come", "worker")]},
            all_of(0, 3, 4),
        ),
    ],
    ids=["a replacement", "at once", "an aggregator", "two"],
)
def test_a_worker_comes(workers, servers, plan, happened, van):
    results, came = run(workers, servers, plan, happened, FPTPS_VAN=van)
    killed = [argument for actions in plan.values() for action, argument in actions if action == "kill"]
    assert [result is None for result in results] == [("worker", rank) in killed for rank in range(workers)]
    assert sorted(one["rank"] for one in came) == list(range(workers, workers + len(came)))
    assert all(one["first"] > 2 for one in came)


def test_the_next_leads_and_another_comes():
    """Rank 0 dies; the next one starts a newcomer, which gets the state from it."""
    _, came = run(3, 1, {2: [("kill", ("worker", 0))], 4: [("come", "worker")]}, all_of(1, 2, 3))
    assert came == [{**came[0], "rank": 3}]


def test_more_workers_than_at_the_start():
    _, came = run(1, 0, {2: [("come", "worker")] * 2}, all_of(0, 1, 2), FPTPS_MAX_WORKERS="3")
    assert sorted(one["rank"] for one in came) == [1, 2]


@pytest.mark.parametrize("servers", [0, 1])
def test_a_server_comes(servers):
    run(2, servers, {2: [("come", "server")]}, sums(f"server {servers}", 0.4))


def test_a_server_takes_the_place_of_a_dead_one():
    run(2, 2, {2: [("kill", ("server", 0))], 4: [("come", "server")]}, sums("server 2", 0.4))


def test_a_server_and_a_worker_come_at_once():
    both = all_of(0, 2)
    plan = {2: [("kill", ("worker", 1)), ("kill", ("server", 0)), ("come", "server"), ("come", "worker")]}
    run(2, 1, plan, lambda kv, workers: both(kv, workers) and sums("server 1", 0.9)(kv, workers))


def test_deterministic_sums_with_a_newcomer():
    _, came = run(
        3, 1, {2: [("kill", ("worker", 1))], 3: [("come", "worker")]}, all_of(0, 2, 3), FPTPS_DETERMINISTIC="1"
    )
    assert len(came) == 1


def refused(role="worker"):
    """In a worker: the error of a newcomer that is refused."""
    out, err = start(role).communicate(timeout=60)
    assert not out
    return err.decode().strip().splitlines()[-1]


def test_too_many_newcomers_are_refused():
    def train():
        with fptps.KVWorker() as kv:
            kv.init("w", np.zeros(4, np.float32))
            full = refused()
            kv.barrier()
            return full

    full = fptps.LocalCluster(2, 1, 60, RECOVERS).run(train)[0]
    assert "refused this node: the cluster has its 2 workers already: another can come when one has died" in full


def test_no_newcomers_without_recovery():
    def train():
        with fptps.KVWorker() as kv:
            assert kv.admit(lambda: None) is None
            with pytest.raises(ValueError, match="without FPTPS_RECOVERY=1 the others cannot go on"):
                kv.leave()
            return refused() if kv.rank == 0 else None

    error = fptps.LocalCluster(2, 0, 60).run(train)[0]
    assert "refused this node: the cluster is complete already, with 2 workers and 0 servers" in error


def newcomer_of(text, **options):
    """A newcomer that runs a program with kv, and prints its result."""
    code = (
        "import fptps, numpy as np\nwith fptps.KVWorker() as kv:\n"
        f"    kv.init('w', np.zeros(4, np.float32))\n    {text}"
    )
    shared = {name: value for name, value in os.environ.items() if name != "DMLC_WORKER_ID"}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], env=shared, stdout=pipe, stderr=pipe, **options)


def alone_with(text, meet=True):
    """A training of one worker, and a newcomer that runs a text: its output, its errors, and the training's steps."""

    def train():
        with fptps.KVWorker() as kv:
            kv.init("w", np.zeros(4, np.float32))
            other, steps = newcomer_of(text), 0
            while other.poll() is None:
                if meet:
                    kv.admit(lambda: {"step": steps})  # noqa: B023
                array = np.ones(4, np.float32)
                kv.push_pull("w", array, out=array).result()
                steps += 1
            out, err = other.communicate()
            return out.decode().strip(), err.decode(), steps

    return fptps.LocalCluster(1, 1, 60, {**RECOVERS, "FPTPS_MAX_WORKERS": "2"}).run(train)[0]


@pytest.mark.parametrize(
    "call",
    [
        "kv.push('w', np.ones(4, np.float32))",
        "kv.pull('w')",
        "kv.skip('w')",
        "kv.barrier()",
        "kv.allgather_object(1)",
        "kv.broadcast([np.zeros(3)])",
    ],
)
def test_before_its_admission_a_newcomer_takes_no_part(call):
    _, err, _ = alone_with(call)
    assert "ValueError" in err
    assert "first it has to call admit(), at the place of the program where the others call it" in err


def test_a_newcomer_that_dies_or_leaves_before_it_is_admitted():
    out, err, steps = alone_with("import os; print('here', kv.newcomer, flush=True); os.kill(os.getpid(), 9)")
    assert (out, err) == ("here True", "")
    assert steps > 0
    assert alone_with("print(kv.rank)")[:2] == ("1", "")


def test_a_newcomer_fails_after_its_admission():
    out, err, _ = alone_with("print(kv.admit(dict).workers, kv.newcomer); 1 / 0")
    assert out == "(0, 1) False"
    assert "ZeroDivisionError" in err


def test_nobody_admits():
    _, err, _ = alone_with("fptps.KVWorker; kv._session.timeout = 1.0; kv.admit(dict)", meet=False)
    assert "TimeoutError: waited 1 s: new workers are admitted when all have come to the same admit()" in err


def test_it_came_too_late():
    def train():
        with fptps.KVWorker() as kv:
            kv.init("w", np.zeros(4, np.float32))
            other = newcomer_of("print('here', flush=True); kv.admit(dict)")
            assert other.stdout.readline() == b"here\n"
        return other.communicate(timeout=30)[1].decode(), other.returncode

    err, code = fptps.LocalCluster(1, 1, 60, {**RECOVERS, "FPTPS_MAX_WORKERS": "2"}).run(train)[0]
    assert "the others have ended the training before it was admitted" in err
    assert code == 1


def test_an_operation_is_under_way():
    """The worker that has one gets the error, and may wait and call again."""

    def train():
        with fptps.KVWorker() as kv:
            kv.init("w", np.zeros(4, np.float32))
            other = newcomer_of("admitted = kv.admit(dict); print(admitted.state, flush=True)")
            errors, admitted = [], [None]
            while not admitted[-1]:
                array = np.ones(4, np.float32)
                ticket = kv.push_pull("w", array, out=array)
                error = failure_of(lambda: admitted.append(kv.admit(lambda: "there")))
                errors += [str(e) for e in error]
                ticket.result()
        return errors, other.communicate()[0]

    errors, out = fptps.LocalCluster(1, 0, 60, {**RECOVERS, "FPTPS_MAX_WORKERS": "2"}).run(train)[0]
    assert out == b"there\n"
    assert all('admit(): key "w" has an operation under way: wait for its ticket first' in error for error in errors)


def test_collectives_with_a_newcomer():
    def train():
        with fptps.KVWorker() as kv:
            kv.init("w", np.zeros(4, np.float32))
            kv.allgather_object(kv.rank)
            text = (
                "kv.admit(dict); x = np.zeros(70000); kv.broadcast([x], 0); "
                "print(kv.allgather_object('new'), x[-1], kv.broadcast_object(2, 1)); kv.barrier()"
            )
            other = newcomer_of(text) if kv.rank == 0 else None
            while not kv.admit(lambda: 7):
                array = np.ones(4, np.float32)
                kv.push_pull("w", array, out=array).result()
            kv.broadcast([np.full(70000, 3.0)], 0)
            gathered = kv.allgather_object(kv.rank), kv.broadcast_object(kv.rank, 1)
            kv.barrier()
        return gathered, other and other.communicate()[0].decode()

    results = fptps.LocalCluster(2, 1, 60, {**RECOVERS, "FPTPS_MAX_WORKERS": "3"}).run(train)
    assert [result[0] for result in results] == [([0, 1, "new"], 1)] * 2
    assert results[0][1] == "[0, 1, 'new'] 3.0 1\n"


def test_workers_that_leave(capfd):
    """Each leaves in another step; the rounds that have begun end without it."""

    def train():
        with fptps.KVWorker() as kv:
            kv.init(0, np.zeros(COUNT, np.float32))
            sizes = []
            for step in range(12):
                array = gradient(kv.rank, 0, step)
                ticket = kv.push_pull(0, array, out=array)
                ticket.result()
                assert np.array_equal(array, sum(gradient(rank, 0, step) for rank in ticket.workers))
                sizes.append(len(ticket.workers))
                if (kv.rank, step) in ((1, 3), (0, 6)):
                    kv.leave()
                    with pytest.raises(fptps.ClosedError):
                        kv.push(0, array)
                    return sizes
            return sizes

    results = fptps.LocalCluster(3, 1, 60, RECOVERS).run(train)
    assert [len(sizes) for sizes in results] == [7, 4, 12]
    assert results[2][-1] == 1
    log = capfd.readouterr().err
    for rank in (0, 1):
        assert f"scheduler: worker {rank} has left; the others go on without it" in log
        assert f'level=WARN msg="worker {rank} has left; the others go on without it" logger=fptps role=worker' in log
        assert f"worker {rank} was lost" not in log


def test_settings_that_make_no_sense(capfd):
    with pytest.raises(fptps.FptpsError):
        fptps.LocalCluster(2, 0, 60, {**RECOVERS, "FPTPS_MAX_WORKERS": "1"}).run(open_worker)
    assert "FPTPS_MAX_WORKERS=1, but DMLC_NUM_WORKER=2" in capfd.readouterr().err
    assert fptps.LocalCluster(2, 0, 60, {"FPTPS_MAX_WORKERS": "3"}).run(open_worker) == [2, 2]
    assert "FPTPS_MAX_WORKERS=3 has no effect without FPTPS_RECOVERY=1" in capfd.readouterr().err


def open_worker():
    with fptps.KVWorker() as kv:
        return kv.num_workers


def test_a_server_comes_where_the_optimiser_is_on_the_servers():
    """The weights that it sums from then on move to it: no update is lost or made twice."""

    def train():
        with fptps.KVWorker() as kv:
            weights = np.arange(COUNT, dtype=np.float32)
            kv.init("w", weights)
            kv.set_optimizer(fptps.optim.SGD(0.5, momentum=0.5))
            kv.init("stop", np.zeros(1, np.int32))
            came, seen, step, velocity = None, 0, 0, np.zeros(COUNT, np.float32)
            stopped = False
            while not stopped:
                if step == 2 and kv.rank == 0:
                    came = start("server")
                seen += came is not None and kv.stats().shares.get("server 1", 0) > 0.4
                gradient = (np.arange(COUNT) % 7 + kv.rank).astype(np.float32)
                kv.push_pull("w", gradient, out=gradient).result()
                velocity = 0.5 * velocity + 2 * (np.arange(COUNT) % 7).astype(np.float32) + 1
                weights -= 0.5 * velocity
                np.testing.assert_allclose(gradient, weights, rtol=1e-5)
                stop = np.full(1, seen > 4, np.int32)
                stopped = bool(kv.allgather_object(int(stop[0]))[0])
                step += 1
            return_codes = came
        if return_codes is not None:
            assert return_codes.wait(30) == 0
        return step

    steps = fptps.LocalCluster(2, 1, 60, RECOVERS).run(train)
    assert steps[0] == steps[1] > 6


LOOP = """
while not kv.newcomer or kv.admit(lambda: 0):
    array = np.ones(4, np.float32)
    ticket = kv.push_pull("w", array, out=array)
    ticket.result()
    if len(ticket.workers) == 3:
        break
    kv.admit(lambda: 0)
print(ticket.workers)
"""


def test_of_two_that_came_the_later_one_is_admitted_first():
    """The other one is admitted all the same, with the first one as a member."""

    def train():
        with fptps.KVWorker() as kv:
            kv.init("w", np.zeros(4, np.float32))
            first = newcomer_of(f"print('here', flush=True); input(); exec({LOOP!r})", stdin=subprocess.PIPE)
            assert first.stdout.readline() == b"here\n"
            second, workers = newcomer_of(f"exec({LOOP!r})"), ()
            while len(workers) < 3:
                if len(workers) == 2 and not first.stdin.closed:
                    first.stdin.write(b"\n")
                    first.stdin.close()
                array = np.ones(4, np.float32)
                ticket = kv.push_pull("w", array, out=array)
                ticket.result()
                workers = ticket.workers
                if len(workers) < 3:
                    kv.admit(lambda: 0)
        return [process.stdout.read().decode() for process in (first, second)]

    results = fptps.LocalCluster(1, 1, 60, {**RECOVERS, "FPTPS_MAX_WORKERS": "3"}).run(train)
    assert results == [["(0, 1, 2)\n"] * 2]
