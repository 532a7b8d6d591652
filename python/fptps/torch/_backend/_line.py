"""The operations of one process group, which begin in the order in which the program calls them."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ...namespace import Namespace
from ...ticket import Ticket
from ._operation import Operation, Transfer, Verb
from ._pieces import Piece, cut, slots

LARGEST: Final = {Verb.SUM: 1 << 40, Verb.MEAN: 1 << 40}
"""Bytes of the largest piece: sums go straight into their arrays, whatever their size."""
LARGEST_COPIED: Final = 1 << 20
"""What one member sends, the core keeps until the next round of the tensor: on all members."""

Size = tuple[torch.dtype, int]
Begun = tuple[list[Ticket[Any]], list[Callable[[], object]]]


class Line:
    """Begins operations, one after the other, and does not wait for their ends.

    All members of the group issue the same operations in the same order, so the n-th piece of a length meets the same
    tensor on all of them: tensors of one length are used in turn, whatever has ended by then.

    An operation begins at once, on the thread that issues it, unless it has to wait: for the declaration of a tensor,
    for an operation that uses the same memory, or for one whose result it needs. It then waits on a thread, for each of
    these at most so many seconds, and those that are issued later wait behind it.
    """

    def __init__(self, tensors: Namespace, seconds: float) -> None:
        self._tensors = tensors
        self._seconds = seconds
        self._lock = threading.Lock()
        self._turns: Counter[Size] = Counter()  # how many pieces of each length have begun
        self._declared: set[Size] = set()
        self._waiting: deque[Operation] = deque()
        self._flying: list[Operation] = []  # those that may be under way
        self._broken: BaseException | None = None  # why no operation can begin any more

    def issue(self, operation: Operation) -> None:
        """Begins an operation when its turn comes. Never waits; errors are the operation's."""
        with self._lock:
            if self._waiting or not self._ready(operation):
                self._waiting.append(operation)
                if len(self._waiting) == 1:
                    threading.Thread(target=self._serve_waiting, name="fptps process group", daemon=True).start()
                return
            self._begin(operation)

    def _serve_waiting(self) -> None:
        """Begins the operations that wait, until none does."""
        while True:
            operation = self._waiting[0]
            try:
                self._prepare(operation)
            except BaseException as error:
                self._broken = self._broken or error
            with self._lock:
                self._begin(operation)
                self._waiting.popleft()
                if not self._waiting:
                    return

    def _ready(self, operation: Operation) -> bool:
        if self._broken or operation.after is not None:
            return self._broken is not None
        transfers = operation.plan()
        operation.plan = lambda: transfers
        return not self._missing(transfers) and not self._in_the_way(operation)

    def _prepare(self, operation: Operation) -> None:
        """Waits for all that an operation needs before it can begin."""
        if self._broken:
            return
        if operation.after is not None:
            operation.after.wait(self._seconds)
        transfers = operation.plan()
        operation.plan = lambda: transfers
        missing = self._missing(transfers)
        if missing:
            self._tensors.declare_all(
                {
                    _key((dtype, size), slot): torch.empty(size, dtype=dtype)
                    for dtype, size in missing
                    for slot in range(slots(size * dtype.itemsize))
                }
            )
            self._declared.update(missing)
        for other in self._in_the_way(operation):
            try:
                other.wait(self._seconds)
            except Exception:  # its error is for those who wait for it
                if not other.ended:
                    raise

    def _missing(self, transfers: Sequence[Transfer]) -> list[Size]:
        """The lengths of pieces without tensors, in an order that is the same on all members."""
        sizes = ((t.array.dtype, piece.size) for t in transfers for piece in _pieces(t))
        return [size for size in dict.fromkeys(sizes) if size not in self._declared]

    def _in_the_way(self, operation: Operation) -> list[Operation]:
        """The operations under way that use memory of this one."""
        self._flying = [other for other in self._flying if not other.ended]
        operation.ranges = [_range(t.array) for t in operation.plan() if t.verb is not Verb.IGNORE]
        return [
            other
            for other in self._flying
            if any(a < d and c < b for a, b in operation.ranges for c, d in other.ranges)
        ]

    def _begin(self, operation: Operation) -> None:
        try:
            if self._broken is not None:
                raise self._broken
            tickets, copies = self._move(operation.plan())
        except BaseException as error:
            self._broken = self._broken or error
            operation.fail(error)
            return
        self._flying.append(operation)
        operation.begin(tickets, copies)

    def _move(self, transfers: Sequence[Transfer]) -> Begun:
        """Begins transfers. Returns their tickets, and what is to be copied after them."""
        tickets: list[Ticket[Any]] = []
        copies: list[Callable[[], object]] = []
        for transfer in transfers:
            arrays = {}
            for piece in _pieces(transfer):
                size = transfer.array.dtype, piece.size
                key = _key(size, self._turns[size] % slots(piece.size * transfer.array.itemsize))
                self._turns[size] += 1
                arrays[key] = _memory(transfer, piece, copies)
                if transfer.verb not in LARGEST:
                    tickets.append(self._move_piece(transfer.verb, key, arrays.pop(key)))
            if arrays:
                begun = self._tensors.push_pull_all(
                    arrays, out=arrays, op="mean" if transfer.verb is Verb.MEAN else "sum"
                )
                tickets.extend(begun.values())
        return tickets, copies

    def _move_piece(self, verb: Verb, key: str, array: torch.Tensor) -> Ticket[Any]:
        if verb is Verb.SEND:
            return self._tensors.push(key, array)
        skipped = self._tensors.skip(key)
        return self._tensors.pull(key, out=array) if verb is Verb.RECEIVE else skipped


def _pieces(transfer: Transfer) -> list[Piece]:
    largest = LARGEST.get(transfer.verb, LARGEST_COPIED)
    return list(cut(transfer.array.numel(), transfer.array.itemsize, largest))


def _key(size: Size, slot: int) -> str:
    dtype, count = size
    return f"{str(dtype)[6:]} x {count} #{slot}"


def _range(array: torch.Tensor) -> tuple[int, int]:
    address = array.data_ptr()
    return address, address + array.nbytes


def _memory(transfer: Transfer, piece: Piece, copies: list[Callable[[], object]]) -> torch.Tensor:
    """The memory of a piece: a part of the array itself, or where the piece is padded a copy."""
    part = transfer.array[piece.begin : piece.end]
    if piece.size == len(part) or transfer.verb is Verb.IGNORE:
        return part
    padded = torch.zeros(piece.size, dtype=part.dtype)
    if transfer.verb is not Verb.RECEIVE:
        padded[: len(part)] = part
    if transfer.verb is not Verb.SEND:
        copies.append(lambda: part.copy_(padded[: len(part)]))
    return padded
