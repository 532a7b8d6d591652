"""Quantised tensors: codes from Python, and their sums over a cluster. gocore/codec has the quantiser's own tests."""

import numpy as np
import pytest
from helpers import in_threads

import fptps
from fptps.codec import Codes, Quantizer

SIZES = [1, 504, 100_003]


def drawn(rank, count):
    return np.random.default_rng(rank).standard_normal(count).astype(np.float32)


@pytest.mark.parametrize("bits", range(2, 17))
def test_values_become_their_neighbours(bits):
    values = drawn(0, 5000)
    codes = Quantizer(bits, range=1.0).encode(values, seed=1)
    step = 1.0 / (2 ** (bits - 1) - 1)
    assert np.abs(codes.decode() - values.clip(-1, 1)).max() < 1.0001 * step
    assert codes.nbytes <= 512 * np.ceil(5000 / (504 * 8 // bits))


def test_the_seed_determines_the_codes():
    values = drawn(0, 5000)
    first, again, other = (Quantizer().encode(values, seed).blocks for seed in (-5, -5, 2**70))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: Quantizer(1).encode(drawn(0, 3), 0), ValueError, "bits=1: 2 to 16"),
        (lambda: Quantizer(17).encode(drawn(0, 3), 0), ValueError, "bits=17: 2 to 16"),
        (lambda: Quantizer(8, range=0.0).encode(drawn(0, 3), 0), ValueError, "range=0.0"),
        (lambda: Quantizer(8, range=float("nan")).encode(drawn(0, 3), 0), ValueError, "range=nan"),
        (lambda: Quantizer(8, range=-1.0).encode(drawn(0, 3), 0), ValueError, "range=-1.0"),
        (lambda: Quantizer(8, range=3.41e38).encode(drawn(0, 3), 0), ValueError, r"range=3.41e\+38"),
        (lambda: Quantizer(8).encode(np.ones(3), 0), TypeError, "float32"),
        (lambda: Quantizer(8).encode(drawn(0, 3), 0, out=Codes(8, 4)), ValueError, "do not fit"),
        (lambda: Quantizer(8).encode(drawn(0, 3), 0, out=Codes(4, 3)), ValueError, "of 8 bits do not fit into 3 of 4"),
        (lambda: Codes(8, 4).decode(np.ones(3, np.float32)), ValueError, "4 values do not fit into 3"),
        (lambda: Codes(8, 4).decode(np.ones(5, np.float32)), ValueError, "4 values do not fit into 5"),
    ],
)
def test_invalid_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("bits", [2, 5, 8, 16])
@pytest.mark.parametrize("range", [None, 2.0])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_a_sum_is_the_same_everywhere(pair, key, bits, count, range, op):
    def work(kv):
        codes = Quantizer(bits, range).encode(drawn(kv.rank, count), seed=kv.rank)
        mine = codes.decode()
        kv.init(key, codes)
        kv.push_pull(key, codes, out=codes, op=op).result()
        return mine, codes

    (mine, codes), (others, same) = in_threads(*[lambda kv=kv: work(kv) for kv in pair])
    assert np.array_equal(codes.blocks, same.blocks)
    total = mine + others
    limit = np.abs(total).max() if range is None else 2 * range
    scale = 1 if op == "sum" else 2
    assert np.abs(codes.decode() * scale - total).max() < 1.001 * limit / (2 ** (bits - 1) - 1)


@pytest.mark.parametrize("bits", [5, 8])
def test_a_skip_adds_nothing(pair, key, bits):
    first, second = pair
    codes = Quantizer(bits, range=1.0).encode(drawn(0, 1000), seed=0)
    mine = codes.decode()
    in_threads(lambda: first.init(key, codes), lambda: second.init(key, Codes(bits, 1000)))
    ticket = second.skip(key)
    first.push_pull(key, codes, out=codes).result()
    ticket.result()
    pulled = second.pull(key).result()
    assert np.abs(codes.decode() - mine).max() < 1e-6  # its own grid: nothing is rounded twice
    assert np.array_equal(pulled.blocks, codes.blocks)
    assert np.array_equal(pulled.decode(), codes.decode())


def test_another_width_is_refused_by_name(pair, key):
    def init(kv):
        with pytest.raises(fptps.MismatchError, match=r"quant8.*quant4|quant4.*quant8"):
            kv.init(key, Codes(8 if kv.rank else 4, 4000))

    in_threads(*[lambda kv=kv: init(kv) for kv in pair])
