"""What KVWorker.save() writes and load() reads: a safetensors file of the tensors that the aggregators keep.

For each key that has an optimiser, or a consistency other than "sync", the file has

    "KEY"           the weights, in the shape of init(); float16 and bfloat16 as float32, from which updates go on
    "KEY.STATE"     each array of the optimiser's state, by torch.optim's names and in the same shape
    "KEY.steps"     how many updates each packet has had since the optimiser was set (int64), where there is one
    "KEY.lr"        the learning rate of each packet (float64), where there is an optimiser

and in its metadata, as JSON under "fptps", a description of every key: shape, dtype, consistency, optimiser, and the
clock. A plain sum has only that: nothing of it outlives a round. Dtypes that safetensors does not have, complex ones
among them, are raw bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import pathlib
import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from .arrays import locate
from .errors import CheckpointError

if TYPE_CHECKING:
    from ._store import Store

VERSION: Final = 1
PACKET: Final = 16384
"""Bytes of a packet, into which the core cuts every tensor."""
SLICE: Final = 512
"""Packets that are fetched at a time: what saving takes of memory."""
PROGRESS_S: Final = 5.0

STEPS, RATE, VALUE, SENT, STATE = range(5)
"""The numbers of a packet's arrays, as in gocore/store/parts.go. SENT is VALUE in the tensor's own dtype."""

STATES: Final = {
    "SGD": ("momentum_buffer",),
    "Adam": ("exp_avg", "exp_avg_sq"),
    "AdamW": ("exp_avg", "exp_avg_sq"),
    "Adagrad": ("sum",),
}
SAVED_AS: Final = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F32", "bfloat16": "F32", "float32": "F32", "float64": "F64",
}  # fmt: skip
"""safetensors' names of the core's dtypes; others are raw bytes, U8."""
WIDTHS: Final = {
    "BOOL": 1, "I8": 1, "U8": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of an element."""

_log = logging.getLogger("fptps")


