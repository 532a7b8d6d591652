"""Parses sizes and rates."""

from __future__ import annotations

import re
from typing import Final

SIZES: Final = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
RATES: Final = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", re.ASCII)

FLOAT32: Final = 4
"""Bytes of an element; all tensors of the benchmarks are float32."""


def parse_size(text: str) -> int:
    """Bytes of whole float32s: "4MiB" (2**20), "64MB" (10**6), "16KiB", "4096"."""
    size = _scaled(text, SIZES, "a size such as 4MiB, 64MB or 4096")
    if size < FLOAT32 or size % FLOAT32:
        raise ValueError(f"{text!r} is {size:.12g} bytes: a multiple of 4 is expected (float32), and at least one")
    return int(size)


def parse_rate(text: str) -> float:
    """Bits per second: "1gbit" (10**9), "100mbit", "512kbit"."""
    rate = _scaled(text, RATES, "a rate such as 1gbit, 100mbit or 512kbit")
    if rate <= 0:
        raise ValueError(f"{text!r}: a rate of more than 0 is expected")
    return rate


def _scaled(text: str, units: dict[str, int], expected: str) -> float:
    match = NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r}: {expected} is expected")
    return float(match[1]) * units[match[2].lower()]
