"""The part of a timeline that one node has recorded: see gocore/trace."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

FORMAT: Final = "fptps trace 1"
SUFFIX: Final = ".fptrace"
NO_TENSOR: Final = 2**32 - 1
PACKET_BYTES: Final = 16384

EVENT: Final = np.dtype(
    [
        ("time", "<i8"),
        ("tensor", "<u4"),
        ("round", "<u4"),
        ("packet", "<u4"),
        ("bytes", "<u4"),
        ("peer", "<u4"),
        ("kind", "<u4"),
    ]
)
"""An event; times in ns. gocore/trace/event.go says what the fields mean for each kind."""


class Kind(enum.IntEnum):
    """What an event is about."""

    CALLED = 1
    BEGUN = 2
    QUEUED = 3
    WRITTEN = 4
    READ = 5
    SUMMED = 6
    COMPLETE = 7
    SUM_QUEUED = 8
    SUM_WRITTEN = 9
    SUM_READ = 10
    DONE = 11
    WAITED = 12
    SENT = 13
    RECEIVED = 14
    PROCESSOR = 15
    LOOP = 16
    DELAYED = 17
    MISSING = 18


@dataclass(frozen=True)
class Part:
    """What a node has recorded. head: see gocore/trace/part.go; events: of dtype EVENT, in the order of their times."""

    head: dict[str, Any]
    events: np.ndarray[Any, Any]

    @property
    def name(self) -> str:
        """As in "worker 1"."""
        return str(self.head["name"])

    def encode(self) -> bytes:
        """As in its file."""
        return json.dumps(self.head).encode() + b"\n" + self.events.tobytes()


def decode(data: bytes, where: str) -> Part:
    """Reads a part; ValueError, with the name of its file, if it is none, or of another version of fptps."""
    line, _, events = data.partition(b"\n")
    try:
        head = json.loads(line)
        known = isinstance(head, dict) and head["format"] == FORMAT
    except (ValueError, KeyError):
        known = False
    if not known:
        raise ValueError(f"{where} is no part of a timeline, or one of another version of fptps")
    if len(events) % EVENT.itemsize:
        raise ValueError(f"{where} is cut: its node ended while it wrote it")
    for name in ("clock", "tensors", "shares"):
        head[name] = head.get(name) or []
    return Part(head, np.frombuffer(events, EVENT))
