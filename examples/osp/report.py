"""Compares runs: `python report.py RUN... [--out DIR]` prints a table in Markdown, and writes curves into DIR."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from config import SetupError
from runs import Run, read
from tabulate import tabulate

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PANELS = (
    ("iterations", "test_accuracy", "iterations of all workers", "test accuracy"),
    ("elapsed_s", "test_accuracy", "seconds", "test accuracy"),
    ("iterations", "test_loss", "iterations of all workers", "test loss"),
    ("elapsed_s", "test_loss", "seconds", "test loss"),
)


def table(runs: list[Run]) -> str:
    """A row for each run. Times are a worker's mean, bytes those of all rounds and workers without headers."""
    rows = [
        {
            "run": run.name,
            "workers": run.workers,
            "iterations": run.summary["iterations"],
            "rounds": run.summary["rounds"],
            "accuracy": share(run.summary["test_accuracy"]),
            "to 97 %": reached(run, 0.97),
            "s in all": f"{run.summary['training_s']:.1f}",
            "iterations / s": f"{run.summary['iterations'] / run.summary['training_s']:.1f}",
            "s under way / round": f"{run.per_round('communication_s'):.3f}",
            "s waited / round": f"{run.per_round('waited_s'):.4f}",
            "MB to PS": f"{run.summary['bytes_workers_to_ps'] / 1e6:.1f}",
            "MB from PS": f"{run.summary['bytes_ps_to_workers'] / 1e6:.1f}",
            "MB / message": f"{run.per_round('bytes_sent') / 1e6:.3f}",
        }
        for run in runs
    ]
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)


def milestones(runs: list[Run], accuracies: Sequence[float]) -> str:
    """A row for each run: when its rounds' models first were so accurate."""
    rows = [[run.name, *(reached(run, accuracy) for accuracy in accuracies)] for run in runs]
    headers = ["run", *(f"to {100 * accuracy:.0f} %" for accuracy in accuracies)]
    return tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True)


def reached(run: Run, accuracy: float) -> str:
    seconds = run.first("elapsed_s", accuracy)
    return "-" if seconds is None else f"{run.first('iterations', accuracy)} in {seconds:.1f} s"


def share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def draw_curves(runs: list[Run], path: Path) -> None:
    """Accuracy and loss, by iteration and by time."""
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    for axis, (x, y, x_label, y_label) in zip(axes.flat, PANELS):
        for run in runs:
            axis.plot(*run.curve(x, y), label=run.name, linewidth=1.2)
        axis.set(xlabel=x_label, ylabel=y_label)
        axis.grid(alpha=0.3)
        if y == "test_accuracy":
            best = max(max(run.curve(x, y)[1], default=0) for run in runs)
            axis.set_ylim(max(0.0, best - 0.15), min(1.0, best + 0.01))
        else:
            axis.set_yscale("log")
    axes.flat[0].legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_communication(runs: list[Run], path: Path) -> None:
    """Seconds and bytes of a worker's round."""
    names = [run.name for run in runs]
    figure, (times, sizes) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    places = range(len(runs))
    for offset, (what, label) in enumerate((("communication_s", "under way"), ("waited_s", "waited for"))):
        bars = times.bar([p + 0.4 * offset for p in places], [run.per_round(what) for run in runs], 0.38, label=label)
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
        draw_curves(runs, args.out / "curves.png")
        draw_communication(runs, args.out / "communication.png")


if __name__ == "__main__":
    try:
        main()
    except (SetupError, OSError) as error:
        sys.exit(f"{Path(__file__).name}: {error}")
