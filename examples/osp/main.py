"""Starts one process of an experiment; README.md shows how."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import config as settings
import datasets
import ps
import torch
from algorithms import ALGORITHMS
from link import Link
from worker import Worker

import fptps

CONFIGS = Path(__file__).parent / "configs"
TIMEOUT_S = 600.0  # of the start, which may be by hand, and of the end, when the PS evaluates once more


def main() -> None:
    args = arguments()
    if "OMP_NUM_THREADS" not in os.environ:
        # As if all processes were on this machine: too many threads cost far more than too few.
        processes = args.ws or int(os.environ.get("DMLC_NUM_WORKER", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes))
    with join(args) as link:
        run(link, args)


def run(link: Link, args: argparse.Namespace) -> None:
    config = agree(link, args)
    data = datasets.load(config.dataset_type, args.data_dir)
    if link.rank == 0:
        ps.serve(link, config, args.algorithm, data)
    else:
        ALGORITHMS[args.algorithm](Worker(link, config, data))


def agree(link: Link, args: argparse.Namespace) -> settings.Config:
    """The PS's settings, at everyone."""
    text = None
    if link.rank == 0:
        path = args.config or CONFIGS / ("mnist.json" if args.data_dir else "digits.json")
        text = json.dumps([args.algorithm, settings.to_json(settings.read(path))])
    algorithm, config = json.loads(link.settings_from_ps(text))
    if algorithm != args.algorithm:
        raise settings.SetupError(
            f"rank {link.rank} was started with --algorithm {args.algorithm}, the PS with {algorithm}"
        )
    return settings.parse(config)


@contextmanager
def join(args: argparse.Namespace) -> Iterator[Link]:
    """The cluster of `fptps run`, or with --psip that of the processes started by hand."""
    if args.psip is None:
        with fptps.KVWorker(timeout=TIMEOUT_S) as kv:
            yield Link(kv, kv.rank)
        return
    with ExitStack() as stack:
        if args.rank == 0:
            stack.enter_context(scheduler(args))
        address = f"{args.psip}:{args.psport}"
        kv = stack.enter_context(fptps.KVWorker(address, num_workers=args.ws, num_servers=0, timeout=TIMEOUT_S))
        yield Link(kv, args.rank)


@contextmanager
def scheduler(args: argparse.Namespace) -> Iterator[None]:
    """The scheduler as a child of the PS. It ends by itself when all nodes have left, or when one has died."""
    environment = {
        "DMLC_ROLE": "scheduler",
        "DMLC_PS_ROOT_URI": args.psip,
        "DMLC_PS_ROOT_PORT": str(args.psport),
        "DMLC_NUM_WORKER": str(args.ws),
        "DMLC_NUM_SERVER": "0",
        "FPTPS_TIMEOUT": str(TIMEOUT_S),
    }
    child = subprocess.Popen([sys.executable, "-m", "fptps", "scheduler"], env={**os.environ, **environment})
    try:
        yield
        child.wait(timeout=10)
    finally:
        child.terminate()
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="localSGD and its relatives; rank 0 is the PS, the others train")
    parser.add_argument("--algorithm", choices=ALGORITHMS, required=True)
    parser.add_argument("--data-dir", type=Path, help="folder of MNIST's four *-ubyte.gz files")
    parser.add_argument("--config", type=Path, help="the PS's settings [configs/mnist.json, or digits.json]")
    by_hand = parser.add_argument_group("without `fptps run`, all four")
    by_hand.add_argument("--ws", type=int, help="number of processes, the PS included")
    by_hand.add_argument("--psip", help="address of the PS's machine")
    by_hand.add_argument("--psport", type=int, help="a free port there")
    by_hand.add_argument("--rank", type=int, help="0 (the PS) to ws - 1")
    args = parser.parse_args()
    given = [value is not None for value in (args.ws, args.psip, args.psport, args.rank)]
    if any(given) and not all(given):
        parser.error("--ws, --psip, --psport and --rank go together")
    if all(given) and not 0 <= args.rank < args.ws:
        parser.error(f"--rank {args.rank} is not one of 0 to {args.ws - 1}")
    return args


if __name__ == "__main__":
    try:
        main()
    except (settings.SetupError, OSError, fptps.FptpsError) as error:
        sys.exit(f"{Path(__file__).name}: {error}")
