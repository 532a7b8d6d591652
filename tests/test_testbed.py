"""benchmarks.testbed: clusters whose nodes have an address and a shaped link each, and their clean-up."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks import testbed
from benchmarks.testbed import network as testbed_network
from benchmarks.testbed import usage as testbed_usage
from benchmarks.testbed.cli import main
from benchmarks.testbed.network import BURST_BYTES
from benchmarks.testbed.quantities import Link, Rate, bits
from benchmarks.testbed.usage import Sample
from click.testing import CliRunner
from helpers import in_threads
from on_testbed import COMMAND, ENVIRONMENT, environment, needs_network, run

from fptps._bench.bound import PAYLOAD

PUSH = """
import os, socket, sys
import numpy as np
import fptps, helpers

count, gate = int(sys.argv[1]), sys.argv[2]
with fptps.KVWorker() as kv:
    kv.init(0, np.zeros(count, np.float32))
    mine = (np.arange(count) % 5 + 10 * kv.rank + 1).astype(np.float32)
    for round in range(2):
        total = kv.num_workers * (mine + 5 * (kv.num_workers - 1) - 10 * kv.rank)
        assert (kv.push_pull(0, mine).result() == total).all()
        if gate and round == 0:
            helpers.pass_gate(gate)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((os.environ["DMLC_PS_ROOT_URI"], 9))
        address, _ = way.getsockname()
    given = [name for name in ("DMLC_NODE_HOST", "DMLC_INTERFACE") if name in os.environ]
    print(kv.rank, address, os.environ.get("FPTPS_LINK_RATE", "no rate"), *given)
"""


def push(count, gate=""):
    """A program that sums so many float32 twice, and in between comes to a gate if one is given."""
    return [sys.executable, "-c", PUSH, str(count), gate]


LEARN = """
import numpy as np
import fptps

with fptps.KVWorker() as kv:
    gradient = np.ones(1_500_000, np.float32)
    kv.init(0, np.zeros_like(gradient))
    rates = [0]
    for _ in range(100):
        if min(rates) > 0:
            break
        kv.push_pull(0, gradient).result()
        rates = kv.allgather_object(kv.stats().link_rate)
    if kv.rank == 0:
        print(*rates)
"""
"""A program that sums 6 MB again and again until each worker has learned its link's rate, and prints the rates."""


def most_in_a_second(samples, link):
    """The most bytes that a link certainly carried within a second."""
    most = 0
    for first in samples:
        within = [each for each in samples if first.time <= each.time and each.time + each.took <= first.time + 1]
        most = max([most, *(each.carried[link] - first.carried[link] for each in within)])
    return most


@needs_network
@pytest.mark.parametrize(("rate", "sends"), [("60mbit,400mbit", True), ("400mbit,60mbit", False)])
def test_sums_over_links_of_different_rates(rate, sends):
    with testbed.TestBed(2, 2, "400mbit", {"worker:0": rate, "server:1": "300mbit"}) as bed:
        code, out, err = run(bed, push(2_500_000))
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[worker 0] 0 10.77.2.1 no rate", "[worker 1] 1 10.77.2.2 no rate"]
    last = bed.record.samples[-1]
    assert last.rates[Link("worker:0", sends)] == 60e6
    assert last.rates[Link("server:1", sends)] == 300e6
    assert len(last.rates) == len(last.carried) - 4 == 8  # the scheduler's link and the one outside are not shaped
    for link, bits_per_second in last.rates.items():
        assert 17e6 < last.carried[link] < 45e6  # two sums of 10 MB, perhaps the first value, headers, repeats
        assert most_in_a_second(bed.record.samples, link) <= bits_per_second / 8 + BURST_BYTES
    assert set(bed.record.drops) == set(last.rates)


@needs_network
def test_the_rates_of_links_are_learned():
    with testbed.TestBed(2, 0, "60mbit") as bed:
        code, out, err = run(bed, [sys.executable, "-c", LEARN])
    assert code == 0, err
    rates = [int(rate) / PAYLOAD for rate in out.split()[2:]]
    assert rates == pytest.approx([60e6, 60e6], rel=0.1)


