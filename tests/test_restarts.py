"""`fptps run --restarts` and `-n MIN:MAX`: processes that take the places of dead ones."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from fptps.cluster._process import Command, Process
from fptps.cluster._restarts import FIRST_S, LONGEST_S, STEADY_S, Restarts
from fptps.cluster._supervisor import Supervisor

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

TRAINING = """
import os, signal, sys
import numpy as np
import fptps, helpers

ROUNDS = 5
LATER = "DMLC_WORKER_ID" not in os.environ


def kill(role):
    '''Kills a process of this run, from one of its workers.'''
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            parent = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
            environment = open(f"/proc/{pid}/environ", "rb").read().split(b"\\0")
        except OSError:
            continue
        if parent == os.getppid() and b"DMLC_ROLE=" + role.encode() in environment:
            os.kill(int(pid), signal.SIGKILL)


def train(over, strike=lambda kv, step, workers: None, admits=True):
    '''Rounds up to ROUNDS of those in which over() is true on the worker of the lowest rank. strike() is called in
    mid-round. Both get the workers of the last sum.'''
    with fptps.KVWorker() as kv:
        kv.init("w", np.zeros(10_000, np.float32))
        kv.init("over", np.zeros(1, np.float32))
        step, rounds = kv.admit(tuple).state if kv.newcomer else (0, 0)
        workers = ()  # of the last sum
        while rounds < ROUNDS:
            ticket = kv.push_pull("w", np.full(10_000, kv.rank + 2 + step, np.float32))
            flag = kv.push_pull("over", np.full(1, kv.rank == min(kv.workers) and over(kv, workers), np.float32))
            strike(kv, step, workers)
            sum_ = ticket.result()
            assert (sum_ == sum(rank + 2 + step for rank in ticket.workers)).all(), (sum_, ticket.workers)
            workers = ticket.workers
            rounds += bool(flag.result()[0])
            step += 1
            if admits:
                kv.admit(lambda: (step, rounds))
        print("worker", kv.rank, "ends with", *ticket.workers, flush=True)


def die(rank, at=20):
    '''Has one worker kill itself.'''
    def strike(kv, step, workers):
        if kv.rank == rank and step == at:
            os.kill(os.getpid(), signal.SIGKILL)
    return strike


def came(rank):
    '''Whether that worker takes part.'''
    return lambda kv, workers: rank in workers
"""


@contextlib.contextmanager
def running(program, *options, **environment):
    """`fptps run` with TRAINING and a program."""
    command = [sys.executable, "-m", "fptps", "run", *map(str, options), "--", sys.executable, "-c", TRAINING + program]
    with subprocess.Popen(
        command, env={**ENVIRONMENT, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process, text):
    """Reads its output up to a line with a text."""
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"it ended without {text!r}")


def run(program, *options, **environment):
    """The exit code and the output of running()."""
    with running(program, *options, **environment) as process:
        try:
            output = process.communicate(timeout=50)[0]
        except subprocess.TimeoutExpired:
            process.terminate()
            raise AssertionError(process.communicate()[0]) from None
    return process.returncode, output


@pytest.mark.parametrize(("rank", "servers"), [(1, 1), (0, 1), (1, 0), (0, 0)])
def test_a_worker_is_replaced(rank, servers):
    code, output = run(f"train(came(2), die({rank}))", "--restarts", 3, "-n", 2, "-s", servers)
    assert code == 0, output
    left = 1 - rank
    assert f"[worker {left}] worker {left} ends with {left} 2\n" in output
    assert f"[worker +1] worker 2 ends with {left} 2\n" in output
    assert "fptps: started worker +1 (pid " in output
    assert f"in the place of worker {rank}, which was killed by SIGKILL; 2 restarts are left\n" in output
    assert ") takes part as worker 2\n" in output


def test_all_workers_of_the_start_are_replaced():
    program = """
def strike(kv, step, workers):
    if (kv.rank, step) == (0, 20) or kv.rank == 1 and 0 not in workers and 2 in workers:
        os.kill(os.getpid(), signal.SIGKILL)
train(came(3), strike)
"""
    code, output = run(program, "--restarts", 2, "-n", 2, "-s", 1)
    assert code == 0, output
    assert "[worker +1] worker 2 ends with 2 3\n" in output
    assert "[worker +2] worker 3 ends with 2 3\n" in output
    assert "; 0 restarts are left\n" in output


def test_a_server_is_replaced():
    program = """
