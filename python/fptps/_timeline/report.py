"""What `fptps timeline` prints."""

from __future__ import annotations

from .trace import Trace


def text(trace: Trace) -> str:
    """The report: see causes."""
    return f"{len(trace.nodes)} nodes"