MOVE = """
import numpy as np
import fptps

with fptps.KVWorker() as kv:
    n = kv.num_workers
    count = np.arange(1, 1_000_001, dtype=np.float32) % 1000
    gradient = np.zeros_like(count)
    kv.init_all({key: gradient for key in range(3)})
    small = count[:500_000] % 7
    weights, momentum = small.copy(), np.zeros_like(small)
    kv.init(3, weights)
    kv.set_optimizer(fptps.optim.SGD(lr=0.5, momentum=1.0), [3])
    plans, left = [0], 3
    for step in range(1, 200):
        left -= min(plans) > 0
        if left == 0:
            break
        arrays = [count * (kv.rank + step + key) for key in range(3)]
        tickets = [kv.push_pull(key, array, out=array) for key, array in enumerate(arrays)]
        updated = kv.push_pull(3, small * (kv.rank + 1)).result()
        for ticket in tickets:
            ticket.result()
        for key, array in enumerate(arrays):
            assert np.array_equal(array, count * (n * (step + key) + n * (n - 1) // 2)), (step, key)
        momentum += small * (n * (n + 1) // 2)
        weights -= momentum / 2
        assert np.array_equal(updated, weights), step
        less = kv.stats().shares.get("server 0", 0) < 0.2
        plans = kv.allgather_object(kv.stats().plan * less)
    shares = kv.stats().shares
    clocks = [kv.clock(0), kv.clock(3)]
    print(min(plans) > 0, less, clocks == [[step - 1] * n] * 2, f"{sum(shares.values()):.3f}")
"""
"""A program that sums 12 MB and trains 2 MB again and again until server 0 sums little. All numbers are exact."""


@needs_network
def test_a_slow_link_is_given_less(monkeypatch):
    monkeypatch.setenv("PS_VERBOSE", "1")
    with testbed.TestBed(3, 1, "100mbit", {"server:0": "20mbit"}) as bed:
        code, out, err = run(bed, [sys.executable, "-c", MOVE])
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"[worker {rank}] True True True 1.000" for rank in range(3)]
    assert "scheduler: plan 1 of the summing: server 0 40% -> " in err


@needs_network
def test_what_is_at_the_end_of_a_slow_path_is_given_less(monkeypatch):
    monkeypatch.setenv("PS_VERBOSE", "1")
    with testbed.TestBed(3, 1, "100mbit", paths={"worker:1-server:0": "10mbit"}) as bed:
        code, out, err = run(bed, [sys.executable, "-c", MOVE])
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"[worker {rank}] True True True 1.000" for rank in range(3)]
    plans = [line for line in err.splitlines() if "of the summing: server 0 " in line]
    assert any(re.search("(worker 1 to server 0|server 0 to worker 1) carries ", line) for line in plans), err


@needs_network
def test_the_path_between_two_nodes():
    """It carries less than their links, which its bytes pass, too."""
    with testbed.TestBed(1, 1, "200mbit", paths={"server:0-worker:0": "20mbit"}) as bed:
        code, _, err = run(bed, push(500_000))
    assert code == 0, err
    samples = bed.record.samples
    for node in ("server:0", "worker:0"):
        for sends in (True, False):
            assert 4e6 < samples[-1].carried[Link(node, sends)] < 8e6
            assert most_in_a_second(samples, Link(node, sends)) <= 20e6 / 8 * 1.05 + 2 * BURST_BYTES


@needs_network
def test_a_path_beside_a_delay():
    paths = {"worker:0-worker:1": "20mbit"}
    with testbed.TestBed(2, 0, "200mbit", delays={"worker:0": "5ms"}, paths=paths) as bed:
        code, _, err = run(bed, push(500_000))
    assert code == 0, err
    assert most_in_a_second(bed.record.samples, Link("worker:1", True)) <= 20e6 / 8 * 1.05 + 2 * BURST_BYTES


@needs_network
@pytest.mark.parametrize(("rate", "sends"), [("20mbit,400mbit", True), ("400mbit,20mbit", False)])
def test_set_rate_during_a_run(gate, rate, sends):
    with testbed.TestBed(1, 1, "400mbit") as bed:

        def change():
            gate.wait()
            bed.set_rate("server:0", rate)
            gate.open()

        (code, _, err), _ = in_threads(lambda: run(bed, push(1_250_000, gate.address)), change)
    assert code == 0, err
    link = Link("server:0", sends)
    before = [sample for sample in bed.record.samples if sample.rates[link] == 400e6]
    after = bed.record.samples[len(before) :]
    assert before[-1].carried[link] > 4e6
    assert after[-1].rates[link] == 20e6
    assert after[-1].carried[link] - after[0].carried[link] > 4e6
    assert most_in_a_second(after, link) <= 20e6 / 8 + BURST_BYTES
    assert after[-1].rates[Link("server:0", not sends)] == 400e6


