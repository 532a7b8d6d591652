"""Collective calls: broadcast, gather, and work of rank 0 whose outcome all workers share.

All workers make the same calls in the same order. Each step of a call begins with a meeting: every worker contributes a
row to a small table, whose sum all receive. The rows name the call, so that workers in different calls notice it, and
the size of each worker's content. Content that does not fit into a row follows in chunks: the sender pushes, the others
skip. Where workers die (FPTPS_RECOVERY=1), the ticket of each round has those that took part, the same on all workers.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import operator
import pickle
import struct
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from ._arrays import NAMES, Place, locate
from ._autograd import modified
from ._failures import failure_of, packed, unpacked
from ._tensors import shape_text
from .errors import BusyError, MismatchError, NodeLostError, TimeoutError
from .namespace import Array, Namespace
from .ticket import Ticket

Bytes = NDArray[np.uint8]
Arrays = Union[Sequence[Array], Mapping[Any, Array]]
Result = TypeVar("Result")
Steps = Generator[Callable[[], object], None, Result]
"""A call that is under way: it yields functions that wait. One that raises TimeoutError may be called again."""

BROADCAST, BROADCAST_OBJECT, ALLGATHER_OBJECT, DESCRIBE, SAVE, LOAD = range(1, 7)
NAME_OF: Final = ("", "broadcast", "broadcast_object", "allgather_object", "broadcast", "save", "load")
ROOTED: Final = (BROADCAST, BROADCAST_OBJECT)

HEADER: Final = struct.Struct("<BBxxIQQ")
AT_WORK: Final = 1
"""The digest in rank 0's row as long as its save or load goes on."""
ROW: Final = 512
"""Bytes of a worker's row."""
INLINE: Final = ROW - HEADER.size
"""Bytes of content that travel in the row itself."""
CHUNKS: Final = (1 << 14, 1 << 18, 1 << 22)
"""Bytes of the tensors that take larger contents, each declared when it is first needed."""
PROGRESS_S: Final = 1.0
"""Seconds between two messages of rank 0 that its work goes on."""


class Row(NamedTuple):
    """One worker's contribution to a meeting."""

    call: int
    failed: bool
    root: int
    size: int
    digest: int
    head: bytes = b""
    """The content, if it has at most INLINE bytes."""

    def packed(self) -> bytes:
        return HEADER.pack(self.call, self.failed, self.root, self.size, self.digest) + self.head

    @staticmethod
    def unpacked(data: bytes) -> Row:
        call, failed, root, size, digest = HEADER.unpack_from(data)
        return Row(call, bool(failed), root, size, digest, data[HEADER.size :][:size])

    @property
    def text(self) -> str:
        name = NAME_OF[self.call] if self.call < len(NAME_OF) else "another call"
        return f"{name}(root={self.root})" if self.call in ROOTED else f"{name}()"


class Call:
    """A call of this worker, which can be repeated after a TimeoutError: it then goes on where it was."""

    def __init__(self, name: str, arguments: tuple[object, ...], steps: Steps[Any]) -> None:
        self.name, self.arguments, self.steps = name, arguments, steps
        self.wait: Callable[[], object] = tuple  # which returns at once
        self.running = False