def strike(kv, step, workers):
    if (kv.rank, step) == (0, 20):
        kill("server")
train(lambda kv, workers: kv.stats().shares.get("server 1", 0) > 0, strike)
"""
    code, output = run(program, "--restarts", 1, "-n", 2, "-s", 1)
    assert code == 0, output
    assert ") in the place of server 0, which was killed by SIGKILL; 0 restarts are left\n" in output
    assert "[worker 1] worker 1 ends with 0 1\n" in output


def test_no_restart_is_left():
    program = """
seen = set()
sums = []
def strike(kv, step, workers):
    sums.append(2 in workers)
    if (kv.rank, step) == (0, 20) or kv.rank == 2 and sum(sums) == 2:  # the other one has the first for certain
        os.kill(os.getpid(), signal.SIGKILL)
def over(kv, workers):
    seen.update(workers)
    return 2 in seen and workers == (1,)
train(over, strike)
"""
    code, output = run(program, "--restarts", 1, "-n", 2, "-s", 1)
    assert code == 0, output
    assert ") takes part as worker 2\n" in output
    assert re.search(r"fptps: worker \+1 \(pid \d+\) was killed by SIGKILL, and no restart is left\n", output)
    assert "[worker 1] worker 1 ends with 1\n" in output


@pytest.mark.parametrize("error", [False, True])
def test_an_error_counts_when_no_restart_is_left(error):
    program = f"""
sums = []
def strike(kv, step, workers):
    sums.append(2 in workers)
    if (kv.rank, step) == (1, 20) or kv.rank == 2 and sum(sums) == 2 and {error}:
        raise KeyError("a mistake")
seen = set()
def over(kv, workers):
    seen.update(workers)
    return 2 in seen and ({not error} or workers == (0,))
train(over, strike)
"""
    code, output = run(program, "--restarts", 1, "-n", 2, "-s", 1)
    assert code == error, output
    assert "which ended with exit code 1; 0 restarts are left\n" in output
    assert (") ended with exit code 1, and no restart is left: KeyError: 'a mistake'\n" in output) == error


PS = """
import os, signal, sys
import numpy as np
from fptps import ps

ps.start()
office, kv = ps.Postoffice.get(), ps.KVWorker(0)
one = np.full(10, office.rank + 1, np.float32)
kv.wait(kv.push([1], one))
if not office.is_recovery and office.rank == int(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGKILL)
total = 0
while total < 4 + int(sys.argv[1]):  # until both and the successor have pushed
    total = kv.wait(kv.pull([1])).max()
print("worker", office.rank, "recovered" if office.is_recovery else "was there", total, flush=True)
ps.finalize()
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_of_a_ps_lite_program_is_replaced(rank):
    """The successor has the place of the dead one: its rank."""
    command = [sys.executable, "-m", "fptps", "run", "--restarts", "1", "-n", "2", "-s", "1", "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", PS, str(rank)], env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    left = 1 - rank
    assert f"[worker {left}] worker {left} was there {4 + rank}.0\n" in done.stdout
    assert f"worker {rank} recovered {4 + rank}.0\n" in done.stdout
    assert f"in the place of worker {rank}, which was killed by SIGKILL; 0 restarts are left\n" in done.stderr


def test_replacements_that_fail_at_once(tmp_path):
    end = tmp_path / "end"
    program = f"""
if LATER:
    sys.exit("at once")
train(lambda kv, workers: os.path.exists({str(end)!r}), die(1))
"""
    with running(program, "--restarts", 2, "-n", 2, "-s", 1) as process:
        until(process, "fptps: worker +2 (pid ")
        end.touch()
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert "[worker 0] worker 0 ends with 0\n" in output
    assert "+3" not in output


@pytest.mark.parametrize("workers", [1, 2])
def test_a_program_that_fails_at_its_start(workers):
    """The others, which would wait for the cluster to be complete, are ended with the last restart."""
    program = """
if LATER or int(os.environ["DMLC_WORKER_ID"]) == int(os.environ["DMLC_NUM_WORKER"]) - 1:
    sys.exit(3)
train(lambda kv, workers: True)
"""
    code, output = run(program, "--restarts", 2, "-n", workers, "-s", 1)
    assert code == 3, output
    assert output.count("ended with exit code 3, and no restart is left\n") == 1
    assert output.count("fptps: started worker ") == 2
    assert ("still running, ended by SIGTERM: scheduler, server 0, worker 0\n" in output) == (workers == 2)


