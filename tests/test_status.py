"""`fptps status`, and the line at the end of `fptps run`."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import stat
import struct
import subprocess
import sys
import termios

import pytest
from helpers import Gate
from rich.console import Console

from fptps._status import runs
from fptps._status.runs import Run
from fptps._status.summary import summary
from fptps._status.table import page
from fptps._status.target import NoTarget, Target, choose

FPTPS = [sys.executable, "-m", "fptps"]

TRAIN = """
import sys
import numpy as np
import fptps
from helpers import pass_gate

with fptps.KVWorker() as kv:
    kv.set_tensor_count(2)
    arrays = [np.full(1000, kv.rank + 1.0), np.full(10, kv.rank + 2.0)]
    for key, array in enumerate(arrays):
        kv.init(key, array)

    def step():
        for key, array in enumerate(arrays):
            kv.push_pull(key, array, out=array).result()

    for _ in range(5):
        step()
    pass_gate(sys.argv[1], kv.rank)
    step()
"""
"""Five steps, the test's gate, and one more."""


@pytest.fixture
def environment(tmp_path):
    """That of a user without other runs."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "FPTPS_"))}
    return {**own, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_RUNTIME_DIR": str(tmp_path), "COLUMNS": "80"}


@pytest.fixture
def start(tmp_path, environment):
    """A function that starts TRAIN by `fptps run` with these options."""
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    processes = []

    def run(gate, *options):
        command = [*FPTPS, "run", *options, sys.executable, str(program), gate.address]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield run
    for process in processes:
        process.terminate()
        process.wait()
        process.stderr.close()


def status(environment, *options, **more):
    """Runs `fptps status` to its end."""
    command = [*FPTPS, "status", *options]
    return subprocess.run(command, env={**environment, **more}, capture_output=True, text=True, timeout=60, check=False)


def watch(environment, met, follow=None):
    """The first status for which met is true; then follow takes the process that watches. It has to end well."""
    command = [*FPTPS, "status", "--watch", "--json"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        found = next(found for found in map(json.loads, watching.stdout) if met(found))
        if follow:
            follow(watching)
        else:
            watching.send_signal(signal.SIGINT)
        watching.stdout.read()
        error = watching.stderr.read()
    assert watching.returncode == 0, error
    return found, error


def test_a_run_from_its_steps_to_its_end(environment, start):
    with Gate() as gate:
        process = start(gate, "-n", "2", "-s", "1")
        assert sorted(gate.wait(2)) == [0, 1]
        shown = {}

        def follow(watching):
            shown["once"] = status(environment)
            gate.open()

        found, end = watch(environment, lambda found: [node["steps"] for node in found["nodes"]] == [0, 5, 5], follow)
        _, error = process.communicate()
    assert process.returncode == 0, error
    assert [node["name"] for node in found["nodes"]] == ["server 0", "worker 0", "worker 1"]
    assert {node["state"] for node in found["nodes"]} == {"running"}
    assert [node["rounds"] for node in found["nodes"]] == [0, 12, 12]  # init is one
    assert all(re.match(r"127\.0\.0\.1:\d+$", node["address"]) for node in found["nodes"])
    assert found["state"] == "running"
    assert found["plan"] == 0
    assert found["deaths"] == []
    assert shown["once"].returncode == 0, shown["once"].stderr
    lines = shown["once"].stdout.splitlines()
    assert re.match(r"cluster at 127\.0\.0\.1:\d+: running, 2 workers, 1 server, plan 0$", lines[0])
    assert [line.split()[:4] for line in lines[-3:]] == [
        ["server", "0", "127.0.0.1", "running"],
        ["worker", "0", "127.0.0.1", "running"],
        ["worker", "1", "127.0.0.1", "running"],
    ]
    assert re.search(r"^fptps status: the cluster at 127\.0\.0\.1:\d+ has ended$", end, re.MULTILINE)
    rate = r"[\d,]+(\.\d)?"
    assert re.search(
        rf"^fptps: done: 6 steps in {rate} s \({rate}/s\), {rate} MB/s of each worker, "
        r"workers waited \d+% of the time, plan 0$",
        error,
        re.MULTILINE,
    ), error
    assert "no `fptps run` of this user is under way" in status(environment).stderr


def test_a_node_that_stands_still(environment, start):
    with Gate() as gate:
        process = start(gate, "-n", "2")
        gate.wait(2)
        try:
            workers = [
                int(pid) for pid in subprocess.check_output(["pgrep", "-P", str(process.pid)], text=True).split()
            ]
            os.kill(workers[-1], signal.SIGSTOP)
            found, _ = watch(environment, lambda found: "silent" in [node["state"] for node in found["nodes"]])
            shown = status(environment)
        finally:
            os.kill(workers[-1], signal.SIGCONT)
            gate.open()
    assert found["state"] == "running"
    assert shown.returncode == 3
    assert "silent" in shown.stdout


def test_the_screen_of_a_watcher(environment, start):
    with Gate() as gate:
        process = start(gate, "-n", "2")
        gate.wait(2)
        controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        own = {**environment, "TERM": "xterm"}
        del own["COLUMNS"]
        watching = subprocess.Popen([*FPTPS, "status", "-w"], env=own, stdout=terminal, stderr=terminal)
        os.close(terminal)
        screen = b""
        while not re.search(rb"worker 1.*running.* 5 ", screen):
            screen += os.read(controller, 4096)
        gate.open()
        with contextlib.suppress(OSError):  # the end of the terminal
            while True:
                screen += os.read(controller, 4096)
        os.close(controller)
        assert watching.wait(30) == 0
        assert process.wait(30) == 0
    assert b"\x1b[?1049h" in screen
    assert b"\x1b[?1049l" in screen
    assert screen.rstrip().endswith(b"has ended")


def test_a_cluster_with_a_secret(environment, start):
    with Gate() as gate:
        start(gate, "-n", "1")
        gate.wait()
        [note] = (run for run in os.scandir(os.path.join(environment["XDG_RUNTIME_DIR"], "fptps")))
        with open(note.path) as file:
            noted = json.load(file)
        place = ["--scheduler", f"{noted['host']}:{noted['port']}"]
        assert status(environment, *place).returncode == 0  # it finds the token in the note
        elsewhere = {"XDG_RUNTIME_DIR": os.path.dirname(note.path)}
        refused = status(environment, *place, **elsewhere, FPTPS_TOKEN="open sesame")
        assert refused.returncode == 1
        assert "another FPTPS_TOKEN. Set FPTPS_TOKEN to that of the run" in refused.stderr
        by_names = {"DMLC_PS_ROOT_URI": noted["host"], "DMLC_PS_ROOT_PORT": str(noted["port"])}
        assert status(environment, **by_names, **elsewhere, FPTPS_TOKEN=noted["token"]).returncode == 0
        gate.open()


def test_nobody_there(environment):
    refused = status(environment, "--scheduler", "127.0.0.1:9")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "no scheduler can be reached at 127.0.0.1:9" in refused.stderr


def run_at(port):
    """A run that is under way."""
    return Run(4242, "127.0.0.1", port, f"secret of {port}", 1e9, "python train.py --epochs 90 --data /a/long/path")


CLUSTER = {"DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "9000", "FPTPS_TOKEN": "word"}


@pytest.mark.parametrize(
    ("scheduler", "names", "ports", "expected"),
    [
        ("10.0.0.2:8000", CLUSTER, [7], Target("10.0.0.2", 8000, "word")),
        ("[::1]:8000", {}, [7], Target("::1", 8000, "")),
        ("127.0.0.1:7", CLUSTER, [7, 8], Target("127.0.0.1", 7, "secret of 7")),
        (None, CLUSTER, [7], Target("10.0.0.1", 9000, "word")),
        (None, {}, [7], Target("127.0.0.1", 7, "secret of 7")),
        (None, {}, [7, 8], "2 runs are under way; choose one:\n  fptps status --scheduler 127.0.0.1:7 "),
        (None, {}, [], "no cluster"),
        (None, {"DMLC_PS_ROOT_URI": "10.0.0.1"}, [7], "10.0.0.1:: HOST:PORT"),
        ("here", {}, [7], "here: HOST:PORT"),
        (":9", {}, [7], ":9: HOST:PORT"),
        ("here:99999", {}, [7], "here:99999: HOST:PORT"),
        ("", CLUSTER, [7], ": HOST:PORT"),
    ],
)
def test_which_cluster_is_asked(scheduler, names, ports, expected):
    known = [run_at(port) for port in ports]
    if isinstance(expected, Target):
        assert choose(scheduler, names, known) == expected
        return
    with pytest.raises(NoTarget) as refused:
        choose(scheduler, names, known)
    assert str(refused.value).startswith(expected)


def test_notes_of_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "fptps"
    with runs.noted("127.0.0.1", 7, "word", ["python", "train.py"]):
        [run] = runs.under_way()
        assert run._replace(since=0) == Run(os.getpid(), "127.0.0.1", 7, "word", 0, "python train.py")
        [file] = folder.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        killed = folder / "1.json"  # a process of another time
        killed.write_text(json.dumps({**json.loads(file.read_text()), "pid": 1, "born": "-1"}))
        (folder / "2.json").write_text("half wri")
        assert runs.under_way() == [run]
        assert not killed.exists()
        folder.chmod(0o755)  # somebody else could have put a note there
        assert runs.under_way() == []
        folder.chmod(0o700)
    assert not file.exists()


def test_a_run_without_a_folder_for_its_note(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "fptps").write_text("")
    with runs.noted("127.0.0.1", 7, "word", []):
        assert runs.under_way() == []


def node(role, rank, **changes):
    """A node of a cluster that trains on links of 1 Gbit/s."""
    worker = role == "worker"
    return {
        "name": f"{role} {rank}",
        "role": role,
        "rank": rank,
        "address": f"10.0.0.{rank + 1}:41234",
        "state": "running",
        "seconds": 100.0,
        "steps": 1234 if worker else 0,
        "rounds": 12340 if worker else 0,
        "bytes_pushed": 3_000_000_000 if worker else 0,
        "bytes_sent": 3_000_000_000,
        "bytes_received": 3_000_000_000,
        "link_bytes_sent": 2_500_000_000,
        "link_bytes_received": 5_000_000_000 - 10_000_000 * rank,
        "wait_s": 25.0 if worker else 0.0,
        "steps_per_s": 12.34 if worker else None,
        "rounds_per_s": 123.4 if worker else None,
        "pushed_bits_per_s": 240e6 if worker else None,
        "up_bits_per_s": 240e6,
        "down_bits_per_s": 456.7e6,
        "link_up_bits_per_s": 1e9,
        "link_down_bits_per_s": 1e9,
        "link_use_up": 0.24,
        "link_use_down": 0.46,
        "wait_share": 0.25 + rank / 1000 if worker else None,
        "share": 1.0,
        "waiting": None,
        "warning": None,
        **changes,
    }


def cluster(workers, servers=0, nodes=None, **changes):
    """The status of a cluster."""
    if nodes is None:
        nodes = [node("server", rank) for rank in range(servers)] + [node("worker", rank) for rank in range(workers)]
    return {
        "scheduler": "10.0.0.1:9000",
        "state": "running",
        "time": 1000.0,
        "workers": workers,
        "servers": servers,
        "waiting": None,
        "plan": 3,
        "epoch": 0,
        "recovers": False,
        "slowest_worker": None,
        "refused_joiners": 0,
        "dropped_messages": 0,
        "nodes": nodes,
        "deaths": [],
        **changes,
    }


def lines(found, height=None, width=80):
    """The page as a user sees it."""
    console = Console(width=width, force_terminal=False, highlight=False)
    with console.capture() as captured:
        console.print(page(found, height))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_the_page_of_a_small_cluster():
    assert lines(cluster(2, 1)) == [
        "cluster at 10.0.0.1:9000: running, 2 workers, 1 server, plan 3",
        "12.3 steps/s, 30 MB/s of each worker, workers wait 25% of the time",
        "node     host     state   steps   /s up bit/s down bit/s waits for",
        "server 0 10.0.0.1 running            240M 24%   457M 46%",
        "worker 0 10.0.0.1 running 1,234 12.3 240M 24%   457M 46%   25%",
        "worker 1 10.0.0.2 running 1,234 12.3 240M 24%   457M 46%   25%",
    ]


def test_the_page_of_a_cluster_that_is_not_well():
    warning = {"text": "odd [red]things[/] happen " + 10 * "again and ", "seconds_ago": 90.0}
    late = {"for": "key 3 round 7", "missing": ["worker 1"], "seconds": 7.2}
    nodes = [
        node("server", 0, link_use_up=0.97),
        node("worker", 0, waiting=late, wait_share=0.9, warning=warning),
        node("worker", 1, wait_share=0.01),
        node("worker", 2, state="silent", steps_per_s=None, up_bits_per_s=None, down_bits_per_s=None, wait_share=None),
    ]
    waiting = {"for": "barrier", "missing": ["worker 1", "worker 2"], "seconds": 12.0}
    deaths = [{"name": "worker 3", "why": "its connection was closed", "time": 1000 - 7300.0}]
    found = lines(cluster(3, 1, nodes, slowest_worker="worker 1", waiting=waiting, deaths=deaths))
    assert found[1:5] == [
        "barrier waits for 12 s; missing: worker 1, worker 2",
        "12.3 steps/s, 30 MB/s of each worker, workers wait 46% of the time",
        "the others wait for worker 1, which waits least",
        "links in full use: server 0",
    ]
    assert [re.split(" {2,}", line)[-1] for line in found[6:10]] == ["457M 46%", "90% worker 1 (7 s)", "1%", "1,234"]
    assert found[9].split() == ["worker", "2", "10.0.0.3", "silent", "1,234"]
    assert found[10] == "worker 3 was lost 2 h ago: its connection was closed"
    assert found[11].startswith("worker 0, 2 min ago: odd [red]things[/] happen again")
    assert found[11].endswith("…")
    assert max(map(len, found)) <= 80


def test_the_page_of_a_cluster_that_gathers():
    waiting = {"for": "join", "missing": ["1 worker"], "seconds": None}
    empty = dict.fromkeys(node("worker", 0))
    joining = {**empty, "name": "server", "role": "server", "address": "10.0.0.7:1", "state": "joining", "steps": 0}
    found = lines(cluster(1, 1, [{**joining, "rounds": 0}], state="joining", waiting=waiting))
    assert found[0] == "cluster at 10.0.0.1:9000: joining, 0 workers, 1 server, plan 3"
    assert found[1] == "join waits; missing: 1 worker"
    assert found[3].split() == ["server", "10.0.0.7", "joining"]


def test_a_large_cluster_fits_into_a_window():
    found = cluster(64, 4)
    found["nodes"][-1].update(state="silent")
    found["nodes"][10].update(wait_share=0.01)
    shown = lines(found, height=24)
    assert len(shown) <= 24
    assert max(map(len, shown)) <= 80
    names = [" ".join(line.split()[:2]) for line in shown]
    assert "worker 63" in names
    assert "worker 6" in names
    assert re.match(r"and 49 more nodes, whose workers wait \d+% to 31% of the time$", shown[-1])
    assert len(lines(found)) == 68 + 3


DONE = "1,234 steps in 100.0 s (12.3/s), 30 MB/s of each worker, workers waited 25% of the time"


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (cluster(2, 1), f"{DONE}, busiest link 40% (server 0, down), plan 3"),
        (cluster(2, 1, [node("worker", 0, link_up_bits_per_s=None, link_down_bits_per_s=None)]), f"{DONE}, plan 3"),
        (cluster(0, 1), ""),
        (cluster(1, 0, [node("worker", 0, seconds=None)]), ""),
        (cluster(1, 0, [node("worker", 0, steps=0, rounds=0)]), ""),
    ],
)
def test_summary(found, line):
    assert summary(found) == line


def test_summary_of_rounds():
    found = cluster(1, 0, [node("worker", 0, steps=0, rounds=1, bytes_pushed=800_000)])
    assert summary(found).startswith("1 round in 100.0 s (0.0/s), 0.0 MB/s of each worker, ")


def test_the_command_is_light():
    code = "import sys, fptps, fptps._cli; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