class Collectives:
    """The collective calls of one worker. Its tensors are in a namespace that no program can name."""

    def __init__(self, tensors: Namespace, rank: int, ranks: int) -> None:
        """ranks: how many there are, those of dead workers included."""
        self._tensors = tensors
        self._rank = rank
        self._ranks = ranks
        self._table = "calls"  # the tensor with the rows of all ranks
        self.begun = True  # False: the others had begun when this worker came, and have not admitted it yet
        self.alone = False  # its calls until then are those of a start that the others have had: it makes them alone
        self._memory: dict[str, Bytes] = {}  # of the tensors that are declared
        self._call: Call | None = None  # that has not ended

    def _starts_alone(self) -> bool:
        return self.alone and not self.begun

    def grow(self, ranks: int) -> None:
        """Makes room for workers that were admitted; all workers call it in the same place of their calls."""
        if ranks > self._ranks:
            self._ranks = 1 << (ranks - 1).bit_length()
            self._table = f"calls {self._ranks}"

    def broadcast(self, arrays: Arrays, root: int) -> None:
        if self._starts_alone():
            return
        kept = tuple(arrays.values() if isinstance(arrays, Mapping) else arrays)
        self._run("broadcast()", (root, *map(id, kept)), self._broadcast(arrays, root))

    def broadcast_object(self, obj: Any, root: int) -> Any:
        if self._starts_alone():
            return obj
        return self._run("broadcast_object()", (root,), self._broadcast_object(obj, root))

    def allgather(self, obj: Any) -> dict[int, Any]:
        """allgather_object(), by rank."""
        if self._starts_alone():
            return {self._rank: obj}
        result: dict[int, Any] = self._run("allgather_object()", (), self._allgather(obj))
        return result

    def save(self, path: str, work: Callable[[Callable[[], None]], None]) -> None:
        """Runs work(progress) on the leader, the lowest rank, which calls progress() often.

        Raises its exception on every worker."""
        self._run("save()", (path,), self._lead(SAVE, work))

    def load(self, path: str, work: Callable[[Callable[[], None]], None], finish: Callable[[], None]) -> None:
        """As save(), then runs finish() on every worker. Raises its exception, too, on every worker."""
        self._run("load()", (path,), self._load(work, finish))

    def _run(self, name: str, arguments: tuple[object, ...], steps: Steps[Result]) -> Result:
        if not self.begun:
            raise ValueError(
                f"{name}: this worker came when the others had begun: first it has to call admit(), at the place of "
                "the program where the others call it"
            )
        call = self._call or Call(name, arguments, steps)
        if call.running or (call.name, call.arguments) != (name, arguments):
            raise BusyError(f"{call.name} of this worker has not ended: call it again, with the same arguments, first")
        self._call, call.running, waiting = call, True, True
        try:
            while True:
                call.wait()
                waiting = False
                call.wait = next(call.steps)
                waiting = True
        except StopIteration as end:
            self._call = None
            result: Result = end.value
            return result
        except BaseException as error:
            again = waiting and (isinstance(error, TimeoutError) or not isinstance(error, Exception))
            if not again:
                self._call = None
            elif isinstance(error, TimeoutError):
                raise TimeoutError(f"{name}: {error}") from None
            raise
        finally:
            call.running = False

    def _broadcast(self, arrays: Arrays, root: int) -> Steps[None]:
        places: list[tuple[str, Array, Place]] = []

        def locate_all() -> None:
            self._check_root(root)
            places.extend((key, array, locate(array, write=root != self._rank)) for key, array in _named(arrays))

        failed = failure_of(locate_all)
        pieces = [_bytes_of(place) for _, _, place in places]
        description = json.dumps({key: f"shape {shape_text(p)} and dtype {_dtype(p)}" for key, _, p in places})
        rows = yield from self._agree(BROADCAST, root, pieces, _digest(description), failed)
        if any(row.digest != rows[root].digest for row in rows.values()):
            described = yield from self._gather(DESCRIBE, description.encode())
            raise MismatchError(_differences(root, {rank: json.loads(text) for rank, text in described.items()}))
        lives = yield from self._spread(root, rows[root], pieces)
        if root != self._rank:
            for _, array, _ in places:
                modified(array)
        if not lives:
            raise _lost(BROADCAST, root)

    def _broadcast_object(self, obj: Any, root: int) -> Steps[Any]:
        pickled = [b""]

        def prepare() -> None:
            self._check_root(root)
            if root == self._rank:
                pickled[0] = pickle.dumps(obj)

        failed = failure_of(prepare)
        rows = yield from self._agree(BROADCAST_OBJECT, root, [_array(pickled[0])], 0, failed)
        received = yield from self._content(root, rows[root], pickled[0])
        if received is None:
            raise _lost(BROADCAST_OBJECT, root)
        return obj if root == self._rank else pickle.loads(received)

    def _allgather(self, obj: Any) -> Steps[dict[int, Any]]:
        pickled = [b""]

        def prepare() -> None:
            pickled[0] = pickle.dumps(obj)

        failed = failure_of(prepare)
        contents = yield from self._gather(ALLGATHER_OBJECT, pickled[0], failed)
        return {rank: obj if rank == self._rank else pickle.loads(content) for rank, content in contents.items()}

    def _load(self, work: Callable[[Callable[[], None]], None], finish: Callable[[], None]) -> Steps[None]:
        yield from self._lead(LOAD, work)
        yield from self._agree(LOAD, failed=failure_of(finish))

    def _lead(self, call: int, work: Callable[[Callable[[], None]], None]) -> Steps[None]:
        """The leader works, once all are here; at the end of each meeting the others know whether it still does."""
        rows = yield from self._agree(call, digest=AT_WORK)
        leader = min(rows)
        if self._rank != leader:
            while rows[leader].digest == AT_WORK:
                rows = yield from self._agree(call)
                if leader not in rows:
                    raise _lost(call, leader)
            return
        progress = _Progress(functools.partial(self._meeting, Row(call, False, 0, 0, AT_WORK)))
        failed = failure_of(lambda: work(progress.made))
        yield progress.sent
        yield from self._agree(call, failed=failed)

    def _check_root(self, root: int) -> None:
        if not 0 <= operator.index(root) < self._ranks:
            raise ValueError(f"root={root}: a worker's rank is expected, 0 to {self._ranks - 1}")

    def _gather(self, call: int, content: bytes, failed: list[BaseException] | None = None) -> Steps[dict[int, bytes]]:
        """The contents of all workers, by rank, without those that die meanwhile."""
        rows = yield from self._agree(call, 0, [_array(content)], 0, failed)
        contents = {}
        for rank, row in rows.items():
            received = yield from self._content(rank, row, content)
            if received is not None:
                contents[rank] = received
        return contents

    def _agree(
        self,
        call: int,
        root: int = 0,
        pieces: Sequence[Bytes] = (),
        digest: int = 0,
        failed: list[BaseException] | None = None,
    ) -> Steps[dict[int, Row]]:
        """Meets; gives the rows of all workers, by rank. Raises MismatchError where they are in different calls.

        failed: empty, or the error for which this worker cannot take part. Every worker raises it then, or that of the
        lowest such rank.
        """
        if failed:
            root, pieces = 0, [_array(packed(failed[0]))]
        size = sum(len(piece) for piece in pieces)
        head = b"".join(piece.tobytes() for piece in pieces) if size <= INLINE else b""
        table = yield from self._declared(self._table, ROW * self._ranks)
        meeting = self._meeting(Row(call, bool(failed), root, size, digest, head))
        yield meeting.result
        rows = {rank: Row.unpacked(table[rank * ROW :][:ROW].tobytes()) for rank in meeting.workers}
        first = min(rows)
        for rank, row in rows.items():
            if row.failed:
                content = yield from self._content(rank, row, b"".join(piece.tobytes() for piece in pieces))
                if content is None:
                    raise _lost(call, rank)
                raise (failed.pop() if failed else unpacked(rank, content))
        for rank, row in rows.items():
            if (row.call, row.root) != (rows[first].call, rows[first].root):
                raise MismatchError(
                    f"worker {first} calls {rows[first].text}, worker {rank} {row.text}: all workers have to make the "
                    "same collective calls in the same order"
                )
        if call in ROOTED and root not in rows:
            raise _lost(call, root)
        return rows

    def _meeting(self, row: Row) -> Ticket[Any]:
        """Begins a meeting, with this worker's row."""
        table = self._memory[self._table]
        table[:] = 0
        packed = row.packed()
        table[self._rank * ROW :][: len(packed)] = _array(packed)
        return self._tensors.push_pull(self._table, table, out=table)

    def _content(self, sender: int, row: Row, own: bytes) -> Steps[bytes | None]:
        """The content that a row announces; own is this worker's. None: the sender has died meanwhile."""
        memory = _array(own) if sender == self._rank else np.empty(row.size, np.uint8)
        lives = yield from self._spread(sender, row, [memory])
        return memory.tobytes() if lives else None

    def _spread(self, sender: int, row: Row, pieces: Sequence[Bytes]) -> Steps[bool]:
        """Brings the bytes of the sender's pieces into the pieces of all others. False: the sender died meanwhile."""
        if self._ranks == 1:
            return True
        if row.size <= INLINE:
            if sender != self._rank:
                for piece, part in _cut(pieces, 0, _array(row.head)):
                    piece[:] = part
            return True
        for begin in range(0, row.size, CHUNKS[-1]):
            size = min(row.size - begin, CHUNKS[-1])
            nbytes = next(chunk for chunk in CHUNKS if size <= chunk)
            key = str(nbytes)
            memory = yield from self._declared(key, nbytes)
            if sender == self._rank:
                for piece, part in _cut(pieces, begin, memory[:size]):
                    part[:] = piece
                yield self._tensors.push(key, memory).result
            else:
                self._tensors.skip(key)
                pulled = self._tensors.pull(key, out=memory)
                yield pulled.result
                if sender not in pulled.workers:
                    return False
                for piece, part in _cut(pieces, begin, memory[:size]):
                    piece[:] = part
        return True

    def _declared(self, key: str, nbytes: int) -> Steps[Bytes]:
        if key not in self._memory:
            memory = np.zeros(nbytes, np.uint8)
            yield functools.partial(self._tensors.init, key, memory)
            self._memory[key] = memory
        return self._memory[key]