SUMS = """
import sys
import numpy as np
import fptps, helpers

with fptps.KVWorker() as kv:
    ones = np.ones(500_000, np.float32)
    kv.init(0, ones)
    for gate in (sys.argv[1], None):
        for _ in range(3):
            assert (kv.push_pull(0, ones).result() == kv.num_workers).all()
        if gate:
            helpers.pass_gate(gate)
"""


@needs_network
def test_a_link_that_becomes_ten_times_slower(gate):
    """The sender finds out, and does not flood the queue before the link."""
    with testbed.TestBed(1, 1, "200mbit") as bed:

        def change():
            gate.wait()
            bed.set_rate("server:0", "200mbit,20mbit")
            gate.open()

        program = [sys.executable, "-c", SUMS, gate.address]
        (code, _, err), _ = in_threads(lambda: run(bed, program), change)
    assert code == 0, err
    slow = Link("server:0", False)
    carried = bed.record.samples[-1].carried[slow]
    assert carried > 12e6  # six sums of 2 MB
    assert bed.record.drops[slow] * 1514 < carried / 1000


@needs_network
def test_in_a_user_namespace(monkeypatch):
    """What happens where the user is not root."""
    monkeypatch.setattr(testbed_network, "WAYS", (["--user", "--map-root-user"],))
    if (reason := testbed.why_not()) is not None:
        pytest.skip(reason)
    with testbed.TestBed(2, 1, "1gbit", paths={"worker:0-worker:1": "100mbit"}) as bed:
        bed.set_rate("worker:0", "500mbit")
        code, out, err = run(bed, push(10))
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[worker 0] 0 10.77.2.1 no rate", "[worker 1] 1 10.77.2.2 no rate"]


@needs_network
def test_command_line(tmp_path):
    file = tmp_path / "samples.json"
    options = [
        "-n",
        "2",
        "-s",
        "1",
        "--rate",
        "1gbit",
        "--rate",
        "server=500mbit,200mbit",
        "--rate",
        "worker:1=300mbit",
    ]
    options += ["--give-rates", "--json", str(file)]
    done = subprocess.run([*COMMAND, *options, "--", *push(100_000)], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("[worker "))
    assert lines == ["[worker 0] 0 10.77.2.1 1gbit", "[worker 1] 1 10.77.2.2 300mbit"]
    head, *rows, last = [line for line in done.stdout.splitlines() if line not in lines]
    assert last == "FPTPS_LINK_RATE was set on each node to what its link sends."
    assert head.split()[:4] == ["link", "Mbit/s", "in", "use"]
    assert [row.split()[:3] for row in rows[2:4]] == [["server:0", "sends", "500"], ["server:0", "receives", "200"]]
    written = json.loads(file.read_text())
    server = {link["direction"]: link for link in written["links"] if link["node"] == "server:0"}
    assert server["receive"]["rates"][0] == 200e6
    assert len(server["send"]["bytes"]) == len(written["times"]) > 2
    worker = {link["direction"]: link for link in written["links"] if link["node"] == "worker:0"}
    assert worker["send"]["bytes"][-1] > 0.8e6


@needs_network
def test_exit_code_of_the_worst():
    program = [sys.executable, "-c", "import os; os.abort()"]
    done = subprocess.run([*COMMAND, *program], env=environment(), capture_output=True, text=True)
    assert done.returncode == 134
    assert "fptps: worker 0 (pid" in done.stderr


SERVE = """
import os, socket
with socket.socket() as server:
    server.bind((os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"])))
    server.listen()
    print(os.environ["DMLC_ROLE"], "serves", flush=True)
    while True:
        server.accept()[0].close()
"""
CALL = """
import os, socket, time
while True:
    try:
        socket.create_connection((os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"]))).close()
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
"""


