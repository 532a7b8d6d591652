"""The log: Python's records look like the core's lines, and are written beside them to stderr.

A record is one line: time, level, message, logger, role and rank of the node, fields; as key=value, or with
FPTPS_LOG_FORMAT=json as an object. gocore/node/log.go writes the core's, from its own threads, which never call Python:
a loop that held a packet would wait for the GIL, and after the interpreter's end there is none. Neither waits for the
other; each line is one write.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from .errors import ConfigError

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
VERBOSE: Final = {"0": logging.WARNING, "1": logging.INFO, "2": logging.DEBUG}
FORMATS: Final = ("text", "json")
NAMES: Final = {logging.DEBUG: "DEBUG", logging.INFO: "INFO", logging.WARNING: "WARN", logging.ERROR: "ERROR"}
"""The core's words for levels; CRITICAL is an ERROR to it."""

Identity = tuple[str, "int | None"]
"""The role and rank of a node."""

_log = logging.getLogger("fptps")
_identities: weakref.WeakKeyDictionary[object, Identity] = weakref.WeakKeyDictionary()


def level_of(environment: Mapping[str, str]) -> int:
    """The least level that is logged; ConfigError for an unknown one."""
    name = environment.get("FPTPS_LOG")
    if not name:
        return VERBOSE.get(environment.get("PS_VERBOSE") or "0", logging.WARNING)
    if name not in LEVELS:
        raise ConfigError(f"FPTPS_LOG={name}: debug, info, warning or error is expected")
    return LEVELS[name]


def is_json(environment: Mapping[str, str]) -> bool:
    """Whether lines are objects; ConfigError for an unknown format."""
    name = environment.get("FPTPS_LOG_FORMAT") or "text"
    if name not in FORMATS:
        raise ConfigError(f"FPTPS_LOG_FORMAT={name}: text or json is expected")
    return name == "json"


def identify(node: object, role: str, rank: int | None) -> None:
    """Has the records of this process carry a node's role and rank, while it exists."""
    _identities[node] = role, rank


def line(json_: bool, level: int, message: str, logger: str, identity: Identity, fields: Mapping[str, Any]) -> str:
    """A line of the log, without its end."""
    now = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds").replace("+00:00", "Z")
    role, rank = identity
    name = next((name for least, name in sorted(NAMES.items(), reverse=True) if level >= least), "DEBUG")
    all_ = {"time": now, "level": name, "msg": message, "logger": logger, "role": role}
    all_ |= ({} if rank is None else {"rank": rank}) | dict(fields)
    if json_:
        return json.dumps(all_, ensure_ascii=False, separators=(",", ":"), default=str)
    return " ".join(f"{key}={_value(str(value))}" for key, value in all_.items())


def tell(role: str, text: str, level: int = logging.INFO) -> None:
    """Tells the user of a command something about a node of that role: `fptps ROLE: text`, or a line of JSON."""
    known = _identity()
    identity = known if known[0] == role else (role, None)
    _to_stderr(line(True, level, text, "fptps", identity, {}) if _json() else f"fptps {role}: {text}")


def framed(role: str, rank: int | None, stream: str) -> Callable[[list[bytes]], list[bytes]]:
    """A function that makes lines of a program's output lines of the log, in JSON. Those that are leaves it alone."""

    def frame(text: bytes) -> bytes:
        if _is_record(text):
            return text
        shown = text.decode(errors="replace")
        return line(True, logging.INFO, shown, "program", (role, rank), {"stream": stream}).encode()

    return lambda lines: [frame(each) for each in lines]


def _is_record(text: bytes) -> bool:
    if not text.startswith(b'{"time":'):
        return False
    try:
        return {"time", "level", "msg"} <= set(json.loads(text))
    except ValueError:
        return False


def _value(text: str) -> str:
    """A value of key=value, quoted where a reader could not tell its end."""
    plain = text and text.isprintable() and not any(mark in text for mark in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)


def _json() -> bool:
    try:
        return is_json(os.environ)
    except ConfigError:  # raised when a node opens
        return False


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _identity() -> Identity:
    """The node of this process; without a rank while it has several, or none yet."""
    known = set(_identities.values())
    if len(known) == 1:
        return known.pop()
    roles = {role for role, _ in known} or {os.environ.get("DMLC_ROLE") or "worker"}
    return (roles.pop() if len(roles) == 1 else "worker"), None


class _Handler(logging.Handler):
    """Writes the records that no handler of the program gets, as logging's own last resort would."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if (_log.propagate and logging.getLogger().handlers) or _log.handlers[1:]:
                return
            if record.levelno < level_of(os.environ):
                return
            trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
            json_ = _json()
            fields = {"traceback": trace} if trace and json_ else {}
            shown = line(json_, record.levelno, record.getMessage(), record.name, _identity(), fields)
            _to_stderr(shown + ("\n" + trace.rstrip() if trace and not json_ else ""))
        except Exception:
            self.handleError(record)


def install() -> None:
    """Called when fptps is imported."""
    _log.addHandler(_Handler())
    try:
        level = level_of(os.environ)
    except ConfigError:  # raised when a node opens
        return
    if (os.environ.get("FPTPS_LOG") or os.environ.get("PS_VERBOSE")) and _log.level == logging.NOTSET:
        _log.setLevel(level)
