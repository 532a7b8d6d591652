"""Workers whose programs do not do the same: one closes, leaves or gives up a wait that another still is in."""

import math

import numpy as np
import pytest
from helpers import in_threads, running_scheduler

import fptps

ROUNDS = 20


def outcomes(scheduler, *programs):
    """Runs the program of each rank in a `with` block; returns the result or the error of each."""
    ended = {}

    def run():
        rank = None
        try:
            with fptps.KVWorker(scheduler, len(programs), 0) as kv:
                rank = kv.rank
                ended[rank] = programs[rank](kv)
        except Exception as error:
            ended[rank] = error

    in_threads(*[run] * len(programs))
    return [ended[rank] for rank in range(len(programs))]


def train(kv):
    """The part that both programs have."""
    kv.init(7, np.zeros(3))
    for _ in range(ROUNDS):
        kv.push(7, np.full(3, kv.rank + 1.0)).result()


def one_more_round(kv):
    kv.push(7, np.ones(3)).result(math.inf)


def barrier(kv):
    kv.barrier(math.inf)


def init(kv):
    kv.init(8, np.zeros(3))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (one_more_round, "worker 1 closed after round 20, and round 21 waits for it"),
        (barrier, "a barrier waits for worker 1, which has closed"),
        (init, "key 8 waits for worker 1, which has closed"),
    ],
)
def test_waiting_for_a_closed_worker_fails_at_once(more, text):
    """Worker 0 waits without a timeout; worker 1, which waits for the end, gets the reason why the cluster fails."""

    def longer(kv):
        train(kv)
        more(kv)

    with running_scheduler(2, exit_code=1) as scheduler:
        longer_ended, shorter_ended = outcomes(scheduler, longer, train)
    assert isinstance(longer_ended, fptps.MismatchError), longer_ended
    assert (longer_ended.role, longer_ended.rank) == ("worker", 1)
    assert text in str(longer_ended)
    assert isinstance(shorter_ended, fptps.NodeLostError), shorter_ended
    assert "worker 0 was lost: it " in str(shorter_ended)
    assert text in str(shorter_ended)


def test_a_push_after_the_announcement_is_refused():
    def longer(kv):
        kv.init(8, np.zeros(3), consistency="async")
        train(kv)
        while True:  # no round of it waits for the others, so that it goes on until the announcement has arrived
            kv.push(8, np.ones(3)).result()
            kv.skip(7)

    def shorter(kv):
        kv.init(8, np.zeros(3), consistency="async")
        train(kv)

    with running_scheduler(2, exit_code=1) as scheduler:
        longer_ended, _ = outcomes(scheduler, longer, shorter)
    assert isinstance(longer_ended, fptps.MismatchError), longer_ended
    assert "worker 1 closed after round 20" in str(longer_ended)


def test_the_text_of_an_exception_reaches_the_others():
    def fails(kv):
        raise ValueError("no such file:\n\x1b[31mdata\t" + 1000 * "x")

    with running_scheduler(3, exit_code=1) as scheduler:
        first, second, third = outcomes(scheduler, barrier, fails, barrier)
    assert isinstance(second, ValueError)
    for error in (first, third):
        assert isinstance(error, fptps.NodeLostError), error
        assert "worker 1 was lost: it left by ValueError: no such file:  [31mdata xxx" in str(error)
        assert str(error).isprintable()
        assert len(str(error)) < 700


def test_a_barrier_that_timed_out_does_not_count():
    """Neither for the other worker nor for the next barrier; to come again is fine."""

    def gives_up(kv):
        kv.init(1, np.zeros(3))
        with pytest.raises(fptps.TimeoutError):
            kv.barrier(0.1)
        kv.push(1, np.ones(3)).result()  # worker 1 may come now
        kv.push(1, np.ones(3)).result()  # worker 1 has given up
        for _ in range(3):
            kv.barrier()

    def comes_later(kv):
        kv.init(1, np.zeros(3))
        kv.push(1, np.ones(3)).result()
        with pytest.raises(fptps.TimeoutError):
            kv.barrier(0.1)
        kv.push(1, np.ones(3)).result()
        for _ in range(3):
            kv.barrier()

    with running_scheduler(2) as scheduler:
        assert outcomes(scheduler, gives_up, comes_later) == [None, None]
