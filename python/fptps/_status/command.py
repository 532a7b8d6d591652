"""The command `fptps status`."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import click

from ..errors import ConfigError, ConnectError
from . import runs
from .target import NoTarget, Target, choose

TIMEOUT_MS: Final = 3000
INTERVAL_S: Final = 1.0
PATIENCE_S: Final = 60.0
"""How long --watch waits for another scheduler of a cluster that outlives its own: the default of
FPTPS_SCHEDULER_TIMEOUT."""
NOT_WELL: Final = 3
"""The exit code of a cluster that lacks a node."""


@click.command()
@click.option("--scheduler", metavar="HOST:PORT", help="Where the cluster's scheduler listens.")
@click.option("--watch", "-w", is_flag=True, help="Refresh every second, until Ctrl-C or the end of the cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON; with --watch a line each second.")
def status(scheduler: str | None, watch: bool, as_json: bool) -> None:
    """Show what a cluster does now: its nodes, their steps, links and waits.

    Asks the scheduler at --scheduler, else the one that DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT name, else that of your
    `fptps run` on this machine. FPTPS_TOKEN has to be that of the cluster, if it has one.

    Exit codes: 0 all well, 1 no cluster there, 2 wrong usage, 3 the cluster lacks a node.
    """
    try:
        target = choose(scheduler, os.environ, runs.under_way())
    except NoTarget as problem:
        click.echo(f"fptps status: {problem}", err=True)
        sys.exit(1)
    try:
        found = ask(target)
    except (ConnectError, ConfigError) as error:
        click.echo(f"fptps status: {error}", err=True)
        sys.exit(1)
    if watch:
        _watch(target, found, as_json)
        return
    if as_json:
        click.echo(json.dumps(found))
    else:
        from .table import page

        _console().print(page(found))
    sys.exit(0 if is_well(found) else NOT_WELL)


def ask(target: Target) -> dict[str, Any]:
    """The status of a cluster. ConnectError without an answer, ConfigError with another FPTPS_TOKEN."""
    from .. import _core

    found: dict[str, Any] = json.loads(_core.ask_status(*target, TIMEOUT_MS))
    return found


def is_well(found: dict[str, Any]) -> bool:
    """Whether all nodes have joined and give signs of life."""
    return found["state"] == "running" and not any(node["state"] in ("silent", "vacant") for node in found["nodes"])


def _console() -> Any:
    from rich.console import Console

    width = None if sys.stdout.isatty() else shutil.get_terminal_size((120, 24)).columns
    return Console(width=width, highlight=False)


def _watch(target: Target, found: dict[str, Any], as_json: bool) -> None:
    """Shows the status again and again."""
    show = _watch_json if as_json else _watch_page
    try:
        show(_changes(target, found))
    except KeyboardInterrupt:
        return
    click.echo(f"fptps status: the cluster at {target.host}:{target.port} has ended", err=True)


def _watch_json(changes: Iterable[dict[str, Any]]) -> None:
    for found in changes:
        click.echo(json.dumps(found))
        sys.stdout.flush()


def _watch_page(changes: Iterable[dict[str, Any]]) -> None:
    from rich.live import Live

    from .table import page

    console = _console()
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        for found in changes:
            live.update(page(found, console.height if console.is_terminal else None), refresh=True)


def _changes(target: Target, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The status each second, until the cluster has ended. One that outlives its scheduler has none for a while."""
    answered = time.monotonic()
    while True:
        yield found
        time.sleep(INTERVAL_S)
        try:
            found, answered = ask(target), time.monotonic()
        except ConnectError:
            silence = time.monotonic() - answered
            if not found["recovers"] or silence > PATIENCE_S:
                return
            found = {**found, "state": f"no answer for {silence:.0f} s"}
