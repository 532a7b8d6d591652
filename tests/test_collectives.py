"""broadcast(), broadcast_object() and allgather_object(): their values, their errors, and calls that are repeated."""

import threading

import numpy as np
import pytest
from helpers import in_threads, workers_of_one_process

import fptps
from fptps._collectives import CHUNKS, INLINE

CLUSTERS = [None, (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 2)]
SIZES = sorted({1, *(edge + n for edge in (INLINE, *CHUNKS) for n in (-1, 0, 1)), 2 * CHUNKS[-1] + 5})


def run(cluster, work, *arguments):
    """Runs work on a cluster of (workers, servers), or alone."""
    return [work(*arguments)] if cluster is None else fptps.LocalCluster(*cluster).run(work, *arguments)


def content(rank, size):
    """Bytes that differ between ranks and between places."""
    return (np.arange(size) * 7 + 31 * rank + size).astype(np.uint8)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_values_of_every_root_and_size(cluster):
    def work(sizes):
        with fptps.KVWorker() as kv:
            for size in sizes:
                for root in range(kv.num_workers):
                    array = content(kv.rank, size)
                    kv.broadcast([array], root)
                    assert np.array_equal(array, content(root, size)), (size, root)
                    sent = content(kv.rank, size).tobytes()
                    assert kv.broadcast_object(sent, root) == content(root, size).tobytes()
                everybody = kv.allgather_object((kv.rank, content(kv.rank, size).tobytes()))
                assert everybody == [(rank, content(rank, size).tobytes()) for rank in range(kv.num_workers)]
            return kv.rank

    assert run(cluster, work, SIZES) == list(range(cluster[0] if cluster else 1))


@pytest.mark.demo
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_arrays_of_many_kinds(workers):
    import torch

    def made(seed):
        return {
            "weight": torch.nn.Parameter(torch.full((3, 5), float(seed))),
            3: np.full((2, 2), seed, np.int16),
            "large": torch.full((1_100_000,), seed, dtype=torch.float64),
            "scalar": torch.tensor(seed),
            "bool": np.array([seed == 1, True]),
            "complex": np.full(7, seed + 1j),
        }

    def work(kv):
        for root in range(kv.num_workers):
            mine = made(kv.rank + 1)
            order = sorted(mine, key=str, reverse=kv.rank % 2 == 1)
            versions = mine["weight"]._version
            kv.broadcast({name: mine[name] for name in order}, root)
            for name, value in made(root + 1).items():
                assert np.array_equal(np.asarray(mine[name].data), np.asarray(value.data)), name
            assert (mine["weight"]._version > versions) == (root != kv.rank)
            kv.broadcast([mine["scalar"], mine["bool"]], root)

    with workers_of_one_process(workers) as all_workers:  # which imports PyTorch once
        in_threads(*[lambda kv=kv: work(kv) for kv in all_workers])


def outcome(call, *arguments):
    try:
        return call(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)


