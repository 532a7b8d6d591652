"""Compares runs: `python -m benchmarks.osp.report RUN... [--out DIR]` prints a table and draws curves into DIR."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from tabulate import tabulate

from .config import SetupError
from .runs import Run, read

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PANELS = (
    ("elapsed_s", "test_accuracy", "seconds", "test accuracy"),
    ("iterations", "test_accuracy", "iterations of all workers", "test accuracy"),
    ("elapsed_s", "test_loss", "seconds", "test loss"),
    ("iterations", "test_loss", "iterations of all workers", "test loss"),
)

Links = Mapping[str, Sequence[Run]]
"""Runs by the rate of their links: a column of each picture."""


def table(runs: Sequence[Run]) -> str:
    """In Markdown, a row for each run. Times are a worker's mean, bytes those of all rounds and workers, no headers."""
    rows = [
        {
            "run": run.name,
            "workers": run.workers,
            "iterations": run.summary["iterations"],
            "rounds": run.summary["rounds"],
            "accuracy": percent(run.summary["test_accuracy"]),
            "to 97 %": reached(run, 0.97),
            "s in all": f"{run.summary['training_s']:.1f}",
            "iterations / s": f"{run.summary['iterations'] / run.summary['training_s']:.1f}",
            "s in flight / round": f"{run.per_round('communication_s'):.3f}",
            "s waited / round": f"{run.per_round('waited_s'):.4f}",
            "MB to PS": f"{run.summary['bytes_workers_to_ps'] / 1e6:.1f}",
            "MB from PS": f"{run.summary['bytes_ps_to_workers'] / 1e6:.1f}",
            "MB / message": f"{run.per_round('bytes_sent') / 1e6:.3f}",
        }
        for run in runs
    ]
    return str(tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True))


def milestones(runs: Sequence[Run], accuracies: Sequence[float]) -> str:
    """In Markdown, a row for each run: when a round's model first had each accuracy."""
    rows = [[run.name, *(reached(run, accuracy) for accuracy in accuracies)] for run in runs]
    headers = ["run", *(f"to {100 * accuracy:.0f} %" for accuracy in accuracies)]
    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))


def reached(run: Run, accuracy: float) -> str:
    seconds = run.first("elapsed_s", accuracy)
    return "-" if seconds is None else f"{run.first('iterations', accuracy)} in {seconds:.1f} s"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def draw_curves(links: Links, path: Path) -> None:
    """Accuracy and loss, by time and by iteration."""
    figure, axes = grid(links, rows=len(PANELS), height=3.2)
    for column, (title, runs) in zip(axes.T, links.items()):
        column[0].set_title(title)
        for axis, (x, y, x_label, y_label) in zip(column, PANELS):
            for run in runs:
                axis.plot(*run.curve(x, y), label=run.name, linewidth=1.2)
            axis.set(xlabel=x_label, ylabel=y_label)
            axis.grid(alpha=0.3)
            if y == "test_accuracy":
                best = max(max(run.curve(x, y)[1], default=0) for run in runs)
                axis.set_ylim(max(0.0, best - 0.15), min(1.0, best + 0.01))
            else:
                axis.set_yscale("log")
        column[0].legend()
    save(figure, path)


def draw_communication(links: Links, path: Path) -> None:
    """Seconds and bytes of a worker's round."""
    figure, axes = grid(links, rows=2, height=3.8)
    for (times, sizes), (title, runs) in zip(axes.T, links.items()):
        times.set_title(title)
        names = [run.name for run in runs]
        places = range(len(runs))
        for offset, (column, label) in enumerate((("communication_s", "in flight"), ("waited_s", "waited for"))):
            bars = times.bar([p + 0.4 * offset for p in places], [r.per_round(column) for r in runs], 0.38, label=label)
            times.bar_label(bars, fmt="%.3f", fontsize=8)
        times.set_xticks([p + 0.2 for p in places], names, rotation=20)
        times.set(ylabel="seconds of a round (mean)")
        times.margins(y=0.1)
        times.legend()
        bars = sizes.bar(names, [run.per_round("bytes_sent") / 1e6 for run in runs], 0.6)
        sizes.bar_label(bars, fmt="%.2f", fontsize=8)
        sizes.set_xticks(list(places), names, rotation=20)
        sizes.set(ylabel="MB of a message, and of a sum")
        sizes.margins(y=0.1)
    save(figure, path)


def grid(links: Links, rows: int, height: float) -> Any:
    """A figure and its axes, (rows, links)."""
    size = (6 * len(links), height * rows)
    return plt.subplots(rows, len(links), figsize=size, layout="constrained", squeeze=False)


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="compares runs: a table, and with --out curves")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a run")
    parser.add_argument("--out", type=Path, help="folder for table.md, curves.png and communication.png")
    args = parser.parse_args()
    runs = [read(folder) for folder in args.runs]
    print(table(runs))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "table.md").write_text(table(runs) + "\n")
        draw_curves({"": runs}, args.out / "curves.png")
        draw_communication({"": runs}, args.out / "communication.png")


if __name__ == "__main__":
    try:
        main()
    except (SetupError, OSError) as error:
        sys.exit(f"report: {error}")
