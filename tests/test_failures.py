"""Failures in a cluster of processes: every node names the node that failed, and ends."""

import asyncio
import io
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import pass_gate

import fptps

LIMIT_S = 5.0
"""All nodes know of a death within this time."""


def waits(kv):
    """Every kind of wait, each for an operation that the other workers never make: its error, and when it came."""
    own = 100 * (kv.rank + 1)
    for key in range(5):
        for rank in range(kv.num_workers):
            kv.init(100 * (rank + 1) + key, np.zeros(50_000))

    async def await_(ticket):
        await ticket

    def poll(ticket):
        while not ticket.done():
            threading.Event().wait(0.01)
        ticket.result()

    pushed = kv.push(own + 1, np.ones(50_000))
    kinds = {
        "push": lambda: kv.push(own, np.ones(50_000)).result(),
        "push_again": lambda: pushed.result(),
        "pull": lambda: kv.pull(own + 1).result(),
        "push_pull": lambda: kv.push_pull(own + 2, np.ones(50_000)).result(float("inf")),
        "await": lambda: asyncio.run(await_(kv.push_pull(own + 3, np.ones(50_000)))),
        "done": lambda: poll(kv.skip(own + 4)),
        "init": lambda: kv.init(1000 + kv.rank, np.zeros(3)),
    }
    if kv.rank == 0:
        kinds["barrier"] = kv.barrier
    ends = {}

    def wait(kind):
        try:
            kinds[kind]()
            ends[kind] = ("ended well", "", time.monotonic())
        except Exception as error:
            ends[kind] = (type(error).__name__, str(error), time.monotonic())

    threads = [threading.Thread(target=wait, args=(kind,)) for kind in kinds]
    return threads, ends, kinds


@pytest.mark.usefixtures("van")
@pytest.mark.parametrize("victim", ["worker 1", "server 0", "scheduler"])
def test_killed_node(gate, victim):
    def work():
        kv = fptps.KVWorker()
        threads, ends, kinds = waits(kv)
        for thread in threads:
            thread.start()
        pass_gate(address)
        for thread in threads:
            thread.join()
        for kind, late in (("late_push", lambda: kv.push(101, np.ones(50_000)).result()), ("close", kv.close)):
            try:
                late()
            except Exception as error:
                ends[kind] = (type(error).__name__, str(error), 0)
        return ends, sorted([*kinds, "late_push", "close"])

    address = gate.address
    role, _, rank = victim.partition(" ")
    with fptps.LocalCluster(2, 1).start(work) as run:
        gate.wait(2)
        killed = time.monotonic()
        os.kill(run.process(role, int(rank or 0)).pid, signal.SIGKILL)
        gate.open()
        outcomes = run.outcomes()
    survivors = [outcome.value for worker, outcome in enumerate(outcomes) if victim != f"worker {worker}"]
    assert survivors
    for ends, kinds in survivors:
        assert sorted(ends) == kinds
        for kind, (error, text, when) in ends.items():
            assert (kind, error) == (kind, "NodeLostError")
            assert victim in text, kind
            assert when - killed < LIMIT_S, kind
    codes = {process.name: process.returncode for process in run.processes if process.name != victim}
    assert {codes.pop(name) for name in list(codes) if name.startswith("worker")} == {0}
    assert set(codes.values()) == {1}


@pytest.mark.usefixtures("van")
def test_killed_parent_of_a_forked_child(gate):
    """A child that lives on must not hide the death of its parent."""

    def work():
        with fptps.KVWorker() as kv:
            kv.init(0, np.ones(3))
            if kv.rank == 1:
                if os.fork() == 0:
                    os.setsid()
                    pass_gate(address, "child")
                    os._exit(0)
                pass_gate(address, "parent")
            kv.barrier()

    address = gate.address
    with fptps.LocalCluster(2, 1, environment={"PYTHONWARNINGS": "ignore"}).start(work) as run:
        assert sorted(gate.wait(2)) == ["child", "parent"]
        os.kill(run.process("worker", 1).pid, signal.SIGKILL)
        error = run.outcomes()[0].error
    assert isinstance(error, fptps.NodeLostError)
    assert "worker 1" in str(error)
    assert (error.role, error.rank) == ("worker", 1)


