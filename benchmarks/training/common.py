"""What the workers' programs of all frameworks share: options, a GPU that sleeps, figures."""

from __future__ import annotations

import argparse
import resource
from pathlib import Path
from typing import Final

from fptps._bench.bound import model_rate, payload_rate
from fptps._bench.trainer import Accelerator
from fptps._bench.units import parse_rate

from .names import MODELS

WARM_UP: Final = 2
"""Iterations before the measured ones: fptps records the order of the layers, DDP makes its buckets."""
PROFILES: Final = Path(__file__).parents[1] / "profiles"


class WrongWeights(Exception):
    """A training has other weights than it must have."""


class Device(Accelerator):
    """A GPU whose work is sleep. Launching is free: the time of the program between two steps does not count, unless
    the program has slept in it, as it does when it waits for a sum."""

    def __init__(self) -> None:
        super().__init__()
        self._sleeps = sleeps()

    def compute(self, seconds: float) -> None:
        """Works for the given time."""
        if sleeps() != self._sleeps:
            self.idle()
        super().compute(seconds)
        self._sleeps = sleeps()


def sleeps() -> int:
    """How often this thread has slept."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options of all workers' programs."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--link", help="rate of every node's link, for the bound")
    made.add_argument("--iterations", type=int, default=3, help="iterations to measure")
    made.add_argument(
        "--model",
        dest="models",
        action="append",
        required=True,
        type=model_and_scale,
        metavar="MODEL=SCALE",
        help="with a factor on the sizes of its tensors",
    )
    return made


def model_and_scale(text: str) -> tuple[str, float]:
    """Parses "resnet50=0.05"."""
    name, _, scale = text.partition("=")
    if name not in MODELS:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(MODELS)}")
    return name, float(scale)


def best_rate(workers: int, servers: int, link: str) -> float:
    """For the bound: bytes per second at which gradients can be sent on links of this rate."""
    return model_rate(workers, servers, payload_rate(parse_rate(link)))


def processor_s() -> tuple[float, float]:
    """The processors' idle time, and their time in all, since the machine was started."""
    times = [float(part) for part in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return times[3] + times[4], sum(times)


def idle_share(before: tuple[float, float]) -> float:
    """The part of the machine's processor time that nobody used since then; before: processor_s() of that time."""
    idle, total = (now - then for now, then in zip(processor_s(), before))
    return idle / total if total else 0.0


def milliseconds(seconds: float | None) -> float | None:
    """For the figures."""
    return None if seconds is None else round(seconds * 1e3, 3)