class Refuses:
    """An object that raises when it is pickled."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error


def test_every_worker_raises(pair):
    """And the next call of all is in step again."""

    def both(call):
        found = in_threads(*[lambda kv=kv: outcome(call, kv) for kv in pair])
        assert in_threads(*[lambda kv=kv: kv.allgather_object(kv.rank) for kv in pair]) == [[0, 1]] * 2
        return found

    def different(kv):
        return kv.broadcast_object(1, root=1) if kv.rank else kv.allgather_object(1)

    text = "worker 0 calls allgather_object(), worker 1 broadcast_object(root=1): all workers have to make the same"
    for kind, found in both(different):
        assert (kind, found.startswith(text)) == ("MismatchError", True)
    for kind, found in both(lambda kv: kv.broadcast([np.zeros(3)], root=kv.rank)):
        assert (kind, found.startswith("worker 0 calls broadcast(root=0), worker 1 broadcast(root=1)")) == (
            "MismatchError",
            True,
        )

    def shapes(kv):
        arrays = {"a": np.full((2, 3), kv.rank), "b": np.zeros(6)}
        if kv.rank:
            arrays = {"a": np.full((3, 2), kv.rank), "c": np.zeros(6, np.float32)}
        try:
            kv.broadcast(arrays, root=0)
        finally:
            assert (arrays["a"] == kv.rank).all()

    expected = (
        "broadcast(): "
        "array 'a' has shape (3, 2) and dtype int64 at worker 1, shape (2, 3) and dtype int64 at worker 0; "
        "array 'b' has no counterpart at worker 1, shape (6,) and dtype float64 at worker 0; "
        "array 'c' has shape (6,) and dtype float32 at worker 1, no counterpart at worker 0. Nothing was written"
    )
    assert both(shapes) == [("MismatchError", expected)] * 2

    def readonly(kv):
        array = np.zeros(3)
        array.flags.writeable = kv.rank == 0
        kv.broadcast([array])

    first, second = both(readonly)
    assert second == ("ValueError", "the array of shape (3,) to receive into is read-only")
    assert first == ("ValueError", f"worker 1: {second[1]}")
    assert (
        both(lambda kv: kv.broadcast_object(1, root=2))
        == [("ValueError", "root=2: a worker's rank is expected, 0 to 1")] * 2
    )
    assert both(lambda kv: kv.broadcast(np.zeros((3, 3))))[0][0] == "TypeError"


@pytest.mark.parametrize("length", [1, INLINE, 70_000])
def test_what_pickle_raises_reaches_every_worker(pair, length):
    text = "x" * length
    errors = [
        (ValueError(text), "ValueError", f"worker 1: {text}"),
        (fptps.ConfigError(text), "ConfigError", f"worker 1: {text}"),
        (FileNotFoundError(2, text, "/f"), "FileNotFoundError", f"[Errno 2] {text} (at worker 1): '/f'"),
        (ZeroDivisionError(text), "RemoteError", f"worker 1 raised ZeroDivisionError: {text}"),
    ]
    for error, kind, other in errors:
        calls = [
            lambda kv, error=error: kv.broadcast_object(Refuses(error) if kv.rank else None, root=1),
            lambda kv, error=error: kv.allgather_object(Refuses(error) if kv.rank else None),
        ]
        for call in calls:
            found = in_threads(*[lambda kv=kv, call=call: outcome(call, kv) for kv in pair])
            assert found == [(kind, other), (type(error).__name__, str(error))]
    assert in_threads(*[lambda kv=kv: kv.broadcast_object(kv.rank, root=1) for kv in pair]) == [1, 1]


def test_a_call_that_timed_out_goes_on(pair, monkeypatch):
    in_threads(*[lambda kv=kv: kv.allgather_object(None) for kv in pair])  # the first such call also declares tensors
    arrays = [content(kv.rank, 100_000) for kv in pair]
    monkeypatch.setattr(pair[0]._session, "timeout", 0.05)
    with pytest.raises(fptps.TimeoutError, match=r'broadcast\(\): waited 0.05 s: key "/calls" round'):
        pair[0].broadcast([arrays[0]], root=1)
    with pytest.raises(fptps.BusyError, match=r"broadcast\(\) of this worker has not ended: call it again"):
        pair[0].broadcast_object(1)
    monkeypatch.undo()
    in_threads(lambda: pair[0].broadcast([arrays[0]], root=1), lambda: pair[1].broadcast([arrays[1]], root=1))
    assert np.array_equal(arrays[0], content(1, 100_000))


def test_a_second_thread_is_refused(pair):
    begun = threading.Event()

    class Begins:
        def __reduce__(self):
            begun.set()
            return int, (5,)

    def second():
        begun.wait()
        with pytest.raises(fptps.BusyError):
            pair[0].broadcast([np.zeros(3)])
        return pair[1].broadcast_object(None)

    assert in_threads(lambda: pair[0].broadcast_object(Begins()), second)[1] == 5


def test_a_worker_that_is_lost(gate):
    def work(address):
        with fptps.KVWorker() as kv:
            kv.allgather_object(kv.rank)
            if kv.rank == 1:
                raise KeyError("no such worker")
            kv.broadcast_object(None, root=1)

    run_ = fptps.LocalCluster(2, 1).start(work, gate.address)
    with run_ as processes:
        first, second = processes.outcomes()
    assert isinstance(first.error, fptps.NodeLostError), first.error
    assert isinstance(second.error, KeyError)


def test_checkpoints_and_optimisers_do_not_see_the_tensors_of_collective_calls(tmp_path, alone):
    alone.broadcast_object(1)
    alone.init("w", np.zeros(3))
    alone.set_optimizer(fptps.optim.SGD(lr=1))
    alone.save(tmp_path / "file")
    alone.load(tmp_path / "file")
