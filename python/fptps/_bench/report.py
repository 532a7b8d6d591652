"""Formats the figures of a benchmark as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tabulate import tabulate


def table(figures: Mapping[str, Any]) -> str:
    """A table with one figure per line."""
    rows = list(_rows(figures))
    return str(tabulate(rows, headers=("figure", "value"), disable_numparse=True, colalign=("left", "right")))


def _rows(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _rows(value, f"{prefix}{name} ")
        elif isinstance(value, list):
            yield prefix + name, ", ".join(map(str, value))
        elif isinstance(value, bool):
            yield prefix + name, "yes" if value else "no"
        elif isinstance(value, float):
            yield prefix + name, f"{value:,.10g}"
        else:
            yield prefix + name, "unknown" if value is None else str(value)
