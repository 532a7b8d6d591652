"""fptps.cluster: processes that are run to their end, whatever they do."""

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from helpers import Gate

from fptps._node import NO_WORKERS
from fptps.cluster._commands import HOST, cluster_commands, reserved_port
from fptps.cluster._ending import KILL_S, Ending
from fptps.cluster._process import Command, Process
from fptps.cluster._supervisor import Supervisor

ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def python(role, rank, code, *arguments):
    """A process that runs some code."""
    return Command(role, rank, [sys.executable, "-c", code, *map(str, arguments)], ENVIRONMENT)


def supervise(*commands, grace=0.2):
    """Runs processes to their end: the supervisor, the exit code, and the output."""
    out, err = io.StringIO(), io.StringIO()
    supervisor = Supervisor(list(commands), grace=grace, out=out, err=err)
    return supervisor, supervisor.run(), out.getvalue(), err.getvalue()


SLEEP = "import signal; signal.pause()"


def test_all_end_well(gate):
    commands = [
        python("scheduler", 0, f"print('s'); {report(gate)}"),
        python("server", 0, f"print('v'); {report(gate)}"),
        python("worker", 0, f"print('w0'); {report(gate)}"),
        python(
            "worker", 1, f"import sys; print('w1', file=sys.stderr); sys.stdout.write('no newline'); {report(gate)}"
        ),
    ]
    out, err = io.StringIO(), io.StringIO()
    join = run_in_thread(Supervisor(commands, out=out, err=err))
    gate.wait(4)
    gate.open()
    assert join() == 0
    lines = ["[scheduler] s", "[server 0] v", "[worker 0] w0", "[worker 1] no newline"]
    assert sorted(out.getvalue().splitlines()) == lines
    assert err.getvalue() == "[worker 1] w1\n"


def test_output_is_neither_lost_nor_mixed():
    code = "import sys\nfor i in range(20000): print(sys.argv[1], i, 'x' * (i % 50))"
    _, code, out, _ = supervise(*(python("worker", rank, code, rank) for rank in range(3)))
    assert code == 0
    lines = out.splitlines()
    for rank in range(3):
        mine = [line for line in lines if line.startswith(f"[worker {rank}] ")]
        assert mine == [f"[worker {rank}] {rank} {i} " + "x" * (i % 50) for i in range(20000)]


@pytest.mark.parametrize(
    ("first", "second", "worst"),
    [("import sys; sys.exit(3)", "import sys; sys.exit(1)", 3), ("import os; os.kill(os.getpid(), 9)", "1/0", 137)],
)
def test_exit_code_of_the_worst(first, second, worst):
    supervisor, code, _, err = supervise(python("worker", 0, first), python("worker", 1, second), grace=30)
    assert code == worst
    assert {p.rank for p in supervisor.failures()} == {0, 1}
    assert f"worker 0 (pid {supervisor.processes[0].pid})" in err


def test_when_one_fails_the_others_are_ended():
    supervisor, code, _, err = supervise(
        python("server", 0, SLEEP), python("worker", 0, "import sys; sys.exit(5)"), python("worker", 1, SLEEP)
    )
    assert code == 5
    assert [p.returncode for p in supervisor.processes] == [-signal.SIGTERM, 5, -signal.SIGTERM]
    assert [p.name for p in supervisor.failures()] == ["worker 0"]
    assert "worker 0 (pid" in err
    assert "still running, ended by SIGTERM: server 0, worker 1" in err


def test_the_others_run_on_with_keep_going(gate):
    commands = [
        python("scheduler", 0, "import sys; sys.exit(1)"),
        python("worker", 0, "import os; os.kill(os.getpid(), 9)"),
        python("worker", 1, f"{report(gate)}; print('done')"),
    ]
    out = io.StringIO()
    supervisor = Supervisor(commands, grace=0, keep_going=True, out=out, err=io.StringIO())
    join = run_in_thread(supervisor)
    gate.wait()
    while None in [process.returncode for process in supervisor.processes[:2]]:
        threading.Event().wait(0.01)
    gate.open()
    assert join() == 128 + signal.SIGKILL
    assert out.getvalue() == "[worker 1] done\n"
    assert [process.returncode for process in supervisor.processes] == [1, -signal.SIGKILL, 0]


