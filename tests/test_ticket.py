"""fptps.Ticket: every way to wait, and timeouts."""

import asyncio
import contextlib
import gc
import math
import os
import queue
import signal
import sys
import threading
import weakref

import numpy as np
import pytest
from helpers import in_threads, running_scheduler, workers_of_one_process

import fptps
from fptps._wakeup import CallbackThread, Wakeup


def init(pair, key, array):
    """Declares a tensor on both workers."""
    in_threads(*(lambda kv=kv: kv.init(key, array) for kv in pair))


@pytest.fixture
def pending(pair, key):
    """A push_pull that waits for the other worker, and a function that lets it go on."""
    one, two = pair
    a = np.full(4, 1.0, np.float32)
    init(pair, key, a)
    ticket = one.push_pull(key, a, out=np.zeros_like(a))

    def go_on():
        two.push_pull(key, a * 10).result()

    yield ticket, go_on
    if not ticket.done():
        go_on()
        ticket.result()


SUM = [11.0] * 4


def test_wait(pending):
    ticket, go_on = pending
    assert not ticket.done()
    with pytest.raises(fptps.TimeoutError, match=r"key \d+ round 1"):
        ticket.result(0)
    with pytest.raises(TimeoutError, match=r"key \d+ round 1"):
        ticket.result(0.01)
    go_on()
    out = ticket.result()
    assert out.tolist() == SUM
    assert ticket.result(0) is out
    assert ticket.result(math.inf) is out
    assert ticket.exception() is None
    assert ticket.done()


@pytest.mark.parametrize(
    ("timeout", "error"), [(-1, ValueError), (math.nan, ValueError), (-math.inf, ValueError), ("a", TypeError)]
)
def test_invalid_timeouts(pending, timeout, error):
    with pytest.raises(error, match=f"timeout={timeout!r}: a number of seconds"):
        pending[0].result(timeout)


def test_push_has_no_result(pair, key):
    a = np.ones(3)
    init(pair, key, a)
    tickets = [kv.push(key, a) for kv in pair]
    assert [ticket.result() for ticket in tickets] == [None, None]


def test_many_threads_wait_for_one_ticket(pending):
    ticket, go_on = pending
    results = in_threads(*[ticket.result] * 5, *[lambda: asyncio.run(once(ticket))] * 2, go_on)[:-1]
    assert all(result is ticket.result() for result in results)


def test_exception():
    with workers_of_one_process(2) as (one, two):
        in_threads(*(lambda kv=kv: kv.init(0, np.ones(2)) for kv in (one, two)))
        ticket = one.push(0, np.ones(2))
        with pytest.raises(fptps.TimeoutError):
            ticket.exception(0.01)
        two.push(0, np.ones(2)).result()
    assert ticket.exception() is None


def test_callbacks_run_once_each_on_a_thread_of_their_own(pending, caplog):
    ticket, go_on = pending
    called = queue.SimpleQueue()
    ticket.add_done_callback(lambda done: called.put((1, done, threading.current_thread())))
    ticket.add_done_callback(lambda done: 1 / 0)
    ticket.add_done_callback(lambda done: called.put((2, done, threading.current_thread())))
    go_on()
    (first, done, thread), (second, _, _) = called.get(timeout=30), called.get(timeout=30)
    assert (first, second, done) == (1, 2, ticket)
    assert thread.name == "fptps callbacks"
    assert "a done callback of a ticket failed" in caplog.text
    ticket.add_done_callback(lambda done: called.put((3, done, threading.current_thread())))
    assert called.get_nowait() == (3, ticket, threading.current_thread())
    assert called.empty()


def test_the_callbacks_thread_does_not_wake_itself(monkeypatch):
    """A ticket that this thread finds ended costs no system call to say so; it did two, and a turn of the loop."""
    event, other_end = os.pipe()
    thread = CallbackThread(Wakeup(lambda: os.dup(event), lambda: None))
    wakes, calls = [], queue.Queue()
    loop = thread._loop
    wake = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *call: (wakes.append(call), wake(*call)))
    thread.start()
    thread.call(lambda: thread.call(lambda: calls.put(threading.current_thread().name)))
    assert calls.get(timeout=30) == "fptps callbacks"
    assert len(wakes) == 1
    thread.stop()
    thread._thread.join(30)
    os.close(event)
    os.close(other_end)