class _Progress:
    """Reports once in PROGRESS_S, without waiting for the other workers, that rank 0 is at work."""

    def __init__(self, send: Callable[[], Ticket[Any]]) -> None:
        self._send = send
        self._next = time.monotonic() + PROGRESS_S
        self._ticket: Ticket[Any] | None = None

    def made(self) -> None:
        if time.monotonic() >= self._next and (self._ticket is None or self._ticket.done()):
            self._ticket = self._send()
            self._next = time.monotonic() + PROGRESS_S

    def sent(self) -> None:
        """Waits until the others have the last message."""
        if self._ticket is not None:
            self._ticket.result()


def _lost(call: int, rank: int) -> NodeLostError:
    """The error of a call whose sender has died."""
    text = f"{NAME_OF[call]}() ended with worker {rank}, which has died: call it again"
    return NodeLostError(text, role="worker", rank=rank)


def _named(arrays: Arrays) -> list[tuple[str, Array]]:
    """The arrays in an order that does not depend on that of a dict."""
    if isinstance(arrays, Mapping):
        return sorted(((repr(key), array) for key, array in arrays.items()), key=operator.itemgetter(0))
    if hasattr(arrays, "shape"):
        raise TypeError(f"one {type(arrays).__name__}: a list or a dict of arrays is expected")
    return [(str(at), array) for at, array in enumerate(arrays)]


