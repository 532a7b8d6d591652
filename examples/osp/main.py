"""Starts one process of an experiment; README.md shows how."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

import config as settings
import datasets
import torch
from algorithms import ALGORITHMS
from join import Place, join
from link import Link
from ps import Ps
from worker import Worker

import fptps

CONFIGS = Path(__file__).parent / "configs"


def main() -> None:
    args = arguments()
    roles: list[Ps | Worker] = []
    try:
        train(args, roles)
    finally:
        for role in roles:
            role.close()


def train(args: argparse.Namespace, roles: list[Ps | Worker]) -> None:
    """In one cluster after another, should a worker be lost; appends the role to roles when it is known."""
    place = None if args.psip is None else Place(args.psip, args.psport, args.ws, args.rank)
    while True:
        processes = 0
        try:
            with join(place) as link:
                processes = link.kv.num_workers
                if not roles:
                    roles.append(prepare(link, args))
                (role,) = roles
                role.round, role.iterations = link.from_ps([role.round, role.iterations])
                role.train(link)
            role.end()
            return
        except fptps.NodeLostError as error:
            if not (roles and roles[0].config.on_lost_worker == "continue" and others_are_left(error, processes)):
                for role in roles:
                    role.end_early(str(error))
                raise
            rank = roles[0].rank
            place = place._replace(processes=processes - 1, again=True) if place else Place.of_run(processes - 1, rank)
            print(f"rank {rank}: {error}; goes on with the {processes - 2} workers left", flush=True)


def others_are_left(error: fptps.NodeLostError, processes: int) -> bool:
    """Whether it was a worker that was lost, not the PS (place 0), a server or the scheduler, and not the only one.

    processes: of the cluster, 0 where it was lost while they joined.
    """
    return processes > 2 and re.match("worker [1-9]", str(error)) is not None


def prepare(link: Link, args: argparse.Namespace) -> Ps | Worker:
    """The role of this process, when all have found that they were started for the same."""
    if "OMP_NUM_THREADS" not in os.environ:
        # As if all processes were on this machine: too many threads cost far more than too few.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // link.kv.num_workers))
    failure = None
    word = {}
    if link.rank == 0:
        try:
            path = args.config or CONFIGS / ("mnist.json" if args.data_dir else "digits.json")
            config = settings.read(path)
            if args.psip is None and config.on_lost_worker == "continue" and "FPTPS_KEEP_GOING" not in os.environ:
                raise settings.SetupError(
                    "on_lost_worker is 'continue', but `fptps run` ends all processes with the first that is lost: "
                    "start it as `fptps run --keep-going`, or set 'end'"
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