@dataclasses.dataclass(frozen=True)
class Array:
    """One tensor of the file: an array of all packets of a key."""

    name: str
    number: int
    dtype: str
    shape: list[int]
    packet: int
    """Bytes of it that are of one packet; the last packet may have fewer."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * WIDTHS[self.dtype]

    def slices(self) -> Iterator[tuple[int, int, int, int]]:
        """The parts in which it travels: the first packet and how many, the first byte and the end."""
        for begin in range(0, self.nbytes, SLICE * self.packet):
            end = min(begin + SLICE * self.packet, self.nbytes)
            yield begin // self.packet, -(-(end - begin) // self.packet), begin, end


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A key as the file describes it."""

    shape: list[int]
    dtype: str
    nbytes: int
    packet: int
    """Bytes of it that are in each packet, but for the last."""
    consistency: str
    optimizer: dict[str, Any] | None
    clock: list[int]

    def arrays(self, key: int) -> list[Array]:
        """What the file has of it; nothing of a plain sum."""
        if self.optimizer is None and self.consistency == "sync":
            return []
        saved = SAVED_AS.get(self.dtype, "U8")
        shape = self.shape if self.dtype in SAVED_AS else [self.nbytes]
        packets = -(-self.nbytes // self.packet)
        packet = self.packet * math.prod(shape) * WIDTHS[saved] // self.nbytes
        value = Array(str(key), VALUE, saved, shape, packet)
        if self.optimizer is None:
            return [value]
        states = STATES[self.optimizer["kind"]]
        if self.optimizer["kind"] == "SGD" and not self.optimizer.get("momentum"):
            states = ()
        return [
            value,
            *(dataclasses.replace(value, name=f"{key}.{name}", number=STATE + i) for i, name in enumerate(states)),
            Array(f"{key}.steps", STEPS, "I64", [packets], 8),
            Array(f"{key}.lr", RATE, "F64", [packets], 8),
        ]


def save(worker: Store, path: str | os.PathLike[str]) -> None:
    """Writes all that the aggregators keep; the old file stays until the new one is whole."""
    tensors = {key: _describe(worker, key, worker.clock(key)) for key in worker._makers}
    arrays = {key: tensor.arrays(key) for key, tensor in tensors.items()}
    if not any(arrays.values()):
        raise ValueError(
            "no tensor has its values on the aggregators, so that there is nothing to save: set an optimiser, or a "
            "consistency other than 'sync'"
        )
    with _replacing(pathlib.Path(path)) as file:
        progress = _Progress("saving", path, sum(array.nbytes for found in arrays.values() for array in found))
        file.write(_header(tensors, arrays))
        for key, found in arrays.items():
            for array in found:
                for first, count, begin, end in array.slices():
                    file.write(_fetch(worker, key, array.number, first, count, end - begin).data)
                    progress.made(end - begin)


def load(worker: Store, path: str | os.PathLike[str]) -> None:
    """Gives the aggregators what save() has written. All is checked before anything is changed."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            tensors = _read(path, file)
            _check(worker, path, file, tensors)
            _restore(worker, path, file, tensors)
    except SafetensorError as error:
        raise CheckpointError(f"{os.fspath(path)} is no whole safetensors file: {error}") from error


def refresh(worker: Store, key: int) -> None:
    """Makes what the aggregators keep of a key what pull() gives on this worker."""
    if key in worker._tables:
        return  # of which no worker keeps anything
    array = worker._makers[key]()
    dtype, address, nbytes, _ = locate(array, write=True)
    try:
        for begin in range(0, nbytes, SLICE * PACKET):
            size = min(SLICE * PACKET, nbytes - begin)
            first, count = begin // PACKET, -(-size // PACKET)
            worker._submit(worker._core.state, array, key, SENT, first, count, address + begin, size).wait()
    except (KeyError, TypeError):
        return  # a plain sum, or quantised: no aggregator keeps it
    worker._core.keep(worker._usable(), key, dtype, address, nbytes)


def _describe(worker: Store, key: int, clock: list[int]) -> Tensor:
    info = json.loads(worker._core.tensor_info(worker._usable(), key))
    if info["dtype"].startswith("quant") and info["consistency"] != "sync":
        raise TypeError(f"key {key} holds quantised codes, which cannot be saved")
    shape = [int(n) for n in worker._makers[key]().shape]
    return Tensor(shape, info["dtype"], info["bytes"], info["packet"], info["consistency"], info["optimizer"], clock)


def _header(tensors: dict[int, Tensor], arrays: dict[int, list[Array]]) -> bytes:
    """The start of a safetensors file, before the bytes of its tensors in the same order."""
    described = {"version": VERSION, "tensors": {key: dataclasses.asdict(tensor) for key, tensor in tensors.items()}}
    header: dict[str, Any] = {"__metadata__": {"fptps": json.dumps(described)}}
    end = 0
    for array in (array for found in arrays.values() for array in found):
        begin, end = end, end + array.nbytes
        header[array.name] = {"dtype": array.dtype, "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _fetch(worker: Store, key: int, number: int, first: int, count: int, nbytes: int) -> np.ndarray[Any, Any]:
    memory = np.empty(nbytes, np.uint8)
    address = locate(memory, write=True).address
    worker._submit(worker._core.state, memory, key, number, first, count, address, nbytes).wait()
    info = json.loads(worker._core.tensor_info(worker._usable(), key)) if number == RATE else {}
    if info.get("rate") is not None:  # set_learning_rate() was called, and no push has told the aggregators yet
        memory.view(np.float64)[:] = info["rate"]
    return memory


def _read(path: str | os.PathLike[str], file: Any) -> dict[int, Tensor]:
    """The description in a file, as it is there."""
    text = (file.metadata() or {}).get("fptps")
    if text is None:
        raise CheckpointError(f"{os.fspath(path)} is a safetensors file that KVWorker.save() has not written")
    try:
        described = json.loads(text)
        if described["version"] != VERSION:
            raise CheckpointError(f"{os.fspath(path)} has version {described['version']!r}, this fptps reads {VERSION}")
        return {int(key): Tensor(**tensor) for key, tensor in described["tensors"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{os.fspath(path)} has a description that cannot be read: {error!r}") from error


def _check(worker: Store, path: str | os.PathLike[str], file: Any, saved: dict[int, Tensor]) -> None:
    """Raises what is wrong with the file, or does not fit the tensors of this cluster."""
    problems = [f"key {key} is not initialised here" for key in sorted(saved.keys() - worker._makers.keys())]
    problems += [f"key {key} is not in the file" for key in sorted(worker._makers.keys() - saved.keys())]
    arrays: list[Array] = []
    for key in sorted(saved.keys() & worker._makers.keys()):
        there, here = saved[key], _describe(worker, key, [])
        problems += [
            f"key {key} has {name} {getattr(here, name)!r}, in the file {getattr(there, name)!r}"
            for name in ("shape", "dtype", "nbytes", "packet", "consistency")
            if getattr(here, name) != getattr(there, name)
        ]
        if here.optimizer is not None and there.optimizer is None:
            problems.append(f"key {key} has an optimiser, in the file it has none")
        if not _is_clock(there.clock):
            problems.append(f"key {key} has the clock {there.clock!r} in the file")
        if there.optimizer is not None:
            try:
                worker._core.check_optimizer(worker._usable(), json.dumps([key]), json.dumps(there.optimizer))
            except (TypeError, ValueError) as error:
                problems.append(str(error))
        if not problems:
            arrays += there.arrays(key)
    expected = {array.name: (array.dtype, array.shape) for array in arrays}
    parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 -- it is no dict
    found = {name: (part.get_dtype(), part.get_shape()) for name, part in parts.items()}
    if not problems and found != expected:
        odd = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        problems = [f"{name!r} is {found.get(name)} in the file, {expected.get(name)} is expected" for name in odd]
    if problems:
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CheckpointError(f"{os.fspath(path)} does not fit: {'; '.join(problems[:3])}{more}. Nothing was changed")


def _is_clock(clock: object) -> bool:
    return isinstance(clock, list) and len(clock) > 0 and all(type(n) is int and 0 <= n < 2**63 for n in clock)


def _restore(worker: Store, path: str | os.PathLike[str], file: Any, saved: dict[int, Tensor]) -> None:
    arrays = {key: tensor.arrays(key) for key, tensor in saved.items()}
    progress = _Progress("loading", path, sum(array.nbytes for found in arrays.values() for array in found))
    for key, tensor in saved.items():
        if tensor.optimizer is not None:
            worker._submit(worker._core.set_optimizer, None, json.dumps([key]), json.dumps(tensor.optimizer)).wait()
        for array in arrays[key]:
            for memory, (first, count, begin, end) in _slices(file, array):
                address = locate(memory, write=False).address
                worker._submit(
                    worker._core.restore, memory, key, array.number, first, count, address, end - begin
                ).wait()
                progress.made(end - begin)
        # Of another number of workers nobody can say who was which: all go on from the slowest.
        same = len(tensor.clock) == worker._num_workers
        clock = np.array(tensor.clock if same else [min(tensor.clock)] * worker._num_workers, np.uint64)
        address = locate(clock, write=False).address
        worker._submit(worker._core.resume, clock, key, address, clock.nbytes).wait()


def _slices(file: Any, array: Array) -> Iterator[tuple[np.ndarray[Any, Any], tuple[int, int, int, int]]]:
    """The bytes of an array and where they belong: slice by slice, but where slices cut rows all in memory at once."""
    row = array.nbytes // array.shape[0] if array.shape else array.nbytes
    whole = None
    for first, count, begin, end in array.slices():
        if begin % row == 0 and end % row == 0 and array.shape and whole is None:
            memory = file.get_slice(array.name)[begin // row : end // row].reshape(-1).view(np.uint8)
        else:
            whole = file.get_tensor(array.name).reshape(-1).view(np.uint8) if whole is None else whole
            memory = whole[begin:end]
        yield memory, (first, count, begin, end)


@contextlib.contextmanager
def _replacing(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of path when it is whole and on the disk.

    Its own name is always the same, so that what a kill leaves is written over by the next save.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _Progress:
    """Tells the log, now and then, how far it is."""

    def __init__(self, verb: str, path: str | os.PathLike[str], total: int) -> None:
        self._what, self._total, self._made = f"{verb} {os.fspath(path)}", total, 0
        self._told = time.monotonic()

    def made(self, nbytes: int) -> None:
        self._made += nbytes
        if time.monotonic() - self._told >= PROGRESS_S:
            self._told = time.monotonic()
            _log.info("%s: %.0f of %.0f MB", self._what, self._made / 1e6, self._total / 1e6)
