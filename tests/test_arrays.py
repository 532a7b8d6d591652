"""fptps._arrays: where the elements of an array lie, and which objects are no such array."""

import array
import ctypes
import gc
import mmap
import weakref

import numpy as np
import pytest
from helpers import DTYPES, ml_dtypes

from fptps._arrays import NAMES, locate, locate_contiguous, maker, number_of, order_text


def content(place):
    """What lies where the core would look."""
    return ctypes.string_at(place.address, place.nbytes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy(dtype):
    a = np.arange(6).reshape(2, 3).astype(dtype)
    name = {"timedelta64[s]": "timedelta64", np.dtype("g").name: "longdouble", np.dtype("G").name: "clongdouble"}
    place = locate(a, write=True)
    assert place.dtype == NAMES[name.get(dtype.name, dtype.name)]
    assert place.nbytes == a.nbytes
    assert content(place) == a.tobytes()
    assert place == locate(a, write=False)


def test_numbers_are_those_of_the_core():
    assert sorted(NAMES.values()) == list(range(1, len(NAMES) + 1))
    assert len(DTYPES) >= len(NAMES) - (ml_dtypes is None)
    assert number_of(np.dtype("longlong")) == number_of(np.dtype("int64"))
    assert number_of(np.dtype("m8[ns]")) == number_of(np.dtype("m8[D]")) == NAMES["timedelta64"]


@pytest.mark.parametrize(
    "a",
    [
        np.array(3.5),
        np.zeros((1, 5, 1), np.int8)[:, ::1],
        np.arange(9, dtype=np.float32)[2:5],
        np.frombuffer(b"0123456789", np.uint16, 4, offset=1).copy(),
        np.arange(3).view(type("Subclass", (np.ndarray,), {})),
    ],
    ids=["0-d", "ones", "slice", "bytes", "subclass"],
)
def test_accepted_arrays(a):
    assert content(locate(a, write=True)) == a.tobytes()


def test_misaligned_memory_is_fine():
    a = np.frombuffer(bytearray(9), np.float32, 2, offset=1)
    assert not a.flags.aligned
    assert locate(a, write=True).nbytes == 8


def test_read_only_is_fine_to_read_only():
    a = np.arange(3.0)
    a.flags.writeable = False
    assert content(locate(a, write=False)) == a.tobytes()
    with pytest.raises(ValueError, match="read-only"):
        locate(a, write=True)
    with pytest.raises(ValueError, match="read-only"):
        locate(b"abc", write=True)


@pytest.mark.parametrize(
    ("a", "error", "text"),
    [
        (np.arange(6.0)[::2], ValueError, "no dense block"),
        (np.arange(6.0)[::-1], ValueError, "no dense block"),
        (np.ones((2, 3, 4)).transpose(2, 0, 1)[:, :, ::2], ValueError, "no dense block"),
        (np.broadcast_to(np.ones(1), (4,)), ValueError, "no dense block"),
        (np.zeros(0), ValueError, "no elements"),
        (np.zeros((3, 0, 2)), ValueError, "no elements"),
        (np.arange(3, dtype=np.dtype("int32").newbyteorder()), TypeError, "byte order"),
        (np.arange(3, dtype=np.dtype("m8[s]").newbyteorder()), TypeError, "byte order"),
        (np.array([1, None]), TypeError, "object"),
        (np.array(["a", "bc"]), TypeError, "U2"),
        (np.array([b"a"]), TypeError, "S1"),
        (np.zeros(2, "M8[s]"), TypeError, "datetime64"),
        (np.zeros(2, "i4,f4"), TypeError, "cannot be summed"),
        (np.zeros(2, "V2"), TypeError, "V2"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), TypeError, "mask"),
        (np.float32(1), TypeError, "numpy.asarray"),
        (1.5, TypeError, "numpy.asarray"),
        (None, TypeError, "numpy.asarray"),
        ([1.0, 2.0], TypeError, "'list' is no array"),
        ("text", TypeError, "'str' is no array"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(a, error, text):
    for write in (False, True):
        with pytest.raises(error, match=text):
            locate(a, write)


def test_other_ml_dtypes_are_refused():
    ml = pytest.importorskip("ml_dtypes")
    with pytest.raises(TypeError, match="float8_e5m2"):
        locate(np.zeros(2, ml.float8_e5m2), write=False)


@pytest.mark.parametrize(
    ("a", "dtype"),
    [
        (bytearray(b"abc"), "uint8"),
        (array.array("d", [1.0, 2.0]), "float64"),
        (memoryview(array.array("i", [1, 2, 3])), "int32"),
        (mmap.mmap(-1, 4096), "uint8"),
        ((ctypes.c_float * 3)(1, 2, 3), "float32"),
    ],
    ids=["bytearray", "array", "memoryview", "mmap", "ctypes"],
)
def test_buffer_protocol(a, dtype):
    place = locate(a, write=True)
    assert place.dtype == NAMES[dtype]
    assert content(place) == bytes(memoryview(a))
    assert maker(a)().dtype == dtype


def test_bytearray_cannot_move_in_flight():
    a = bytearray(b"abc")
    place = locate(a, write=True)
    with pytest.raises(BufferError):
        a.extend(b"d" * 10000)
    del place
    a.extend(b"d")


class Producer:
    """An object that has DLPack's protocol and nothing else."""

    def __init__(self, array, device=(1, 0)):
        self._array = array
        self._device = device

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)


def test_dlpack():
    a = np.arange(4, dtype=np.int16)
    place = locate(Producer(a), write=False)
    assert (place.dtype, place.address, place.nbytes) == (NAMES["int16"], a.ctypes.data, 8)
    assert maker(Producer(a))().shape == (4,)
    with pytest.raises(TypeError, match="device 2"):
        locate(Producer(a, (2, 0)), write=False)


def test_addresses_are_kept_for_one_array_only():
    for size in (100, 200, 300):
        # The memory, and the array object, of each step are very likely those of the one before.
        a = np.full(size, size, np.int32)
        assert content(locate(a, write=False)) == a.tobytes()
        assert content(locate(a, write=False)) == a.tobytes()
        del a
    a = np.zeros(10, np.uint8)
    locate(a, write=False)
    with pytest.raises(ValueError, match="cannot resize"):
        a.resize(1 << 20, refcheck=False)


def test_the_memory_of_a_view_cannot_move_either():
    owner = np.zeros(10, np.uint8)
    view = owner[2:5]
    locate(view, write=False)
    with pytest.raises(ValueError, match="cannot resize"):
        owner.resize(1 << 20, refcheck=False)


def test_nothing_is_kept_of_a_dead_array():
    from fptps import _arrays as arrays

    gc.collect()
    a = np.zeros(10)
    locate(a, write=False)
    known = len(arrays._addresses)
    del a
    assert len(arrays._addresses) == known - 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_maker(dtype):
    made = maker(np.zeros((2, 3), dtype))()
    assert type(made) is np.ndarray
    assert (made.shape, made.dtype) == ((2, 3), dtype)


CUBE = np.arange(24, dtype=np.int32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("a", "order", "text"),
    [
        (CUBE, (), "contiguous"),
        (CUBE[:1, :1].transpose(2, 1, 0), (), "contiguous"),
        (np.asfortranarray(CUBE), (2, 1, 0), "in Fortran order"),
        (CUBE.T, (2, 1, 0), "in Fortran order"),
        (CUBE.transpose(1, 2, 0), (2, 0, 1), "in memory in the order (2, 0, 1) of its axes"),
        (CUBE[1:].transpose(0, 2, 1), (2, 1), "in Fortran order"),
        (CUBE[None].transpose(0, 3, 1, 2), (2, 3, 1), "channels_last"),
    ],
    ids=["C", "axes of one", "Fortran", "T", "permuted", "axis of one", "channels_last"],
)
def test_dense_blocks_are_taken_in_any_order_of_axes(a, order, text):
    place = locate(a, write=True)
    assert (place.shape, place.order, order_text(place.shape, place.order)) == (a.shape, order, text)
    assert content(place) == a.ravel("K").tobytes()
    made = locate(maker(a)(), write=True)
    assert (made.dtype, made.shape, made.order) == (place.dtype, place.shape, place.order)


def test_where_only_c_order_makes_sense():
    assert locate_contiguous(CUBE, write=True) == locate(CUBE, write=True)
    for write, advice in ((False, "a C-contiguous copy"), (True, "into a new array, and copy from it")):
        with pytest.raises(ValueError, match=f"in Fortran order, and C order is expected: .*{advice}"):
            locate_contiguous(CUBE.T, write)


def test_made_arrays_keep_nothing_alive():
    a = np.ones((2, 3)).T
    make = maker(a)
    alive = weakref.ref(a)
    del a
    assert alive() is None
    assert make().strides == (8, 24)
