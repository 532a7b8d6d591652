"""A training that is slowed on purpose, for test_timeline_slowed: its arguments are how, and the number of steps."""

import os
import sys
import time

import numpy as np

import fptps

FLOATS = {"aggregator": [2_000_000] * 4, "priority": [10_000, 10_000, 1_000_000]}


def compute(seconds):
    """Uses a processor for so long, whoever else wants it."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def main(how, steps):
    if how in ("plan", "aggregator"):
        os.environ["FPTPS_SHARE"] = "0"  # of a worker: the server does it all
    arrays = [np.ones(count, np.float32) for count in FLOATS.get(how, [60_000] * 4)]
    between = 0.06 if how == "priority" else 0.002
    with fptps.KVWorker() as kv:
        for key, array in enumerate(arrays):
            kv.init(f"layer {key}", np.zeros_like(array))
        kv.set_tensor_count(len(arrays))
        kv.barrier()
        for _ in range(steps):
            compute(0.1 if how == "worker" and kv.rank == 1 else 0.02)
            tickets = {}
            for key in reversed(range(len(arrays))):
                huge = how == "priority" and key == len(arrays) - 1
                tickets[key] = kv.push_pull(f"layer {key}", arrays[key], priority=9 if huge else -key)
            for key in range(len(arrays)):
                tickets[key].result()
                compute(between)


LOADER = """
import time

import torch

import fptps.torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        time.sleep(0.02)  # a disk
        return torch.full((64,), float(i)), torch.ones(1)

fptps.torch.init()
model = torch.nn.Linear(64, 1)
optimizer = fptps.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.001), model.named_parameters())
for features, labels in torch.utils.data.DataLoader(Slow(), batch_size=4):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(features), labels).backward()
    optimizer.step()
fptps.torch.shutdown()
"""
"""The program of "data": its DataLoader takes 80 ms for a batch."""


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
