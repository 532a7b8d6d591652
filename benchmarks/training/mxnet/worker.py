"""A worker that trains each model by one of MXNet's kvstores, one after the other, in the cluster of its environment.

fptps run -n 2 -s 2 -- .venv-mxnet/bin/python -m benchmarks.training.mxnet.worker \
    --system fptps.mxnet --model resnet50=0.05

MXNet's own kvstores need MXNet's own scheduler and servers: runs.py has their commands. Worker 0 prints the figures, a
line of JSON.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

from fptps._bench.bound import iteration_s
from fptps._bench.processes import Usage
from fptps._bench.profile import Layer, load

from ..common import PROFILES, WARM_UP, Device, WrongWeights, best_rate, idle_share, milliseconds, parser, processor_s
from ..names import KVSTORES, MXNET

PATIENCE_S: Final = 300.0
"""For a model. MXNet's own kvstores wait for ever for a message that is lost."""


def main() -> None:
    """The command line."""
    options = arguments()
    number, workers, servers = (
        int(os.environ[name]) for name in ("DMLC_WORKER_ID", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER")
    )
    cluster = Cluster(options.system)
    figures = []
    for model, scale in options.models:
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        layers = load(PROFILES / f"{model}.json", scale).layers
        bound = iteration_s(layers, best_rate(workers, servers, options.link)) if options.link else None
        found = measure(cluster, Training(cluster, layers), options.iterations, prints=number == 0)
        figures.append({"model": model, "system": options.system, "bound_ms": milliseconds(bound), **found})
    if number == 0:
        print(json.dumps({"trainings": figures}), flush=True)
    cluster.leave()


def arguments() -> argparse.Namespace:
    """The options."""
    made = parser("one worker of the training benchmark with MXNet")
    made.add_argument("--system", choices=KVSTORES, required=True)
    return made.parse_args()


class Cluster:
    """This worker's kvstore. All workers give its keys in the same order."""

    def __init__(self, system: str) -> None:
        if system == MXNET:
            import fptps.mxnet  # before mxnet

            self.store: Any = fptps.mxnet.DistFPTPS()
        import mxnet

        if system != MXNET:
            self.store = mxnet.kv.create("dist_sync")
        self.mx: Any = mxnet
        self.rank, self.workers = int(self.store.rank), int(self.store.num_workers)
        self._own = system != MXNET
        self._keys = 0
        self._number = self.key(self.mx.nd.zeros((1,)))

    def key(self, value: Any) -> int:
        """A new key, for arrays like this one."""
        key, self._keys = self._keys, self._keys + 1
        self.store.init(key, value)
        return key

    def mean(self, number: float) -> float:
        """The mean of all workers' numbers. Waits for all of them."""
        array = self.mx.nd.array([number])
        self.store.pushpull(self._number, array, out=array)
        return float(array.asscalar()) / self.workers

    def leave(self) -> None:
        """Leaves together with the other workers."""
        if self._own:
            self.store._barrier()
            os._exit(0)  # MXNet's own end hangs in P3 mode, one time in ten
        import fptps.mxnet

        fptps.mxnet.shutdown()


class Training:
    """A model that replays a profile: each layer's gradients are summed as gluon's Trainer has them summed."""

    def __init__(self, cluster: Cluster, layers: Sequence[Layer]) -> None:
        self._cluster, self._layers = cluster, layers
        self._device = Device()
        self._tensors = [[cluster.mx.nd.zeros((count,)) for count in layer.elements] for layer in layers]
        self._keys = [[cluster.key(tensor) for tensor in tensors] for tensors in self._tensors]
        self._first = next(keys[0] for keys in self._keys if keys)

    def iteration(self, number: int) -> None:
        """A backward pass whose gradients leave layer by layer, and the forward pass that needs their sums.

        The gradients are the iteration's number, counted from 1, times that of the worker.
        """
        store, value = self._cluster.store, number * (self._cluster.rank + 1)
        for index in reversed(range(len(self._layers))):
            self._device.compute(self._layers[index].backward_s)
            for key, tensor in zip(self._keys[index], self._tensors[index]):
                tensor[:] = value
                store.pushpull(key, tensor, out=tensor, priority=self._first - key)
        for layer, tensors in zip(self._layers, self._tensors):
            for tensor in tensors:
                tensor.wait_to_read()
            self._device.compute(layer.forward_s)

    def verify(self, number: int) -> None:
        """Raises WrongWeights unless the sums are those of this iteration."""
        expected = number * self._cluster.workers * (self._cluster.workers + 1) / 2
        for keys, tensors in zip(self._keys, self._tensors):
            for key, tensor in zip(keys, tensors):
                if not (tensor.asnumpy() == expected).all():
                    raise WrongWeights(f"the sum of key {key} is {tensor.asnumpy()}, and not {expected}")


def measure(cluster: Cluster, training: Training, iterations: int, prints: bool) -> dict[str, Any]:
    """Trains, verifies the sums, and returns the figures of all workers; prints: whether CPU time is of interest."""
    usage = Usage() if prints else None
    cluster.mean(0.0)
    before, taken = processor_s(), []
    for number in range(1, WARM_UP + iterations + 1):
        begin = time.perf_counter()
        training.iteration(number)
        taken.append(time.perf_counter() - begin)
    cluster.mean(0.0)
    idle, cpu_s = idle_share(before), usage.cpu_s() / len(taken) if usage else None
    training.verify(len(taken))
    iteration = cluster.mean(statistics.median(taken[WARM_UP:]))
    return {"iteration_ms": milliseconds(iteration), "cpu_ms": milliseconds(cpu_s), "idle_share": round(idle, 3)}


if __name__ == "__main__":
    main()