def test_a_worker_that_dies_before_it_joins_is_replaced(tmp_path):
    program = f"""
if os.environ["DMLC_WORKER_ID"] == "1" and not os.path.exists({str(tmp_path / "again")!r}):
    open({str(tmp_path / "again")!r}, "w").close()
    sys.exit(3)
train(lambda kv, workers: True)
"""
    code, output = run(program, "--restarts", 1, "-n", 2, "-s", 1)
    assert code == 0, output
    assert "fptps: started worker 1 (pid " in output
    assert "[worker 1] worker 1 ends with 0 1\n" in output


def test_a_worker_that_has_left_is_not_replaced():
    program = """
def strike(kv, step, workers):
    if (kv.rank, step) == (1, 20):
        kv.leave()
        sys.exit()
train(lambda kv, workers: workers == (0,), strike)
"""
    code, output = run(program, "--restarts", 1, "-n", 2, "-s", 1)
    assert code == 0, output
    assert "[worker 0] worker 0 ends with 0\n" in output
    assert "started" not in output


def test_an_error_after_the_training():
    program = """
train(lambda kv, workers: True)
if os.environ["DMLC_WORKER_ID"] == "1":
    sys.exit(3)
"""
    code, output = run(program, "--restarts", 1, "-n", 2, "-s", 1)
    assert code == 3, output
    assert "started" not in output


@pytest.mark.parametrize("joins", [False, True])
def test_a_replacement_that_comes_too_late(gate, tmp_path, joins):
    end = tmp_path / "end"
    wait = f"helpers.pass_gate({gate.address!r})"
    program = f"""
if LATER and not {joins}:
    {wait}
elif LATER:
    with fptps.KVWorker() as kv:
        assert kv.newcomer
        {wait}
        kv.init("w", np.zeros(10_000, np.float32))
        kv.init("over", np.zeros(1, np.float32))
        kv.admit(tuple)
train(lambda kv, workers: os.path.exists({str(end)!r}), die(1), admits=False)
"""
    with running(program, "--restarts", 1, "-n", 2, "-s", 1) as process:
        gate.wait()
        end.touch()
        if joins:
            gate.open()
        else:
            gate.wait_for_the_end()
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert "[worker 0] worker 0 ends with 0\n" in output
    assert ("fptps: came too late for the training, ended by SIGTERM: worker +1\n" in output) != joins
    assert ("the others have ended the training before it was admitted" in output) == joins


def test_a_worker_that_stands_still_for_ever():
    """The others give it up, and the run ends without it."""
    program = """
def strike(kv, step, workers):
    if (kv.rank, step) == (1, 20):
        os.kill(os.getpid(), signal.SIGSTOP)
train(lambda kv, workers: workers == (0,), strike)
"""
    heartbeats = {"PS_HEARTBEAT_INTERVAL": "0.5", "PS_HEARTBEAT_TIMEOUT": "3"}
    code, output = run(program, "-n", 2, "-s", 1, FPTPS_RECOVERY="1", **heartbeats)
    assert code == 0, output
    assert "[worker 0] worker 0 ends with 0\n" in output
    assert "fptps: stood still when the training ended, ended by SIGTERM: worker 1\n" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_replacement_starts(gate, number):
    program = f"""
if LATER:
    helpers.pass_gate({gate.address!r})
train(lambda kv, workers: False, die(1))
"""
    with running(program, "--restarts", 2, "-n", 2, "-s", 1) as process:
        gate.wait()
        process.send_signal(number)
        gate.wait_for_the_end()
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + number, output
    assert "started worker +2" not in output


def test_a_signal_before_a_replacement_starts():
    with running("train(lambda kv, workers: False, die(1))", "--restarts", 2, "-n", 2, "-s", 1) as process:
        until(process, "was killed by SIGKILL")
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "fptps: started" not in output


