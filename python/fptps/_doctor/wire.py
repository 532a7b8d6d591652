"""Messages of `fptps doctor` between hosts: a JSON object in a line each. A peer's bytes are bounded and checked."""

from __future__ import annotations

import dataclasses
import json
import math
import socket
import time
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

LONGEST: Final = 64 * 1024
"""Bytes of a message."""
MOST_ITEMS: Final = 256
LONGEST_TEXT: Final = 300

Value = TypeVar("Value")


class BrokenPeerError(Exception):
    """The other end is gone, does not answer in time, or is no doctor."""


class Channel:
    """A connection that carries messages."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message within 5 s."""
        self.socket.settimeout(5.0)
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise BrokenPeerError(str(error)) from None

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next message, within the time."""
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0:
                raise BrokenPeerError("it does not answer")
            if len(self._buffer) > LONGEST:
                raise BrokenPeerError("its message is too long")
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(LONGEST)
            except socket.timeout:
                raise BrokenPeerError("it does not answer") from None
            except OSError as error:
                raise BrokenPeerError(str(error)) from None
            if not data:
                raise BrokenPeerError("it has closed the connection")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise BrokenPeerError("what answers there is no fptps doctor")
        return message

    def ask(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Sends a message and returns the answer."""
        self.send(message)
        return self.receive(seconds)

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()


def encode(value: Any) -> Any:
    """A dataclass as JSON's types."""
    return dataclasses.asdict(value)


def decode(kind: type[Value], value: Any) -> Value:
    """A dataclass, or a type of its fields, from a peer's JSON. BrokenPeerError if the types differ; long texts and
    lists are cut."""
    found = _decode(kind, value)
    return found  # type: ignore[no-any-return]


def _decode(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        fields = [field.name for field in dataclasses.fields(kind)]
        missing = [name for name in fields if name not in value]
        if missing:
            raise BrokenPeerError(f"its answer lacks {missing[0]}: it has another version of fptps")
        return kind(**{name: _decode(hints[name], value[name]) for name in fields})  # type: ignore[operator]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list and isinstance(value, list):
        return [_decode(arguments[0], each) for each in value[:MOST_ITEMS]]
    if origin is dict and isinstance(value, dict):
        items = list(value.items())[:MOST_ITEMS]
        return {str(name)[:LONGEST_TEXT]: _decode(arguments[1], each) for name, each in items}
    if kind is str and isinstance(value, str):
        return "".join(letter if letter.isprintable() else " " for letter in value[:LONGEST_TEXT])
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62:
        return value
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool) and _is_finite(value):
        return float(value)
    raise BrokenPeerError("its answer makes no sense: it has another version of fptps")


def _is_finite(value: float) -> bool:
    return abs(value) < 1e18 and math.isfinite(value)
