"""Signal handlers that use fptps while their thread is in the middle of it, and that raise at any point."""

import contextlib
import dis
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import weakref

import numpy as np
import pytest
from helpers import in_threads, running_scheduler

import fptps


class Interrupt(BaseException):
    """What a handler raises."""


@contextlib.contextmanager
def alarms(handler, seed):
    """Has handler() called on the main thread after a random time; again and again, until it raises."""
    times = random.Random(seed)
    over = False

    def rearm(*_):
        if not over:
            handler()
            signal.setitimer(signal.ITIMER_REAL, times.uniform(1e-6, 4e-4))

    before = signal.signal(signal.SIGALRM, rearm)
    signal.setitimer(signal.ITIMER_REAL, times.uniform(1e-6, 4e-4))
    try:
        yield
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("seed", range(3))
def test_handler_uses_the_worker_that_it_interrupts(seed):
    with fptps.KVWorker() as kv:
        kv.init(0, np.zeros(3))
        kv.init(1, np.zeros(3), "async")
        pushed = [0]

        def handler():
            if kv.rank or pushed[0] % 7:
                kv.push(1, np.ones(3)).result()
            else:
                kv.save(os.devnull + "x" * 300)
            pushed[0] += 1

        def guarded():
            try:
                handler()
            except (OSError, fptps.BusyError):
                pushed[0] += 1

        with alarms(guarded, seed):
            for step in range(1, 1500):
                assert kv.push_pull(0, np.full(3, float(step))).result().tolist() == [step] * 3
        assert pushed[0] > 20


@pytest.mark.parametrize("seed", range(3))
def test_handler_raises_at_any_point(seed, monkeypatch):
    """No array of an operation that is under way is dropped, none of one that has ended is kept, and all goes on."""
    # Where Python ignores exceptions, as in the callback of a weak reference, the hook of pytest keeps the frames.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    class Tracked(np.ndarray):
        pass

    def interrupt():
        raise Interrupt

    alive = []
    with fptps.KVWorker() as kv:
        kv.init(0, np.zeros(3))
        interrupted, kept = 0, None
        for step in range(400):
            try:
                with alarms(interrupt, 1000 * seed + step):
                    for _ in range(300):
                        array = np.full(3, float(step)).view(Tracked)
                        alive.append(weakref.ref(array))
                        kept = kv.push_pull(0, array, out=array)
                        assert kept.result().tolist() == [step] * 3
            except Interrupt:
                interrupted += 1
        assert interrupted > 300  # the others were raised where Python ignores exceptions
        kv.push(0, np.ones(3)).result()
        kv.push(0, np.ones(3)).result()
        assert len(kv._session.live) <= 1
        del array, kept
        gc.collect()
        assert sum(array() is not None for array in alive) == 0


def interrupted_at(place, function):
    """Calls function() and raises Interrupt at the place-th point at which Python would run a signal handler in
    fptps: where a function begins and where a loop jumps back. Whether it came so far."""
    left = place

    def trace(frame, event, _):
        nonlocal left
        if "fptps" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        jumps = event == "opcode" and "JUMP" in dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if event == "call" or jumps:
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise Interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(Interrupt):
            function()
    finally:
        sys.settrace(before)
    return left < 0


def test_handler_raises_at_each_point(monkeypatch):
    """An operation that the handler interrupted is either unknown to the core, or under way until it ends."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    with fptps.KVWorker() as kv:
        kv.init_all({key: np.zeros(3) for key in range(3)})

        def one():
            kv.push_pull(0, np.ones(3)).result()

        def many():
            fptps.wait(kv.push_pull_all({key: np.ones(3) for key in range(3)}).values())

        for call in (one, many):
            place = 0
            while interrupted_at(place, call):
                place += 1
                for _ in range(2):  # the second notes the end of the first one's elders
                    fptps.wait([kv.push(key, np.ones(3)) for key in range(3)])
                assert not kv._session.live, f"point {place}"
            assert place > 20


@pytest.mark.parametrize("seed", range(3))
def test_handler_closes_the_worker_that_it_interrupts(seed):
    for step in range(60):
        kv = fptps.KVWorker()
        kv.init(0, np.zeros(3))
        with contextlib.suppress(fptps.ClosedError), alarms(kv.close, 1000 * seed + step):
            while True:
                kv.push_pull(0, np.ones(3)).result()
        assert kv._session.handle == 0


@pytest.mark.parametrize("seed", range(2))
def test_interrupted_close_leaves_nothing_open(seed, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    def interrupt():
        raise Interrupt

    for step in range(60):
        kv = fptps.KVWorker()
        kv.init(0, np.zeros(3))
        with contextlib.suppress(Interrupt), alarms(interrupt, 1000 * seed + step):
            kv.close()
        session = kv._session
        with pytest.warns(ResourceWarning) if session.handle else contextlib.nullcontext():
            del kv
        assert session.handle == 0
        assert not session.live


def test_push_in_a_handler_of_a_worker_in_a_cluster():
    with running_scheduler(2) as scheduler:
        pair = in_threads(*[lambda: fptps.KVWorker(scheduler, 2, 0, 60)] * 2)
        in_threads(*(lambda kv=kv: kv.init(0, np.zeros(3)) for kv in pair))
        in_threads(*(lambda kv=kv: kv.init(1, np.zeros(3), "async") for kv in pair))

        with alarms(lambda: pair[0].push(1, np.ones(3)), 5):
            for _ in range(200):
                tickets = [kv.push_pull(0, np.ones(3)) for kv in pair]
                assert [ticket.result()[0] for ticket in tickets] == [2, 2]
        in_threads(*(kv.close for kv in pair))


def test_a_dropped_worker_goes_at_once_and_leaves_no_cycle():
    gc.collect()
    gc.disable()
    try:
        kv = fptps.KVWorker()
        kv.init(0, np.zeros(3))
        kv.push(0, np.ones(3)).add_done_callback(lambda ticket: None)
        alive = weakref.ref(kv)
        with pytest.warns(ResourceWarning, match="was not closed"):
            del kv
        assert alive() is None
    finally:
        gc.enable()


def test_sigterm_handler_closes_while_the_main_thread_waits():
    """The program of the issue: SIGTERM, whose handler closes, while the main thread is in a call."""
    program = """
        import os, signal, sys, threading
        import numpy as np
        import fptps

        kv = fptps.KVWorker()
        kv.init(0, np.zeros(3))

        def handler(*_):
            kv.push(0, np.ones(3)).result()
            kv.close()
            sys.exit(7)

        signal.signal(signal.SIGTERM, handler)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        while True:
            kv.push(0, np.ones(3)).result()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=60)
    assert done.returncode == 7


def test_only_the_main_thread_takes_the_programs_signals():
    """One that a thread of Go takes does not interrupt a system call of the main thread."""
    program = """
        import os, signal
        from pathlib import Path
        import fptps

        def blocked(thread):
            lines = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines)
            return int(status["SigBlk"], 16) >> signal.SIGINT - 1 & 1

        with fptps.KVWorker(num_workers=1) as kv:
            kv.init(0, bytearray(1 << 20))
            threads = sorted(map(int, os.listdir("/proc/self/task")))
            print(sum(map(blocked, threads)) == len(threads) - 1 > 2, blocked(os.getpid()))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True 0\n", done.stdout + done.stderr
