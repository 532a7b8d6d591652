"""`make osp`: the algorithms over links of 100 and of 20 Mbit/s, and docs/osp.md's figures from their records.

A run is named by its links and its settings, as in 20mbit/OSP, and has that folder in build/osp. A run whose folder
has a summary is not repeated, so an interrupted `make osp` continues. Where runs are named, only those are run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.testbed import why_not

from . import claims, datasets, report
from .config import SetupError
from .runs import Run, read

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "osp"
PAGE = ROOT / "docs" / "osp.md"
PICTURES = ROOT / "docs" / "osp"
BEGIN, END = "<!-- figures of make osp -->", "<!-- end of the figures -->"

RATES = {"100mbit": "100 Mbit/s", "20mbit": "20 Mbit/s"}
"""Of every process's link: at 100 Mbit/s two cores are the limit, at 20 Mbit/s the network is."""

MNIST: dict[str, Any] = {
    "initial_lr": 0.1,
    "gamma": 0.15,  # 1.5 times the rate, as in the original settings
    "quant_range": None,
    "all_iterations": 6000,
    "batch_size": 32,
    "K": 32,
    "model_type": "CNN",
    "dataset_type": "MNIST",
    "output_dir": "runs",
    "test_samples": 1000,
    "seed": 1,
}
SHORT = {"all_iterations": 128, "K": 4}
CIFAR10 = {"dataset_type": "Cifar10", "initial_lr": 0.05, "gamma": 0.075, "all_iterations": 800, "K": 16}
QUARTER = {"initial_lr": 0.025, "gamma": 0.0375, "all_iterations": 9000}


@dataclass(frozen=True)
class Experiment:
    algorithm: str
    workers: int = 4
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        return {**MNIST, **self.changes}


COMPARED = {
    "localSGD": Experiment("localSGD"),
    "OSP": Experiment("OSP"),
    "LOSP": Experiment("LOSP"),
    "DQLOSP-16": Experiment("DQLOSP", changes={"quant_bits": 16}),
    "DQLOSP-8": Experiment("DQLOSP", changes={"quant_bits": 8}),
}
SHORTER = {
    "8-workers": Experiment("LOSP", 8, SHORT),
    "16-workers": Experiment("LOSP", 16, SHORT),
    "AlexNet": Experiment("LOSP", 4, {**CIFAR10, "model_type": "AlexNet", "all_iterations": 2000}),
    "ResNet": Experiment("LOSP", 4, {**CIFAR10, "model_type": "ResNet"}),
}
SLOWER = {
    "localSGD-0.025": Experiment("localSGD", changes=QUARTER),
    "OSP-0.025": Experiment("OSP", changes=QUARTER),
}
RUNS = {f"{rate}/{name}": experiment for rate in RATES for name, experiment in {**COMPARED, **SLOWER}.items()}
RUNS |= {f"100mbit/{name}": experiment for name, experiment in SHORTER.items()}


def run(name: str, data: Path) -> None:
    """One cluster in the test bed, each process behind a link of its own."""
    folder, experiment = OUT / name, RUNS[name]
    if (folder / "summary.json").exists():
        print(f"{name}: was run before", flush=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = folder.with_name(f"{folder.name}.json")
    config.write_text(json.dumps(experiment.config, indent=4))
    bed = ["benchmarks.testbed", "-n", str(experiment.workers + 1), "-s", "0", "--rate", folder.parent.name, "--"]
    program = [sys.executable, "-m", "benchmarks.osp", "--algorithm", experiment.algorithm]
    program += ["--config", str(config), "--data-dir", str(data), "--run-dir", str(folder)]
    print(f"{name}: {time.strftime('%H:%M:%S')}", flush=True)
    done = subprocess.run([sys.executable, "-m", *bed, *program], cwd=ROOT)
    if done.returncode:
        raise SetupError(f"{name} ended with exit code {done.returncode}: its output is above")


def ended(names: Mapping[str, Experiment], rate: str) -> dict[str, Run]:
    """The runs of these names, with links of this rate, that have ended."""
    folders = {name: OUT / rate / name for name in names}
    return {name: read(folder) for name, folder in folders.items() if (folder / "summary.json").exists()}


def write_page(links: Mapping[str, Mapping[str, Run]]) -> None:
    """The figures of docs/osp.md. links: by their rate, the runs of COMPARED, and the other runs that have ended."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    compared = {rate: [runs[name] for name in COMPARED] for rate, runs in links.items()}
    report.draw_curves(compared, PICTURES / "curves.png")
    report.draw_communication(compared, PICTURES / "communication.png")
    fast = next(iter(links.values()))
    versions = ", ".join(f"{name} {version}" for name, version in fast["OSP"].summary["versions"].items())
    figures = [BEGIN, f"{time.strftime('%d %B %Y')}; `make osp`; {versions}."]
    for rate, runs in compared.items():
        figures += [f"Links of {rate}:", report.table(runs)]
    figures += [
        "![accuracy and loss by time and by iteration](osp/curves.png)",
        "![seconds and bytes of a round](osp/communication.png)",
        "What the papers claim, on both links:",
        claims.table({rate: {name: runs[name] for name in COMPARED} for rate, runs in links.items()}),
    ]
    if shorter := [fast[name] for name in SHORTER if name in fast]:
        figures += ["Short runs, which show that these models and so many workers work:", report.table(shorter)]
    if all(SLOWER.keys() <= runs.keys() for runs in links.values()):
        figures.append("localSGD and OSP at eta 0.1, and at a quarter of it: iterations and seconds to an accuracy.")
        for rate, ended_runs in links.items():
            pair = [ended_runs[name] for name in ("localSGD", "OSP", *SLOWER)]
            figures += [f"Links of {rate}:", report.milestones(pair, (0.9, 0.93, 0.95, 0.96, 0.97))]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + "\n\n".join([*figures, END]) + after)


def main() -> None:
    parser = argparse.ArgumentParser(description="repeats the experiments of docs/osp.md")
    parser.add_argument("names", nargs="*", metavar="RUN", help=f"some of: {', '.join(RUNS)} [all]")
    parser.add_argument("--mnist", type=Path, required=True, help="folder of MNIST's four *-ubyte.gz files")
    parser.add_argument("--cifar10", type=Path, help="the folder cifar-10-batches-py [its two runs are left out]")
    args = parser.parse_args()
    if unknown := set(args.names) - RUNS.keys():
        parser.error(f"unknown runs: {', '.join(sorted(unknown))}")
    for dataset_type, folder in (("MNIST", args.mnist), ("Cifar10", args.cifar10)):
        if folder is not None:
            datasets.load(dataset_type, folder)  # so that missing files are reported now, not after half an hour
    if reason := why_not():
        raise SetupError(f"no links can be shaped here: {reason}")
    for name in args.names or RUNS:
        data = args.cifar10 if RUNS[name].config["dataset_type"] == "Cifar10" else args.mnist
        if data is not None:
            run(name, data.resolve())
    links = {label: ended({**COMPARED, **SHORTER, **SLOWER}, rate) for rate, label in RATES.items()}
    if all(runs.keys() >= COMPARED.keys() for runs in links.values()):
        write_page(links)
        print(f"the figures are in {PAGE}")


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        sys.exit(f"reproduce: {error}")