def test_a_signal_drops_planned_restarts(gate):
    """Also where processes take longer to end than the pause before the restart."""
    code = f"""
import os, signal, helpers
signal.signal(signal.SIGTERM, lambda *_: helpers.pass_gate({gate.address!r}))
helpers.pass_gate({gate.address!r})
"""
    environment = {**ENVIRONMENT, "FPTPS_RECOVERY": "1"}
    commands = [Command("worker", rank, [sys.executable, "-c", code], environment) for rank in range(2)]
    supervisor = Supervisor(commands, restarts=1, out=io.StringIO(), err=io.StringIO())
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    gate.wait(2)
    os.kill(supervisor.processes[1].pid, signal.SIGKILL)
    while not supervisor.processes[1].replaced:
        threading.Event().wait(0.01)
    supervisor.stop()
    gate.wait()  # in the handler
    assert not supervisor._restarts.planned("worker")
    gate.open()
    thread.join()
    assert supervisor.exit_code() == 128 + signal.SIGTERM


def test_a_cluster_that_cannot_go_on_starts_nothing():
    program = """
def strike(kv, step, workers):
    if (kv.rank, step) == (1, 20):
        os.kill(os.getpid(), signal.SIGKILL)
train(lambda kv, workers: False, strike)
"""
    code, output = run(program, "--restarts", 2, "-n", 2, "-s", 1, FPTPS_MIN_WORKERS="2")
    assert code == 128 + signal.SIGKILL, output
    assert "It leaves 1 worker, and FPTPS_MIN_WORKERS=2" in output
    assert "fptps: started" not in output


def test_the_least_number_of_workers():
    program = """
def strike(kv, step, workers):
    if (kv.rank, step) == (0, 20) or kv.rank == 1 and workers == (1, 2):
        os.kill(os.getpid(), signal.SIGKILL)
train(lambda kv, workers: False, strike)
"""
    code, output = run(program, "-n", "2:3", "-s", 1)
    assert code == 128 + signal.SIGKILL, output
    assert "worker 0 was lost; the others go on without it" in output
    assert "It leaves 1 worker, and FPTPS_MIN_WORKERS=2" in output


def test_a_worker_that_is_started_by_hand(gate):
    program = f"""
def strike(kv, step, workers):
    if (kv.rank, step) == (1, 20):
        names = [name for name in os.environ if name.startswith(("DMLC_", "FPTPS_"))]
        helpers.pass_gate({gate.address!r}, {{name: os.environ[name] for name in names}})
    die(0)(kv, step, workers)
train(came(3), strike)
"""
    with running(program, "-n", "2:3", "-s", 1) as process:
        (settings,) = gate.wait()
        del settings["DMLC_WORKER_ID"], settings["FPTPS_REPORT"]
        command = [sys.executable, "-c", TRAINING + "train(came(3))"]
        hand = subprocess.Popen(command, env={**ENVIRONMENT, **settings}, stdout=subprocess.PIPE, text=True)
        gate.open()
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert hand.communicate(timeout=60)[0] == "worker 3 ends with 1 2 3\n"


@pytest.mark.parametrize(
    ("options", "environment", "text"),
    [
        (["--restarts", 1], {"FPTPS_RECOVERY": "0"}, "FPTPS_RECOVERY=0 in the environment"),
        (["-n", "1:2"], {"FPTPS_RECOVERY": "0"}, "FPTPS_RECOVERY=0 in the environment"),
        (["--restarts", 1, "--keep-going"], {}, "leave one out"),
        (["--restarts", -1], {}, "-1 is not in the range"),
        (["-n", "3:2"], {}, "'3:2': the least number of workers comes first"),
        (["-n", "0:2"], {}, "'0:2' is neither a number of workers, as 4, nor the least and the most, as 2:4"),
        (["-n", "1:2:3"], {}, "is neither a number"),
        (["-n", "two"], {}, "is neither a number"),
    ],
)
def test_options_that_make_no_sense(options, environment, text):
    code, output = run("", *options, **environment)
    assert code == 2
    assert text in output


def test_pauses_between_restarts():
    worker, server = Process("worker", 0, 1), Process("server", 0, 2)
    restarts = Restarts(9)
    pauses, now = [], 100.0
    for _ in range(7):
        assert restarts.plan(now, worker, STEADY_S - 1)
        assert restarts.planned("worker")
        start = now
        while not restarts.due(now):
            now += 0.5
        pauses.append(now - start)
    assert pauses == [FIRST_S, 2, 4, 8, 16, LONGEST_S, LONGEST_S]
    assert restarts.plan(now, worker, STEADY_S)
    assert restarts.plan(now, server, 0)
    assert not restarts.plan(now, server, 0)
    assert restarts.left == 0
    assert restarts.due(now + FIRST_S) == [worker, server]
    assert not restarts.planned("worker")
