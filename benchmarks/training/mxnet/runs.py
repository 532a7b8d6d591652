"""The runs of MXNet's kvstores, as data.

A run trains all models by one of them: each needs processes of its own, as MXNet's servers and fptps's do not know each
other. The samples of a round are compared with each other.
"""

from __future__ import annotations

from typing import Final

from ...peers.mxnet import ENVIRONMENT, SERVE
from ...shaped import Run
from ..names import DIST_SYNC, KVSTORES, MXNET, P3, PROFILES
from ..runs import FAST, SCALES, SCARCE, SLOW, Setting, systems_in

PYTHON: Final = str(ENVIRONMENT / "bin" / "python")
PREFIX: Final = "MXNet "
"""Of the names of these runs."""
SCALES_OF: Final = {
    SLOW: SCALES[SLOW],
    SCARCE: {model: SCALES[SCARCE][model] for model in PROFILES},
    FAST: dict.fromkeys(PROFILES, 0.1),
}
SETTINGS: Final = tuple(
    Setting(nodes, nodes, rate, KVSTORES, SCALES_OF[rate])
    for nodes, rate in ((2, SCARCE), (4, SCARCE), (2, FAST), (4, FAST), (8, SLOW))
)
VANS: Final = {DIST_SYNC: "zmq", P3: "p3"}
"""MXNet's own stores, and the values of DMLC_PS_VAN_TYPE that choose them."""
BIG_ARRAY: Final = 1_000_000
"""MXNet's default: an array with more elements is divided over all servers."""
SLICE: Final = 4096
"""Elements of P3's slices: 16 KB, as fptps's packets. Its default of 40000 is for tensors that are not scaled; with it
bert_base took 1.6 times as long at 2x2 and 100 Mbit/s, the others as long."""


def run_of(setting: Setting, system: str) -> Run:
    """All models by a system, one after the other."""
    arguments = ["benchmarks.training.mxnet.worker", "--system", system, "--link", setting.rate]
    for model, scale in setting.scales.items():
        arguments += ["--model", f"{model}={scale}"]
    return Run(
        PREFIX + setting.name,
        setting.workers,
        setting.servers,
        tuple(arguments),
        setting.rate,
        python=PYTHON,
        environment=environment_of(setting, system),
        serve=() if system == MXNET else (PYTHON, "-c", SERVE),
    )


def environment_of(setting: Setting, system: str) -> dict[str, str]:
    """Variables for all processes. Threads would only take turns: there are more processes than processors."""
    environment = {"OMP_NUM_THREADS": "1"}
    if system in VANS:
        environment["DMLC_PS_VAN_TYPE"] = VANS[system]
        # Scaled like the tensors: whole models have arrays that are divided.
        environment["MXNET_KVSTORE_BIGARRAY_BOUND"] = str(round(BIG_ARRAY * min(setting.scales.values())))
    if system == P3:
        environment["MXNET_KVSTORE_SLICE_THRESHOLD"] = str(SLICE)
    return environment


def all_runs(rounds: int) -> list[Run]:
    """Every round has all runs, and begins each setting with another of its systems."""
    return [
        run_of(setting, system)
        for number in range(rounds)
        for setting in SETTINGS
        for system in systems_in(number, setting.systems)
    ]