def _dtype(place: Place) -> str:
    return next((name for name, number in NAMES.items() if number == place.dtype), f"number {place.dtype}")


def _bytes_of(place: Place) -> Bytes:
    """The memory of an array, which has to be kept alive."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * place.nbytes).from_address(place.address))


def _array(content: bytes) -> Bytes:
    return np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _cut(pieces: Sequence[Bytes], begin: int, chunk: Bytes) -> Iterator[tuple[Bytes, Bytes]]:
    """The parts of pieces that lie in a chunk, each with its part of the chunk, which begins at that byte of all."""
    end, at = begin + len(chunk), 0
    for piece in pieces:
        low, high = max(at, begin), min(at + len(piece), end)
        if low < high:
            yield piece[low - at : high - at], chunk[low - begin : high - begin]
        at += len(piece)


def _differences(root: int, described: dict[int, dict[str, str]]) -> str:
    """How the arrays of the workers differ from root's."""
    expected = described.get(root, {})
    found = [
        f"array {key} has {own.get(key, 'no counterpart')} at worker {rank}, "
        f"{expected.get(key, 'no counterpart')} at worker {root}"
        for rank, own in described.items()
        for key in sorted(own.keys() | expected.keys())
        if own.get(key) != expected.get(key)
    ]
    more = f", and {len(found) - 3} more" if len(found) > 3 else ""
    return f"broadcast(): {'; '.join(found[:3])}{more}. Nothing was written"
