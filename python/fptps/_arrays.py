"""The place of an array in memory, and the type of its elements: the core gets nothing else of an array.

Taken as they are, without a copy: numpy arrays, PyTorch's CPU tensors, objects with the DLPack protocol (JAX and
others), objects with the buffer protocol (bytearray, array.array, memoryview), and fptps.codec.Codes. Their elements
have to fill one dense block of memory, with the axes in any order (C, Fortran, channels_last, permuted), and be in the
machine's byte order, at least one, and writable where something is written into them.
PyTorch is never imported from here: a tensor can only come from a program that has imported it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from ._autograd import imported_torch


class Place(NamedTuple):
    """The place of an array in memory. It is valid as long as keep is referred to."""

    dtype: int
    """Number of the element type, as in gocore/wire/dtype.go."""
    address: int
    nbytes: int
    keep: object
    """The owner of the memory, which may outlive the array."""
    shape: tuple[int, ...]
    order: tuple[int, ...]
    """The axes of more than one element, from the slowest in memory to the fastest; () is C order, whatever the shape.

    Two arrays have the same element in the same place exactly if both shape and order are equal."""


BFLOAT16: Final = 11
FLOAT32: Final = 12
TIMEDELTA64: Final = 18
BLOCK_TYPES: Final = 19
"""The first of the numbers of quantised tensors, one for each width from MIN_BITS on; see fptps.codec."""
MIN_BITS: Final = 2
NAMES: Final = {
    "bool": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "uint16": 7, "uint32": 8, "uint64": 9,
    "float16": 10, "bfloat16": BFLOAT16, "float32": FLOAT32, "float64": 13, "longdouble": 14, "complex64": 15,
    "complex128": 16, "clongdouble": 17, "timedelta64": TIMEDELTA64,
}  # fmt: skip
"""The numbers of the element types, by the core's names."""

_numbers: dict[np.dtype[Any], int] = {
    np.dtype(name): number for name, number in NAMES.items() if number not in (BFLOAT16, TIMEDELTA64)
}
Known = tuple[weakref.ref[Any], int, weakref.ref[Any]]
_addresses: dict[int, Known] = {}  # by id(array): the array, its address, and the array that owns the memory
_CPU_DEVICES: Final = (1, 3)  # of DLPack: CPU, and memory of the CPU that a GPU can reach


def locate(array: Any, write: bool) -> Place:
    """Returns the place of an array that the core will read, or write.

    Raises TypeError for other objects and for elements that cannot be summed, and ValueError for one that
    lies in memory in a way that cannot be used, or is read-only where it is written.
    """
    if type(array) is np.ndarray:
        return _locate_numpy(array, write)
    torch = imported_torch()
    if torch is not None and isinstance(array, torch.Tensor):
        return _locate_torch(array, write, torch)
    if hasattr(array, "fptps_place"):  # Codes
        place: Place = array.fptps_place(write)
        return place
    return _locate_numpy(_view(array), write)


def locate_contiguous(array: Any, write: bool) -> Place:
    """As locate(), where the elements are used as a list: ValueError for an array that is dense but not in C order."""
    place = locate(array, write)
    if place.order:
        advice = "receive into a new array, and copy from it" if write else "pass a C-contiguous copy"
        order = order_text(place.shape, place.order)
        raise ValueError(f"an array of shape {place.shape} is {order}, and C order is expected: {advice}")
    return place


def order_text(shape: tuple[int, ...], order: tuple[int, ...]) -> str:
    """How errors name the order of an array's axes in memory."""
    several = [axis for axis, size in enumerate(shape) if size > 1]
    if not order:
        return "contiguous"
    if len(shape) in (4, 5) and order == (*(axis for axis in several if axis != 1), 1):
        return "channels_last"
    if order == tuple(reversed(several)):
        return "in Fortran order"
    return f"in memory in the order {order} of its axes"


def maker(array: Any, shape: tuple[int, ...] | None = None) -> Callable[[], Any]:
    """A function that makes a new array like this one, which locate() takes: a tensor for a PyTorch tensor.

    Its dtype is this one's, and so are its shape and the order of its axes in memory, unless a shape is given.
    """
    torch = imported_torch()
    if torch is not None and isinstance(array, torch.Tensor):
        if shape is not None:
            return functools.partial(torch.empty, shape, dtype=array.dtype, device="cpu")
        return functools.partial(
            torch.empty_strided, tuple(array.shape), array.stride(), dtype=array.dtype, device="cpu"
        )
    if hasattr(array, "fptps_like"):  # Codes
        like: Callable[[], Any] = array.fptps_like
        return like
    view = array if isinstance(array, np.ndarray) else _view(array)
    if shape is not None:
        return functools.partial(np.empty, shape, view.dtype)
    shape, dtype, strides = view.shape, view.dtype, view.strides
    return lambda: np.ndarray(shape, dtype, strides=strides)


def number_of(dtype: np.dtype[Any]) -> int:
    """The core's number of a numpy dtype; TypeError for one that cannot be summed."""
    number = _numbers.get(dtype)
    if number is not None:
        return number
    if not dtype.isnative:
        raise TypeError(
            f"dtype {dtype.str!r} is not in this machine's byte order: pass array.astype(array.dtype.newbyteorder('='))"
        )
    if dtype.kind == "m":
        return TIMEDELTA64
    if dtype.name == "bfloat16" and dtype.itemsize == 2:  # ml_dtypes'
        _numbers[dtype] = BFLOAT16
        return BFLOAT16
    raise TypeError(f"dtype {str(dtype)!r} cannot be summed: one of {', '.join(NAMES)} is expected")


