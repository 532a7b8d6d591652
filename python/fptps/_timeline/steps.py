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
    """The steps of a worker, as set_tensor_count() has said; without, a round of all tensors is one. Rounds 0 belong to
    init().

    The first step, whose beginning was not recorded, is left out.
    """
    per_step = int(node.part.head["per_step"])
    rounds = node.of(Kind.DONE)
    rounds = rounds[rounds["round"] > 0]
    first = int(rounds["round"][0]) if len(rounds) else 0
    if per_step:
        ends = rounds["time"][per_step - 1 :: per_step].tolist()
    else:
        latest: dict[int, int] = {}
        for time, _, round, *_ in rounds.tolist():
            latest[round] = max(time, latest.get(round, 0))
        ends = sorted(latest.values())
    return [Step(first + 1 + i, begin, end) for i, (begin, end) in enumerate(zip(ends, ends[1:]))]
