"""What the test modules share, and the functions that run in worker processes."""

import contextlib
import os
import subprocess
import sys
import threading
from multiprocessing.connection import Client, Listener

import numpy as np

import fptps
from fptps._bench import check
from fptps.cluster._commands import HOST, reserved_port

try:
    import ml_dtypes
except ImportError:  # the tests of the wheel run with a user's packages alone
    ml_dtypes = None

INTEGERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
OTHERS = "bool float16 float32 float64 longdouble complex64 complex128 clongdouble timedelta64[s]"
DTYPES = [np.dtype(name) for name in f"{INTEGERS} {OTHERS}".split()]
if ml_dtypes:
    DTYPES.append(np.dtype(ml_dtypes.bfloat16))
"""Every dtype that can be summed."""

MEANS = [dtype for dtype in DTYPES if dtype.kind in "fcV"]
"""Those that also have a mean."""


CALLS = {
    "init": lambda kv, key, a: kv.init(key, a),
    "push": lambda kv, key, a: kv.push(key, a),
    "pull": lambda kv, key, a: kv.pull(key, a),
    "pull_new": lambda kv, key, a: kv.pull(key),
    "push_pull": lambda kv, key, a: kv.push_pull(key, a, out=a),
    "skip": lambda kv, key, a: kv.skip(key),
}
"""One call of each operation on a tensor: worker, key and array to ticket or None."""


def values(rank, count, dtype, salt=0):
    """An array of whole numbers, other ones on every rank, small enough for any sum of eight to be exact."""
    numbers = (np.arange(count) * (rank + 1) + 3 * rank + salt) % 7
    if dtype.kind == "b":
        return (numbers % 3 == 0).astype(dtype)
    if dtype.kind in "ic" or dtype.kind == "m":
        numbers = numbers - 3
    array = numbers.astype(dtype)
    if dtype.kind == "c":
        array += array.dtype.type(1j) * ((numbers + rank) % 5).astype(dtype)
    return array


def total(ranks, count, dtype, salt=0):
    """What numpy makes of the sum of values() over the ranks."""
    sum_ = values(0, count, dtype, salt)
    for rank in range(1, ranks):
        other = values(rank, count, dtype, salt)
        sum_ = (sum_ | other) if dtype.kind == "b" else (sum_ + other).astype(dtype)
    return sum_


class Gate:
    """Lets a test wait until worker processes have come somewhere, and them wait for the test."""

    def __init__(self):
        self._listener = Listener(family="AF_UNIX")  # reached from any network namespace
        self._waiting = []

    @property
    def address(self):
        """What pass_gate() takes."""
        return self._listener.address

    def wait(self, count=1):
        """Waits until so many processes have reported; returns their reports."""
        said = []
        for _ in range(count):
            connection = self._listener.accept()
            self._waiting.append(connection)
            said.append(connection.recv())
        return said

    def open(self, answer=None):
        """Lets those that wait go on. A process that the test has killed may have ended already."""
        for connection in self._waiting:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.send(answer)
            connection.close()
        self._waiting.clear()

    def wait_for_the_end(self):
        """Waits until none of the processes that came is alive, without letting them go on."""
        for connection in self._waiting:
            with contextlib.suppress(EOFError, ConnectionResetError):
                raise AssertionError(f"it went on: {connection.recv()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for connection in self._waiting:
            connection.close()
        self._listener.close()


def pass_gate(address, word=None):
    """In a worker process: reports to the test, and waits for its answer."""
    with Client(address) as connection:
        connection.send(word)
        return connection.recv()


def in_threads(*functions):
    """Runs functions at the same time; gives their results, or raises the first one's exception."""
    results = [None] * len(functions)

    def call(index):
        try:
            results[index] = (functions[index](), None)
        except BaseException as error:
            results[index] = (None, error)

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _, error in results:
        if error is not None:
            raise error
    return [value for value, _ in results]


def on_both(pair, call):
    """Calls the same on both workers at the same time, with the worker and its rank; gives both results."""
    return in_threads(*(lambda kv=kv: call(kv, kv.rank) for kv in pair))


@contextlib.contextmanager
def running_scheduler(workers, servers=0, exit_code=0):
    """A scheduler's process, which has to end with that code; gives its address."""
    with reserved_port() as port:
        host = {"DMLC_PS_ROOT_URI": HOST, "DMLC_PS_ROOT_PORT": str(port)}
        numbers = {"DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": str(servers)}
        command = [sys.executable, "-m", "fptps", "scheduler"]
        process = subprocess.Popen(command, env={**os.environ, **host, **numbers})
        try:
            yield f"{HOST}:{port}"
            assert process.wait(30) == exit_code
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def workers_of_one_process(count, timeout=60.0, servers=0):
    """All workers of a cluster, by rank, in this process; its servers are processes of their own."""
    with running_scheduler(count, servers) as scheduler, contextlib.ExitStack() as ending:
        host, _, port = scheduler.rpartition(":")
        place = ["--host", host, "--port", port, "-n", str(count), "-s", str(servers)]
        for _ in range(servers):
            server = ending.enter_context(subprocess.Popen([sys.executable, "-m", "fptps", "server", *place]))
            ending.callback(server.kill)
        workers = in_threads(*[lambda: fptps.KVWorker(scheduler, count, servers, timeout)] * count)
        workers.sort(key=lambda kv: kv.rank)
        try:
            yield workers
        finally:
            in_threads(*[kv.close for kv in workers])


def init_all(kv, arrays):
    """In a worker: arrays of float32 with keys from 0."""
    for key, array in enumerate(arrays):
        kv.init(key, array)


def sum_and_check(kv, arrays, iteration):
    """In a worker: sums all of init_all()'s arrays, the first as the most urgent, and checks every element."""
    tickets = []
    for key, array in enumerate(arrays):
        check.fill(array, kv.rank, iteration, key)
        tickets.append(kv.push_pull(key, array, out=array, priority=-key))
    for key, (ticket, array) in enumerate(zip(tickets, arrays)):
        ticket.result()
        check.verify(array, kv.num_workers, iteration, key)
