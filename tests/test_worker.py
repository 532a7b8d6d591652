"""fptps.KVWorker: the operations on tensors, and the arguments that they refuse."""

import dataclasses
import json
import math

import numpy as np
import pytest
from helpers import CALLS, MEANS, on_both, total, values

import fptps


def test_rank_and_numbers(pair):
    assert [kv.rank for kv in pair] == [0, 1]
    assert {kv.num_workers for kv in pair} == {2}
    assert {kv.num_servers for kv in pair} == {0}
    assert repr(pair[1]) == "<fptps.KVWorker 1 of 2>"


def test_init_gives_rank_0s_values(pair, key):
    arrays = [np.arange(6.0).reshape(2, 3) + 100 * rank for rank in range(2)]
    on_both(pair, lambda kv, rank: kv.init(key, arrays[rank]))
    for kv in pair:
        got = kv.pull(key).result()
        assert type(got) is np.ndarray
        assert (got.shape, got.dtype) == ((2, 3), np.float64)
        assert got.tolist() == arrays[0].tolist()
    assert arrays[1][0, 0] == 100  # written nowhere


def test_declare_all_gives_zeros_and_sends_nothing(pair, key):
    before = [kv.stats().bytes_sent for kv in pair]

    def declare(kv, rank):
        kv.declare_all({key: np.full(100_000, rank + 7.0)})
        sent = kv.stats().bytes_sent
        kv.barrier()  # no pull asks this worker before
        value = kv.pull(key).result()
        sum_ = kv.push_pull(key, np.full(100_000, rank + 1.0)).result()
        return sent, value, sum_

    for was, (sent, value, sum_) in zip(before, on_both(pair, declare)):
        assert sent - was < 100_000  # of 800,000
        assert (value == 0).all()
        assert (sum_ == 3).all()


def test_push_and_pull(pair, key):
    dtype = np.dtype(np.int32)
    on_both(pair, lambda kv, rank: kv.init(key, values(rank, 1000, dtype)))
    for salt in range(3):

        def step(kv, rank, salt=salt):
            kv.push(key, values(rank, 1000, dtype, salt), priority=-salt).result()
            out = np.zeros(1000, dtype)
            assert kv.pull(key, out).result() is out
            return out, kv.pull(key).result()

        for pulled in on_both(pair, step):
            for out in pulled:
                assert np.array_equal(out, total(2, 1000, dtype, salt))


def test_pull_into_the_array_that_is_being_pushed(pair, key):
    dtype = np.dtype(np.float32)

    def step(kv, rank):
        kv.init(key, values(rank, 10**5, dtype))
        a = values(rank, 10**5, dtype, 1)
        kv.push(key, a)
        return kv.pull(key, out=a).result()

    for out in on_both(pair, step):
        assert np.array_equal(out, total(2, 10**5, dtype, 1))


def test_push_pull(pair, key):
    dtype = np.dtype(np.float32)
    on_both(pair, lambda kv, rank: kv.init(key, values(rank, 77, dtype)))

    def in_place(kv, rank):
        a = values(rank, 77, dtype)
        assert kv.push_pull(key, a, out=a).result() is a
        return a

    def into_another(kv, rank):
        out = np.zeros(77, dtype)
        kv.push_pull(key, values(rank, 77, dtype), out=out).result()
        return out.ravel()

    def into_a_new_one(kv, rank):
        return kv.push_pull(key, values(rank, 77, dtype)).result()

    for way in (in_place, into_another, into_a_new_one):
        for out in on_both(pair, way):
            assert np.array_equal(out.ravel(), total(2, 77, dtype))
    assert out.shape == (77,)


@pytest.mark.parametrize("dtype", MEANS, ids=str)
def test_mean(pair, key, dtype):
    on_both(pair, lambda kv, rank: kv.init(key, values(rank, 50, dtype)))
    for out in on_both(pair, lambda kv, rank: kv.push_pull(key, values(rank, 50, dtype), op="mean").result()):
        assert np.array_equal(out, (total(2, 50, dtype) / 2).astype(dtype))


def test_skip(pair, key):
    a = np.arange(1.0, 5.0)

    def step(kv, rank):
        kv.init(key, a)
        (kv.push(key, a) if rank == 0 else kv.skip(key)).result()
        pulled = kv.pull(key).result()
        mean = (kv.push_pull(key, a, op="mean") if rank == 0 else kv.skip(key)).result()
        return pulled, mean

    (first, mean), (second, nothing) = on_both(pair, step)
    assert first.tolist() == second.tolist() == a.tolist()
    assert mean.tolist() == (a / 2).tolist()
    assert nothing is None


def test_barrier(pair):
    on_both(pair, lambda kv, rank: kv.barrier())
    on_both(pair, lambda kv, rank: kv.barrier(timeout=math.inf))


def test_barrier_that_times_out(pair):
    with pytest.raises(fptps.TimeoutError, match="barrier"):
        pair[0].barrier(timeout=0.2)
    on_both(pair, lambda kv, rank: kv.barrier())  # the call that timed out does not count


