"""The report on a stall: who is missing, and what that node was last seen doing."""

import os
import re
import signal
import subprocess
import sys
import threading

from helpers import Gate, running_scheduler

import fptps
from fptps import _stacks

PROGRAM = """
import ctypes, os, sys
import numpy as np
import fptps
sys.path.insert(0, {tests!r})
from helpers import pass_gate

class Batches:
    def load(self):
        {load}

def train():
    with fptps.KVWorker() as kv:
        kv.init("conv1.weight", np.zeros(4, np.float32))
        kv.push_pull("conv1.weight", np.ones(4, np.float32)).result()
        if kv.rank == 1:
            Batches().load()
        {wait}

train()
"""
PUSH = 'kv.push_pull("conv1.weight", np.ones(4, np.float32)).result()'
PASS = "pass_gate({address!r}, os.getpid())"
HOLD = "ctypes.PyDLL(None).read(os.open({fifo!r}, os.O_RDWR), ctypes.create_string_buffer(1), 1)"
"""A system call that keeps the GIL."""
IN_LOAD = r" <module> > <string>:\d+ train > <string>:\d+ load > "


class Run:
    """`fptps run` of a program whose worker 1 stops in load(); its lines as they come."""

    def __init__(self, load, wait, *options):
        program = PROGRAM.format(tests=os.path.dirname(__file__), load=load, wait=wait)
        command = [sys.executable, "-m", "fptps", "run", *options, sys.executable, "-c", program]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def line(self, *words):
        """The next line that has all of these words."""
        others = []
        for line in self.process.stderr:
            if all(word in line for word in words):
                return line
            others.append(line)
        raise AssertionError(f"no line has {words}: {others}")

    def end(self):
        """The exit code; whatever comes until then is read."""
        self.process.stderr.read()
        return self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.process.stderr.close()


def test_a_worker_that_loads_data():
    with Gate() as gate, Run(PASS.format(address=gate.address), PUSH, "-n", "2", "-s", "1") as run:
        gate.wait()
        assert 'key=conv1.weight round=2 missing="worker 1"' in run.line("no progress for 5 s", "rank=0")
        seen = run.line("last seen: worker 1", "rank=0")
        assert 'state="it has not pushed key \\"conv1.weight\\" round 2, its latest push is' in seen
        assert 'stack="MainThread: <string>:' in seen
        assert re.search(IN_LOAD, seen)
        gate.open()
        assert run.end() == 0


def test_a_worker_that_does_not_come_to_a_barrier():
    with Gate() as gate, Run(PASS.format(address=gate.address), "kv.barrier()", "-n", "2") as run:
        gate.wait()
        run.line("msg=waiting", "for=barrier", "worker 1")
        seen = run.line("last seen: worker 1", "rank=0")
        assert "its latest push is" in seen
        assert re.search(IN_LOAD, seen)
        gate.open()
        assert run.end() == 0


def test_a_worker_in_native_code(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with Run(HOLD.format(fifo=str(fifo)), PUSH, "-n", "2", "-s", "1") as run:
        seen = run.line("last seen: worker 1", "rank=0")
        assert "it has not pushed" in seen
        assert "no thread of Python has run for 1s" in seen
        fifo.write_bytes(b"1")
        assert run.end() == 0


def test_a_worker_that_is_stopped():
    with Gate() as gate, Run(PASS.format(address=gate.address), PUSH, "-n", "2", "-s", "1") as run:
        (pid,) = gate.wait()
        stop(pid)
        seen = run.line("last seen: worker 1", "rank=0")
        assert 'state="it does not answer; the scheduler heard of it ' in seen
        os.kill(pid, signal.SIGCONT)
        gate.open()
        assert run.end() == 0


def test_a_server_that_is_stopped():
    """It does not say that it waits for nobody."""
    with Gate() as gate, Run(PASS.format(address=gate.address), PUSH, "-n", "2", "-s", "1") as run:
        gate.wait()
        server = next(pid for pid in children(run.process.pid) if "server" in command(pid))
        stop(server)
        gate.open()
        assert 'missing="server 0"' in run.line("no progress for 5 s")
        seen = run.line("last seen: server 0")
        assert "it does not answer; the scheduler heard of it" in seen
        assert "link=" in seen
        os.kill(server, signal.SIGCONT)
        assert run.end() == 0


def stop(pid):
    """Stops a process: its threads run on until one of them has taken the signal."""
    os.kill(pid, signal.SIGSTOP)
    while any(state(pid, task) != "T" for task in os.listdir(f"/proc/{pid}/task")):
        os.sched_yield()


def state(pid, task):
    """The state of a thread, as a letter."""
    with open(f"/proc/{pid}/task/{task}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def children(pid):
    """The processes that a process has started."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def command(pid):
    """A process's command line."""
    with open(f"/proc/{pid}/cmdline") as file:
        return file.read().split("\0")


def test_the_text_of_stacks():
    """Other threads than the one that asks, the main thread first, each with its innermost calls."""
    go_on, there = threading.Event(), threading.Event()

    def deep(depth):
        if depth:
            deep(depth - 1)
        else:
            there.set()
            go_on.wait()

    thread = threading.Thread(target=deep, args=(20,), name="loader")
    thread.start()
    there.wait()
    texts = []
    asker = threading.Thread(target=lambda: texts.append(_stacks.text()), name="asker")
    asker.start()
    asker.join()
    go_on.set()
    thread.join()
    (text,) = texts
    assert text.startswith("MainThread: ... > ")
    assert "asker" not in text
    loader = next(part for part in text.split("; ") if part.startswith("loader: "))
    assert loader.count(" > ") == _stacks.FRAMES
    assert loader.split(" > ")[0] == "loader: ..."
    assert " deep > threading.py:" in loader


def test_the_thread_ends_with_the_node():
    with running_scheduler(1) as address, fptps.KVWorker(scheduler=address, num_workers=1, num_servers=0):
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "fptps stacks"]
        assert thread.daemon
    thread.join(60)
    assert not thread.is_alive()


def test_a_worker_alone_needs_none():
    with fptps.KVWorker():
        assert "fptps stacks" not in [thread.name for thread in threading.enumerate()]
