"""Converts keys of users, whole numbers and names in nested namespaces, to those of the core: 64-bit numbers."""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from typing import Union

Key = Union[int, str]
"""A whole number from 0 to 2**63 - 1, or a name. The two never meet: 7 and "7" are two keys."""

LIMIT = 2**63
LONGEST = 512
"""Bytes of a name, with those of its namespaces; wire.MaxName of the core."""


def canonical(key: Key) -> Key:
    """The key as an int or a str. ValueError or TypeError for an invalid key."""
    if isinstance(key, str):
        return name_of(key)
    key = operator.index(key)
    if not 0 <= key < LIMIT:
        raise ValueError(f"key {key}: a whole number from 0 to {LIMIT - 1} is expected, or a name")
    return key


def name_of(name: str) -> str:
    """A name of a key or a namespace, checked."""
    if not isinstance(name, str):
        raise TypeError(f"name {name!r}: a str is expected")
    if not name or len(name.encode("utf-8", "replace")) > LONGEST:
        raise ValueError(f"name {name!r}: 1 to {LONGEST} bytes are expected")
    return name


@functools.lru_cache(maxsize=1 << 16)
def number_of(path: tuple[str, ...], key: Key) -> int:
    """The core's number of a key in a namespace, as a signed 64-bit integer.

    A number in the root namespace is itself. All others are below 0, by a hash of 63 bits: the scheduler refuses two
    names that have the same.
    """
    if not path and isinstance(key, int):
        return key
    text = json.dumps([*path, key]).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") % LIMIT - LIMIT


def text_of(path: tuple[str, ...], key: Key) -> str:
    """A key's name in errors, the log and checkpoints: "optimizer/weight", "7", or "'7'" for a name of digits."""
    last = repr(key) if isinstance(key, str) and key.isdecimal() else str(key)
    text = "/".join((*path, last))
    if len(text.encode("utf-8", "replace")) > LONGEST:
        raise ValueError(f"key {text!r}: a name has at most {LONGEST} bytes, with its namespaces")
    return text