@needs_network
def test_a_scheduler_of_another_system():
    """It is at its node, where alone its address can be bound; it ends with the last worker."""
    out, err = io.StringIO(), io.StringIO()
    with testbed.TestBed(workers=2, servers=0) as bed:
        code = bed.run([sys.executable, "-c", CALL], out=out, err=err, serve=[sys.executable, "-c", SERVE])
    assert (code, out.getvalue(), err.getvalue()) == (0, "[scheduler] scheduler serves\n", "")


COME = """
import os, socket, sys
import numpy as np
import fptps, helpers

with fptps.KVWorker() as kv:
    kv.init(0, np.zeros(10, np.float32))
    if not kv.newcomer:
        helpers.pass_gate(sys.argv[1])
    ready = 0
    while ready < 2:  # a sum, because the nodes hear of the server's share at different moments
        admitted = kv.admit(tuple)
        ticket = kv.push_pull(0, np.array([kv.rank + 2] * 9 + [kv.stats().shares.get("server 0", 0) > 0], np.float32))
        *total, ready = ticket.result()
        assert total == [sum(rank + 2 for rank in ticket.workers)] * 9
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((os.environ["DMLC_PS_ROOT_URI"], 9))
        print(kv.rank, way.getsockname()[0])
"""


@needs_network
@pytest.mark.parametrize("node", ["worker:0", "worker:1"])
def test_processes_that_come_later(gate, monkeypatch, node):
    """At a node of their own, and beside another process."""
    monkeypatch.setenv("FPTPS_RECOVERY", "1")
    monkeypatch.setenv("FPTPS_MAX_WORKERS", "2")
    program = [sys.executable, "-c", COME, gate.address]
    out, err = io.StringIO(), io.StringIO()
    with testbed.TestBed(2, 1) as bed:

        def add():
            gate.wait()
            bed.add("worker", node)
            bed.add("server", "server:0")
            gate.open()

        code, _ = in_threads(lambda: bed.run(program, ENVIRONMENT, out, err, workers=1, servers=0), add)
        with pytest.raises(RuntimeError, match="during a run only"):
            bed.add("worker", node)
    assert code == 0, err.getvalue()
    address = "10.77.2.2" if node == "worker:1" else "10.77.2.1"
    assert sorted(out.getvalue().splitlines()) == ["[worker +1] 1 " + address, "[worker 0] 0 10.77.2.1"]


@needs_network
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left(gate, number):
    before = interfaces()
    program = [sys.executable, "-c", f"import helpers; helpers.pass_gate({gate.address!r})"]
    pipe = subprocess.PIPE
    options = ["-n2", "-s2", "--delay", "worker:0=1ms", "--udp", "0s..", "worker:1=1mbit"]
    command = [*COMMAND, *options, *program]
    with subprocess.Popen(command, env=environment(), stdout=pipe, stderr=pipe) as running:
        try:
            gate.wait(2)
            pids = descendants(running.pid)
            namespaces = {namespace_of(pid) for pid in pids}
            assert len(namespaces) == 7  # of the bridge, five nodes, and outside
            assert namespace_of(os.getpid()) not in namespaces
            assert interfaces() == before  # not even while it runs
            assert len(pids) == 12 + 5  # they keep a namespace, or run in one: the delay, the traffic's ends
        finally:
            running.send_signal(number)
        # Python drops a SIGINT in some places of an import; then SIGKILL ends the process, after 30 s.
        running.communicate(timeout=90)
    assert running.returncode == (-number if number == signal.SIGKILL else 128 + number)
    gate.wait_for_the_end()
    until(lambda: not any(namespace_of(pid) in namespaces for pid in all_processes()), "namespaces are left")
    until(lambda: not any(alive(pid) for pid in pids), "processes are left")
    assert interfaces() == before


def interfaces():
    """The network interfaces outside of every test bed."""
    lines = subprocess.run([testbed_network.tool("ip"), "-o", "link"], capture_output=True, text=True, check=True)
    return [line.split(":")[1] for line in lines.stdout.splitlines()]


def all_processes():
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def descendants(pid):
    """The children of a process, their children, and so on."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [each for child in children for each in descendants(child)]


def namespace_of(pid):
    """The network namespace of a process, None if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def alive(pid):
    """Whether a process has not ended. Who adopted it may not have collected it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition, complaint):
    """Polls until a condition holds: the kernel does not report the end of its clean-up."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.01)


