"""Keys, values and lens as arrays that the core can read and fill."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from .._arrays import BFLOAT16, NAMES, TIMEDELTA64, Place, locate_contiguous, number_of

Array = np.ndarray[Any, Any]
_names = {number: name for name, number in NAMES.items()}


def keys_of(keys: Any) -> Array:
    """The keys as uint64; TypeError or ValueError for invalid ones."""
    if type(keys) is np.ndarray and keys.dtype == np.uint64 and keys.ndim == 1 and keys.flags.c_contiguous:
        return keys
    if isinstance(keys, (list, tuple, range)):  # numpy would make floats of ints from 2**63 on
        whole = [operator.index(key) for key in keys]
        if whole and not 0 <= min(whole) <= max(whole) < 2**64:
            raise ValueError(f"keys from {min(whole)} to {max(whole)}: from 0 to 2**64 - 2 are expected")
        return np.array(whole, np.uint64)
    array = np.asarray(keys)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"keys of dtype {array.dtype}: whole numbers are expected")
    if array.size and array.dtype.kind == "i" and array.min() < 0:
        raise ValueError(f"key {array.min()}: a key is 0 or more")
    return np.ascontiguousarray(array.reshape(-1), np.uint64)


def lens_of(lens: Any) -> Array:
    """The lens as int32."""
    array = np.asarray(lens)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"lens of dtype {array.dtype}: whole numbers are expected")
    return np.ascontiguousarray(array.reshape(-1), np.int32)


def values_of(vals: Any, dtype: np.dtype[Any]) -> Place:
    """The place of the values in memory; a list of numbers becomes an array of the dtype first."""
    if isinstance(vals, (list, tuple)):
        vals = np.array(vals, dtype)
    place = locate_contiguous(vals, write=False)
    check_dtype(place.dtype, dtype, "the values")
    return place


def check_dtype(number: int, dtype: np.dtype[Any], what: str) -> None:
    """TypeError unless the core's number of an element type is that of the dtype."""
    if number != number_of(dtype):
        raise TypeError(f"{what} are of dtype {_names.get(number, number)}, and this KVWorker's of {dtype}")


@functools.cache
def dtype_of(number: int) -> np.dtype[Any]:
    """The numpy dtype of the core's number."""
    if number == BFLOAT16:
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype("m8" if number == TIMEDELTA64 else _names[number])


def address(array: Array | None) -> int:
    """The address of an array; 0 for None and for an empty array."""
    if array is None or not array.size:
        return 0
    place: int = array.__array_interface__["data"][0]  # less than half of what array.ctypes costs
    return place
