"""The command `fptps timeline`, and what `fptps run --timeline` does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

SAMPLING = "FPTPS_TRACE"
FOLDER = "FPTPS_TRACE_DIR"


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="FILE...")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write all of it to one file.")
def timeline(files: tuple[Path, ...], output: Path | None) -> None:
    """Say where the time of a training's steps went, and what to change.

    FILE is a timeline of `fptps run --timeline` or KVWorker.timeline(), a part that a node has written (.fptrace), or a
    folder of these. Several are put on one clock. -o writes them to one file for https://ui.perfetto.dev, which shows
    every node, link and packet of the sample.

    \b
        fptps timeline out.json
        fptps timeline host1/fptps-trace host2/fptps-trace -o all.json
    """
    from .chrome import write
    from .part import Part
    from .report import text
    from .trace import merge

    parts: list[Part] = []
    try:
        for path in files:
            parts += _read(path)
        if not parts:
            raise ValueError(f"{files[0]}: there is no part of a timeline in it")
        if output:
            write(output, parts)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(text(merge(parts)))


def _read(path: Path) -> list:  # type: ignore[type-arg]  # of Part, whose module needs numpy
    from .chrome import read
    from .part import SUFFIX, decode

    if path.is_dir():
        return [part for file in sorted(path.iterdir()) if file.suffix == SUFFIX for part in _read(file)]
    if path.suffix == SUFFIX:
        return [decode(path.read_bytes(), str(path))]
    return read(path)


def check(path: Path, environment: Mapping[str, str]) -> None:
    """Refuses a run whose timeline could not be written, before it begins."""
    if environment.get(SAMPLING) == "0":
        raise click.UsageError(f"{SAMPLING}=0 in the environment, and --timeline: leave one out")
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise click.UsageError(f"--timeline: {path} cannot be written")


def settings(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of nodes that write their parts into a folder."""
    return {SAMPLING: environment.get(SAMPLING) or "1/64", FOLDER: str(folder)}


def gather(path: Path, folder: Path, processes: int) -> None:
    """Puts the parts that a run's nodes have written into one file."""
    from .chrome import write

    files = sorted(folder.iterdir())
    parts = []
    for file in files:
        try:
            parts += _read(file)
        except (ValueError, OSError) as error:
            click.echo(f"fptps: {error}", err=True)
    if not parts:
        click.echo("fptps: no node has written a part of the timeline: there is none", err=True)
        return
    write(path, parts)
    missing = f", {processes - len(parts)} ended without writing theirs" if len(parts) < processes else ""
    click.echo(f"fptps: the timeline of {len(parts)} nodes is in {path}{missing}: `fptps timeline {path}`", err=True)
