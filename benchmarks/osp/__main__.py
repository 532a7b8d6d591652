"""`python -m benchmarks.osp`: one process of an experiment. README.md shows how to start them."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import fptps

from . import config as settings
from . import datasets, models
from .algorithms import ALGORITHMS
from .evaluator import Evaluator
from .join import Place, join
from .link import Link
from .ps import Ps
from .records import Records
from .worker import Worker

CONFIGS = Path(__file__).parent / "configs"


def main() -> None:
    args = arguments(sys.argv[1:])
    roles: list[Ps | Worker] = []
    try:
        train(args, roles)
    finally:
        for role in roles:
            role.close()


def train(args: argparse.Namespace, roles: list[Ps | Worker]) -> None:
    """In one cluster after another, if workers are lost. Appends the role to roles as soon as it is known."""
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
            print(f"rank {rank}: {error}; continues with the {processes - 2} workers left", flush=True)


def others_are_left(error: fptps.NodeLostError, processes: int) -> bool:
    """Whether a worker was lost, and others are left: not the PS (place 0), a server or the scheduler.

    processes: of the cluster, 0 if it was lost while they joined.
    """
    return processes > 2 and error.role == "worker" and error.rank != 0


def prepare(link: Link, args: argparse.Namespace) -> Ps | Worker:
    """This process's role, once all processes have found that they were started for the same experiment."""
    if "OMP_NUM_THREADS" not in os.environ:
        # As if all processes were on this machine: too many threads cost far more than too few.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // link.kv.num_workers))
    return prepare_ps(link, args) if link.rank == 0 else prepare_worker(link, args)


def prepare_ps(link: Link, args: argparse.Namespace) -> Ps:
    with reported(link):
        config = settings.read(args.config or CONFIGS / ("mnist.json" if args.data_dir else "digits.json"))
        if args.psip is None and config.on_lost_worker == "continue" and "FPTPS_KEEP_GOING" not in os.environ:
            raise settings.SetupError(
                "on_lost_worker is 'continue', but `fptps run` ends all processes with the first that is lost: "
                "start it as `fptps run --keep-going`, or set 'end'"
            )
        data = datasets.load(config.dataset_type, args.data_dir)
        model = models.build(config.model_type, data.inputs(data.test_x[:1]), config.seed)
    text = settings.to_json(config)
    link.from_ps({"algorithm": args.algorithm, "config": text})
    link.agree(args.algorithm, text, data.fingerprint())
    with reported(link):
        records = Records(config, args.algorithm, args.run_dir, model)
    link.from_ps({})
    return Ps(args.algorithm, config, model, records, Evaluator(config, args.data_dir))


@contextlib.contextmanager
def reported(link: Link) -> Iterator[None]:
    """On the PS: an error that stops it within the block is reported to the workers, which raise it in receive()."""
    try:
        yield
    except (settings.SetupError, OSError) as error:
        with contextlib.suppress(fptps.NodeLostError):  # a worker that has received it may be gone already
            link.from_ps({"failure": str(error)})
        raise


def prepare_worker(link: Link, args: argparse.Namespace) -> Worker:
    start = receive(link)
    try:
        config = settings.parse(start["config"])
        worker = Worker(link.rank, start["algorithm"], config, datasets.load(config.dataset_type, args.data_dir))
        data = worker.data.fingerprint()
    except (settings.SetupError, OSError) as error:
        data = f"none, because {error}"
    own = settings.to_json(settings.read(args.config)) if args.config else start["config"]
    link.agree(args.algorithm, own, data)
    receive(link)
    return worker


def receive(link: Link) -> dict[str, str]:
    """On a worker: the PS's next message; SetupError if the PS cannot start."""
    message: dict[str, str] = link.from_ps(None)
    if "failure" in message:
        raise settings.SetupError(f"the PS cannot start: {message['failure']}")
    return message


def arguments(command_line: list[str]) -> argparse.Namespace:
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
    args = parser.parse_args(command_line)
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
        sys.exit(f"osp: {error}")
