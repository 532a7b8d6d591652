"""Local updates: many steps on each worker for each exchange of models.

fptps run -n 3 python examples/osp/main.py --algorithm OSP      # 3 workers on this machine
python examples/osp/main.py --algorithm OSP                     # the same program alone
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import fptps
from fptps.codec import Quantizer
from fptps.torch.local import DQLOSP, LOSP, OSP, LocalSGD, Round

ALGORITHMS = {
    "localSGD": LocalSGD,
    "OSP": OSP,
    "LOSP": LOSP,
    "DQLOSP": functools.partial(DQLOSP, quantizer=Quantizer(bits=8)),
}


def main() -> None:
    args = arguments()
    with fptps.KVWorker() as kv:
        # The workers of one machine share its cores.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // kv.num_workers))
        train_x, train_y, test_x, test_y = digits()
        mine = torch.arange(len(train_y))[kv.rank :: kv.num_workers]

        model = cnn()  # all workers get rank 0's weights below
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        local = ALGORITHMS[args.algorithm](kv, model, optimizer, steps=args.steps, total_steps=args.iterations)

        def print_round(round: Round) -> None:
            print(
                f"round {round.number}: {local.iterations} iterations; sum in flight for {round.in_flight_s:.3f} s, "
                f"of which {round.waited_s:.3f} s waiting"
            )

        if kv.rank == 0:
            local.on_round = print_round
        for batch in batches(mine, seed=kv.rank):
            optimizer.zero_grad()
            cross_entropy(model(train_x[batch]), train_y[batch]).backward()
            local.step()  # the optimizer's step, and the algorithm's exchange with the other workers
            if local.finished:
                break

        if kv.rank == 0:  # all workers now have the same model
            print(f"{args.algorithm}: accuracy {accuracy(model, test_x, test_y):.4f} after {local.round} rounds")


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scikit-learn's handwritten digits, for training and testing: x (n, 1, 8, 8) float32 in 0..1, y (n,) int64."""
    pixels, labels = load_digits(return_X_y=True)
    x = torch.as_tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.as_tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    return x[order[360:]], y[order[360:]], x[order[:360]], y[order[:360]]


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def batches(samples: torch.Tensor, seed: int, size: int = 32) -> Iterator[torch.Tensor]:
    """Batches of the samples without end, in a new order each epoch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from samples[torch.randperm(len(samples), generator=generator)].split(size)


@torch.no_grad()
def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    model.eval()
    return float((model(x).argmax(1) == y).float().mean())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="trains a small CNN on handwritten digits with local updates")
    parser.add_argument("--algorithm", choices=ALGORITHMS, required=True)
    parser.add_argument("--steps", type=int, default=16, help="of a worker in a round; with overlap, at most [16]")
    parser.add_argument("--iterations", type=int, default=1500, help="of all workers together [1500]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
