"""The arguments of a store's calls: one key or several, each with one NDArray or one for each device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, Union, cast

import mxnet as mx
import numpy as np

from .._keys import Key

Arrays = Sequence[mx.nd.NDArray]
Keys = Union[Key, Sequence[Key]]


Call = TypeVar("Call", bound=Callable[..., Any])


def unrecorded(call: Call) -> Call:
    """A method that may be called within autograd.record(), which does not see what it does to arrays."""

    @functools.wraps(call)
    def paused(*arguments: Any, **named: Any) -> Any:
        with mx.autograd.pause():
            return call(*arguments, **named)

    return cast(Call, paused)


def by_key(key: Keys, *arguments: Any) -> Iterator[tuple[Any, ...]]:
    """The keys of a call, each with its part of every argument as a list of NDArrays."""
    if not isinstance(key, (list, tuple)):
        yield (key, *(_listed(value) for value in arguments))
        return
    for value in arguments:
        if not isinstance(value, (list, tuple)) or len(value) != len(key):
            raise ValueError(f"{len(key)} keys: a list with one entry for each key is expected for each argument")
    for index, one in enumerate(key):
        yield (one, *(_listed(value[index]) for value in arguments))


def _listed(value: Any) -> list[mx.nd.NDArray]:
    arrays = list(value) if isinstance(value, (list, tuple)) else [value]
    for array in arrays:
        if not isinstance(array, mx.nd.NDArray):
            raise TypeError(f"an object of type {type(array).__name__!r}: an NDArray is expected")
        if isinstance(array, mx.nd.sparse.CSRNDArray):
            raise TypeError("a CSRNDArray cannot be summed: pass array.tostype('default') or 'row_sparse'")
    if not arrays:
        raise ValueError("an empty list: one NDArray for each device is expected")
    return arrays


def sparse(array: mx.nd.NDArray) -> bool:
    """Whether an array is row-sparse, by its class: to ask MXNet for its stype takes longer."""
    return isinstance(array, mx.nd.sparse.RowSparseNDArray)


def check(key: Key, shape: tuple[int, ...], dtype: np.dtype[Any], arrays: Arrays) -> None:
    """ValueError or TypeError unless the arrays have the shape and dtype of the key."""
    for array in arrays:
        if array.shape != shape:
            raise ValueError(f"key {key!r} has shape {shape}, the array has {array.shape}")
        if np.dtype(array.dtype) != dtype:
            raise TypeError(f"key {key!r} has dtype {dtype}, the array has {np.dtype(array.dtype)}: cast it")