def test_kinds_of_keys(alone):
    for key in (0, 2**63 - 1, np.int64(5), np.uint8(6)):
        alone.init(key, np.ones(2))
        assert alone.pull(int(key)).result().tolist() == [1, 1]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("key", "error"), [(-1, ValueError), (2**63, ValueError), (1.0, TypeError), ("", ValueError), (None, TypeError)]
)
def test_invalid_keys(alone, call, key, error):
    with pytest.raises(error):
        call(alone, key, np.ones(2))


@pytest.mark.parametrize("name", [name for name in CALLS if name != "init"])
def test_key_without_init(alone, name):
    with pytest.raises(KeyError, match="key 7"):
        CALLS[name](alone, 7, np.ones(2))


@pytest.mark.parametrize("name", ["push", "pull", "push_pull"])
def test_array_that_is_not_like_inits(alone, name):
    alone.init(3, np.ones(4, np.float32))
    with pytest.raises(ValueError, match=r"key 3 has shape \(4,\), the array has \(5,\)"):
        CALLS[name](alone, 3, np.ones(5, np.float32))
    with pytest.raises(TypeError, match=r"key 3.*(int32.*float32|float32.*int32)"):
        CALLS[name](alone, 3, np.ones(4, np.int32))


@pytest.mark.parametrize("name", ["push", "push_pull"])
def test_push_of_none(alone, name):
    alone.init(0, np.ones(4))
    with pytest.raises(TypeError, match=r"'NoneType' is no array.*skip\(key\)"):
        getattr(alone, name)(0, None)


def test_init_twice(alone):
    alone.init(0, np.ones(4))
    with pytest.raises(ValueError, match="key 0"):
        alone.init(0, np.ones(4))


@pytest.mark.parametrize("name", ["push", "push_pull"])
@pytest.mark.parametrize(("priority", "error"), [(2**31, ValueError), (-(2**31) - 1, ValueError), (0.5, TypeError)])
def test_invalid_priorities(alone, name, priority, error):
    alone.init(0, np.ones(2))
    with pytest.raises(error):
        getattr(alone, name)(0, np.ones(2), priority=priority)


def test_push_pull_refuses(alone):
    alone.init(0, np.ones(4))
    a = np.ones(4)
    read_only = np.ones(4)
    read_only.flags.writeable = False
    for out, error, text in (
        (np.ones(5), ValueError, r"has shape \(4,\), the array has \(5,\)"),
        (np.ones(4, np.int64), TypeError, "differ in dtype"),
        (np.ones(8)[::2], ValueError, "no dense block"),
        (read_only, ValueError, "read-only"),
    ):
        with pytest.raises(error, match=text):
            alone.push_pull(0, a, out=out)
    with pytest.raises(ValueError, match="op='max'"):
        alone.push_pull(0, a, op="max")
    alone.init(1, np.ones(4, np.int32))
    with pytest.raises(TypeError, match="int32"):
        alone.push_pull(1, np.ones(4, np.int32), op="mean")
    assert alone.push_pull(0, read_only).result().tolist() == [1] * 4  # an array that is only read may be read-only


def test_sum_of_push_pull_is_not_kept(alone):
    alone.init(0, np.ones(4))
    alone.push_pull(0, np.ones(4)).result()
    with pytest.raises(ValueError, match="key 0"):
        alone.pull(0)
    alone.push(0, np.full(4, 2.0))
    assert alone.pull(0).result().tolist() == [2.0] * 4


def test_array_in_flight_cannot_be_used_again(pair, key):
    one, two = pair
    memory = np.ones(100)
    others = [10**6 + key, 2 * 10**6 + key]
    for each, size in ((key, 50), (others[0], 50), (others[1], 10)):
        on_both(pair, lambda kv, rank, each=each, size=size: kv.init(each, np.ones(size)))
    ticket = one.push(key, memory[:50])
    for busy in (memory[:50], memory[25:75], memory[49:99]):
        with pytest.raises(fptps.BusyError) as raised:
            one.push_pull(others[0], busy)
        assert raised.value.key == others[0]
    with pytest.raises(fptps.BusyError):
        one.pull(others[1], memory[10:20])
    fine = one.push(others[0], memory[50:])
    for each in (key, others[0]):
        two.push(each, np.ones(50))
    ticket.result()
    fine.result()
    on_both(pair, lambda kv, rank: kv.push(key, memory[:50] if rank == 0 else np.ones(50)).result())


def test_torch_tensors(pair, key):
    torch = pytest.importorskip("torch")

    def step(kv, rank):
        start = torch.nn.Parameter(torch.full((3, 2), 5.0, dtype=torch.bfloat16))
        kv.init(key, start)
        pulled = kv.pull(key).result()
        gradient = torch.full((3, 2), rank + 1.0, dtype=torch.bfloat16)
        new = kv.push_pull(key, gradient).result()
        kv.push_pull(key, gradient, out=start).result()
        return pulled, new, start

    for pulled, new, start in on_both(pair, step):
        for tensor, value in ((pulled, 5.0), (new, 3.0), (start.detach(), 3.0)):
            assert torch.equal(tensor, torch.full((3, 2), value, dtype=torch.bfloat16))


