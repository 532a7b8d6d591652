"""Data-parallel training of a small CNN with fptps.

    fptps run -n 2 -s 1 python examples/digits/train.py     # 2 workers, 1 server
    python examples/digits/train.py                         # the same in one process

Each batch is divided among the workers. Every worker computes the gradients of its part; fptps
sums them; every worker takes the same optimiser step. Up to the rounding of floats, the weights
do not depend on the number of workers.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import sys
import time

import digits
import torch
from tabulate import tabulate
from torch.nn.functional import cross_entropy
from tqdm import tqdm

import fptps

REQUIRED_ACCURACY = 0.96


def main() -> int:
    args = arguments()
    with fptps.KVWorker() as kv:
        result = train(kv, args)
        rank = kv.rank
    return report(result, args.verdict) if rank == 0 else 0


def train(kv: fptps.KVWorker, args: argparse.Namespace) -> dict[str, float]:
    # The workers of one machine share its cores.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // kv.num_workers))
    torch.manual_seed(args.seed + kv.rank)  # different on purpose: all workers receive rank 0's weights below

    data = digits.load()
    net = digits.cnn()
    params = dict(net.named_parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)

    kv.set_tensor_count(len(params))
    kv.init_all(params)
    kv.broadcast(params)  # all workers start from rank 0's weights

    # A gradient is sent as soon as the backward pass has computed it, while the pass continues. The
    # layers near the input are computed last and needed first: they have the highest priority.
    tickets: list[fptps.Ticket] = []

    def send(p: torch.nn.Parameter, name: str, priority: int) -> None:
        tickets.append(kv.push_pull(name, p.grad, out=p.grad, priority=priority))

    for layer, (name, p) in enumerate(params.items()):
        p.register_post_accumulate_grad_hook(functools.partial(send, name=name, priority=-layer))

    batches = epoch_batches(len(data.train_y), args.batch_size, args.epochs, args.seed)
    waited = 0.0
    start = time.perf_counter()
    for batch in tqdm(batches, desc="training", mininterval=0.5, disable=kv.rank != 0):
        mine = batch[kv.rank :: kv.num_workers]
        optimizer.zero_grad()
        # The sum over this worker's samples, divided by the size of the WHOLE batch: the sum over
        # the workers is then the batch's mean, even if the batch does not divide evenly.
        scores = net(data.train_x[mine])
        loss = cross_entropy(scores, data.train_y[mine], reduction="sum") / len(batch)
        loss.backward()

        blocked = time.perf_counter()
        fptps.wait(tickets)
        tickets.clear()
        waited += time.perf_counter() - blocked
        optimizer.step()
    seconds = time.perf_counter() - start

    if args.save and kv.rank == 0:
        torch.save(net.state_dict(), args.save)
    stats = kv.stats()
    return {
        "accuracy": accuracy(net, data.test_x, data.test_y),
        "iterations": len(batches),
        "pushed_mb": stats.bytes_pushed / 1e6,
        "pulled_mb": stats.bytes_pulled / 1e6,
        "seconds": seconds,
        "wait_share": waited / seconds,
    }


def epoch_batches(samples: int, size: int, epochs: int, seed: int) -> list[torch.Tensor]:
    """Indices of every batch of every epoch, the same on every worker."""
    generator = torch.Generator().manual_seed(seed)
    return [batch for _ in range(epochs) for batch in torch.randperm(samples, generator=generator).split(size)]


@torch.no_grad()
def accuracy(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((net(x).argmax(1) == y).float().mean())


def report(r: dict[str, float], verdict_file: str | None) -> int:
    """Prints the table and the verdict; returns the exit code."""
    rows = [
        ("test accuracy", f"{r['accuracy']:.4f}"),
        ("iterations", f"{r['iterations']}"),
        ("pushed by rank 0", f"{r['pushed_mb']:.1f} MB"),
        ("pulled by rank 0", f"{r['pulled_mb']:.1f} MB"),
        ("both ways", f"{(r['pushed_mb'] + r['pulled_mb']) / r['seconds']:.1f} MB/s"),
        ("training time", f"{r['seconds']:.1f} s"),
        ("waiting for communication", f"{r['wait_share']:.1%}"),
    ]
    print(tabulate(rows, tablefmt="simple_outline", colalign=("left", "right"), disable_numparse=True))
    good = r["accuracy"] >= REQUIRED_ACCURACY
    verdict = (
        f"demo {'ok' if good else 'failed'} accuracy={r['accuracy']:.2f}"
        f" iterations={r['iterations']} pushed_mb={r['pushed_mb']:.1f}"
        f" wait_share={r['wait_share']:.2f}"
    )
    if verdict_file:
        pathlib.Path(verdict_file).write_text(verdict + "\n")
    else:
        print(verdict, flush=True)
    return 0 if good else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="train a small CNN on handwritten digits")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
    parser.add_argument("--lr", type=float, default=0.07)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verdict", metavar="PATH", help="file for the last line, instead of the output")
    parser.add_argument("--save", metavar="PATH", help="file for the trained weights")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
