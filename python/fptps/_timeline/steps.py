"""The steps of a worker's training loop."""

from __future__ import annotations

from dataclasses import dataclass

from .part import Kind
from .trace import Node


@dataclass(frozen=True)
class Step:
    """A step of a worker: from the end of the last operation of the step before to that of its own. Times in ns."""

    number: int
    begin: int
    end: int


def steps_of(node: Node) -> list[Step]:
    """The steps of a worker, as set_tensor_count() has said; none without. Rounds 0 belong to init().

    The first step whose beginning was not recorded is left out.
    """
    per_step = int(node.part.head["per_step"])
    if not per_step:
        return []
    rounds = node.of(Kind.DONE)
    rounds = rounds[rounds["round"] > 0]
    ends = [int(time) for time in rounds["time"][per_step - 1 :: per_step]]
    first = int(rounds["round"][0]) if len(rounds) else 0
    return [Step(first + 1 + i, begin, end) for i, (begin, end) in enumerate(zip(ends, ends[1:]))]