def test_buffers(alone):
    alone.init(0, bytearray(b"\1\2\3"))
    out = bytearray(3)
    assert alone.push_pull(0, b"\4\5\6", out=out).result() is out
    assert out == b"\4\5\6"


def test_set_tensor_count(alone):
    alone.set_tensor_count(3)
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError)):
        with pytest.raises(error):
            alone.set_tensor_count(wrong)


def test_stats(pair, key):
    before = pair[0].stats()
    on_both(pair, lambda kv, rank: kv.init(key, np.ones(1000)))
    on_both(pair, lambda kv, rank: kv.push_pull(key, np.ones(1000)).result())
    after = pair[0].stats()
    assert after.bytes_pushed - before.bytes_pushed >= 8000
    assert after.bytes_pulled - before.bytes_pulled >= 8000
    assert after.wait_s >= before.wait_s
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.rounds = 0


def test_stats_have_every_counter_of_the_core(pair, alone):
    for kv in (pair[0], alone):
        counters = json.loads(kv._session.core.stats(kv._session.usable()))
        assert {field.name for field in dataclasses.fields(fptps.Stats)} == {*counters, "wait_s"}


def test_shapes_have_to_be_equal(pair, key):
    """(10, 3) does not meet (3, 10): at init, in a push, and where the sum goes."""
    for kv_init in ("init", "init_rows"):
        with pytest.raises(
            fptps.MismatchError,
            match=r"worker 0 has float64 of shape \(3, 10\).*worker 1 has float64 of shape \(10, 3\)",
        ):
            on_both(pair, lambda kv, rank, init=kv_init: getattr(kv, init)(key, np.zeros((10, 3) if rank else (3, 10))))
    on_both(pair, lambda kv, rank: kv.init(key, np.zeros((3, 10))))
    wrong = np.zeros((10, 3))
    right = np.zeros((3, 10))
    for call in (
        lambda kv: kv.push(key, wrong),
        lambda kv: kv.pull(key, out=wrong),
        lambda kv: kv.push_pull(key, wrong),
        lambda kv: kv.push_pull(key, right, out=wrong),
        lambda kv: kv.push_pull_all({key: wrong}),
    ):
        with pytest.raises(ValueError, match=r"has shape \(3, 10\), the array has \(10, 3\)"):
            call(pair[0])


def test_init_that_timed_out_can_be_repeated(pair, key):
    one, two = pair
    one._session.timeout = 0.05
    try:
        with pytest.raises(fptps.TimeoutError, match=f"key {key} waits until every worker has declared it") as raised:
            one.init(key, np.full(3, 5.0))
        assert raised.value.key == key
    finally:
        one._session.timeout = 60.0
    with pytest.raises(ValueError, match="an init of another shape"):
        one.init(key, np.full(4, 5.0))
    on_both(pair, lambda kv, rank: kv.init(key, np.full(3, 6.0)))
    assert one.pull(key).result().tolist() == two.pull(key).result().tolist() == [5.0] * 3
    with pytest.raises(ValueError, match="is initialised already"):
        one.init(key, np.full(3, 5.0))


def test_names_and_namespaces_never_meet(pair, key):
    """The same key in every namespace, as a number and as a name: a tensor of its own each."""
    root = f"test{key}"

    def work(kv, rank):
        outer = kv.namespace(root)
        users = [outer, outer.namespace("a"), outer.namespace("a").namespace("b"), kv.namespace(root + "2")]
        for at, user in enumerate(users):
            user.init_all({7: np.full(2, 10.0 * at), "7": np.full(3, 10.0 * at + 1)})
        sums = [
            fptps.wait(user.push_pull_all({7: np.ones(2) * at, "7": np.ones(3) * rank}).values())
            for at, user in enumerate(users)
        ]
        with pytest.raises(KeyError, match=f'key "{root}/a/none" was never initialised'):
            users[1].push("none", np.ones(3))
        with pytest.raises(TypeError, match=f"key \"{root}/a/'7'\" holds float64, the array is float32"):
            users[1].push("7", np.ones(3, np.float32))
        return [(a.tolist(), b.tolist()) for a, b in sums]

    for sums in on_both(pair, work):
        assert sums == [([2.0 * at] * 2, [1.0] * 3) for at in range(4)]


def test_push_pull_all_is_all_or_nothing(alone):
    alone.init_all({"a": np.zeros(3), "b": np.zeros(3)})
    a = np.ones(3)
    with pytest.raises(fptps.BusyError):
        alone.push_pull_all({"a": a, "b": a}, out={"a": a, "b": a})
    out = np.zeros(3)
    tickets = alone.push_pull_all({"a": a, "b": np.full(3, 2.0)}, out={"b": out})
    assert [sum_.tolist() for sum_ in fptps.wait(tickets.values())] == [[1.0] * 3, [2.0] * 3]
    assert tickets["b"].result() is out
    assert alone.stats().rounds == 4  # two inits, two pushes
