"""The arguments of KVWorker, which override the environment: checked, and as the core takes them."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Iterable
from typing import Final

from ._environment import check_alone, warn
from .errors import ConfigError

KEYS: Final = 2**63
LONGEST_S: Final = 1e9
"""The longest timeout that the core takes."""


def default_timeout() -> float:
    """The value of FPTPS_TIMEOUT in seconds."""
    text = os.environ.get("FPTPS_TIMEOUT") or "60"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST_S:
        raise ConfigError(f"FPTPS_TIMEOUT={text}: a number of seconds is expected, 0 or more")
    return seconds


def settings_of(
    scheduler: str | None,
    num_workers: int | None,
    num_servers: int | None,
    timeout: float,
    deterministic: bool | None = None,
) -> dict[str, str]:
    """The settings of the environment, overridden by the arguments."""
    settings = dict(os.environ)
    if scheduler is not None:
        host, colon, port = scheduler.rpartition(":")
        if not (host and colon and port.isdecimal()):
            raise ValueError(f'scheduler={scheduler!r}: "host:port" is expected')
        settings["DMLC_PS_ROOT_URI"], settings["DMLC_PS_ROOT_PORT"] = host.strip("[]"), port
        settings["DMLC_ROLE"] = "worker"
    elif (role := settings.get("DMLC_ROLE")) in ("scheduler", "server"):
        raise ConfigError(f"DMLC_ROLE={role}: this process is no worker; a {role} is started by `fptps {role}`")
    elif not settings.get("DMLC_PS_ROOT_URI"):
        if num_workers not in (None, 1) or num_servers not in (None, 0):
            raise ConfigError(
                f"num_workers={num_workers}, num_servers={num_servers}, but no scheduler: give scheduler='host:port' "
                "or set DMLC_PS_ROOT_URI, or start the whole cluster with `fptps run`"
            )
        if num_workers is None:
            check_alone(settings)
        num_workers = num_servers = None  # which a worker that runs alone has anyway
    settings["FPTPS_TIMEOUT"] = repr(min(timeout, LONGEST_S))
    for name, number in (("DMLC_NUM_WORKER", num_workers), ("DMLC_NUM_SERVER", num_servers)):
        if number is not None:
            settings[name] = str(operator.index(number))
    settings.update(deterministic_setting(deterministic))
    warn(settings)
    return settings


def deterministic_setting(deterministic: bool | None) -> dict[str, str]:
    """The setting of a deterministic argument: none if it leaves that to the environment."""
    if deterministic is None:
        return {}
    if not isinstance(deterministic, bool):
        raise TypeError(f"deterministic={deterministic!r}: True, False or None is expected")
    return {"FPTPS_DETERMINISTIC": str(int(deterministic))}


def seconds_of(timeout: float) -> float:
    """A timeout argument in seconds."""
    kind: type[Exception] = ValueError
    try:
        if timeout >= 0:  # False for NaN
            return float(timeout)
    except TypeError:
        kind = TypeError
    raise kind(f"timeout={timeout!r}: a number of seconds, 0 or more, or math.inf is expected")


def key_of(key: int) -> int:
    if type(key) is not int:
        key = operator.index(key)
    if not 0 <= key < KEYS:
        raise ValueError(f"key {key}: a whole number from 0 to {KEYS - 1} is expected")
    return key


def keys_text(keys: Iterable[int] | None) -> str:
    """Keys as the core reads them: a JSON list, or null for all."""
    return json.dumps(None if keys is None else [key_of(key) for key in keys])


def priority_of(priority: int) -> int:
    if type(priority) is not int:
        priority = operator.index(priority)
    if not -(2**31) <= priority < 2**31:
        raise ValueError(f"priority {priority}: 32 bits are expected, {-(2**31)} to {2**31 - 1}")
    return priority