def test_leaving_by_an_exception():
    def work():
        with fptps.KVWorker() as kv:
            kv.init(0, np.ones(3))
            if kv.rank == 2:
                raise ValueError("on purpose")
            kv.push(0, np.ones(3)).result()

    with fptps.LocalCluster(3, 1).start(work) as run:
        errors = [outcome.error for outcome in run.outcomes()]
        with pytest.raises(ValueError, match="on purpose"):
            run.results()
    assert [type(error) for error in errors] == [fptps.NodeLostError, fptps.NodeLostError, ValueError]
    assert all("worker 2" in str(error) for error in errors[:2])


class Listening(io.StringIO):
    """A stream with an event that is set once a text has been written to it."""

    def __init__(self, pattern):
        super().__init__()
        self.found = threading.Event()
        self._pattern = pattern

    def write(self, text):
        length = super().write(text)
        if re.search(self._pattern, self.getvalue()):
            self.found.set()
        return length


@pytest.mark.usefixtures("van")
@pytest.mark.parametrize("how", [signal.SIGSTOP, None], ids=["stopped", "asleep"])
def test_worker_without_progress_is_named_in_the_log(gate, monkeypatch, how):
    def work():
        with fptps.KVWorker() as kv:
            kv.init(7, np.zeros(3))
            kv.push_pull(7, np.ones(3)).result()
            if kv.rank == 1:
                pass_gate(address)
            return kv.push_pull(7, np.ones(3)).result().tolist()

    address = gate.address
    log = Listening(r"\[(worker 0|server 0)\] .*key=7 .*round=2.*missing=\S*worker 1")
    monkeypatch.setattr(sys, "stderr", log)
    with fptps.LocalCluster(2, 1).start(work) as run:
        gate.wait()
        victim = run.process("worker", 1).pid
        if how is not None:
            os.kill(victim, how)
        assert log.found.wait(30), log.getvalue()
        if how is not None:
            os.kill(victim, signal.SIGCONT)
        gate.open()
        assert run.results() == [[2, 2, 2]] * 2


def sockets_of(pid):
    """The inodes of the sockets that a process has open."""
    found = (re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link)) for link in Path(f"/proc/{pid}/fd").iterdir())
    return {each[1] for each in found if each}


def listening_ports(pid):
    """The TCP ports that a process listens on."""
    inodes, ports = sockets_of(pid), set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


RUBBISH = [
    b"",
    b"\0",
    b"GET / HTTP/1.1\r\n\r\n",
    bytes(range(256)) * 300,
    b"\xff" * 10,
    b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(48) + b"\x04\x19\x05READY" + b"\xff" * 100,
]


def sums_between_gates(address):
    """In a worker: twenty sums, once the test has opened the gate; then it stays until the test opens it again."""
    with fptps.KVWorker() as kv:
        kv.init(0, np.zeros(100_000))
        pass_gate(address)
        sums = [kv.push_pull(0, np.full(100_000, float(step + kv.rank))).result()[-1] for step in range(20)]
        pass_gate(address)
        return sums


@pytest.mark.usefixtures("van")
def test_rubbish_on_every_port(gate):
    with fptps.LocalCluster(2, 1).start(sums_between_gates, gate.address) as run:
        gate.wait(2)
        ports = {process.name: listening_ports(process.pid) for process in run.processes}
        assert all(ports.values()), ports
        half = []
        for port in set().union(*ports.values()):
            for data in RUBBISH:
                with socket.create_connection(("127.0.0.1", port)) as stranger:
                    stranger.sendall(data)
            half.append(socket.create_connection(("127.0.0.1", port)))
            half[-1].sendall(b"\xff\0")  # and no more
        gate.open()
        gate.wait(2)
        gate.open()
        assert run.results() == [[2 * step + 1 for step in range(20)]] * 2
        for stranger in half:
            stranger.close()


ZEROMQ = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(48) + b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
"""The handshake of a peer that speaks ZeroMQ's protocol."""


def memory_of(pid):
    """The resident memory of a process in bytes."""
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) << 10


def speak(port, *pieces):
    """A stranger that speaks ZeroMQ's protocol at a port, None if the port hangs up: it is one for data."""
    stranger = socket.create_connection(("127.0.0.1", port))
    try:
        stranger.sendall(ZEROMQ)
        answer = b""
        while b"ROUTER" not in answer:
            got = stranger.recv(1000)
            if not got:
                raise ConnectionResetError
            answer += got
        for piece in pieces:
            stranger.sendall(piece)
        return stranger
    except ConnectionError:
        stranger.close()
        return None


