"""Compares fptps with its peers on this machine, by the same rules, in many rounds.

python -m benchmarks.compare                                   # everything: some 25 minutes
python -m benchmarks.compare --scenario 1x1 --peer mxnet --peer epoll --rounds 3
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

import click
from tabulate import tabulate
from tqdm import tqdm

from .scenarios import FPTPS, PEERS, SCENARIOS, Scenario, fptps_commands, peer_command
from .summary import GOODPUT, HEADERS, Row, cells, rows, run_order

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 120.0
"""A run may take this much longer than its timed part; a runner ends by itself before."""
GRACE_S = 10.0
FAILURES = 2
"""A system is left out of a scenario after this many failures: some peers hang at times."""


@dataclass
class Comparison:
    """All measurements: the content of the JSON file."""

    date: str
    machine: dict[str, Any]
    commit: str
    rounds: int
    seconds: float
    commands: dict[str, dict[str, str]] = field(default_factory=dict)
    """By scenario and system."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """In the order of measurement."""
    failures: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Error texts, by scenario and system."""

    def rows(self) -> list[Row]:
        """The medians of all samples."""
        made = []
        for scenario, commands in self.commands.items():
            of = {
                system: [s["figures"] for s in self.samples if s["scenario"] == scenario and s["system"] == system]
                for system in commands
            }
            made += rows(scenario, of, FPTPS)
        return made

    def as_json(self) -> str:
        """The content of the JSON file."""
        return json.dumps({**asdict(self), "medians": [asdict(row) for row in self.rows()]}, indent=1) + "\n"


class RunFailed(Exception):
    """A run had no result; the text gives the reason."""


def machine() -> dict[str, Any]:
    """The properties of this machine that the figures depend on."""
    models = [line.partition(":")[2].strip() for line in read("/proc/cpuinfo").splitlines() if "model name" in line]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "tcp_congestion_control": read("/proc/sys/net/ipv4/tcp_congestion_control").strip(),
        "python": platform.python_version(),
    }


def read(path: str) -> str:
    """The content of a file of the kernel; empty if it does not exist."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def commit() -> str:
    """The commit of this tree."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def sample(command: list[str], patience_s: float) -> dict[str, Any]:
    """Runs a command; returns the JSON object in its last line."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        output, errors = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"it did not end within {patience_s:.0f} s") from None
    except OSError as error:
        raise RunFailed(str(error)) from None
    finally:
        end(process)
    return figures(process.returncode, output, errors)


def end(process: subprocess.Popen[str]) -> None:
    """Stops a runner, which on SIGTERM stops all processes that it has started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def figures(code: int, output: str, errors: str) -> dict[str, Any]:
    """The figures that a finished program has printed."""
    if code != 0:
        said = (errors.strip() or output.strip() or "no output").splitlines()[-1]
        raise RunFailed(f"exit code {code}: {said}")
    last = output.rstrip().rpartition("\n")[2]
    try:
        found: dict[str, Any] = json.loads(last)
        float(found[GOODPUT])
    except (ValueError, TypeError, KeyError):
        raise RunFailed(f"its last line is no JSON with {GOODPUT}: {last[:200]}") from None
    return found


def commands_of(scenario: Scenario, peers: list[str], program: list[str], seconds: float) -> dict[str, list[str]]:
    """The commands of fptps, and of the chosen peers of the scenario."""
    chosen = fptps_commands(program, scenario, seconds)
    chosen.update({peer: peer_command(peer, scenario, seconds) for peer in scenario.peers if peer in peers})
    return chosen


def measure(comparison: Comparison, scenario: Scenario, commands: dict[str, list[str]], bar: Any) -> None:
    """Makes all runs of a scenario."""
    comparison.commands[scenario.name] = {system: shlex.join(command) for system, command in commands.items()}
    failures = comparison.failures.setdefault(scenario.name, {})
    for run in run_order(list(commands), comparison.rounds):
        bar.set_description(f"{scenario.name}: {run.system}")
        if len(failures.get(run.system, ())) < FAILURES:
            load = os.getloadavg()[0]
            try:
                found = sample(commands[run.system], PATIENCE_S + 4 * comparison.seconds)
            except RunFailed as error:
                failures.setdefault(run.system, []).append(str(error))
                bar.write(f"{scenario.name}: {run.system}: {error}", file=sys.stderr)
            else:
                comparison.samples.append(
                    {"scenario": scenario.name, **run._asdict(), "load_before": load, "figures": found}
                )
        bar.update()


def report(comparison: Comparison, to: IO[str] | None = None) -> None:
    """Prints the table, and how to read it."""
    table = tabulate(
        [cells(row) for row in comparison.rows()], HEADERS, disable_numparse=True, colalign=("left", "left")
    )
    click.echo(table, to)
    click.echo(
        f"Medians of {comparison.rounds} rounds. goodput x: fptps's goodput divided by this system's; "
        "p50 x: this system's p50 divided by fptps's. One-way systems count the bytes of one direction.",
        to,
    )
    for scenario, failures in comparison.failures.items():
        for system, reasons in failures.items():
            click.echo(f"{scenario}: {system} failed {len(reasons)} times, the last time: {reasons[-1]}", to)


@contextlib.contextmanager
def saved_at_the_end(comparison: Comparison, path: Path) -> Iterator[None]:
    """Prints and writes the samples at the end, also after an interruption."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(comparison.as_json())
        report(comparison)
        click.echo(f"Every sample: {path}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--scenario",
    "names",
    multiple=True,
    type=click.Choice([s.name for s in SCENARIOS]),
    help="Only this one; repeatable.",
)
@click.option("--peer", "peers", multiple=True, type=click.Choice(list(PEERS)), help="Only this one; repeatable.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.01), default=3.0, show_default=True, help="Of each timed part.")
@click.option("--fptps", "program", help="The command fptps.  [default: this Python's]")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON file.  [default: build/benchmarks/DATE.json]",
)
def main(
    names: tuple[str, ...],
    peers: tuple[str, ...],
    rounds: int,
    seconds: float,
    program: str | None,
    output: Path | None,
) -> None:
    """Compare fptps with its peers on this machine."""
    now = datetime.now(timezone.utc)
    comparison = Comparison(now.isoformat(timespec="seconds"), machine(), commit(), rounds, seconds)
    fptps = shlex.split(program) if program else [sys.executable, "-m", "fptps"]
    plan = {s: commands_of(s, list(peers or PEERS), fptps, seconds) for s in SCENARIOS if not names or s.name in names}
    path = output or ROOT / "build" / "benchmarks" / f"{now:%Y-%m-%dT%H-%M-%S}.json"
    with saved_at_the_end(comparison, path), tqdm(total=rounds * sum(map(len, plan.values())), file=sys.stderr) as bar:
        for scenario, commands in plan.items():
            measure(comparison, scenario, commands, bar)
    if any(FPTPS in failures for failures in comparison.failures.values()):
        sys.exit("fptps itself has failed.")


if __name__ == "__main__":
    main()
