"""The record of a run: what the links were asked for, what happened to them, what they carried, what programs did."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .director import ITERATION, Event, Span
from .quantities import Link
from .script import Entry
from .usage import Sample, carried_between


@dataclass
class Record:
    """A run. Times are seconds since it began."""

    samples: Sequence[Sample] = ()
    drops: Mapping[Link, int] = field(default_factory=dict)
    passed: Mapping[Link, Mapping[str, float]] = field(default_factory=dict)
    """What links with delay or loss have passed; see benchmarks.links.forward."""
    events: Sequence[Event] = ()
    spans: Sequence[Span] = ()
    missed: Sequence[Entry] = ()
    """What the script had that did not happen, as the run was over before."""

    def iterations(self) -> list[Span]:
        """Worker 0's, in order."""
        return sorted(span for span in self.spans if span.name == ITERATION and span.rank == 0)

    def use(self, link: Link, begin: float, end: float) -> float:
        """The fraction of a link's capacity that was used between two times, when its rate may have changed."""
        carried, able = carried_between(self.samples, link, begin, end)
        return carried / able if able else 0.0

    def lines(self) -> list[str]:
        """What there is to say of delays and losses, and of what the script had in vain."""
        lines = []
        for link, passed in self.passed.items():
            line = f"{link}: {passed['lost']} of {passed['packets']} packets lost on purpose, at most "
            line += f"{passed['late_s'] * 1e3:.1f} ms late"
            if passed["overflows"]:
                line += f"; {passed['overflows']} dropped, as the forwarder could not keep up: the link is not faithful"
            lines.append(line)
        lines += [f"{entry.action}: the run was over before {entry.when}" for entry in self.missed]
        return lines

    def write(self, path: Path) -> None:
        """Writes it as JSON."""
        path.write_text(json.dumps(self.as_json()) + "\n")

    def as_json(self) -> dict[str, Any]:
        """See docs/testbed.md."""
        return {
            "times": [round(sample.time, 6) for sample in self.samples],
            "links": [self._link(link) for link in (self.samples[-1].carried if self.samples else ())],
            "events": [event._asdict() for event in self.events],
            "spans": [{**span._asdict(), **self._use_in(span)} for span in self.spans],
        }

    def _link(self, link: Link) -> dict[str, Any]:
        return {
            "node": link.node,
            "direction": "send" if link.sends else "receive",
            "bytes": [sample.carried[link] for sample in self.samples],
            "rates": [sample.rates.get(link) for sample in self.samples],
            "drops": self.drops.get(link),
            **self.passed.get(link, {}),
        }

    def _use_in(self, span: Span) -> dict[str, Any]:
        """The use of the shaped links during an iteration of worker 0."""
        if span.name != ITERATION or span.rank != 0 or not self.samples:
            return {}
        return {"use": {str(link): round(self.use(link, span.begin, span.end), 4) for link in self.samples[-1].rates}}
