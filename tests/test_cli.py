"""The command `fptps`, as a user types it."""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import in_threads

import fptps

FPTPS = [sys.executable, "-m", "fptps"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

TRAIN = """
import sys
import numpy as np
import fptps

with fptps.KVWorker() as kv:
    kv.init(0, np.zeros(4))
    print("rank", kv.rank, "sum", kv.push_pull(0, np.full(4, kv.rank + 1.0)).result()[0], *sys.argv[1:])
"""


def fptps_command(*arguments, **options):
    """Runs the command to its end."""
    command = [*FPTPS, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False, **options)


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_run(tmp_path, dashes):
    train = tmp_path / "train.py"
    train.write_text(TRAIN)
    done = fptps_command("run", "-n", 2, "-s", 1, *dashes, sys.executable, train, "-n", "7", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[worker {r}] rank {r} sum 3.0 -n 7 --epochs 3" for r in range(2)]


@pytest.mark.parametrize(("code", "returncode"), [("import sys; sys.exit(7)", 7), ("import os; os.abort()", 134)])
def test_run_has_the_exit_code_of_the_worst(code, returncode):
    done = fptps_command("run", "-n", 1, sys.executable, "-c", code)
    assert done.returncode == returncode
    assert re.search(r"^fptps: worker 0 \(pid \d+\) ", done.stderr, re.MULTILINE)


def test_run_that_keeps_going():
    code = "import os, sys; print(os.environ['FPTPS_KEEP_GOING']); sys.exit(int(os.environ['DMLC_WORKER_ID']))"
    done = fptps_command("run", "--keep-going", "-n", 3, sys.executable, "-c", code)
    assert done.returncode == 2
    assert sorted(done.stdout.splitlines()) == [f"[worker {rank}] 1" for rank in range(3)]


LISTENING = """
import os, socket
while True:
    try:
        socket.create_connection(("127.0.0.1", int(os.environ["DMLC_PS_ROOT_PORT"])))
        break
    except ConnectionRefusedError:
        pass
"""


@pytest.mark.parametrize("code", ["pass", LISTENING], ids=["at_once", "when_the_scheduler_listens"])
def test_program_that_makes_no_worker(code):
    done = fptps_command("run", "-n", 2, "-s", 1, sys.executable, "-c", code)
    assert done.returncode == 1
    assert re.findall("^fptps: .*", done.stderr, re.MULTILINE) == [
        "fptps: the program ended well, but no cluster came about: no worker joined. Does it make an fptps.KVWorker() "
        "(or fptps.ps.start())?"
    ]


@pytest.mark.parametrize("way", ["sys.exit(0)", "os._exit(0)"])
@pytest.mark.parametrize("workers", [1, 2])
def test_worker_that_leaves_early_is_named(way, workers):
    code = (
        "import fptps, os, sys\n"
        "with fptps.KVWorker() as kv:\n"
        "    kv.barrier()\n"
        f"    if kv.rank == kv.num_workers - 1: {way}\n"
        "    kv.barrier()\n"
    )
    done = fptps_command("run", "-n", workers, "-s", 1, sys.executable, "-c", code)
    assert done.returncode == 1
    early = r"ended with exit code 0, but before the cluster had ended in good order: worker (\d) \(pid \d+\)$"
    assert re.findall(early, done.stderr, re.MULTILINE) == [str(workers - 1)], done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_every_process(gate, number):
    code = f"import fptps, helpers\nwith fptps.KVWorker() as kv: helpers.pass_gate({gate.address!r})"
    command = [*FPTPS, "run", "-n", "2", "-s", "1", sys.executable, "-c", code]
    running = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    gate.wait(2)
    children = descendants(running.pid)
    assert len(children) == 4
    running.send_signal(number)
    running.communicate(timeout=30)
    assert running.returncode == 128 + number
    gate.wait_for_the_end()
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


CHECKPOINT = """
import helpers, signal, sys, time
def save(number, frame):
    end = time.monotonic() + 4  # longer than the processes of other runs get
    while time.monotonic() < end:
        signal.sigtimedwait([], end - time.monotonic())
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
helpers.pass_gate({address!r})
"""


def test_processes_have_time_for_a_checkpoint(gate):
    command = [*FPTPS, "run", sys.executable, "-c", CHECKPOINT.format(address=gate.address)]
    running = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    gate.wait()
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=60)
    assert out == "[worker 0] saved\n"
    assert re.search(
        "^fptps: still running, killed 30 s after the signal, or by a second one: .*worker 0$", err, re.MULTILINE
    )
    assert running.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(("grace", "signals"), [("0.1", 1), ("1000", 2)], ids=["grace", "second"])
def test_processes_that_do_not_end(gate, grace, signals):
    code = f"import helpers, signal; signal.signal(signal.SIGINT, lambda *_: None); helpers.pass_gate({gate.address!r})"
    command = [*FPTPS, "run", "--grace", grace, sys.executable, "-c", code]
    running = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    gate.wait()
    running.send_signal(signal.SIGINT)
    if signals > 1:
        for line in running.stderr:  # the first has been taken
            if "or by a second one" in line:
                break
        running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert re.search("^fptps: still running, ended by SIGKILL: .*worker 0", err, re.MULTILINE)
    assert running.returncode == 128 + signal.SIGINT


def descendants(pid):
    """The children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_nodes_by_hand():
    """A cluster that is started command by command, as on several machines."""
    from fptps.cluster._commands import reserved_port

    with reserved_port() as port:
        options = ["--host", "127.0.0.1", "--port", port, "--workers", 2, "--servers", 1]
        work = (
            "import sys, fptps, numpy\n"
            f"with fptps.KVWorker('127.0.0.1:{port}', 2, 1) as kv:\n"
            "    kv.init(1, numpy.ones(3)); assert kv.push_pull(1, numpy.ones(3)).result()[2] == 2\n"
        )
        worker = subprocess.run
        done = in_threads(
            lambda: fptps_command("scheduler", *options),
            lambda: fptps_command("server", *options),
            *[lambda: worker([sys.executable, "-c", work], env=ENVIRONMENT, timeout=60, check=True)] * 2,
        )
    assert [each.returncode for each in done] == [0] * 4, [each.stderr for each in done]
    printed = [re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", line) for line in done[0].stderr.splitlines()]
    assert f"at 127.0.0.1:{port}, waiting for 2 workers and 1 server" in done[0].stderr
    assert printed[0] == "fptps scheduler: at ADDRESS, waiting for 2 workers and 1 server"
    asked = re.compile(r"fptps scheduler: (worker|server) at ADDRESS has asked to join, (.*) missing")
    roles, missing = zip(*[asked.fullmatch(line).groups() for line in printed[1:-1]])
    assert sorted(roles) == ["server", "worker", "worker"]
    left = [f"{roles[i:].count('worker')} {roles[i:].count('server')}" for i in (1, 2, 3)]
    words = {"2 0": "2 workers", "1 1": "1 worker and 1 server", "1 0": "1 worker", "0 1": "1 server", "0 0": "no node"}
    assert missing == tuple(words[each] for each in left)
    assert printed[-1] == (
        "fptps scheduler: all nodes have joined: server 0 at ADDRESS, worker 0 at ADDRESS, worker 1 at ADDRESS"
    )


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_node_without_settings(role):
    done = fptps_command(role)
    assert done.returncode == 1
    assert re.fullmatch(rf"fptps {role}: .*DMLC_NUM_WORKER.*\n", done.stderr)


def test_server_without_a_scheduler(monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "FPTPS_TIMEOUT", "0.5")
    done = fptps_command("server", "--host", "127.0.0.1", "--port", 1, "-n", 1, "-s", 1)
    assert done.returncode == 1
    assert re.search(r"^fptps server: .*127\.0\.0\.1:1\b", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_scheduler_ends_by_signals(number):
    from fptps.cluster._commands import reserved_port

    with reserved_port() as port:
        options = ["--host", "127.0.0.1", "--port", str(port), "-n", "1", "-s", "0"]
        running = subprocess.Popen([*FPTPS, "scheduler", *options], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        listening(port)
        running.send_signal(number)
        _, err = running.communicate(timeout=30)
    assert running.returncode == 128 + number
    assert f"fptps scheduler: ended by {signal.Signals(number).name}" in err


def listening(port):
    """Waits until a process listens on a port."""
    import contextlib
    import socket

    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return


def test_version_and_help():
    version = importlib.metadata.version("fptps")
    assert fptps_command("--version").stdout == f"fptps {version}\n"
    assert fptps.__version__ == version
    for command in ([], ["run"], ["scheduler"], ["server"]):
        done = fptps_command(*command, "--help")
        assert done.returncode == 0
        assert "Usage: " in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["run", "-n", "0", "true"], ["run", "-s", "-1", "true"], ["run", "--foo", "true"], ["nonsense"]],
)
def test_wrong_usage(arguments):
    done = fptps_command(*arguments)
    assert done.returncode == 2
    assert "Usage: " in done.stderr
