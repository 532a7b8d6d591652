"""The programs of test_ps.py's nodes: python -m ps_programs NAME. Each prints JSON lines, and checks its results."""

import contextlib
import json
import sys
import threading

import numpy as np
from helpers import DTYPES, total, values

import fptps
from fptps import ps


def say(**what):
    """One line for the test."""
    print(json.dumps(what), flush=True)


def node():
    """Takes part, and serves nothing."""
    ps.start()
    ps.finalize()


def summing_server():
    """ps-lite's default handle."""
    ps.start()
    ps.KVServer(0).set_request_handle(ps.KVServerDefaultHandle())
    ps.finalize()


def dtypes_worker():
    """Every dtype, whole and ragged values, on keys of all servers."""
    ps.start()
    office = ps.Postoffice.get()
    begins = [r.begin for r in office.server_key_ranges()]
    lens = np.array([3, 0, 5][: len(begins)], np.int32)
    waiting = []
    for number, dtype in enumerate(DTYPES):
        kv = ps.KVWorker(0, number, dtype)
        mine = values(office.rank, int(lens.sum()), dtype)
        waiting.append((kv, kv.push([b + number for b in begins], mine, lens)))
    for kv, timestamp in waiting:
        kv.wait(timestamp)
    office.barrier(0, ps.WORKER_GROUP)
    for (kv, _), (number, dtype) in zip(waiting, enumerate(DTYPES)):
        keys = np.array([b + number for b in begins], np.uint64)
        want = total(office.num_workers, int(lens.sum()), dtype)
        got_lens, called = np.zeros(len(begins), np.int32), []
        out = np.zeros(len(want), dtype)
        kv.wait(kv.pull(keys, out, got_lens, callback=lambda out=out, called=called: called.append(out.copy())))
        assert np.array_equal(out, want), dtype
        assert got_lens.tolist() == lens.tolist()
        assert len(called) == 1
        assert np.array_equal(called[0], want), "the callback comes when the values are there"
        assert np.array_equal(kv.wait(kv.pull(keys)), want)
    office.barrier(0, ps.WORKER_GROUP)
    # The values that a push_pull returns contain at least its own push.
    kv = waiting[0][0]
    got = kv.wait(kv.push_pull([200], np.full(2, 1, kv.dtype)))
    assert 1 <= got[0] <= office.num_workers
    say(rank=office.rank, servers=len(begins))
    ps.finalize()


def place():
    """Who and where each node is."""
    ps.start()
    office = ps.Postoffice.get()
    say(
        role=office.role, rank=office.rank, id=office.id, workers=office.num_workers, servers=office.num_servers,
        all=sorted(office.node_ids(ps.ALL)), mine=office.node_ids(office.id), dead=office.dead_nodes(),
        pair=sorted(office.node_ids(ps.SERVER_GROUP + ps.SCHEDULER)), ranges=office.server_key_ranges(),
    )  # fmt: skip
    if office.role != "server":
        office.barrier(0, ps.SCHEDULER + ps.WORKER_GROUP)
    if office.role != "scheduler":
        office.barrier(0, ps.SERVER_GROUP if office.role == "server" else ps.WORKER_GROUP)
        office.barrier(0, ps.SERVER_GROUP + ps.WORKER_GROUP)
    ps.finalize()


def simple():
    """The scheduler sends requests to all nodes, itself included, as ps-lite's own test of SimpleApp does."""
    ps.start()
    office = ps.Postoffice.get()
    app = ps.SimpleApp(5, 5)

    def handle(request, app):
        assert threading.current_thread() is not threading.main_thread()
        assert request.sender == ps.SCHEDULER
        app.response(request, request.body + bytes([office.id]))

    app.set_request_handle(handle)
    if office.role == "scheduler":
        answers = []
        app.set_response_handle(lambda response, app: answers.append((response.head, response.body, response.sender)))
        for head in range(3):
            app.wait(app.request(head, b"\0\xff", ps.ALL))
        ids = office.node_ids(ps.ALL)
        assert sorted(answers) == sorted((head, b"\0\xff" + bytes([i]), i) for head in range(3) for i in ids)
        say(answers=len(answers))
    ps.finalize()


def handles_server():
    """Handles in Python: in the order of each worker, answers from another thread, exceptions, commands."""
    ps.start()
    server = ps.KVServer(0)
    seen, later = [], []

    def handle(meta, kvs, server):
        if meta.cmd == 1:
            raise KeyError("no such thing")
        if meta.cmd == 2:  # answered by another thread
            later.append(
                threading.Timer(0.05, server.response, [meta, ps.KVPairs(kvs.keys, np.array([2.5], "float64"))])
            )
            later[-1].start()
            return
        if meta.push:
            seen.append((meta.sender, kvs.vals.tolist()))
            server.response(meta)
        else:
            mine = [vals for sender, vals in seen if sender == meta.sender]
            flat = np.array(mine, "float64").reshape(-1)
            server.response(meta, ps.KVPairs(kvs.keys, flat, np.array([len(flat)], np.int32)))

    def command(request, app):
        if request.head == 7:
            raise RuntimeError("seven")
        app.response(request, request.body[::-1])

    server.set_command_handle(command)
    server.set_request_handle(handle)
    ps.finalize()
    for timer in later:
        timer.join()


