"""The command `fptps doctor`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from .gather import Gatherer, Report

PORT: Final = 9002
MOST_HOSTS: Final = 256


@click.command()
@click.option(
    "--hosts", metavar="A,B,C", default="", help="All hosts, names or addresses, in the same order on each of them."
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Where the doctors listen.  [default: FPTPS_DATA_PORT, else 9002]"
)
@click.option(
    "--timeout", type=click.FloatRange(1), default=30.0, show_default=True, help="Seconds to wait for the others."
)
@click.option("--json", "as_object", is_flag=True, help="Print one JSON object.")
def doctor(hosts: str, port: int | None, timeout: float, as_object: bool) -> None:
    """Says what is wrong with this host, or with hosts and the network between them.

    With --hosts, run the same command on each of them at the same time. The first one prints the report. The exit code
    is 1 if anything is wrong.
    """
    names = [host.strip() for host in hosts.split(",") if host.strip()]
    if len(set(names)) < len(names):
        raise click.UsageError(f"--hosts {hosts}: a host is named twice")
    if len(names) > MOST_HOSTS:
        raise click.UsageError(f"--hosts names {len(names)} hosts: {MOST_HOSTS} at most")
    sys.exit(_one(names, as_object) if len(names) < 2 else _all(names, port or _port(os.environ), timeout, as_object))


def _port(environment: Mapping[str, str]) -> int:
    value = environment.get("FPTPS_DATA_PORT", "")
    return int(value) if value.isdigit() and 0 < int(value) < 65536 else PORT


# The modules are imported where they are used: `fptps run` has no need of them.


def _one(names: list[str], as_object: bool) -> int:
    """Examines this host alone."""
    from .facts import facts
    from .gather import Report

    own = names[0] if names else os.uname().nodename
    scheduler = os.environ.get("DMLC_PS_ROOT_URI", "")
    known = [own, *([scheduler] if scheduler and scheduler != own else [])]
    return _print(Report([own], 0, {0: facts(known, os.environ)}, [], [], [], {}), as_object)


def _all(names: list[str], port: int, timeout: float, as_object: bool) -> int:
    """Examines all hosts: the first one asks, the others answer."""
    from .facts import facts
    from .gather import Gatherer, attend
    from .listener import Answers, Listener
    from .measure import Hello, Target
    from .show import count

    me = Hello(1, _own(names), 0, os.environ.get("FPTPS_TOKEN", ""))
    answers = Answers(me, facts(names, os.environ))
    gatherer = Gatherer(me, names, port, answers)
    try:
        listener = Listener(me, port, answers, gatherer.offered)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen at port {port}: {os.strerror(error.errno or 0)}. Does a node run there? Choose another one "
            "with --port, on all hosts"
        ) from None
    try:
        if me.host == 0:
            report = gatherer.gather(timeout, lambda text: click.echo(f"fptps doctor: {text}", err=True))
            return _print(report, as_object, gatherer)
        why_not = attend(me, Target(0, names[0], port), listener, answers, timeout)
    finally:
        listener.close()
    if why_not:
        raise click.ClickException(
            f"no contact with {names[0]}, the first host, within {timeout:g} s: {why_not}. Run the same command there, "
            f"and open port {port}"
        )
    click.echo(f"fptps doctor: {count(answers.findings)}; the report is at {names[0]}", err=True)
    return 1 if answers.findings else 0


def _own(names: list[str]) -> int:
    """The number of this host."""
    from .facts import is_here, resolve

    mine = [number for number, host in enumerate(names) if is_here(host)]
    if len(mine) > 1:  # a wrong entry of /etc/hosts may lead another one's name to loopback
        outside = [n for n in mine if not all(address.startswith("127.") for address in resolve(names[n]))]
        mine = outside or mine
    if len(mine) == 1:
        return mine[0]
    own = os.uname().nodename
    if own in names:
        return names.index(own)
    said = "none of them is" if not mine else f"{' and '.join(names[n] for n in mine)} are all"
    raise click.UsageError(
        f"--hosts {','.join(names)}: {said} this host ({own}): give each host's address in the network"
    )


def _print(report: Report, as_object: bool, gatherer: Gatherer | None = None) -> int:
    from .checks import findings
    from .show import as_json, as_text

    found = findings(report)
    if gatherer:
        gatherer.end(len(found))
    click.echo(as_json(report, found) if as_object else as_text(report, found), nl=as_object)
    return 1 if found else 0