def test_strangers_take_no_memory(gate):
    """A message of endless frames, and the announcement of 2 GB: of every process the memory stays what it is."""
    with fptps.LocalCluster(2, 1).start(sums_between_gates, gate.address) as run:
        gate.wait(2)
        before = {process.name: memory_of(process.pid) for process in run.processes}
        ports = set().union(*(listening_ports(process.pid) for process in run.processes))
        endless = [speak(port, *[b"\x01\0" * 1_000_000] * 5) for port in ports]
        long = [speak(port, b"\x02" + (2**31 - 1).to_bytes(8, "big")) for port in ports]
        assert sum(stranger is not None for stranger in endless) == len(run.processes)
        for stranger in filter(None, long):
            assert stranger.recv(1) == b"", "the announcement of 2 GB did not end the connection"
        for process in run.processes:
            grown = memory_of(process.pid) - before[process.name]
            assert grown < 64 << 20, f"{process.name} has grown by {grown >> 20} MB"
        gate.open()
        gate.wait(2)
        gate.open()
        assert run.results() == [[2 * step + 1 for step in range(20)]] * 2
        for stranger in filter(None, endless + long):
            stranger.close()


def test_wrong_token():
    def work():
        right = os.environ["FPTPS_TOKEN"]
        refused = None
        if os.environ["DMLC_WORKER_ID"] == "1":
            os.environ["FPTPS_TOKEN"] = "wrong"
            try:
                fptps.KVWorker(timeout=20)
            except fptps.ConnectError as error:
                refused = str(error)
            os.environ["FPTPS_TOKEN"] = right
        with fptps.KVWorker() as kv:
            kv.init(0, np.ones(3))
            return refused, kv.push_pull(0, np.ones(3)).result().tolist()

    (nothing, first), (refused, second) = fptps.LocalCluster(2, 1).run(work)
    assert nothing is None
    assert "FPTPS_TOKEN" in refused
    assert first == second == [2, 2, 2]


@pytest.mark.parametrize(
    ("first", "other", "texts"),
    [
        ((10, "float32"), (12, "float32"), ["key 3", "(10,)", "(12,)", "worker 2"]),
        ((10, "float32"), (10, "int32"), ["key 3", "float32", "int32", "worker 2"]),
    ],
    ids=["size", "dtype"],
)
def test_mismatch(first, other, texts):
    def work():
        with fptps.KVWorker() as kv:
            kv.init(3, np.zeros(*(other if kv.rank == 2 else first)))

    with fptps.LocalCluster(3, 1).start(work) as run:
        errors = [outcome.error for outcome in run.outcomes()]
    assert [type(error) for error in errors] == [fptps.MismatchError] * 3
    for error in errors:
        for text in texts:
            assert text in str(error)
        assert (error.role, error.rank, error.key) == ("worker", 2, 3)


def test_shared_memory_ends_with_its_processes(gate):
    """SIGKILL of every node: no named memory is left, and no file was ever made."""

    def work():
        with fptps.KVWorker() as kv:
            kv.init(0, np.zeros(50_000, np.float32))
            kv.push(0, np.ones(50_000, np.float32)).result()
            pass_gate(address)
            kv.barrier()

    address = gate.address
    with fptps.LocalCluster(2, 1, environment={"FPTPS_VAN": "shm"}).start(work) as run:
        gate.wait(2)
        inodes = set().union(*(sockets_of(process.pid) for process in run.processes))
        names = {name for inode, name in abstract_sockets() if inode in inodes}
        assert len(names) == 4  # scheduler, server, two workers
        maps = {process.name: Path(f"/proc/{process.pid}/maps").read_text() for process in run.processes}
        assert maps["server 0"].count("/memfd:fptps") == 3  # with each worker, and with the scheduler
        assert not any("/dev/shm" in mapped for mapped in maps.values())
        for process in run.processes:
            os.kill(process.pid, signal.SIGKILL)
        run.outcomes()
    assert not names & {name for _, name in abstract_sockets()}


def abstract_sockets():
    """The inode and the name of each of fptps's sockets without a file on this machine."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [(fields[6], fields[7]) for fields in map(str.split, lines) if fields[-1].startswith("@fptps-")]
