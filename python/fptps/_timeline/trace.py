"""All parts of a timeline, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .clocks import align
from .part import Kind, Part


@dataclass(frozen=True)
class Node:
    """A node and its events."""

    part: Part
    events: np.ndarray[Any, Any]
    """As the part's, with times on the trace's clock; on its own, from 0 on, if it is not aligned."""
    aligned: bool
    uncertainty: int
    """ns by which its times may be wrong against other hosts', either way."""

    @property
    def id(self) -> int:
        """The number that other nodes' events have for it."""
        return int(self.part.head["id"])

    @property
    def name(self) -> str:
        """As in "worker 1"."""
        return self.part.name

    @property
    def role(self) -> str:
        """Scheduler, server or worker."""
        return str(self.part.head["role"])

    def of(self, *kinds: Kind) -> np.ndarray[Any, Any]:
        """Its events of some kinds."""
        return self.events[np.isin(self.events["kind"], kinds)]


@dataclass(frozen=True)
class Trace:
    """The nodes of a cluster: the scheduler, servers and workers, by rank. Times are in ns from 0."""

    nodes: tuple[Node, ...]

    @property
    def tensors(self) -> dict[int, str]:
        """The names of tensors, by their ids: a name that the program has chosen, or "key 7"."""
        known = {t["id"]: str(t["name"]) for node in self.nodes for t in node.part.head["tensors"]}
        return {id: name[5:-1] if name.startswith('key "') else name for id, name in known.items()}

    def name(self, id: int) -> str:
        """The name of a node."""
        return next((node.name for node in self.nodes if node.id == id), f"node {id}")

    @property
    def workers(self) -> list[Node]:
        """The workers, those that are not aligned left out."""
        return [node for node in self.nodes if node.role == "worker" and node.aligned]


ROLES = ("scheduler", "server", "worker")


def merge(parts: Sequence[Part]) -> Trace:
    """Puts parts on one clock. Of a node that was traced several times, or replaced, all parts are there."""
    clocks = align(parts)
    ordered = sorted(parts, key=lambda p: (ROLES.index(p.head["role"]), p.head["id"], p.head["pid"]))
    nodes = []
    for part in ordered:
        clock = clocks[part.head["host_id"]]
        events = part.events.copy()
        if clock is not None:
            events["time"] = clock.read(events["time"])
        nodes.append(Node(part, events, clock is not None, 0 if clock is None else clock.uncertainty))
    zero = min((int(n.events["time"].min()) for n in nodes if n.aligned and len(n.events)), default=0)
    for node in nodes:
        if node.aligned:
            node.events["time"] -= zero
        elif len(node.events):
            node.events["time"] -= node.events["time"].min()
        node.events.sort(order="time", kind="stable")
    return Trace(tuple(nodes))
