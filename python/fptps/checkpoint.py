"""What KVWorker.save() writes and load() reads: a safetensors file of the tensors that the aggregators keep.

For each key that has an optimiser, or a consistency other than "sync", the file has

    "KEY"           the weights, in the shape of init(); float16 and bfloat16 as float32, from which updates go on
    "KEY.STATE"     each array of the optimiser's state, by torch.optim's names and in the same shape
    "KEY.steps"     how many updates each packet has had since the optimiser was set (int64), where there is one
    "KEY.lr"        the learning rate of each packet (float64), where there is an optimiser

and in its metadata, as JSON under "fptps", a description of every key: shape, dtype, consistency, optimiser, and the
clock of each worker that lives, in the order of ranks. A plain sum has only that: nothing of it outlives a round.
Dtypes that safetensors does not have, complex ones among them, are raw bytes.
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
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from . import _extras
from ._arrays import locate
from .errors import CheckpointError

if TYPE_CHECKING:
    from .worker import KVWorker

VERSION: Final = 1
PACKET: Final = 16384
"""Bytes of a packet, into which the core cuts every tensor."""
SLICE: Final = 512
"""Packets that are fetched at a time, which bounds the memory for saving."""
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
    order: tuple[int, ...] = ()
    """The order of its axes on the aggregators, as _arrays.Place.order. The file has the elements in C order."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * WIDTHS[self.dtype]

    @property
    def axes(self) -> list[int]:
        """All its axes, in their order on the aggregators."""
        return [*self.order, *(axis for axis in range(len(self.shape)) if axis not in self.order)]

    def in_c_order(self, memory: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Its elements as the file has them, from all its bytes as the aggregators have them."""
        elements = memory.view(f"V{WIDTHS[self.dtype]}").reshape([self.shape[axis] for axis in self.axes])
        return np.ascontiguousarray(elements.transpose(np.argsort(self.axes)))

    def in_its_order(self, elements: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """All its bytes as the aggregators have them, from its elements as the file has them."""
        return np.ascontiguousarray(elements.transpose(self.axes)).reshape(-1).view(np.uint8)

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
    order: list[int] = dataclasses.field(default_factory=list)

    def arrays(self, key: str) -> list[Array]:
        """The arrays of the tensor in the file; none for a plain sum."""
        if self.optimizer is None and self.consistency == "sync":
            return []
        saved = SAVED_AS.get(self.dtype, "U8")
        shape = self.shape if self.dtype in SAVED_AS else [self.nbytes]
        packets = -(-self.nbytes // self.packet)
        packet = self.packet * math.prod(shape) * WIDTHS[saved] // self.nbytes
        value = Array(key, VALUE, saved, shape, packet, tuple(self.order) if self.dtype in SAVED_AS else ())
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


def save(worker: KVWorker, path: str | os.PathLike[str], progress: Callable[[], None]) -> None:
    """Writes all that the aggregators keep; the old file stays until the new one is whole. Calls progress() often."""
    numbers = _numbers(worker)
    tensors = {key: _describe(worker, number, _clock_of_the_living(worker, number)) for key, number in numbers.items()}
    arrays = {key: tensor.arrays(key) for key, tensor in tensors.items()}
    if not any(arrays.values()):
        raise ValueError(
            "no tensor has its values on the aggregators, so that there is nothing to save: set an optimiser, or a "
            "consistency other than 'sync'"
        )
    with _replacing(pathlib.Path(path)) as file:
        log = _Progress("saving", path, sum(array.nbytes for found in arrays.values() for array in found), progress)
        file.write(_header(tensors, arrays))
        for key, found in arrays.items():
            for array in found:
                whole = np.empty(array.nbytes if array.order else 0, np.uint8)
                for first, count, begin, end in array.slices():
                    memory = _fetch(worker, numbers[key], array.number, first, count, end - begin)
                    log.made(end - begin)
                    if array.order:
                        whole[begin:end] = memory
                    else:
                        file.write(memory.data)
                file.write(array.in_c_order(whole).tobytes() if array.order else b"")


def load(worker: KVWorker, path: str | os.PathLike[str], progress: Callable[[], None]) -> None:
    """Restores a file of save() on the aggregators. Checks everything before it changes anything. Calls progress()."""
    safetensors = _extras.load("safetensors", "checkpoint", "kv.load()")
    try:
        with safetensors.safe_open(path, framework="np") as file:
            tensors = _read(path, file)
            _check(worker, path, file, tensors)
            _restore(worker, path, file, tensors, progress)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{os.fspath(path)} is no whole safetensors file: {error}") from error


def refresh(worker: KVWorker, key: int) -> None:
    """Sets the result of pull() on this worker to the aggregators' value of a key."""
    if worker._tensors.known[key].row is not None:
        return  # of which no worker keeps anything
    session = worker._session
    array = worker._tensors.known[key].make()
    dtype, address, nbytes, *_ = locate(array, write=True)
    try:
        for begin in range(0, nbytes, SLICE * PACKET):
            size = min(SLICE * PACKET, nbytes - begin)
            first, count = begin // PACKET, -(-size // PACKET)
            session.submit(session.core.state, array, key, SENT, first, count, address + begin, size).result()
    except (KeyError, TypeError):
        return  # a plain sum, or quantised: no aggregator keeps it
    worker._session.core.keep(worker._session.usable(), key, dtype, address, nbytes)


def _numbers(worker: KVWorker) -> dict[str, int]:
    """The core's number of each tensor, by the name of its key in the file."""
    return {known.name or str(number): number for number, known in worker._tensors.known.items()}


def _clock_of_the_living(worker: KVWorker, number: int) -> list[int]:
    clock = worker._clock(worker._tensors.known[number])
    return [clock[rank] for rank in worker.workers]


def _describe(worker: KVWorker, key: int, clock: list[int]) -> Tensor:
    info = json.loads(worker._session.core.tensor_info(worker._session.usable(), key))
    if info["dtype"].startswith("quant") and info["consistency"] != "sync":
        raise TypeError(f"{worker._tensors.known[key].text} holds quantised codes, which cannot be saved")
    known = worker._tensors.known[key]
    return Tensor(
        [*known.shape], info["dtype"], info["bytes"], info["packet"], info["consistency"], info["optimizer"], clock,
        [*known.order],
    )  # fmt: skip


def _header(tensors: dict[str, Tensor], arrays: dict[str, list[Array]]) -> bytes:
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


def _fetch(worker: KVWorker, key: int, number: int, first: int, count: int, nbytes: int) -> np.ndarray[Any, Any]:
    memory = np.empty(nbytes, np.uint8)
    address = locate(memory, write=True).address
    worker._session.submit(worker._session.core.state, memory, key, number, first, count, address, nbytes).result()
    info = json.loads(worker._session.core.tensor_info(worker._session.usable(), key)) if number == RATE else {}
    if (
        info.get("rate") is not None
    ):  # set_learning_rate() was called, and no push has carried the rate to the aggregators yet
        memory.view(np.float64)[:] = info["rate"]
    return memory


def _read(path: str | os.PathLike[str], file: Any) -> dict[str, Tensor]:
    """The description in a file, unchecked."""
    text = (file.metadata() or {}).get("fptps")
    if text is None:
        raise CheckpointError(f"{os.fspath(path)} is a safetensors file that KVWorker.save() has not written")
    try:
        described = json.loads(text)
        if described["version"] != VERSION:
            raise CheckpointError(f"{os.fspath(path)} has version {described['version']!r}, this fptps reads {VERSION}")
        return {str(key): Tensor(**tensor) for key, tensor in described["tensors"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{os.fspath(path)} has a description that cannot be read: {error!r}") from error


def _check(worker: KVWorker, path: str | os.PathLike[str], file: Any, saved: dict[str, Tensor]) -> None:
    """Raises CheckpointError if the file is invalid, or does not fit the tensors of this cluster."""
    numbers = _numbers(worker)
    problems = [f"key {key} is not initialised here" for key in sorted(saved.keys() - numbers.keys())]
    problems += [f"key {key} is not in the file" for key in sorted(numbers.keys() - saved.keys())]
    arrays: list[Array] = []
    for key in sorted(saved.keys() & numbers.keys()):
        there, here = saved[key], _describe(worker, numbers[key], [])
        problems += [
            f"key {key} has {name} {getattr(here, name)!r}, in the file {getattr(there, name)!r}"
            for name in ("shape", "order", "dtype", "nbytes", "packet", "consistency")
            if getattr(here, name) != getattr(there, name)
        ]
        if here.optimizer is not None and there.optimizer is None:
            problems.append(f"key {key} has an optimiser, in the file it has none")
        if not _is_clock(there.clock):
            problems.append(f"key {key} has the clock {there.clock!r} in the file")
        if there.optimizer is not None:
            try:
                worker._session.core.check_optimizer(
                    worker._session.usable(), json.dumps([numbers[key]]), json.dumps(there.optimizer)
                )
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


def _restore(
    worker: KVWorker, path: str | os.PathLike[str], file: Any, saved: dict[str, Tensor], progress: Callable[[], None]
) -> None:
    numbers = _numbers(worker)
    arrays = {key: tensor.arrays(key) for key, tensor in saved.items()}
    session = worker._session
    log = _Progress("loading", path, sum(array.nbytes for found in arrays.values() for array in found), progress)
    for key, tensor in saved.items():
        if tensor.optimizer is not None:
            session.submit(
                session.core.set_optimizer, None, json.dumps([numbers[key]]), json.dumps(tensor.optimizer)
            ).result()
        for array in arrays[key]:
            for memory, (first, count, begin, end) in _slices(file, array):
                address = locate(memory, write=False).address
                session.submit(
                    session.core.restore, memory, numbers[key], array.number, first, count, address, end - begin
                ).result()
                log.made(end - begin)
        clock = np.full(session.ranks_so_far(), min(tensor.clock), np.uint64)
        if len(tensor.clock) == len(worker.workers):  # else the ranks mean other processes: all go on from the slowest
            clock[list(worker.workers)] = tensor.clock
        address = locate(clock, write=False).address
        session.submit(session.core.resume, clock, numbers[key], address, clock.nbytes).result()


def _slices(file: Any, array: Array) -> Iterator[tuple[np.ndarray[Any, Any], tuple[int, int, int, int]]]:
    """The bytes of an array and where they belong: slice by slice, or all in memory at once, where
    slices cut rows or the axes are in another order than C's."""
    row = array.nbytes // array.shape[0] if array.shape else array.nbytes
    whole = None
    for first, count, begin, end in array.slices():
        if begin % row == 0 and end % row == 0 and array.shape and not array.order and whole is None:
            memory = file.get_slice(array.name)[begin // row : end // row].reshape(-1).view(np.uint8)
        else:
            whole = array.in_its_order(file.get_tensor(array.name)) if whole is None else whole
            memory = whole[begin:end]
        yield memory, (first, count, begin, end)


@contextlib.contextmanager
def _replacing(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of path when it is whole and on the disk.

    The temporary name is always the same, so that the next save overwrites the file of a killed one.
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
    """Reports the progress of a save or load: to the log now and then, and to a function each time."""

    def __init__(self, verb: str, path: str | os.PathLike[str], total: int, progress: Callable[[], None]) -> None:
        self._name, self._total, self._made = f"{verb} {os.fspath(path)}", total, 0
        self._progress = progress
        self._logged = time.monotonic()

    def made(self, nbytes: int) -> None:
        self._made += nbytes
        self._progress()
        if time.monotonic() - self._logged >= PROGRESS_S:
            self._logged = time.monotonic()
            _log.info("%s: %.0f of %.0f MB", self._name, self._made / 1e6, self._total / 1e6)