def test_servers_without_workers_are_ended():
    supervisor, code, _, err = supervise(python("server", 0, SLEEP), python("worker", 0, "pass"), grace=30)
    assert code == 0
    assert supervisor.processes[0].returncode == -NO_WORKERS
    assert err == ""


def test_a_missing_program():
    _, code, _, err = supervise(Command("worker", 0, ["/no/such/program"], ENVIRONMENT))
    assert code == 127
    assert "[worker 0] fptps: cannot run '/no/such/program': No such file" in err


def report(gate):
    """Code that reports to a gate and waits there."""
    return f"import helpers; helpers.pass_gate({gate.address!r})"


def parent_of(code):
    """Code that starts a child which runs code, and waits for it."""
    return f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"


def test_servers_that_do_not_end_with_the_workers_are_ended(gate):
    joined = "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)"
    commands = [
        python("server", 0, f"{joined}; {report(gate)}; signal.pause()"),
        python("worker", 0, report(gate)),
    ]
    err = io.StringIO()
    supervisor = Supervisor(commands, grace=0.2, out=io.StringIO(), err=err)
    join = run_in_thread(supervisor)
    gate.wait(2)
    gate.open()
    assert join() == 0
    assert supervisor.processes[0].returncode == -signal.SIGTERM
    assert err.getvalue() == "fptps: still running, ended by SIGTERM: server 0\n"


@pytest.mark.parametrize(("scheduler", "named"), [(1, True), (0, False)])
def test_worker_that_ended_early_is_named(gate, scheduler, named):
    commands = [
        python("scheduler", 0, f"import sys; sys.exit({scheduler})"),
        python("worker", 0, f"{report(gate)}; import sys; sys.exit(1)"),
        python("worker", 1, report(gate)),
    ]
    err = io.StringIO()
    supervisor = Supervisor(commands, grace=30, out=io.StringIO(), err=err)
    join = run_in_thread(supervisor)
    gate.wait(2)
    while supervisor.processes[0].returncode is None:
        threading.Event().wait(0.01)
    gate.open()
    assert join() == 1
    early = f"before the cluster had ended in good order: worker 1 (pid {supervisor.processes[2].pid})\n"
    assert err.getvalue().endswith(early) == named


def run_in_thread(supervisor):
    """Runs a supervisor beside the test; gives a function that waits for its exit code."""
    codes = []
    thread = threading.Thread(target=lambda: codes.append(supervisor.run()))
    thread.start()

    def join():
        thread.join()
        return codes[0]

    return join


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_ends_grandchildren_too(gate, number):
    supervisor = Supervisor([python("worker", 0, parent_of(report(gate)))], out=io.StringIO(), err=io.StringIO())
    join = run_in_thread(supervisor)
    gate.wait()
    supervisor.stop(number)
    gate.wait_for_the_end()
    assert join() == 128 + number


def test_grandchildren_end_with_their_parent(gate):
    with Gate() as parent:
        code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {report(gate)!r}]); {report(parent)}"
        join = run_in_thread(Supervisor([python("worker", 0, code)], out=io.StringIO(), err=io.StringIO()))
        gate.wait()
        parent.wait()
        parent.open()
        gate.wait_for_the_end()
        assert join() == 0


def test_a_process_that_ignores_sigterm_is_killed(gate):
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {report(gate)}"
    supervisor = Supervisor([python("worker", 0, code)], out=io.StringIO(), err=io.StringIO())
    join = run_in_thread(supervisor)
    gate.wait()
    supervisor.stop()
    supervisor.stop()  # the second time at once
    assert join() == 128 + signal.SIGTERM
    assert supervisor.processes[0].returncode == -signal.SIGKILL


def test_a_stopped_process_ends_too(gate):
    supervisor = Supervisor([python("worker", 0, report(gate))], out=io.StringIO(), err=io.StringIO())
    join = run_in_thread(supervisor)
    gate.wait()
    os.kill(supervisor.processes[0].pid, signal.SIGSTOP)
    supervisor.stop()
    join()
    assert supervisor.processes[0].returncode == -signal.SIGTERM


