"""Forked children: a clear error for every use, and no data socket left open."""

import os
import subprocess
import sys
import traceback
import warnings

import numpy as np
import pytest
from helpers import in_threads

import fptps
from fptps import _core


def in_child(function):
    """Runs a function in a forked child; AssertionError with its traceback where it fails."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    assert os.waitpid(child, 0)[1] == 0, text


def test_every_method_raises_in_the_child(pair, key):
    one, two = pair
    a = np.ones(3)
    in_threads(*(lambda kv=kv: kv.init(key, a) for kv in pair))
    ticket = one.push_pull(key, a)
    done = two.push_pull(key, a)
    done.result()

    def child():
        for call in (
            lambda: one.init(key, a),
            lambda: one.push(key, a),
            lambda: one.pull(key),
            lambda: one.pull(key, a),
            lambda: one.push_pull(key, a),
            lambda: one.skip(key),
            lambda: one.set_tensor_count(1),
            one.barrier,
            one.stats,
            fptps.KVWorker,
            lambda: _core.wait(1, 1, 0),
        ):
            with pytest.raises(fptps.ClosedError, match="spawn"):
                call()
        with pytest.raises(fptps.ClosedError, match="fork") if not ticket._ends else pytest.raises(SystemExit):
            ticket.result()
            raise SystemExit
        assert done.result().tolist() == [2, 2, 2]
        assert (one.rank, one.num_workers) == (0, 2)
        one.close()
        one.__del__()

    in_child(child)
    assert ticket.result().tolist() == [2, 2, 2]


def test_data_sockets_are_closed_in_the_child(pair):
    numbers = [int(number) for kv in pair for number in _core.sockets(kv._session.handle).split(",")]
    assert len(numbers) > 4
    kept, kept_write = os.pipe()

    def child():
        for number in numbers:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(number)
        os.fstat(kept)

    in_child(child)
    in_child(lambda: in_child_again(numbers))
    for number in numbers:
        os.fstat(number)
    os.close(kept)
    os.close(kept_write)


def in_child_again(numbers):
    """A child of the child closes nothing that has got one of the numbers since."""
    reused = os.open(os.devnull, os.O_RDONLY)
    assert reused <= max(numbers)
    in_child(lambda: os.fstat(reused))


def test_the_parent_goes_on(pair, key):
    in_threads(*(lambda kv=kv: kv.init(key, np.ones(10**5)) for kv in pair))
    for _ in range(3):
        tickets = [kv.push_pull(key, np.ones(10**5)) for kv in pair]
        in_child(lambda: None)
        assert [ticket.result()[-1] for ticket in tickets] == [2, 2]


FORK_FIRST = """
import os, fptps, numpy
child = os.fork()
with fptps.KVWorker() as kv:
    kv.init(0, numpy.ones(2))
    assert kv.pull(0).result().tolist() == [1, 1]
assert not child or os.waitpid(child, 0)[1] == 0
"""


def test_fork_before_the_first_use_is_fine():
    subprocess.run([sys.executable, "-c", FORK_FIRST], check=True, timeout=60)


def test_subprocess_is_fine(pair):
    code = "import fptps\nwith fptps.KVWorker() as kv: print(kv.num_workers)"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "1\n"
