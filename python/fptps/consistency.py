"""When a worker's push is applied to a tensor's value: the three consistencies, as users write them."""

from __future__ import annotations

import re
from typing import Final

SYNC: Final = 0
ASYNC: Final = 65535
MAX_DELAY: Final = 32768
"""Far more rounds apart than any training bears; wire.MaxDelay of the core."""


def number(text: str) -> int:
    """The core's number (wire.Policy) of "sync", "bounded:N" or "async". ValueError for another text."""
    if text == "sync":
        return SYNC
    if text == "async":
        return ASYNC
    match = re.fullmatch(r"bounded:(\d{1,9})", text, re.ASCII) if isinstance(text, str) else None
    if match is None or int(match[1]) > MAX_DELAY:
        raise ValueError(
            f"consistency={text!r}: 'sync', 'async' or 'bounded:N' is expected, "
            f"N the rounds that workers may be apart, 0 to {MAX_DELAY}"
        )
    return int(match[1]) + 1
