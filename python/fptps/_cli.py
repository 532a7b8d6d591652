"""The command `fptps`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import click

from . import _logs, scheduler, server
from ._bench.command import bench
from ._doctor.command import doctor
from ._environment import KEEP_GOING, REPORT
from ._status import runs
from ._status.command import status
from ._status.summary import summary
from ._timeline import command as timelines
from .cluster._commands import HOST, cluster_commands, name_torch_group, reserved_port
from .cluster._ending import KILL_S
from .cluster._folder import temporary_folder
from .cluster._supervisor import Supervisor
from .errors import ConfigError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fptps", prog_name="fptps", message="%(prog)s %(version)s")
def main() -> None:
    """A parameter server for data-parallel training."""


main.add_command(bench)
main.add_command(doctor)
main.add_command(status)
main.add_command(timelines.timeline)


class Workers(NamedTuple):
    """How many workers a run has."""

    number: int
    least: int | None = None
    """With how many it still goes on; None: not said."""


class WorkersType(click.ParamType):  # type: ignore[type-arg]
    """ "4" or "2:4" for Workers."""

    name = "workers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Workers:
        """What the option means."""
        numbers = value.split(":")
        if len(numbers) > 2 or not all(number.isdecimal() and int(number) for number in numbers):
            self.fail(f"{value!r} is neither a number of workers, as 4, nor the least and the most, as 2:4", param, ctx)
        least, most = int(numbers[0]), int(numbers[-1])
        if least > most:
            self.fail(f"{value!r}: the least number of workers comes first", param, ctx)
        return Workers(most, least if len(numbers) == 2 else None)


@main.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-n",
    "--workers",
    type=WorkersType(),
    default="1",
    show_default=True,
    metavar="N|MIN:MAX",
    help="Number of workers. MIN:MAX begins with MAX, and goes on as long as MIN are left; sets FPTPS_RECOVERY=1.",
)
@click.option("-s", "--servers", type=click.IntRange(0), default=0, show_default=True, help="Number of servers.")
@click.option(
    "--restarts",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="How many processes to start in the places of those that die, the scheduler included; sets FPTPS_RECOVERY=1.",
)
@click.option("--keep-going", is_flag=True, help="Let the others run on when a process fails.")
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=KILL_S,
    show_default=True,
    metavar="SECONDS",
    help="How long processes may take to end after SIGTERM or Ctrl-C, to write a checkpoint say, before SIGKILL.",
)
@click.option(
    "--timeline",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Record what happens to packets and operations, and write it to FILE for `fptps timeline` and Perfetto.",
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    workers: Workers,
    servers: int,
    restarts: int,
    keep_going: bool,
    grace: float,
    timeline: Path | None,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM on a cluster of this machine.

    Starts a scheduler, the servers, and PROGRAM once for each worker, with DMLC_* in their environment, and RANK,
    WORLD_SIZE and others for PyTorch's init_process_group(). Lines of output carry role and rank. When one process
    fails the others get 5 s to end by themselves; with --keep-going, for programs that make a new cluster without it,
    they run on, and find FPTPS_KEEP_GOING=1 in their environment. The exit code is that of the worst process, or 1 if
    the program never joined the cluster. Ctrl-C and SIGTERM reach all of them; a second one kills what still runs.

    --restarts and -n MIN:MAX set FPTPS_RECOVERY=1: the training goes on when a worker or server dies, and with
    --restarts when the scheduler does. A worker that is started later, named [worker +1], takes part when the program
    calls KVWorker.admit(). The exit code is 0 if the training ends well, whatever has died and was replaced.

    \b
        fptps run -n 2 -s 1 python train.py --epochs 3
    """
    if keep_going and (restarts or workers.least):
        raise click.UsageError(
            "--keep-going is for programs that make a new cluster when a process dies; with --restarts and -n MIN:MAX "
            "the same cluster goes on: leave one out"
        )
    try:
        _logs.level_of(os.environ)
        _logs.is_json(os.environ)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    environment = _environment(workers, restarts, keep_going)
    if timeline:
        timelines.check(timeline, environment)
    with reserved_port() as port, reserved_port() as store_port, temporary_folder() as folder:
        if timeline:
            (folder / "timeline").mkdir()
            environment |= timelines.settings(folder / "timeline", environment)
        commands = cluster_commands(workers.number, servers, port, lambda rank: list(program), environment)
        name_torch_group(commands, store_port)
        last_status = folder / "status"
        commands[0].environment[REPORT] = str(last_status)
        supervisor = Supervisor(commands, kill=grace, keep_going=keep_going, restarts=restarts)

        def stop(number: int, frame: FrameType | None) -> None:
            supervisor.stop(number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, stop)
        with runs.noted(HOST, port, commands[0].environment["FPTPS_TOKEN"], list(program)):
            code = supervisor.run()
        line = _summary(last_status)
        if timeline:
            timelines.gather(timeline, folder / "timeline", len(supervisor.processes))
    if code == 0 and not supervisor.joined():
        supervisor.tell(
            "fptps: the program ended well, but no cluster came about: no worker joined. Does it make an "
            "fptps.KVWorker() (or fptps.ps.start())?"
        )
        code = 1
    if line and supervisor.stopped_by != signal.SIGPIPE:
        supervisor.tell(f"fptps: {'until then' if code else 'done'}: {line}")
    if supervisor.stopped_by == signal.SIGPIPE:  # the buffered output has no reader any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _summary(last_status: Path) -> str:
    """What the run has done, by the last status of its scheduler; "" if that was killed, or nothing was summed."""
    try:
        return summary(json.loads(last_status.read_text()))
    except (OSError, ValueError):
        return ""


def _environment(workers: Workers, restarts: int, keep_going: bool) -> dict[str, str]:
    """The environment of a run's processes."""
    environment = dict(os.environ)
    if keep_going:
        environment[KEEP_GOING] = "1"
    if restarts or workers.least:
        if (recovery := environment.get("FPTPS_RECOVERY")) not in (None, "", "1"):
            raise click.UsageError(
                f"FPTPS_RECOVERY={recovery} in the environment: --restarts and -n MIN:MAX need a run that goes on when "
                "a process dies. Unset it"
            )
        environment["FPTPS_RECOVERY"] = "1"
    if workers.least:
        environment |= {"FPTPS_MIN_WORKERS": str(workers.least), "FPTPS_MAX_WORKERS": str(workers.number)}
    return environment


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that the scheduler and a server share."""
    for option in (
        click.option("--servers", "-s", type=click.IntRange(0), help="Number of servers. [DMLC_NUM_SERVER]"),
        click.option("--workers", "-n", type=click.IntRange(1), help="Number of workers. [DMLC_NUM_WORKER]"),
        click.option("--port", type=click.IntRange(1, 65535), help="Port of the scheduler. [DMLC_PS_ROOT_PORT]"),
        click.option("--host", help="Address of the scheduler. [DMLC_PS_ROOT_URI]"),
    ):
        command = option(command)
    return command


@main.command(name="scheduler")
@click.option("-q", "--quiet", is_flag=True, help="Print warnings and errors only.")
@node_options
def scheduler_command(
    host: str | None, port: int | None, workers: int | None, servers: int | None, quiet: bool
) -> None:
    """Run the scheduler of a cluster."""
    sys.exit(scheduler.main(host, port, workers, servers, quiet))


@main.command(name="server")
@node_options
def server_command(host: str | None, port: int | None, workers: int | None, servers: int | None) -> None:
    """Run one server of a cluster."""
    sys.exit(server.main(host, port, workers, servers))
