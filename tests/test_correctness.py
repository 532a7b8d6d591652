"""Sums against numpy: every dtype, thousands of tensors, every form of a cluster. All values are whole numbers, other
ones on every rank, so that a sum has one right value, bit for bit."""

import numpy as np
import pytest
from helpers import DTYPES, MEANS, total, values

import fptps

SIZES = (1, 3, 64, 8191, 16385, 40_000)
"""Elements: one, odd, and around one packet of 16 KB and several."""


def same(got, expected):
    """Whether two arrays are equal, bit for bit. A long double has 6 bytes that mean nothing."""
    if expected.dtype.char in "gG":
        return got.dtype == expected.dtype and np.array_equal(got, expected)
    return got.dtype == expected.dtype and got.tobytes() == expected.tobytes()


def every_dtype():
    """In a worker: all dtypes in all sizes, by push and pull, in place, as a mean, and with a rank that skips."""
    with fptps.KVWorker() as kv:
        n, rank = kv.num_workers, kv.rank
        tensors = list(enumerate((dtype, size) for dtype in DTYPES for size in SIZES))
        kv.set_tensor_count(len(tensors))
        for key, (dtype, size) in tensors:
            kv.init(key, values(rank, size, dtype))
        wrong = [t for key, t in tensors if not same(kv.pull(key).result(), values(0, t[1], t[0]))]

        def check(step, results, expected):
            for key, (dtype, size) in tensors:
                if not same(results[key].result(), expected(dtype, size)):
                    wrong.append((step, dtype, size))

        for salt in range(2):
            for key, (dtype, size) in tensors:
                kv.push(key, values(rank, size, dtype, salt), priority=-key)
            results = {key: kv.pull(key) for key, _ in tensors}
            check("push", results, lambda dtype, size, salt=salt: total(n, size, dtype, salt))

        arrays = {key: values(rank, size, dtype, 2) for key, (dtype, size) in tensors}
        results = {key: kv.push_pull(key, a, out=a, priority=key) for key, a in arrays.items()}
        check("push_pull", results, lambda dtype, size: total(n, size, dtype, 2))

        results = {}
        for key, (dtype, size) in tensors:
            op = "mean" if dtype in MEANS else "sum"
            results[key] = kv.push_pull(key, values(rank, size, dtype, 3), op=op)
        check("mean", results, lambda dtype, size: mean(total(n, size, dtype, 3), n if dtype in MEANS else None))

        for key, (dtype, size) in tensors:
            if rank == n - 1:
                kv.skip(key)
            else:
                kv.push(key, values(rank, size, dtype, 4))
        results = {key: kv.pull(key) for key, _ in tensors}
        check("skip", results, lambda dtype, size: total(n - 1, size, dtype, 4) if n > 1 else np.zeros(size, dtype))
        return wrong, kv.stats()


def mean(sum_, count):
    """The mean, in the dtype of the sum; 16-bit floats are divided in float32. The sum where there is no mean."""
    if count is None:
        return sum_
    if sum_.dtype.kind == "c":
        return (sum_.view(sum_.real.dtype) / sum_.real.dtype.type(count)).view(sum_.dtype)
    wide = np.dtype(np.float32) if sum_.dtype.itemsize == 2 else sum_.dtype
    return (sum_.astype(wide) / wide.type(count)).astype(sum_.dtype)


CLUSTERS = {
    "1x1": (1, 1, {}),
    "2x1": (2, 1, {}),
    "2x0": (2, 0, {}),
    "3x2": (3, 2, {}),
    "3x2_shares_on_workers_too": (3, 2, {"FPTPS_SHARE": "1"}),
    "2x2_fast_links": (2, 2, {"FPTPS_LINK_RATE": "40gbit"}),
}