def handles_worker():
    """What handles_server serves."""
    ps.start()
    rank = ps.Postoffice.get().rank
    kv = ps.KVWorker(0, 0, "float64")
    # A worker's requests for one key are served in its order, whatever their priorities.
    sent = [kv.push([3], [float(100 * rank + n)], priority=n % 3) for n in range(50)]
    assert kv.wait(kv.pull([3], priority=9)).tolist() == [float(100 * rank + n) for n in range(50)]
    for timestamp in sent:
        kv.wait(timestamp)
    assert kv.wait(kv.pull([3], cmd=2)).tolist() == [2.5]
    errors = []
    for timestamp in (kv.push([3], [1.0], cmd=1), kv.request(7, b"", ps.SERVER_GROUP)):
        try:
            kv.wait(timestamp)
        except fptps.RemoteError as error:
            errors.append(str(error))
    got = []
    kv.set_response_handle(lambda response, app: got.append(response.body))
    ended = kv.request(7, b"", ps.SERVER_GROUP)
    kv.wait(kv.request(1, b"abc", ps.SERVER_GROUP))
    assert got == [b"cba"]
    with contextlib.suppress(fptps.RemoteError):
        kv.wait(ended)  # the answer to the later request is here, so this one has ended
        errors.append("no error")
    say(rank=rank, errors=errors)
    ps.finalize()


def customers():
    """A process of two customers, each in its thread."""
    office, results = ps.Postoffice.get(), {}

    def work(customer):
        ps.start(customer)
        kv = ps.KVWorker(0, customer)
        kv.wait(kv.push([customer + 1], [10.0 + customer]))
        office.barrier(customer, ps.WORKER_GROUP)
        results[customer] = kv.wait(kv.pull([1, 2])).tolist()
        ps.finalize(customer)

    threads = [threading.Thread(target=work, args=(customer,)) for customer in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(results=[results[0], results[1]])


def two_apps():
    """One worker process, two apps on the servers."""
    ps.start()
    office = ps.Postoffice.get()
    if office.role == "server":
        for app in (0, 3):
            ps.KVServer(app).set_request_handle(ps.KVServerDefaultHandle())
    else:
        apps = [ps.KVWorker(app, 0) for app in (0, 3)]
        for scale, kv in enumerate(apps, 1):
            kv.wait(kv.push([1], [float(scale)]))
        say(values=[kv.wait(kv.pull([1])).tolist() for kv in apps])
    ps.finalize()


def waiting_worker():
    """Waits for an app that its server never opens; the test kills the server."""
    ps.start()
    kv = ps.KVWorker(0)
    timestamp = kv.push([1], [1.0])
    say(ready=True)
    try:
        kv.wait(timestamp)
    except fptps.NodeLostError as error:
        say(error=str(error), dead=ps.Postoffice.get().dead_nodes())


def unknown_app_worker():
    """Sends a request to an app that does not exist, and goes on."""
    ps.start()
    kv, other = ps.KVWorker(9), ps.KVWorker(0)
    timestamp = kv.push([1], [1.0])
    other.wait(other.push([1], [1.0]))
    try:
        kv.wait(timestamp)
    except fptps.RemoteError as error:
        say(error=str(error))
    ps.finalize()


def interactive_worker():
    """Carries out the lines of its stdin: push or pull a value on each server by itself, or end."""
    ps.start()
    office = ps.Postoffice.get()
    kv = ps.KVWorker(0)
    keys = [[r.begin + 1] for r in office.server_key_ranges()]

    def ask(request):
        """What the request for each key ends with: a number, or the error's text."""
        results = []
        for key in keys:
            try:
                got = kv.wait(request(key))
                results.append(0.0 if got is None else float(got.min()))
            except fptps.NodeLostError as error:
                results.append(str(error))
        return results

    say(rank=office.rank, recovered=office.is_recovery)
    for line in sys.stdin:
        if line == "end\n":
            break
        one = np.full(5000, office.rank + 1, np.float32)
        got = ask(kv.pull if line == "pull\n" else lambda key, one=one: kv.push(key, one))
        say(got=got, dead=office.dead_nodes())
    ps.finalize()


def hanging_server():
    """Has a handle that answers nothing."""
    ps.start()
    ps.KVServer(0).set_request_handle(lambda meta, kvs, server: None)
    ps.finalize()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
