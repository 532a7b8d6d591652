"""The cost of DistributedOptimizer in a process alone, where it has nothing to send: beside plain PyTorch.

fptps run -n 1 -- python -m benchmarks.training.alone

Both train the CNN, alternately, an iteration each, so that a change of the machine's speed affects both. It prints the
figures, a line of JSON.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Final

import torch

import fptps.torch

from .common import milliseconds
from .models import Pictures
from .names import CNN, FORWARD, PLAIN
from .systems import Training, distributed, sgd
from .worker import iterate

ITERATIONS: Final = 200


def main() -> None:
    """The command line."""
    torch.set_num_threads(1)
    fptps.torch.init()
    pictures = Pictures(rank=0, workers=1)
    plain, wrapped = pictures.build(), pictures.build()
    trainings = {
        PLAIN: Training(plain, sgd(plain)),
        FORWARD: Training(wrapped, distributed(wrapped, sgd(wrapped), "forward")),
    }
    losses = {name: pictures.loss(training.model) for name, training in trainings.items()}
    taken: dict[str, list[float]] = {name: [] for name in trainings}
    for _ in range(ITERATIONS):
        for name, training in trainings.items():
            begin = time.thread_time()
            losses[name] = iterate(pictures, training, losses[name])
            taken[name].append(time.thread_time() - begin)
    rows = [{"model": CNN, "system": name, "cpu_ms": milliseconds(statistics.median(of))} for name, of in taken.items()]
    print(json.dumps({"trainings": rows}), flush=True)


if __name__ == "__main__":
    main()