@pytest.mark.usefixtures("van")
@pytest.mark.parametrize(("workers", "servers", "environment"), CLUSTERS.values(), ids=CLUSTERS)
def test_every_dtype(workers, servers, environment):
    results = fptps.LocalCluster(workers, servers, timeout=100, environment=environment).run(every_dtype)
    assert [wrong for wrong, _ in results] == [[]] * workers
    for _, stats in results:
        assert stats.lanes == (3 if environment.get("FPTPS_LINK_RATE") else 1)
        assert stats.bytes_pushed > 0
        assert stats.bytes_pulled > 0


def test_every_dtype_alone():
    wrong, _ = every_dtype()
    assert wrong == []


def sixteen_bits():
    """In a worker: 1 + 2 * 2**-11 is 1 if each addition is rounded to float16, and more if the sum is in float32."""
    with fptps.KVWorker() as kv:
        sums = []
        for key, dtype in enumerate(dtype for dtype in DTYPES if dtype.itemsize == 2 and dtype.kind in "fV"):
            least = np.float32(2.0**-11 if dtype.kind == "f" else 2.0**-8)
            a = np.full(5, 1 if kv.rank == 0 else least).astype(dtype)
            kv.init(key, a)
            sums.append((float(kv.push_pull(key, a).result()[0]), float(1 + 2 * least)))
        return sums


def test_16_bit_floats_are_summed_in_float32():
    for sums in fptps.LocalCluster(3, 1).run(sixteen_bits):
        assert len(sums) >= 1
        for got, expected in sums:
            assert got == expected > 1


def many_tensors(count, rounds):
    """In a worker: tensors from 1 byte to 1 MB, most of them small, in an order of each worker's own."""
    with fptps.KVWorker() as kv:
        n, rank = kv.num_workers, kv.rank
        random = np.random.default_rng(7)
        sizes = np.exp(random.uniform(0, np.log(1 << 20), count) * random.uniform(0.3, 1, count)).astype(int)
        sizes[:3] = 1, 2, 1 << 20
        kv.init_all({key: np.zeros(sizes[key], np.uint8) for key in range(count)})
        order = np.random.default_rng(rank)
        wrong = 0
        for step in range(rounds):
            arrays = {int(key): values(rank, sizes[key], np.dtype(np.uint8), step) for key in order.permutation(count)}
            tickets = {key: kv.push_pull(key, a, out=a, priority=-key) for key, a in arrays.items()}
            for key, ticket in tickets.items():
                wrong += not same(ticket.result(), total(n, sizes[key], np.dtype(np.uint8), step))
        return wrong, int(sizes.sum())


@pytest.mark.usefixtures("van")
@pytest.mark.parametrize(("workers", "servers", "count", "rounds"), [(2, 1, 3000, 2), (8, 4, 200, 2)])
def test_many_tensors(workers, servers, count, rounds):
    results = fptps.LocalCluster(workers, servers, timeout=100).run(many_tensors, count, rounds)
    assert [wrong for wrong, _ in results] == [0] * workers


def large_tensor(size):
    """In a worker: one tensor of size bytes, while small ones pass by."""
    with fptps.KVWorker() as kv:
        count = size // 4
        a = np.arange(count, dtype=np.int32)
        a += kv.rank
        kv.init(0, a)
        kv.init(1, np.zeros(3, np.int32))
        pulled = kv.pull(0).result()
        right = np.array_equal(pulled, np.arange(count, dtype=np.int32))
        large = kv.push_pull(0, a, out=pulled)
        small = [kv.push_pull(1, np.full(3, step, np.int32), priority=1).result()[0] for step in range(10)]
        large.result()
        expected = np.arange(count, dtype=np.int32) * kv.num_workers + sum(range(kv.num_workers))
        return right and np.array_equal(pulled, expected), small


@pytest.mark.usefixtures("van")
def test_tensor_of_256_mb():
    results = fptps.LocalCluster(2, 1, timeout=110).run(large_tensor, 256 << 20)
    assert [right for right, _ in results] == [True, True]
    assert [small for _, small in results] == [[2 * step for step in range(10)]] * 2