def _locate_numpy(array: np.ndarray[Any, Any], write: bool) -> Place:
    number = _numbers.get(array.dtype) or number_of(array.dtype)
    nbytes = array.nbytes
    flags = array.flags
    order = () if flags.c_contiguous else _order(array.shape, array.strides, array.itemsize)
    if order is None:
        advice = "receive into a new array, and copy from it" if write else "pass numpy.ascontiguousarray(array)"
        raise ValueError(
            f"an array of shape {array.shape} and strides {array.strides} is no dense block of memory: {advice}"
        )
    if write and not flags.writeable:
        raise ValueError(f"the array of shape {array.shape} to receive into is read-only")
    if nbytes == 0:
        raise ValueError(f"an array of shape {array.shape} has no elements: leave it out")
    # The address costs 1 us to ask for, so it is kept as long as the array lives. It does not change in between:
    # resize() refuses an array that has a weak reference, even without its refcheck. So the owner of the memory of a
    # view has one, too.
    known = _addresses.get(id(array))
    address = known[1] if known is not None and known[0]() is array else _remember(array)
    return Place(number, address, nbytes, array, array.shape, order)


@functools.lru_cache(maxsize=4096)
def _order(shape: tuple[int, ...], strides: tuple[int, ...], step: int) -> tuple[int, ...] | None:
    """Place.order of an array that is not C-contiguous; None if its elements do not fill one block of memory.

    step: the stride from an element to the next.
    """
    several = [axis for axis, size in enumerate(shape) if size > 1]
    order = sorted(several, key=lambda axis: -strides[axis])
    for axis in reversed(order):
        if strides[axis] != step:
            return None
        step *= shape[axis]
    return tuple(order)


def _remember(array: np.ndarray[Any, Any]) -> int:
    identity = id(array)
    address: int = array.ctypes.data
    forget = functools.partial(_forget, identity, _addresses)
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    _addresses[identity] = (weakref.ref(array, forget), address, weakref.ref(owner))
    return address


def _forget(identity: int, addresses: dict[int, Known], dead: weakref.ref[Any]) -> None:
    known = addresses.get(identity)
    if known is not None and known[0] is dead:
        del addresses[identity]


@functools.lru_cache(maxsize=1)
def _torch_numbers(torch: Any) -> dict[Any, int]:
    found = {getattr(torch, name, None): number for name, number in NAMES.items()}
    return {dtype: number for dtype, number in found.items() if isinstance(dtype, torch.dtype)}


def _locate_torch(tensor: Any, write: bool, torch: Any) -> Place:
    if not tensor.is_cpu:
        raise TypeError(f"a tensor on device {str(tensor.device)!r} is out of reach: pass tensor.cpu()")
    if tensor.layout is not torch.strided:
        raise TypeError(f"a tensor of layout {tensor.layout} cannot be summed: pass tensor.to_dense()")
    number = _torch_numbers(torch).get(tensor.dtype)
    if number is None:
        raise TypeError(f"dtype {tensor.dtype} cannot be summed: one of {', '.join(NAMES)} is expected")
    shape = tuple(tensor.shape)
    order = () if tensor.is_contiguous() else _order(shape, tensor.stride(), 1)
    if order is None:
        advice = "receive into a new tensor, then copy_() from it" if write else "pass tensor.contiguous()"
        raise ValueError(
            f"a tensor of shape {shape} and strides {tensor.stride()} is no dense block of memory: {advice}"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("a tensor whose conjugation or sign is pending: pass tensor.resolve_conj().resolve_neg()")
    if write and tensor.requires_grad and not tensor.is_leaf:
        raise ValueError("the tensor to receive into was computed, and autograd may need it: pass tensor.detach()")
    nbytes = tensor.nbytes
    if nbytes == 0:
        raise ValueError(f"a tensor of shape {shape} has no elements: leave it out")
    address = tensor.data_ptr()
    if address == 0:
        raise TypeError(f"a {type(tensor).__name__} has no memory of its own: pass the plain tensor that it stands for")
    # The tensor alone is not enough: `tensor.data = ...`, set_() and Module.half() give it another storage.
    return Place(number, address, nbytes, tensor.untyped_storage(), shape, order)


def _view(array: Any) -> np.ndarray[Any, Any]:
    """An array that is neither numpy's own nor PyTorch's, as a numpy array over the same memory."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("the mask of a masked array would be lost: pass array.filled(0)")
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, np.generic):
        raise TypeError(f"{array!r} is a value, not an array: pass numpy.asarray(value)")
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _from_dlpack(array)
    try:
        return np.asarray(memoryview(array))
    except TypeError:
        nothing = ". A worker that has nothing to push, such as no gradient, calls skip(key)" if array is None else ""
        raise TypeError(
            f"an object of type {type(array).__name__!r} is no array: pass a numpy array (numpy.asarray makes one), "
            f"a PyTorch tensor, or an object with the DLPack or the buffer protocol{nothing}"
        ) from None
    except (ValueError, NotImplementedError) as error:
        raise TypeError(f"the elements of this {type(array).__name__} cannot be summed: {error}") from None


def _from_dlpack(array: Any) -> np.ndarray[Any, Any]:
    device = int(array.__dlpack_device__()[0])
    if device not in _CPU_DEVICES:
        raise TypeError(
            f"this {type(array).__name__} is not in the CPU's memory (DLPack device {device}): pass a copy that is"
        )
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError) as error:
        raise TypeError(f"numpy cannot take this {type(array).__name__} through DLPack: {error}") from None