def test_callbacks_of_a_ticket_that_a_close_ends():
    called = queue.SimpleQueue()
    with running_scheduler(2, exit_code=1) as scheduler:
        one, two = in_threads(*[lambda: fptps.KVWorker(scheduler, 2, 0, 30)] * 2)
        in_threads(*(lambda kv=kv: kv.init_all({0: np.ones(2), 1: np.ones(2)}) for kv in (one, two)))
        one.push(0, np.ones(2)).add_done_callback(called.put)
        of_the_other = two.push(1, np.ones(2))
        with contextlib.suppress(RuntimeError), one:
            raise RuntimeError
        error = called.get(timeout=30).exception()
        assert isinstance(error, fptps.ClosedError)
        assert (error.role, error.rank, error.key) == (None, None, 0)
        error = of_the_other.exception(30)
        assert isinstance(error, fptps.NodeLostError)
        assert (error.role, error.rank, error.key) == ("worker", one.rank, 1)
        with contextlib.suppress(fptps.NodeLostError):
            two.close()


def test_wait_for_all(pair, key):
    keys = [10**7 + 10 * key + i for i in range(3)]
    for each in keys:
        init(pair, each, np.zeros(2))
    tickets = [pair[0].push_pull(each, np.full(2, float(each))) for each in keys]
    with pytest.raises(fptps.TimeoutError, match=f"key {keys[0]} round 1"):
        fptps.wait(tickets, timeout=0.01)
    others = [pair[1].push_pull(each, np.ones(2)) for each in keys]
    assert [sum_[0] for sum_ in fptps.wait(iter(tickets))] == [each + 1 for each in keys]
    assert fptps.wait(others) == [ticket.result() for ticket in others]
    assert fptps.wait([]) == []


def test_as_completed(pair, key):
    keys = [10**8 + 10 * key + i for i in range(3)]
    for each in keys:
        init(pair, each, np.zeros(2))
    tickets = [pair[0].push_pull(each, np.full(2, float(each))) for each in keys]
    ended = fptps.as_completed([*tickets, tickets[1]], timeout=30)
    for at in (1, 0):
        pair[1].push(keys[at], np.ones(2)).result()
        assert next(ended) is tickets[at]
    with pytest.raises(fptps.TimeoutError, match=f"key {keys[2]} round 1"):
        next(fptps.as_completed(tickets[2:], timeout=0.01))
    pair[1].push(keys[2], np.ones(2)).result()
    assert list(ended) == [tickets[2]]
    assert sorted(map(id, fptps.as_completed(tickets))) == sorted(map(id, tickets))
    assert list(fptps.as_completed([])) == []


async def once(ticket):
    """Awaits a ticket."""
    return await ticket


def test_await(pending):
    ticket, go_on = pending

    async def main():
        waiting = [asyncio.ensure_future(once(ticket)) for _ in range(3)]
        await asyncio.sleep(0)  # lets them begin
        await asyncio.get_running_loop().run_in_executor(None, go_on)
        return await asyncio.gather(*waiting, once(ticket))

    assert all(result.tolist() == SUM for result in asyncio.run(main()))


def test_await_in_many_loops(pair, key):
    one, two = pair
    a = np.ones(2, np.int32)
    keys = [10**6 + 10 * key + i for i in range(4)]
    for each in keys:
        init(pair, each, a)
    begun = threading.Barrier(len(keys) + 1)

    def loop_of(each):
        async def main():
            waiting = asyncio.ensure_future(once(one.push_pull(each, a.copy())))
            await asyncio.sleep(0)
            begun.wait()
            return await waiting

        return lambda: asyncio.run(main())

    def other():
        begun.wait()
        for each in keys:
            two.push_pull(each, a).result()

    results = in_threads(*map(loop_of, keys), other)[:-1]
    assert [result.tolist() for result in results] == [[2, 2]] * len(keys)


