"""The pictures of docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from .scenarios import FPTPS, FPTPS_TCP
from .shaped import ALL_MODELS, RATE_GIVEN, TRAININGS, median, trainer_name
from .summary import GOODPUT
from .training import report as training
from .training.names import BACKEND, FORWARD, GLOO, HOOK, NONE

COLORS: Final = {
    FPTPS: "#b2182b",
    FPTPS_TCP: "#ef8a62",
    "mxnet": "#2166ac",
    "mxnet p3": "#67a9cf",
    "gloo": "#1b7837",
    "mpi": "#7fbf7b",
    "mpi tcp": "#c2e699",
    "epoll": "#666666",
    "ring": "#999999",
    HOOK: "#7fbf7b",
    BACKEND: "#1b7837",
    NONE: "#ef8a62",
    FORWARD: "#b2182b",
}
SHADES: Final = ("#b2182b", "#ef8a62", "#2166ac", "#67a9cf")
"""Of clusters in the order of TRAININGS."""
BY_SIZE: Final = {"1x1 16 KB": 16, "1x1 256 KB": 256, "1x1": 4096}
"""Scenarios of one worker and one server with 16 tensors, and their sizes in KiB."""


def goodput(compared: dict[str, Any], path: Path) -> None:
    """Goodput by the size of the tensors, and by cluster."""
    medians = {(row["scenario"], row["system"]): row["medians"][GOODPUT] for row in compared["medians"]}
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    for system in (FPTPS, FPTPS_TCP, "mxnet", "epoll", "ring"):
        points = [(size, medians[name, system]) for name, size in BY_SIZE.items() if (name, system) in medians]
        if points:
            left.plot(*zip(*points), marker="o", color=COLORS[system], label=system)
    left.set(
        xscale="log",
        yscale="log",
        xlabel="KiB of each of 16 tensors",
        ylabel="MB/s pushed + pulled",
        title="1 worker, 1 server",
    )
    left.set_xticks(list(BY_SIZE.values()), [str(size) for size in BY_SIZE.values()])
    left.legend()
    clusters = ("2x0", "4x0", "2x2", "4x4")
    bars(right, medians, clusters, (FPTPS, FPTPS_TCP, "gloo", "mpi", "mpi tcp", "mxnet", "mxnet p3"))
    right.set(ylabel="MB/s per worker", title="16 tensors of 4 MiB, workers x servers")
    right.legend(fontsize=8)
    save(figure, path)


def bars(
    axes: Any, values: Mapping[tuple[str, str], float | None], groups: tuple[str, ...], systems: tuple[str, ...]
) -> None:
    """A bar for each system in each group."""
    width = 0.8 / len(systems)
    for i, name in enumerate(systems):
        heights = [values.get((group, name)) or 0.0 for group in groups]
        axes.bar([x + i * width for x in range(len(groups))], heights, width, color=COLORS[name], label=name)
    axes.set_xticks([x + 0.4 - width / 2 for x in range(len(groups))], groups)


def latency(compared: dict[str, Any], path: Path) -> None:
    """One tensor of 4 KB: a bar from the median to the 99th percentile."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 3.2))
    for pane, scenario in zip(axes, ("1x1 4 KB", "4x4 4 KB")):
        rows = [row for row in compared["medians"] if row["scenario"] == scenario and row["medians"]["p50_us"]]
        for y, row in enumerate(rows):
            p50, p99 = row["medians"]["p50_us"], row["medians"]["p99_us"]
            pane.barh(y, p99 - p50, left=p50, color=COLORS[row["system"]], alpha=0.5)
            pane.plot([p50], [y], "o", color=COLORS[row["system"]])
        pane.set_yticks(range(len(rows)), [row["system"] for row in rows])
        pane.invert_yaxis()
        pane.margins(x=0.1)
        pane.set(xscale="log", xlabel="microseconds: median (dot) to 99th percentile", title=scenario)
    save(figure, path)