def test_nothing_outlives_a_parent_that_is_killed(gate):
    code = (
        "import os, sys\nfrom fptps.cluster._supervisor import *\n"
        f"c = lambda r: Command('worker', r, [sys.executable, '-c', {report(gate)!r}], dict(os.environ))\n"
        "Supervisor([c(0), c(1)]).run()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], env=ENVIRONMENT)
    gate.wait(2)
    parent.kill()
    gate.wait_for_the_end()
    assert parent.wait() == -signal.SIGKILL


def test_output_whose_reader_has_ended(gate):
    read, write = os.pipe()
    os.close(read)
    out = os.fdopen(write, "w")
    supervisor = Supervisor([python("worker", 0, f"print('x'); {report(gate)}")], out=out, err=io.StringIO())
    assert supervisor.run() == 128 + signal.SIGPIPE
    with contextlib.suppress(BrokenPipeError):  # of what it still holds
        out.close()


def test_reserved_port_is_for_those_that_name_it():
    with reserved_port() as port, socket.socket() as scheduler, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((HOST, 0))
        assert other.getsockname()[1] != port
        scheduler.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        scheduler.bind((HOST, port))
        scheduler.listen()
        with socket.create_connection((HOST, port)):
            pass


def test_commands():
    base = {"KEPT": "1", "PORT": "80", "FPTPS_DATA_PORT": "81", "DMLC_ROLE": "other", "PYTHONUNBUFFERED": "0"}
    commands = cluster_commands(2, 1, 1234, lambda rank: ["train", str(rank)], base)
    assert [(c.role, c.rank) for c in commands] == [("scheduler", 0), ("server", 0), ("worker", 0), ("worker", 1)]
    assert commands[3].arguments == ["train", "1"]
    assert len({c.environment["FPTPS_TOKEN"] for c in commands}) == 1
    for command in commands:
        shared = {"KEPT": "1", "DMLC_PS_ROOT_URI": HOST, "DMLC_PS_ROOT_PORT": "1234", "DMLC_NODE_HOST": HOST}
        shared |= {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", "DMLC_ROLE": command.role, "PYTHONUNBUFFERED": "0"}
        assert shared.items() <= command.environment.items()
        assert not {"PORT", "FPTPS_DATA_PORT"} & command.environment.keys()
    again = cluster_commands(2, 1, 1234, lambda rank: ["train"], base)
    assert again[0].environment["FPTPS_TOKEN"] != commands[0].environment["FPTPS_TOKEN"]


def test_ending_by_itself():
    ending = Ending()
    assert ending.due(0) is None
    ending.expect(10, seconds=5)
    ending.expect(14, seconds=5)  # the first end counts
    assert ending.due(14.9) is None
    assert ending.due(15) == signal.SIGTERM
    ending.expect(15, seconds=0)  # too late to ask again
    assert ending.due(15) is None
    assert ending.due(15 + KILL_S) == signal.SIGKILL
    assert ending.due(15 + 2 * KILL_S) == signal.SIGKILL  # until none is left


def test_ending_sooner():
    ending = Ending()
    ending.expect(10, seconds=5)
    ending.expect(11, seconds=2)
    assert ending.due(12.9) is None
    assert ending.due(13) == signal.SIGTERM


def test_ending_by_order():
    ending = Ending()
    ending.expect(10, seconds=5)
    ending.stop(11, signal.SIGINT)
    assert ending.due(11) == signal.SIGINT
    ending.stop(12, signal.SIGINT)
    assert ending.due(12) == signal.SIGKILL


@pytest.mark.parametrize(
    ("returncode", "exit_code", "text"),
    [(None, 0, "is running"), (0, 0, "ended with exit code 0"), (3, 3, "exit code 3"), (-9, 137, "killed by SIGKILL")],
)
def test_process(returncode, exit_code, text):
    process = Process("worker", 1, 99, returncode)
    assert process.exit_code == exit_code
    assert text in process.how_it_ended()
    assert process.name == "worker 1"