def test_await_that_is_cancelled_leaves_the_ticket_valid(pending):
    ticket, go_on = pending

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(once(ticket), 0.01)

    asyncio.run(main())
    go_on()
    assert ticket.result().tolist() == SUM


def test_await_has_the_timeout_of_the_worker(pair, pending, monkeypatch):
    monkeypatch.setattr(pair[0]._session, "timeout", 0.01)
    with pytest.raises(fptps.TimeoutError, match="round 1"):
        asyncio.run(once(pending[0]))


def test_no_descriptor_is_left(pending):
    ticket, _ = pending
    asyncio.run(once_with_timeout(ticket))
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(5):
        asyncio.run(once_with_timeout(ticket))
    assert set(os.listdir("/proc/self/fd")) <= before


async def once_with_timeout(ticket):
    """Awaits a ticket that does not come."""
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(once(ticket), 0.001)


@pytest.fixture
def ctrl_c():
    """What Python does by itself, also where the tests run in the background of a shell, which ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_wait(pending, ctrl_c):
    ticket, go_on = pending
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ticket.result()
    timer.join()
    go_on()
    assert ticket.result().tolist() == SUM


class Tracked(np.ndarray):
    """An array whose release a test can see."""


def test_arrays_live_until_their_ticket_is_done(pair, key):
    one, two = pair
    init(pair, key, np.zeros(1000))
    a, out = (np.ones(1000).view(Tracked) for _ in range(2))
    alive = [weakref.ref(a), weakref.ref(out)]
    one.push_pull(key, a, out=out)
    del a, out
    gc.collect()
    assert all(array() is not None for array in alive)
    two.push_pull(key, np.ones(1000)).result()
    # The next submissions release the arrays of operations that have ended since.
    while any(array() is not None for array in alive):
        in_threads(*[kv.barrier for kv in pair])


def test_ticket_releases_arrays_that_it_does_not_return(pair, key):
    init(pair, key, np.zeros(10))
    a = np.ones(10).view(Tracked)
    alive = weakref.ref(a)
    tickets = [pair[0].push(key, a), pair[1].push(key, np.ones(10))]
    for ticket in tickets:
        ticket.result()
    del a
    gc.collect()
    assert alive() is None
    assert tickets[0].done()


def test_wait_is_counted(pair, pending):
    before = pair[0].stats().wait_s
    with pytest.raises(fptps.TimeoutError):
        pending[0].result(0.05)
    assert pair[0].stats().wait_s >= before + 0.05


def test_repr(pending):
    ticket, go_on = pending
    assert repr(ticket) == "<fptps.Ticket under way>"
    go_on()
    ticket.result()
    assert repr(ticket) == "<fptps.Ticket done>"


def test_interpreter_ends_with_tickets_under_way(capsys):
    def work():
        kv = sys.modules["__main__"].kept = fptps.KVWorker()  # lives until the interpreter ends
        a = np.ones(1 << 20)
        kv.init(0, a)
        if kv.rank == 1:
            kv.barrier()
        ticket = kv.push_pull(0, a)
        threading.Thread(target=ticket.result, daemon=True).start()
        sys.exit(3)

    with fptps.LocalCluster(2, 0).start(work) as run:
        left, lost = run.outcomes()
    assert isinstance(left.error, SystemExit)
    assert run.process("worker", 0).returncode == 3
    assert isinstance(lost.error, fptps.NodeLostError)
    assert "was not closed: the other nodes see it as lost" in capsys.readouterr().err


def test_a_worker_that_closes_leaves_the_callbacks_their_event():
    """A thread that begins to await while another closes the worker has a descriptor of its own, or ClosedError."""
    kv = fptps.KVWorker()
    session = kv._session
    descriptor = session.notify_fd()
    kv.close()
    try:
        assert os.fstat(descriptor)
    finally:
        os.close(descriptor)
    with pytest.raises(fptps.ClosedError):
        session.notify_fd()
