"""`make osp`: the algorithms over links of 100 Mbit/s, and docs/osp.md's figures from what they have written.

Each run has a folder of its own in build/osp; one that is there with a summary is not run again. Where runs are named,
only those are run; those of SLOWER are run only then.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from claims import claims
from config import SetupError
from runs import Run, read

import report

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "osp"
PAGE = ROOT / "docs" / "osp.md"
PICTURES = ROOT / "docs" / "osp"
BEGIN, END = "<!-- figures of make osp -->", "<!-- end of the figures -->"
RATE = "100mbit"

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


@dataclass(frozen=True)
class Piece:
    """One run of the reproduction."""

    algorithm: str
    workers: int = 4
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        return {**MNIST, **self.changes}


COMPARED = {
    "localSGD": Piece("localSGD"),
    "OSP": Piece("OSP"),
    "LOSP": Piece("LOSP"),
    "DQLOSP-16": Piece("DQLOSP", changes={"quant_bits": 16}),
    "DQLOSP-8": Piece("DQLOSP", changes={"quant_bits": 8}),
}
SHOWN = {
    "8-workers": Piece("LOSP", 8, SHORT),
    "16-workers": Piece("LOSP", 16, SHORT),
    "AlexNet": Piece("LOSP", 4, {**CIFAR10, "model_type": "AlexNet", "all_iterations": 2000}),
    "ResNet": Piece("LOSP", 4, {**CIFAR10, "model_type": "ResNet"}),
}
QUARTER = {"initial_lr": 0.025, "gamma": 0.0375, "all_iterations": 9000}
SLOWER = {
    "localSGD-0.025": Piece("localSGD", changes=QUARTER),
    "OSP-0.025": Piece("OSP", changes=QUARTER),
}
DEFAULT = [*COMPARED, *SHOWN]
PIECES = {**COMPARED, **SHOWN, **SLOWER}


def launcher(processes: int) -> list[str]:
    """What runs so many processes: over shaped links where they can be made, else on loopback."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.testbed.network import TestBedError, find_way

    try:
        find_way()
    except TestBedError as error:
        print(f"links are not shaped: {error}", flush=True)
        return [sys.executable, "-m", "fptps", "run", "-n", str(processes), "-s", "0"]
    return [sys.executable, "-m", "benchmarks.testbed", "-n", str(processes), "-s", "0", "--rate", RATE]


def run(name: str, data: Path) -> None:
    piece, folder = PIECES[name], OUT / name
    if (folder / "summary.json").exists():
        print(f"{name}: is there already", flush=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    OUT.mkdir(parents=True, exist_ok=True)
    config = OUT / f"{name}.json"
    config.write_text(json.dumps(piece.config, indent=4))
    program = [sys.executable, str(ROOT / "examples/osp/main.py"), "--algorithm", piece.algorithm]
    program += ["--config", str(config), "--data-dir", str(data), "--run-dir", str(folder)]
    print(f"{name}: {time.strftime('%H:%M:%S')}", flush=True)
    subprocess.run([*launcher(piece.workers + 1), "--", *program], cwd=ROOT, check=True)


def write_page(compared: list[Run], shown: list[Run], slower: list[Run]) -> None:
    """The figures of docs/osp.md. shown, slower: those of SHOWN and of SLOWER that there are."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    report.draw_curves(compared, PICTURES / "curves.png")
    report.draw_communication(compared, PICTURES / "communication.png")
    versions = compared[0].summary["versions"]
    setting = ", ".join(f"{name} {version}" for name, version in versions.items())
    figures = [
        BEGIN,
        f"{time.strftime('%d %B %Y')}; `make osp`; {setting}; links of {RATE}.",
        report.table(compared),
        "![accuracy and loss by iteration and by time](osp/curves.png)",
        "![seconds and bytes of a round](osp/communication.png)",
        "What was to be shown:",
        claims({each.name: each for each in compared}),
    ]
    if shown:
        figures += ["Short runs, to show that they work:", report.table(shown)]
    if len(slower) == len(SLOWER):
        rates = [each for each in compared if each.name in ("localSGD", "OSP")] + slower
        figures += [
            "localSGD and OSP at eta 0.1, and at a quarter of it: iterations and seconds to an accuracy:",
            report.milestones(rates, (0.9, 0.93, 0.95, 0.96, 0.97)),
        ]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + "\n\n".join([*figures, END]) + after)


def main() -> None:
    parser = argparse.ArgumentParser(description="repeats the experiments of docs/osp.md")
    names = f"some of: {', '.join(PIECES)} [the first {len(DEFAULT)}]"
    parser.add_argument("names", nargs="*", metavar="RUN", help=names)
    parser.add_argument("--mnist", type=Path, required=True, help="folder of MNIST's four *-ubyte.gz files")
    parser.add_argument("--cifar10", type=Path, help="the folder cifar-10-batches-py [its two runs are left out]")
    args = parser.parse_args()
    if unknown := set(args.names) - PIECES.keys():
        parser.error(f"unknown runs: {', '.join(sorted(unknown))}")
    for dataset_type, folder in (("MNIST", args.mnist), ("Cifar10", args.cifar10)):
        if folder is not None:
            datasets.load(dataset_type, folder)  # what is wrong there is told now, not after half an hour
    for name in args.names or DEFAULT:
        data = args.cifar10 if PIECES[name].config["dataset_type"] == "Cifar10" else args.mnist
        if data is not None:
            run(name, data)
    ended = {name: read(OUT / name) for name in PIECES if (OUT / name / "summary.json").exists()}
    if ended.keys() >= COMPARED.keys():
        compared, shown, slower = ([ended[n] for n in names if n in ended] for names in (COMPARED, SHOWN, SLOWER))
        write_page(compared, shown, slower)
        print(f"the figures are in {PAGE}")


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        sys.exit(f"{Path(__file__).name}: {error}")
