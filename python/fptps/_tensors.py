"""The tensors of a KVWorker that are declared, and their declaration."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ._arrays import Place, maker, order_text
from ._session import Session
from .consistency import Consistency, number
from .ticket import Ticket, wait


def shape_text(place: Place) -> str:
    """A shape as all workers have to give it; with the order of the axes in memory where that is not C's."""
    return f"{place.shape} {place.order}" if place.order else str(place.shape)


class Declared:
    """A tensor that is being declared."""

    def __init__(
        self,
        number: int,
        path: tuple[str, ...],
        name: str,
        array: Any,
        place: Place,
        make: Callable[[], Any],
        table: bool,
    ) -> None:
        self.number, self.path, self.name, self.array, self.place, self.make = number, path, name, array, place, make
        self.row = place.nbytes // place.shape[0] if table and place.shape else 0
        self.text = f'key "{name}"' if name else f"key {number}"
        self.key = name or number

    def description(self, policy: int) -> tuple[object, ...]:
        """The properties that may not change if the tensor is declared again."""
        return self.name, shape_text(self.place), self.place.dtype, policy, self.row


class Tensor:
    """An initialised tensor."""

    def __init__(self, declared: Declared) -> None:
        self.number, self.path, self.name, self.text = declared.number, declared.path, declared.name, declared.text
        self.key = declared.key
        self.shape, self.order, self.make = declared.place.shape, declared.place.order, declared.make
        self.row = maker(declared.array, (1, self.shape[1]))() if declared.row else None

    def check(self, place: Place, write: bool) -> None:
        """ValueError unless an array has the shape of init()'s, and its order of axes in memory."""
        if (place.shape == self.shape and place.order == self.order) or self.row is not None:
            return
        if place.shape != self.shape:
            raise ValueError(f"{self.text} has shape {self.shape}, the array has {place.shape}: reshape it")
        here, expected = order_text(place.shape, place.order), order_text(self.shape, self.order)
        advice = "receive into a new array, and copy from it" if write else "pass a copy in that order"
        raise ValueError(f"{self.text}: the array is {here}, init()'s is {expected}: {advice}")

    def table_row(self) -> Any:
        """An array of one row of a table."""
        if self.row is None:
            raise ValueError(f"{self.text} is not a table: use push() and pull()")
        return self.row


class Tensors:
    """The tensors of a KVWorker, by the core's number of their key."""

    def __init__(self) -> None:
        self.known: dict[int, Tensor] = {}
        self.waiting: dict[int, tuple[Ticket[None], tuple[object, ...]]] = {}  # inits that have not ended here


def declare(
    session: Session, tensors: Tensors, list_: list[Declared], consistency: Consistency, zeros: bool = False
) -> None:
    """Declares tensors in one exchange with the scheduler, and waits until the aggregators have their values.

    zeros: on rank 0. The values are zeros then, whatever the arrays hold: none are sent.

    An init that timed out here, or was interrupted, is still under way in the core: declaring the same again waits for
    that one.
    """
    policy = number(consistency)
    for d in list_:
        ticket, before = tensors.waiting.get(d.number, (None, None))
        if ticket is not None and before != d.description(policy):
            raise ValueError(
                f"{d.text}: an init of another shape, dtype or consistency is under way: wait for that first"
            )
        known = tensors.known.get(d.number)
        if known is not None and known.name != d.name:
            raise ValueError(f'the keys "{known.name}" and "{d.name}" have the same number: give one another name')
    new = [d for d in list_ if d.number not in tensors.waiting]
    tickets = session.tickets([((d.array, d.place.keep), d.key) for d in new])
    for d, ticket in zip(new, tickets):
        tensors.waiting[d.number] = ticket, d.description(policy)
    declarations = [
        {
            "ticket": ticket.number, "key": d.number, "name": d.name, "shape": shape_text(d.place),
            "dtype": d.place.dtype, "policy": policy, "row": d.row, "address": d.place.address, "bytes": d.place.nbytes,
            "zeros": zeros,
        }
        for d, ticket in zip(new, tickets)
    ]  # fmt: skip
    try:
        if new:
            session.begin_all(tickets, session.core.init, json.dumps(declarations))
        wait([tensors.waiting[d.number][0] for d in list_])
    finally:
        for d in list_:
            ticket, _ = tensors.waiting.get(d.number, (None, None))
            if ticket is None:
                continue
            if ticket.number not in session.live:  # ended, or refused
                del tensors.waiting[d.number]
            if ticket.ended and ticket.exception() is None:
                tensors.known[d.number] = Tensor(d)
