"""A worker and a server that speak MXNet's kvstore: python -m ps_kvstore worker ROUNDS, or: server keep."""

import json
import sys

import numpy as np

from fptps import ps
from fptps.ps.mxnet import DTYPES, Command, MXNetStore, pair

SHAPES = {3: ("float32", 5), 4: ("float64", 6), 5: ("float16", 7), 6: ("float64", 8), 7: ("float32", 1000)}
BOUND = 100
"""Elements from which MXNET_KVSTORE_BIGARRAY_BOUND has an array cut among all servers."""


def encode(key, size, itemsize):
    """The keys and lens that MXNet's worker makes of an array."""
    ranges = ps.Postoffice.get().server_key_ranges()
    if size < BOUND:
        return [ranges[key * 9973 % len(ranges)].begin + key], [size * itemsize]
    ends = [round(size / len(ranges) * i) for i in range(len(ranges) + 1)]
    return [r.begin + key for r in ranges], [(b - a) * itemsize for a, b in zip(ends, ends[1:])]


def worker(rounds):
    """Does what mxnet_programs/kvstore.py does, with our classes."""
    ps.start()
    office = ps.Postoffice.get()
    kv = ps.KVWorker(0, 0, "uint8")
    if office.rank == 0:
        kv.wait(kv.request(Command.SYNC_MODE, b"", ps.SERVER_GROUP))
        for key, (dtype, size) in SHAPES.items():
            keys, lens = encode(key, size, np.dtype(dtype).itemsize)
            kv.wait(kv.push(keys, np.ones(size, dtype).view(np.uint8), lens, pair(0, DTYPES.index(dtype))))
    office.barrier(0, ps.WORKER_GROUP)  # as MXNet's init() does
    all_rounds = []
    for number in range(rounds):
        got = []
        for key, (dtype, size) in SHAPES.items():
            keys, lens = encode(key, size, np.dtype(dtype).itemsize)
            command = pair(0, DTYPES.index(dtype))
            value = (np.arange(size) * (office.rank + 1) + number).astype(dtype)
            out = np.empty(size, dtype)
            if key % 2:
                # The answer means that all have pushed: MXNet's worker waits for it, too.
                kv.wait(kv.push(keys, value.view(np.uint8), lens, command, priority=-key))
                kv.wait(kv.pull(keys, out.view(np.uint8), cmd=command, priority=-key))
            else:
                kv.wait(kv.push_pull(keys, value.view(np.uint8), out.view(np.uint8), lens, command, priority=-key))
            got.append(out.astype(float).tolist())
        all_rounds.append(got)
    print(json.dumps({"rank": office.rank, "rounds": all_rounds}), flush=True)
    office.barrier(0, ps.WORKER_GROUP)  # as MXNet's kvstore does before it goes
    if office.rank == 0:
        kv.wait(kv.request(Command.STOP_SERVER, b"", ps.SERVER_GROUP))
    ps.finalize()


def keeping_server():
    """A server that adds every sum to what the key has."""
    ps.start()
    MXNetStore(ps.KVServer(0), updater=lambda key, pushed, stored: np.add(stored, pushed, out=stored))
    ps.finalize()


if __name__ == "__main__":
    worker(int(sys.argv[2])) if sys.argv[1] == "worker" else keeping_server()
