"""The training of test_churn.py: its weights after a step do not depend on which workers took part, and when.

A step has 12 shards, of which each worker has a part. What a worker contributes depends on its shards and on the
weights, as a gradient does. Shards of workers that were lost in the middle of a step are shared out again in further
rounds, until the step has all of them. So the weights are those of a run in which nothing happens, bit by bit.

    python churn_training.py GATE OVER FOLDER
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
from helpers import pass_gate

import fptps

COUNTS = [1, 5_000, 300_000]
"""Elements of each tensor: in one packet, in two, in many."""
SHARDS = range(12)
SEEN = (1 << 10) - 1
"""The bits of a weight that the gradient depends on: sums of int64 never overflow."""


def gradient(weights, shards, step, key):
    """Of some shards. No two sets of shards have the same one, also not if a shard is in a set twice."""
    factor = sum(3**shard for shard in shards)
    return factor * (weights & SEEN) + (step % 100 + key + 1) * factor


def share(workers, rank, shards):
    """A worker's part of some shards."""
    return shards[workers.index(rank) :: len(workers)] if rank in workers else []


class Training:
    """The weights, and what all workers know alike."""

    def __init__(self):
        self.weights = [np.zeros(count, np.int64) for count in COUNTS]
        self.step = 0

    def digest(self):
        """A hash of the weights."""
        return hashlib.sha256(b"".join(weight.tobytes() for weight in self.weights)).hexdigest()

    def train(self, kv, workers, stop):
        """A step. workers: those that took part in the last one, or were admitted since; the same on all. Returns those
        of this one, and whether a worker has said stop."""
        begin = [weight.copy() for weight in self.weights]
        teams, left = {}, {}  # by key
        for key in range(len(COUNTS)):
            teams[key], left[key] = workers, list(SHARDS)
        flag = np.full(1, stop, np.int64)
        flagged = kv.push_pull("over", flag, out=flag)
        while left:
            tickets = {}
            for key, shards in left.items():
                sums = gradient(begin[key], share(teams[key], kv.rank, shards), self.step, key)
                tickets[key] = sums, kv.push_pull(key, sums, out=sums)
            for key, (sums, ticket) in tickets.items():
                ticket.result()
                done = [shard for rank in ticket.workers for shard in share(teams[key], rank, left[key])]
                assert (sums == gradient(begin[key], done, self.step, key)).all(), (
                    f"wrong sum of key {key} in step {self.step}: {sums[:3]} of {ticket.workers}, workers {teams[key]}"
                )
                self.weights[key] += sums
                teams[key] = ticket.workers
                left[key] = [shard for shard in left[key] if shard not in done]
            left = {key: shards for key, shards in left.items() if shards}
        self.step += 1
        flagged.result()
        return flagged.workers, bool(flag[0])


def train(address, over, steps=None):
    """In a worker: steps until the file over is there, or so many. Returns the number of steps and the hash of the
    weights, or None if it was asked to leave, by SIGUSR1."""
    leaving = []
    signal.signal(signal.SIGUSR1, lambda *_: leaving.append(True))
    training = Training()
    with fptps.KVWorker() as kv:
        for key, weight in enumerate(training.weights):
            kv.init(key, np.zeros_like(weight))
        kv.init("over", np.zeros(1, np.int64))
        workers, stop = kv.workers, False
        if address and not kv.newcomer:
            pass_gate(address)
        while not stop:
            admitted = kv.admit(lambda: training)  # noqa: B023
            if admitted:
                workers, training = admitted.workers, admitted.state or training
            if leaving:
                kv.leave()
                return None
            over_now = training.step + 1 == steps if steps else Path(over).exists()
            workers, stop = training.train(kv, workers, over_now)
        kv.barrier()
    return training.step, training.digest()


def note(folder, function, *args):
    """Calls a function, and notes its result or its error in a file named after this process."""
    outcome = {}
    try:
        outcome["result"] = function(*args)
    except BaseException as error:
        outcome["error"], outcome["text"] = type(error).__name__, str(error)
        raise
    finally:
        (Path(folder) / str(os.getpid())).write_text(json.dumps(outcome))


if __name__ == "__main__":
    note(sys.argv[3], train, sys.argv[1], sys.argv[2])