@needs_network
@pytest.mark.parametrize("missing", ["ip", "tc", "nsenter", "unshare"])
def test_a_missing_tool(tmp_path, monkeypatch, missing):
    for name in {"sh", *testbed_network.PACKAGES} - {missing}:
        path = testbed_network.tool(name) if name != "sh" else shutil.which(name)
        (tmp_path / name).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(testbed_network, "SBIN", "")
    done = CliRunner().invoke(main, ["true"])
    assert done.exit_code == 1
    package = "iproute2" if missing in ("ip", "tc") else "util-linux"
    assert done.output == f"Error: the test bed needs {missing}, which is not installed: install {package}\n"
    assert str(testbed.why_not()) in done.output


@pytest.mark.parametrize(
    ("code", "text"), [(1, "become root"), (3, "modprobe -a bridge veth"), (4, "modprobe sch_tbf")]
)
def test_a_machine_that_cannot(tmp_path, monkeypatch, code, text):
    for each in testbed_network.PACKAGES:
        (tmp_path / each).write_text(f"#!/bin/sh\necho it says no >&2\nexit {code}\n")
        (tmp_path / each).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "(it says no)" in testbed.why_not()
    assert text in testbed.why_not()
    with pytest.raises(testbed.TestBedError, match="it says no"), testbed.TestBed(1, 1):
        pass


PATHS = ["--path", "worker:0-worker:1=1mbit", "--path", "worker:1-worker:0=2mbit"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--rate", "fast"], "'fast' is not a rate"),
        (["--rate", "1gbit,0mbit"], "'0mbit' is not a rate"),
        (["--rate", "server:1=1gbit", "-s", "1"], "there is no 'server:1'"),
        (["--queue", "much"], "'much' is not a size"),
        (["--path", "worker:0-server:0"], "'worker:0-server:0': NODE-NODE=RATE is expected"),
        (["--path", "worker:0=1mbit"], "'worker:0' is not a pair of nodes"),
        (["--path", "worker:0-worker:0=1mbit"], "'worker:0-worker:0': a path is between two nodes"),
        (["--path", "worker:0-server:0=1mbit"], "there is no 'server:0'"),
        (["--path", "worker:0-all=1mbit"], "there is no 'all'"),
        (["-n", "2", "--path", "worker:0-worker:1=1mbit,2mbit"], "'1mbit,2mbit' is not a rate"),
        (["-n", "2", *PATHS], "'worker:1-worker:0': the path between the two is given twice"),
        (["-n", "300"], "workers=300"),
    ],
)
def test_invalid_arguments(options, text):
    done = CliRunner().invoke(main, [*options, "true"])
    assert done.exit_code == 1
    assert text in done.output


def test_rates():
    assert Rate.parse("1.5gbit,20kbit") == ("1.5gbit", "20kbit")
    assert bits("1.5gbit") == 1.5e9
    rates = testbed.plan(1, 2, "1gbit", {"server": "2gbit", "server:1": "3gbit"})
    assert rates == {
        "scheduler": None,
        "server:0": Rate("2gbit", "2gbit"),
        "server:1": Rate("3gbit", "3gbit"),
        "worker:0": Rate("1gbit", "1gbit"),
    }


def test_use():
    """A link is idle for a second, then full, then at half of a tenth of its rate."""
    link = Link("server:0", True)
    carried, rates = [0, 0, 1000, 1050], [8000.0, 8000.0, 800.0, 800.0]
    samples = [Sample(float(i), {link: carried[i]}, {link: rates[i]}) for i in range(4)]
    use = testbed_usage.use_of(samples, link)
    assert use.seconds == 2
    assert use.mean == 1050 * 8 / 2
    assert use.peak == 8000
    assert use.mean_use == pytest.approx(1050 / 1100)
    assert use.peak_use == 1
    assert testbed_usage.sparkline(samples, link, 6) == "  ██▄▄"
    assert testbed_usage.sparkline(samples, link, 3) == " █▄"


def test_use_of_a_link_that_is_not_shaped():
    link = Link("scheduler", True)
    samples = [Sample(0.0, {link: 0}, {}), Sample(0.5, {link: 500_000}, {})]
    head, row = testbed_usage.table(samples, {}).splitlines()
    assert head.endswith("over 0.5 s")
    assert row.split() == ["scheduler", "sends", "-", "0.5s", "8.0", "-", "8.0", "-", "-"]
