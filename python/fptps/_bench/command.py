"""The command line of `fptps bench`."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from .._extras import load
from ..errors import FptpsError
from .units import parse_rate, parse_size

# psutil, tqdm and tabulate, which only benchmarks need, are imported in the commands: every node of a cluster starts
# through this command line, and they come with fptps[bench] alone.


def read_size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """A size option in bytes."""
    try:
        return parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def read_positive(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """A finite number that is more than 0."""
    if not 0 < value < math.inf:
        raise click.BadParameter(f"{value}: a number of more than 0 is expected")
    return value


def read_link(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """The link's rate in bits per second."""
    if value is None:
        return None
    try:
        return parse_rate(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group()
def bench() -> None:
    """Measure how fast a cluster is.

    Starts a cluster on this machine; with DMLC_PS_ROOT_URI in the environment it takes part in that cluster as a
    worker instead, and rank 0 prints.
    """
    try:
        for module in ("cloudpickle", "psutil", "tabulate", "tqdm"):
            load(module, "bench", "fptps bench")
    except ImportError as error:
        raise click.ClickException(str(error)) from None


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of all benchmarks."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON too, in the last line."),
        click.option("-s", "--servers", type=click.IntRange(0), help="Number of servers.  [default: 1]"),
        click.option("-n", "--workers", type=click.IntRange(1), help="Number of workers.  [default: 2]"),
    ):
        command = option(command)
    return command


LINK = click.option(
    "--link",
    callback=read_link,
    metavar="RATE",
    envvar="FPTPS_LINK_RATE",
    show_envvar=True,
    help="Rate of every node's link, for example 1gbit. The figures are compared with it; it sets nothing.",
)


TIMELINE = click.option(
    "--timeline",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="TESTBED_TIMELINE",
    show_envvar=True,
    help="Append a line of JSON here for each measured thing of each worker on this machine, with its times.",
)


def throughput_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of the throughput benchmarks."""
    for option in (
        click.option(
            "--van",
            type=click.Choice(["tcp", "shm", "auto"]),
            envvar="FPTPS_VAN",
            show_envvar=True,
            help="How packets travel: sets FPTPS_VAN.  [default: auto]",
        ),
        click.option(
            "--seconds", type=float, callback=read_positive, default=5.0, show_default=True, help="How long to measure."
        ),
        click.option("--tensors", type=click.IntRange(1), default=16, show_default=True, help="Number of tensors."),
        click.option(
            "--size", callback=read_size, metavar="SIZE", default="4MiB", show_default=True, help="Size of each tensor."
        ),
    ):
        command = option(command)
    return command


@bench.command(name="push_pull")
@cluster_options
@throughput_options
@click.option("--check", is_flag=True, help="Verify every sum, outside the time that is measured.")
@click.option("--deterministic", is_flag=True, help="Add in the order of ranks: sets FPTPS_DETERMINISTIC.")
def push_pull(
    workers: int | None,
    servers: int | None,
    as_json: bool,
    size: int,
    tensors: int,
    seconds: float,
    van: str | None,
    check: bool,
    deterministic: bool,
) -> None:
    """Throughput: all workers push and pull all tensors, again and again."""
    from . import push_pull as module

    options = module.Options(size, tensors, seconds, van or "auto", check)
    settings = setting("FPTPS_VAN", van) | setting("FPTPS_DETERMINISTIC", "1" if deterministic else None)
    run(functools.partial(module.measure, options=options), workers, servers, settings, as_json)


@bench.command()
@cluster_options
@throughput_options
def kv(
    workers: int | None,
    servers: int | None,
    as_json: bool,
    size: int,
    tensors: int,
    seconds: float,
    van: str | None,
) -> None:
    """ps-lite's classes: every worker's fptps.ps.KVWorker pushes and pulls all tensors, again and again."""
    from . import kv as module

    options = module.Options(size, tensors, seconds, van or "auto")
    run_parts(functools.partial(module.take_part, options), workers, servers, setting("FPTPS_VAN", van), as_json)


@bench.command()
@cluster_options
@click.option(
    "--size", callback=read_size, metavar="SIZE", default="16KiB", show_default=True, help="Size of the urgent tensor."
)
@click.option(
    "--bulk",
    callback=read_size,
    metavar="SIZE",
    default="64MB",
    show_default=True,
    help="Size of all that is in flight.",
)
@LINK
@TIMELINE
def preempt(
    workers: int | None,
    servers: int | None,
    as_json: bool,
    size: int,
    bulk: int,
    link: float | None,
    timeline: Path | None,
) -> None:
    """Urgency: how long a small urgent tensor takes while large ones are in flight."""
    from . import preempt as module

    options = module.Options(size, bulk, link, timeline)
    run(functools.partial(module.measure, options=options), workers, servers, {}, as_json)


@bench.command()
@cluster_options
@click.option(
    "--profile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The model's communication profile, a JSON file.",
)
@click.option(
    "--scale",
    type=float,
    callback=read_positive,
    default=1.0,
    show_default=True,
    help="Factor on the size of the tensors.",
)
@click.option(
    "--mode",
    type=click.Choice(["fifo", "partitioned", "message", "packet"]),
    envvar="FPTPS_SCHEDULE",
    show_envvar=True,
    help="Whole tensors in order; packets in order; whole tensors by priority; packets by priority: sets "
    "FPTPS_SCHEDULE.  [default: packet]",
)
@LINK
@click.option("--iterations", type=click.IntRange(1), default=10, show_default=True, help="Iterations to measure.")
@TIMELINE
def trainer(
    workers: int | None,
    servers: int | None,
    as_json: bool,
    profile: Path,
    scale: float,
    mode: str | None,
    link: float | None,
    iterations: int,
    timeline: Path | None,
) -> None:
    """A simulated trainer: a model's transfers, with sleeps for its computation, compared with the lower bound."""
    from . import trainer as module
    from .profile import load

    try:
        model = load(profile, scale)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--profile'") from None
    options = module.Options(model, scale, mode or "packet", link, iterations, timeline)
    settings = setting("FPTPS_SCHEDULE", mode)
    run(functools.partial(module.measure, options=options), workers, servers, settings, as_json)


def setting(name: str, value: str | None) -> dict[str, str]:
    """An environment variable for the nodes; none without a value, so that they start as a user's do."""
    return {} if value is None else {name: value}


def run(measure: Any, workers: int | None, servers: int | None, settings: Mapping[str, str], as_json: bool) -> None:
    """Runs a benchmark that uses KVWorker."""
    from . import start

    run_parts(functools.partial(start.take_part, measure), workers, servers, settings, as_json)


def run_parts(part: Any, workers: int | None, servers: int | None, settings: Mapping[str, str], as_json: bool) -> None:
    """Runs a benchmark, and prints its figures in the process that has them: the parent, or rank 0."""
    from . import start
    from .report import table

    try:
        figures = start.run(part, workers, servers, settings)
    except FptpsError as error:
        raise click.ClickException(str(error)) from None
    except MemoryError as error:
        raise click.ClickException(f"the tensors do not fit in memory: {error}") from None
    if figures:
        click.echo(table(figures))
        if as_json:
            click.echo(json.dumps(figures))
