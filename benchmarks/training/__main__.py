"""Trainings on shaped links: by fptps.torch and by DDP over Gloo, by fptps.mxnet and by MXNet's own kvstore.

python -m benchmarks.training --output build/benchmarks/training.json      # root, or user namespaces; some 45 minutes
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from tabulate import tabulate

from ..compare import ROOT
from ..shaped import measure
from ..testbed import why_not
from .mxnet import runs as of_mxnet
from .runs import all_runs


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--run", "names", multiple=True, help="Only runs whose name has this in it; repeatable.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON file.")
def main(names: tuple[str, ...], rounds: int, output: Path | None) -> None:
    """Measure trainings with PyTorch and with MXNet on shaped links."""
    if (reason := why_not()) is not None:
        raise click.ClickException(reason)
    now = datetime.now(timezone.utc)
    runs = all_runs(rounds)
    if Path(of_mxnet.PYTHON).exists():
        runs += of_mxnet.all_runs(rounds)
    else:
        click.echo("MXNet is not installed, and left out: make peers", err=True)
    runs = [run for run in runs if not names or any(name in run.name for name in names)]
    path = output or ROOT / "build" / "benchmarks" / f"training-{now:%Y-%m-%dT%H-%M-%S}.json"
    measure(runs, now, path, brief)


def brief(figures: dict[str, Any]) -> str:
    """The times of each training."""
    rows = [
        [
            row["model"],
            row["system"],
            row.get("iteration_ms"),
            row.get("bound_ms"),
            row["cpu_ms"],
            row.get("idle_share"),
        ]
        for row in figures["trainings"]
    ]
    return "\n" + str(tabulate(rows, ("model", "system", "iteration ms", "bound ms", "CPU ms", "idle"), missingval="-"))


if __name__ == "__main__":
    main()
