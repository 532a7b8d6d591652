"""The command line of the test bed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import click

from fptps.cluster._supervisor import Supervisor

from . import check
from .bed import RATE, TestBed
from .network import QUEUE
from .quantities import EVERY, TestBedError, assignment
from .script import Entry, change, traffic


def stop_by_signals(supervisor: Supervisor) -> None:
    """Makes signals end a run. Before a run they end this process, and with it the network."""

    def stop(number: int, frame: FrameType | None) -> None:
        supervisor.stop(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def by_node(texts: tuple[str, ...]) -> dict[str, str]:
    """What is given for nodes, and for all."""
    return dict(assignment(text) if "=" in text else (EVERY, text) for text in texts)


def by_pair(texts: tuple[str, ...]) -> dict[str, str]:
    """What is given for pairs of nodes."""
    return dict(assignment(text, "NODE-NODE=RATE is expected, as in worker:0-server:0=20mbit") for text in texts)


def flow_option(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option for another program's traffic."""
    text = f"Another program's {kind.upper()} traffic over a node's link from BEGIN to END (none: to the run's end)."
    return click.option(f"--{kind}", nargs=2, multiple=True, metavar="BEGIN..[END] NODE=SEND[,RECEIVE]", help=text)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False})
@click.option("-n", "--workers", type=click.IntRange(1), default=1, show_default=True, help="Number of workers.")
@click.option("-s", "--servers", type=click.IntRange(0), default=0, show_default=True, help="Number of servers.")
@click.option(
    "--rate",
    "rates",
    multiple=True,
    metavar="[NODE=]SEND[,RECEIVE]",
    help=f"Rate of every link [{RATE}], or of NODE's: server:0, worker:3, server (all of them).",
)
@click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="NODE-NODE=RATE",
    help="Rate of the path between two nodes, each way, if it carries less than their links: worker:0-server:0=20mbit.",
)
@click.option(
    "--queue", default=QUEUE, show_default=True, help="Bytes that wait for a link before packets are dropped."
)
@click.option(
    "--delay", "delays", multiple=True, metavar="[NODE=]SEND[,RECEIVE]", help="Delay of every link, or of NODE's: 15ms."
)
@click.option(
    "--loss", "losses", multiple=True, metavar="[NODE=]SEND[,RECEIVE]", help="Packets that a link loses: 0.1%."
)
@click.option("--seed", default=0, show_default=True, help="Chooses the packets that are lost.")
@click.option(
    "--change",
    "changes",
    nargs=2,
    multiple=True,
    metavar="WHEN NODE=SEND[,RECEIVE]",
    help="Change a link's rate during the run: 3s, or iteration:20 (once worker 0 has finished 20).",
)
@flow_option("tcp")
@flow_option("udp")
@click.option("--give-rates", is_flag=True, help="Set FPTPS_LINK_RATE on each node to what its link sends.")
@click.option(
    "--check", "checks", is_flag=True, help="Measure the links with plain TCP first; PROGRAM may be left out."
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the record here.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def main(
    workers: int,
    servers: int,
    rates: tuple[str, ...],
    paths: tuple[str, ...],
    queue: str,
    delays: tuple[str, ...],
    losses: tuple[str, ...],
    seed: int,
    changes: tuple[tuple[str, str], ...],
    tcp: tuple[tuple[str, str], ...],
    udp: tuple[tuple[str, str], ...],
    give_rates: bool,
    checks: bool,
    json_file: Path | None,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM on a cluster whose nodes have a shaped link each, as `fptps run` does without them.

    \b
        python -m benchmarks.testbed -n 4 -s 4 --rate 1gbit --rate server:0=500mbit,100mbit -- python train.py
        python -m benchmarks.testbed -n 2 -s 2 --delay 15ms --change 3s worker:1=250mbit -- python train.py
    """
    if not program and not checks:
        raise click.UsageError("Missing argument 'PROGRAM...'.")
    code, written = 0, {}
    try:
        script = script_of(changes, {"tcp": tcp, "udp": udp})
        bed = TestBed(
            workers,
            servers,
            RATE,
            by_node(rates),
            queue,
            give_rates,
            by_node(delays),
            by_node(losses),
            seed,
            script,
            by_pair(paths),
        )
        with bed:
            if checks:
                checked = bed.check()
                print(check.table(checked), flush=True)
                written["check"] = [each.as_json() for each in checked]
            if program:
                code = bed.run(program, begin=stop_by_signals)
                written |= bed.record.as_json()
    except (TestBedError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    if json_file is not None:
        json_file.write_text(json.dumps(written) + "\n")
    if program:
        show(bed.table(), give_rates)
    sys.exit(code)


def script_of(changes: tuple[tuple[str, str], ...], flows: Mapping[str, tuple[tuple[str, str], ...]]) -> list[Entry]:
    """The script that the options are."""
    script = [entry for each in changes for entry in change(*each)]
    return script + [entry for kind, given in flows.items() for each in given for entry in traffic(kind, *each)]


def show(table: str, give_rates: bool) -> None:
    """Prints the table of a run."""
    try:
        print(table, flush=True)
        if give_rates:
            print("FPTPS_LINK_RATE was set on each node to what its link sends.", flush=True)
    except BrokenPipeError:  # the reader has closed stdout; drop the buffered rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
