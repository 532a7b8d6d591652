"""A worker and a server that speak MXNet's kvstore: python -m ps_kvstore worker ROUNDS, or: server, or: refused."""

import json
import sys

import numpy as np

import fptps
from fptps import ps
from fptps.ps.mxnet import DTYPES, Command, MXNetStore, pair

SHAPES = {3: ("float32", 5), 4: ("float64", 6), 5: ("float16", 7), 6: ("float64", 8), 7: ("float32", 1000)}
BOUND = 100
"""Elements from which MXNET_KVSTORE_BIGARRAY_BOUND has an array cut among all servers."""
SERVER = [sys.executable, "-m", "fptps.ps.mxnet"]
KEEPING_SERVER = [sys.executable, "-m", "ps_kvstore", "server"]
WORKER = [sys.executable, "-m", "ps_kvstore", "worker", "3"]
SETTINGS = {"MXNET_KVSTORE_BIGARRAY_BOUND": str(BOUND), "OMP_NUM_THREADS": "1"}


def results(outputs):
    """What the workers printed, by rank."""
    found = [json.loads(line) for out, _ in outputs for line in out.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda result: result["rank"])


def expected(workers, rounds, keep):
    """The values of all keys after each round: the sum of all pushes, or all sums so far and the ones of init()."""
    held = {key: np.ones(size) for key, (_, size) in SHAPES.items()}
    all_rounds = []
    for number in range(rounds):
        for key, (_, size) in SHAPES.items():
            total = sum(np.arange(size) * (rank + 1) + number for rank in range(workers))
            held[key] = held[key] + total if keep else total
        all_rounds.append([held[key].tolist() for key in sorted(SHAPES)])
    return all_rounds


def encode(key, size, itemsize):
    """The keys and lens that MXNet's worker makes of an array."""
    ranges = ps.Postoffice.get().server_key_ranges()
    if size < BOUND:
        return [ranges[key * 9973 % len(ranges)].begin + key], [size * itemsize]
    ends = [round(size / len(ranges) * i) for i in range(len(ranges) + 1)]
    return [r.begin + key for r in ranges], [(b - a) * itemsize for a, b in zip(ends, ends[1:])]


def worker(rounds):
    """The steps of mxnet_programs/kvstore.py, with fptps's classes."""
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


def refused_worker():
    """Sends requests that the store does not serve, then one for an optimizer, after which it serves none."""
    ps.start()
    kv = ps.KVWorker(0, 0, "uint8")
    key = ps.Postoffice.get().server_key_ranges()[0].begin + 3
    data = np.ones(4, np.float32).view(np.uint8)

    def error(timestamp):
        try:
            kv.wait(timestamp)
        except fptps.RemoteError as refusal:
            return str(refusal).partition("with an error: ")[2]
        return ""

    def push(command, values=data):
        return kv.push([key], values, [values.size], command)

    def request(head):
        return kv.request(head, b"", ps.SERVER_GROUP)

    errors = [
        error(kv.pull([key], cmd=pair(0, 0))),
        error(push(pair(1, 0))),
        error(push(pair(0, 40))),
        error(push(-1)),
        error(push(pair(0, 0))),  # init
        error(push(pair(0, 0))),  # not dist_sync yet
        error(request(Command.SYNC_MODE)),
        error(push(pair(0, 0), data[:8])),
        error(request(77)),
        error(request(Command.CONTROLLER)),
        error(kv.pull([key], cmd=pair(0, 0))),
    ]
    print(json.dumps(errors), flush=True)
    ps.finalize()


def keeping_server():
    """A server that adds every sum to the value of the key."""
    ps.start()
    MXNetStore(ps.KVServer(0), updater=lambda key, pushed, stored: np.add(stored, pushed, out=stored))
    ps.finalize()


if __name__ == "__main__":
    {"worker": lambda: worker(int(sys.argv[2])), "refused": refused_worker, "server": keeping_server}[sys.argv[1]]()
