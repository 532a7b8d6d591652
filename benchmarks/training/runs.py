"""The runs of the training benchmark with PyTorch, as data. mxnet/runs.py has those with MXNet.

A run is of one program. It prints a row for each training: model, system, iteration_ms, bound_ms, cpu_ms, idle_share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ..shaped import Run
from ..summary import run_order
from ..testbed.network import INTERFACE
from .names import AS_BACKEND, CNN, LIBRARY


class Setting(NamedTuple):
    """A cluster, and what trains on it."""

    workers: int
    servers: int
    rate: str
    """Of the nodes' links."""
    systems: tuple[str, ...]
    scales: dict[str, float]
    """Models, with factors on the sizes of their tensors."""

    @property
    def name(self) -> str:
        """The cluster and its links."""
        return f"{self.workers}x{self.servers}, {self.rate}"


SLOW: Final = "20mbit"
"""At this rate the processor has time left, also with 16 nodes on two cores."""
SCARCE: Final = "100mbit"
"""With 8 nodes on two cores the processor has time left for some models."""
FAST: Final = "1gbit"
SCALES: Final = {
    SLOW: {"resnet50": 0.01, "vgg16": 0.002, "bert_base": 0.003},
    SCARCE: {"resnet50": 0.05, "vgg16": 0.01, "bert_base": 0.015, CNN: 1.0},
    FAST: {"resnet50": 0.1, CNN: 1.0},
}
SETTINGS: Final = (
    *(
        Setting(*cluster, systems, SCALES[cluster[2]])
        for cluster in ((2, 2, SCARCE), (4, 4, SCARCE), (4, 4, FAST))
        for systems in (LIBRARY, AS_BACKEND)
    ),
    Setting(4, 0, SCARCE, LIBRARY, SCALES[SCARCE]),
    *(Setting(nodes, nodes, SLOW, LIBRARY, SCALES[SLOW]) for nodes in (4, 8)),
)
ALONE: Final = Run("1x0", 1, 0, ("benchmarks.training.alone",))


def run_of(setting: Setting, systems: Sequence[str]) -> Run:
    """All models by the systems in this order, one after the other, on one cluster."""
    arguments = ["benchmarks.training.worker", "--master", "@worker:0", "--interface", INTERFACE]
    arguments += ["--link", setting.rate]
    models = [f"{model}={scale}" for model, scale in setting.scales.items()]
    for option, names in (("--system", systems), ("--model", models)):
        for name in names:
            arguments += [option, name]
    return Run(setting.name, setting.workers, setting.servers, tuple(arguments), setting.rate)


def all_runs(rounds: int) -> list[Run]:
    """Every round has all runs, and begins each with another of its systems."""
    made = []
    for number in range(rounds):
        made += [run_of(setting, systems_in(number, setting.systems)) for setting in SETTINGS]
        made.append(ALONE)
    return made


def systems_in(round_number: int, systems: Sequence[str]) -> list[str]:
    """The order of the systems in a round."""
    return [run.system for run in run_order(systems, round_number + 1) if run.round == round_number]
