"""KVWorker(deterministic=True): every sum has the same bits in every run, whatever the cluster and the timing."""

import hashlib
import os

import numpy as np
import pytest
from helpers import ml_dtypes

import fptps
from fptps.codec import Quantizer

COUNT, ROUNDS, ROWS = 40_000, 4, 300
DTYPES = [np.dtype(np.float32), np.dtype(np.float16)]
if ml_dtypes:
    DTYPES.append(np.dtype(ml_dtypes.bfloat16))


def gradient(rank, key, step, dtype=np.float32, shape=COUNT):
    """Values of several magnitudes, some of which cancel out: their sum depends on the order."""
    rng = np.random.default_rng([rank, key, step])
    values = rng.standard_normal(shape) * np.exp(rng.uniform(-6, 2, shape))
    return np.where(rng.random(shape) < 0.3, np.sign(values) * 2.0**14, values).astype(dtype)


def sum_by_rank(workers, key, step, dtype):
    """numpy's sum in the order of ranks, 16-bit floats in float32."""
    sum_ = gradient(0, key, step, dtype).astype(np.float32)
    for rank in range(1, workers):
        sum_ += gradient(rank, key, step, dtype).astype(np.float32)
    return sum_.astype(dtype)


def train(run):
    """In a worker: rounds of dense tensors, codes, weights and rows, in an order of each run's and worker's own.

    Returns the sums that are not those in the order of ranks, and a hash of all other results.
    """
    codes, weights, table = (len(DTYPES) + i for i in range(3))
    with fptps.KVWorker() as kv:
        rank, n = kv.rank, kv.num_workers
        assert kv.deterministic
        for key, dtype in enumerate(DTYPES):
            kv.init(key, np.zeros(COUNT, dtype))
        kv.init(codes, Quantizer(4).encode(gradient(0, codes, 0), seed=0))
        kv.init(weights, gradient(0, weights, 0))
        kv.init_rows(table, gradient(0, table, 0, shape=(ROWS, 7)))
        kv.set_optimizer(fptps.optim.Adam(), [weights, table])
        order = np.random.default_rng([run, rank])
        wrong, digest = set(), hashlib.sha256()
        for step in range(1, ROUNDS + 1):
            tickets = {}
            for key in order.permutation(table + 1).tolist():
                if key == table:
                    rows = np.random.default_rng([rank, step]).integers(0, ROWS, 90)
                    tickets[key] = kv.push_rows(key, rows, gradient(rank, key, step, shape=(90, 7)))
                elif key == codes:
                    pushed = Quantizer(4).encode(gradient(rank, key, step), seed=8 * step + rank)
                    tickets[key] = kv.push_pull(key, pushed, out=pushed)
                elif key == weights and rank == step % n:
                    kv.skip(key)
                    tickets[key] = kv.pull(key)
                else:
                    dtype = DTYPES[key] if key < len(DTYPES) else np.float32
                    tickets[key] = kv.push_pull(key, gradient(rank, key, step, dtype))
            results = {key: ticket.result() for key, ticket in tickets.items()}
            for key, dtype in enumerate(DTYPES):
                if results[key].tobytes() != sum_by_rank(n, key, step, dtype).tobytes():
                    wrong.add((step, str(dtype)))
            digest.update(results[codes].blocks.tobytes())
            digest.update(results[weights].tobytes())
            digest.update(kv.pull_rows(table, np.arange(ROWS)).result().tobytes())
        return sorted(wrong), digest.hexdigest()


@pytest.mark.timeout(200)
def test_the_same_bits_in_every_cluster():
    hashes = set()
    for run, (servers, van) in enumerate((servers, van) for servers in (0, 1, 2) for van in ("tcp", "shm")):
        environment = {"FPTPS_VAN": van, "FPTPS_DETERMINISTIC": "1"}
        results = fptps.LocalCluster(3, servers, timeout=60, environment=environment).run(train, run)
        assert [wrong for wrong, _ in results] == [[]] * 3, (servers, van)
        hashes.update(hash_ for _, hash_ in results)
    assert len(hashes) == 1


def disagree():
    """In a worker: only rank 0 is deterministic."""
    with fptps.KVWorker(deterministic=os.environ["DMLC_WORKER_ID"] == "0") as kv:
        try:
            kv.init(0, np.zeros(3, np.float32))
        except fptps.MismatchError as error:
            return str(error)


def test_only_some_workers():
    for text in fptps.LocalCluster(2, 0).run(disagree):
        assert "worker 0 has float32 of shape (3,), sync and deterministic; worker 1 has" in text
        assert "the same deterministic= or FPTPS_DETERMINISTIC" in text


@pytest.mark.parametrize(("consistency", "name"), [("async", "async"), (fptps.Bounded(2), "bounded:2")])
def test_consistencies_that_apply_pushes_on_arrival(consistency, name):
    with fptps.KVWorker(num_workers=1, deterministic=True) as kv:
        with pytest.raises(ValueError, match=f"key 3: consistency {name} .* FPTPS_DETERMINISTIC"):
            kv.init(3, np.zeros(3, np.float32), consistency=consistency)
        with pytest.raises(ValueError, match=f"key 4: consistency {name}"):
            kv.init_rows(4, np.zeros((3, 2), np.float32), consistency=consistency)
        kv.init(3, np.zeros(3, np.float32))


@pytest.mark.parametrize("saver", [False, True])
def test_checkpoints_are_the_same(tmp_path, saver):
    """A training may go on with the other setting."""
    path = tmp_path / "checkpoint.safetensors"
    for deterministic in (saver, not saver):
        with fptps.KVWorker(num_workers=1, deterministic=deterministic) as kv:
            kv.init(0, np.zeros(3, np.float32))
            kv.set_optimizer(fptps.optim.SGD(lr=0.5))
            if deterministic == saver:
                kv.push(0, np.ones(3, np.float32)).result()
                kv.save(path)
            else:
                kv.load(path)
            assert kv.pull(0).result().tolist() == [-0.5] * 3


@pytest.mark.parametrize(
    ("environment", "argument", "expected"),
    [("1", None, True), ("1", False, False), ("", True, True), ("", None, False)],
)
def test_the_argument_overrides_the_environment(monkeypatch, environment, argument, expected):
    monkeypatch.setenv("FPTPS_DETERMINISTIC", environment)
    with fptps.KVWorker(num_workers=1, deterministic=argument) as kv:
        assert kv.deterministic is expected


def test_invalid_values(monkeypatch):
    with pytest.raises(TypeError, match="deterministic=1: True, False or None is expected"):
        fptps.KVWorker(num_workers=1, deterministic=1)
    monkeypatch.setenv("FPTPS_DETERMINISTIC", "yes")
    with pytest.raises(fptps.ConfigError, match="FPTPS_DETERMINISTIC=yes: 0 or 1 is expected"):
        fptps.KVWorker(num_workers=1)
