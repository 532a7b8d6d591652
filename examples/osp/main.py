"""Starts one process of an experiment; README.md shows how."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import config as settings
import datasets
import torch
from algorithms import ALGORITHMS
from link import Link
from ps import Ps
from worker import Worker

import fptps

CONFIGS = Path(__file__).parent / "configs"
TIMEOUT_S = 600.0  # of the start, which may be by hand
REJOIN_S = 60.0  # of the start of the cluster that goes on without a worker


def main() -> None:
    args = arguments()
    if "OMP_NUM_THREADS" not in os.environ:
        # As if all processes were on this machine: too many threads cost far more than too few.
        processes = args.ws or int(os.environ.get("DMLC_NUM_WORKER", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes))
    roles: list[Ps | Worker] = []
    try:
        train(args, roles)
    finally:
        for role in roles:
            role.close()


def train(args: argparse.Namespace, roles: list[Ps | Worker]) -> None:
    """In one cluster after another, should a worker be lost; appends the role to roles when it is known."""
    lost = 0
    while True:
        try:
            with join(args, lost) as link:
                if not roles:
                    roles.append(prepare(link, args))
                (role,) = roles
                role.round, role.iterations = link.from_ps([role.round, role.iterations])
                role.train(link)
            role.end()
            return
        except fptps.NodeLostError as error:
            if not roles or args.psip is None or roles[0].config.on_lost_worker == "end":
                for role in roles:
                    role.end_early(str(error))
                raise
            lost += 1
            print(f"rank {args.rank}: {error}; goes on with the {args.ws - 1 - lost} workers left", flush=True)


def prepare(link: Link, args: argparse.Namespace) -> Ps | Worker:
    """The role of this process, when all have found that they were started for the same."""
    failure = None
    word = {}
    if link.rank == 0:
        try:
            path = args.config or CONFIGS / ("mnist.json" if args.data_dir else "digits.json")
            config = settings.read(path)
            if args.psip is None and config.on_lost_worker == "continue":
                raise settings.SetupError(
                    "on_lost_worker is 'continue', but `fptps run` ends all processes with the first that is lost: "
                    "start them by hand (--psip), or set 'end'"
                )
            role: Ps | Worker = Ps(args.algorithm, config, datasets.load(config.dataset_type, args.data_dir))
            word = {"algorithm": args.algorithm, "config": settings.to_json(config)}
        except (settings.SetupError, OSError) as error:
            failure, word = error, {"failure": str(error)}
    word = link.from_ps(word)
    check(failure, word)
    data = role.data.fingerprint() if link.rank == 0 else ""
    if link.rank > 0:
        config = settings.parse(word["config"])
        try:
            role = Worker(link.rank, word["algorithm"], config, datasets.load(config.dataset_type, args.data_dir))
            data = role.data.fingerprint()
        except (settings.SetupError, OSError) as error:
            data = f"none, because {error}"
    own = settings.to_json(settings.read(args.config)) if args.config else word["config"]
    link.agree(args.algorithm, own, data)
    if isinstance(role, Ps):
        try:
            role.open_records(args.run_dir, args.data_dir)
        except (settings.SetupError, OSError) as error:
            failure = error
    check(failure, link.from_ps({"failure": failure and str(failure)}))
    return role


def check(failure: Exception | None, word: dict[str, str]) -> None:
    """Ends the PS with its own failure to start, and the workers with what it told of that."""
    if failure:
        raise failure
    if word.get("failure"):
        raise settings.SetupError(f"the PS cannot start: {word['failure']}")


@contextmanager
def join(args: argparse.Namespace, lost: int) -> Iterator[Link]:
    """The cluster of `fptps run`, or with --psip that of the processes started by hand of which so many are lost."""
    if args.psip is None:
        with fptps.KVWorker(timeout=TIMEOUT_S) as kv:
            yield Link(kv, kv.rank)
        return
    # The place that it would like: the PS has to be the first.
    if args.rank == 0 or not lost:
        os.environ["DMLC_WORKER_ID"] = str(args.rank)
    else:
        os.environ.pop("DMLC_WORKER_ID", None)
    with ExitStack() as stack:
        if args.rank == 0:
            stack.enter_context(scheduler(args, args.ws - lost))
        kv = stack.enter_context(connect(f"{args.psip}:{args.psport}", args.ws - lost, again=lost > 0))
        yield Link(kv, args.rank)


def connect(address: str, processes: int, again: bool) -> fptps.KVWorker:
    """Joins. Again: the scheduler there may still be the one that ends."""
    end = time.monotonic() + REJOIN_S
    while True:
        try:
            return fptps.KVWorker(address, processes, 0, timeout=REJOIN_S if again else TIMEOUT_S)
        except (fptps.ConnectError, fptps.NodeLostError):
            if not again or time.monotonic() > end:
                raise


@contextmanager
def scheduler(args: argparse.Namespace, processes: int) -> Iterator[None]:
    """The scheduler as a child of the PS. It ends by itself when all nodes have left, or when one has died."""
    environment = {
        "DMLC_ROLE": "scheduler",
        "DMLC_PS_ROOT_URI": args.psip,
        "DMLC_PS_ROOT_PORT": str(args.psport),
        "DMLC_NUM_WORKER": str(processes),
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
    parser.add_argument("--data-dir", type=Path, help="folder of MNIST's or CIFAR-10's files")
    parser.add_argument("--config", type=Path, help="the PS's settings [configs/mnist.json, or digits.json]")
    parser.add_argument("--run-dir", type=Path, help="the PS's records: a folder to make [a new one in output_dir]")
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
