"""Arrays whose axes lie in memory in another order than C's: their sums, and the errors for other layouts."""

import numpy as np
import pytest
from helpers import on_both

import fptps
from fptps import codec


def contiguous(rank):
    """A value of its own at every place and rank."""
    return np.arange(15.0).reshape(3, 5) + 100 * rank


def fortran(rank):
    return np.asfortranarray(contiguous(rank))


TOTAL = contiguous(0) + contiguous(1)


def test_sums_in_fortran_order(pair, key):
    other = f"other of {key}"

    def work(kv, rank):
        kv.init_all({key: fortran(rank), other: fortran(rank)})
        first = kv.pull(key).result()
        kv.push(key, fortran(rank)).result()
        out, in_place = np.empty((5, 3)).T, fortran(rank)
        kv.pull(key, out).result()
        kv.push_pull(other, in_place, out=in_place).result()
        new = kv.push_pull(other, fortran(rank)).result()
        many = kv.push_pull_all({other: fortran(rank)})[other].result()
        return first, kv.pull(key).result(), out, in_place, new, many

    for first, *sums in on_both(pair, work):
        np.testing.assert_array_equal(first, fortran(0))
        for found in sums:
            np.testing.assert_array_equal(found, TOTAL)
            assert found.flags.f_contiguous


def test_orders_of_workers_have_to_be_equal(pair, key):
    with pytest.raises(
        fptps.MismatchError,
        match=r"worker 0 has float64 of shape \(3, 5\), sync, axes in memory \(1, 0\); "
        r"worker 1 has float64 of shape \(3, 5\), sync, contiguous. Every worker has to pass the same shape, order",
    ):
        on_both(pair, lambda kv, rank: kv.init(key, contiguous(rank) if rank else fortran(rank)))


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda kv, key, a: kv.push(key, a), "pass a copy"),
        (lambda kv, key, a: kv.push_pull(key, a), "pass a copy"),
        (lambda kv, key, a: kv.push_pull_all({key: a}), "pass a copy"),
        (lambda kv, key, a: kv.push_pull(key, a, out=a), "receive into a new array, and copy from it"),
        (lambda kv, key, a: kv.push_pull(key, fortran(0), out=a), "receive into a new array, and copy from it"),
        (lambda kv, key, a: kv.pull(key, out=a), "receive into a new array, and copy from it"),
    ],
    ids=["push", "push_pull", "push_pull_all", "in place", "out", "pull"],
)
def test_another_order_than_that_of_init(alone, key, call, advice):
    alone.init(key, fortran(0))
    with pytest.raises(
        ValueError, match=rf"key {key}: the array is contiguous, init\(\)'s is in Fortran order: {advice}"
    ):
        call(alone, key, contiguous(0))


def test_tables_are_in_c_order(alone, key):
    with pytest.raises(ValueError, match="in Fortran order, and C order is expected"):
        alone.init_rows(key, fortran(0))
    alone.init_rows(key, contiguous(0))
    with pytest.raises(ValueError, match="in Fortran order, and C order is expected: pass a C-contiguous copy"):
        alone.push_rows(key, [0, 1, 2], fortran(0))
    with pytest.raises(ValueError, match="in Fortran order, and C order is expected: receive into a new array"):
        alone.pull_rows(key, [0, 1, 2], out=fortran(0))


def test_codes_are_of_c_order():
    values = fortran(0).astype(np.float32)
    assert values.flags.f_contiguous
    with pytest.raises(ValueError, match="C order is expected: pass a C-contiguous copy"):
        codec.Quantizer().encode(values, seed=1)
    codes = codec.Quantizer().encode(contiguous(0).astype(np.float32), seed=1)
    with pytest.raises(ValueError, match="C order is expected: receive into a new array"):
        codes.decode(values)


@pytest.mark.demo
class TestTorch:
    def test_channels_last_training_gives_the_right_sums(self, pair, key):
        """Parameters and gradients of a model in channels_last, on two workers that see other data."""
        torch = pytest.importorskip("torch")
        last = torch.channels_last

        def gradient(weight, rank):
            module = torch.nn.Conv2d(3, 4, 2, bias=False)
            module.weight.data = weight.detach().clone(memory_format=torch.contiguous_format)
            module = module.to(memory_format=last)
            images = torch.arange(96.0).reshape(2, 3, 4, 4).add(10 * rank).sin().to(memory_format=last)
            module(images).square().sum().backward()
            return module.weight.grad

        def work(kv, rank):
            weight = torch.nn.Parameter((torch.arange(48.0) + rank).reshape(4, 3, 2, 2).to(memory_format=last))
            kv.init(key, weight)
            kv.pull(key, out=weight).result()
            mine = gradient(weight, rank).to(memory_format=last)
            out = kv.push_pull(key, mine).result()
            summed = mine.clone()
            kv.push_pull(key, summed, out=summed).result()
            return weight, mine, out, summed

        (weight, *first), (other, *second) = on_both(pair, work)
        assert torch.equal(weight, torch.arange(48.0).reshape(4, 3, 2, 2))
        assert torch.equal(other, weight)
        assert not torch.equal(first[0], second[0])
        for found in (*first[1:], *second[1:]):
            assert found.is_contiguous(memory_format=last)
            assert torch.equal(found, first[0] + second[0])

    def test_channels_last_does_not_meet_contiguous(self, pair, key):
        torch = pytest.importorskip("torch")
        images = torch.arange(120.0).reshape(2, 3, 4, 5)
        with pytest.raises(
            fptps.MismatchError,
            match=r"worker 0 has float32 of shape \(2, 3, 4, 5\), sync, axes in memory \(0, 2, 3, 1\); "
            r"worker 1 has float32 of shape \(2, 3, 4, 5\), sync, contiguous",
        ):
            on_both(
                pair,
                lambda kv, rank: kv.init(key, images if rank else images.to(memory_format=torch.channels_last)),
            )
        on_both(pair, lambda kv, rank: kv.init(key, images.to(memory_format=torch.channels_last)))
        with pytest.raises(ValueError, match=r"the array is contiguous, init\(\)'s is channels_last: pass a copy"):
            pair[0].push(key, images)