def link_use(shaped: dict[str, Any], path: Path) -> None:
    """Rate at which worker 0 sends, over time."""
    figure, axes = pyplot.subplots(figsize=(11, 3.2))
    shown = set()
    for sample in shaped["samples"]:
        if not sample["run"].startswith("push_pull") or sample["run"] in shown or RATE_GIVEN in sample["run"]:
            continue
        shown.add(sample["run"])
        points = sample["link"]
        begin = next((t for (t, a), (_, b) in zip(points, points[1:]) if b - a > 1e6), 0.0)
        times = [b[0] - begin for b in points[1:]]
        speed = [(b[1] - a[1]) * 8 / max(b[0] - a[0], 1e-3) / 1e6 for a, b in zip(points, points[1:])]
        axes.plot(times, speed, label=sample["run"].split()[1])
    axes.axhline(1000, color="black", linewidth=0.6, linestyle="--")
    axes.set(
        xlim=(-0.2, None),
        ylim=(0, 1250),
        xlabel="seconds",
        ylabel="Mbit/s",
        title="Rate at which worker 0 sends on its link of 1 Gbit/s",
    )
    axes.legend(ncols=4, loc="upper right")
    save(figure, path)


def trainer(shaped: dict[str, Any], path: Path) -> None:
    """Iteration times as multiples of the bound."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 3.6), width_ratios=(3, 2))

    def ratio(run: str) -> float:
        return median(shaped["samples"], run, "ratio") or 0.0

    clusters = [(each.cluster, each.rate) for each in TRAININGS if len(each.models) > 1]
    width = 0.8 / len(clusters)
    for i, (size, rate) in enumerate(clusters):
        heights = [ratio(trainer_name(model, size, rate=rate)) for model in ALL_MODELS]
        places = [x + i * width for x in range(len(ALL_MODELS))]
        left.bar(places, heights, width, color=SHADES[i], label=f"{size}, {rate}")
    left.set_xticks([x + 0.4 - width / 2 for x in range(len(ALL_MODELS))], ALL_MODELS)
    modes = ("fifo", "partitioned", "message", "packet")
    for i, model in enumerate(("resnet50", "vgg16")):
        heights = [ratio(trainer_name(model, "2x2", mode)) for mode in modes]
        right.bar([x + i * 0.4 for x in range(len(modes))], heights, 0.4, color=("#2166ac", "#67a9cf")[i], label=model)
    right.set_xticks([x + 0.2 for x in range(len(modes))], modes)
    for pane, title in ((left, "Iteration / bound"), (right, "Scheduling modes, 2x2, 1 Gbit/s")):
        pane.axhline(1, color="black", linewidth=0.6, linestyle="--")
        pane.set(ylim=(0.8, None), ylabel="iteration / bound", title=title)
        pane.legend()
    save(figure, path)


def trainings(trained: dict[str, Any], path: Path) -> None:
    """Samples per second of trainings with PyTorch, as multiples of DDP's over Gloo; a pane for each cluster."""
    of = list(training.clusters(training.trainings(trained["samples"])))
    names = list(dict.fromkeys(cluster for cluster, _, _ in of))
    figure, axes = pyplot.subplots(1, len(names), figsize=(11, 3.6), sharey=True, squeeze=False)
    for pane, name in zip(axes[0], names):
        models = [model for cluster, model, _ in of if cluster == name]
        values = {
            (model, system): each.against_gloo
            for cluster, model, systems in of
            if cluster == name
            for system, each in systems.items()
        }
        bars(pane, values, tuple(models), tuple(system for system in training.SYSTEMS if system != GLOO))
        pane.axhline(1, color="black", linewidth=0.6, linestyle="--")
        pane.tick_params(axis="x", labelsize=7)
        pane.set_title(name)
    axes[0][0].set_ylabel("samples/s, DDP over Gloo = 1")
    axes[0][0].legend(fontsize=6)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Writes a picture."""
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
