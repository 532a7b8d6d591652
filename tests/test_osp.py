"""benchmarks/osp as whole clusters of processes: each algorithm against its equations, and all that can go wrong."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import in_threads, workers_of_one_process
from warm import PYTHON

import fptps
from fptps.cluster._commands import HOST, reserved_port
from osp import CONFIG, PROGRAM, ROOT, config_file, fake_cifar10, fake_mnist

pytest.importorskip("torch")
import benchmarks.osp.__main__ as program
from benchmarks.osp.config import SetupError
from benchmarks.osp.link import Link

# Processes that import PyTorch, several at a time, beside other tests.
pytestmark = [pytest.mark.demo, pytest.mark.timeout(300)]

OVERLAPPED = {**CONFIG, "all_iterations": 80, "gamma": 0.075}
UNTIL_KILLED = {**OVERLAPPED, "all_iterations": 400}
"""Of a training in which a worker is killed after its first round, long before the last one."""


def fptps_run(processes: int, servers: int, *args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fptps", "run", "-n", str(processes), "-s", str(servers), "--"]
    command += [*PYTHON, *PROGRAM, *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


@contextlib.contextmanager
def by_hand(
    ranks: list[int], *args: str | Path, own: dict[int, list[str | Path]] | None = None
) -> Iterator[list[subprocess.Popen[str]]]:
    """The original command line, a process per rank, in the order of ranks; own: further arguments of some of them."""
    processes = []
    with reserved_port() as port:
        for rank in ranks:
            command = [*PYTHON, *PROGRAM, "--rank", rank, *args, *(own or {}).get(rank, [])]
            command += ["--ws", len(ranks), "--psip", HOST, "--psport", port]
            processes.append(started(command))
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def started(command: list[Any]) -> subprocess.Popen[str]:
    parts = [str(part) for part in command]
    return subprocess.Popen(parts, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ends(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit codes and outputs."""
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    return [(process.returncode, output) for process, output in zip(processes, outputs)]


def in_words(ended: list[tuple[int, str]]) -> str:
    """What ends() gave, for the message of an assertion: pytest would cut the list itself."""
    return "\n".join(f"process {number} ended with {code}:\n{output}" for number, (code, output) in enumerate(ended))


def records(tmp_path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any], Path]:
    """Messages, rounds, summary and folder of the one run there."""
    (folder,) = (tmp_path / "runs").iterdir()
    messages, rounds = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("messages.jsonl", "rounds.jsonl")
    )
    return messages, rounds, json.loads((folder / "summary.json").read_text()), folder


def reference(sent: list[list[int]], compensated: bool, overlap: bool, config: dict[str, Any]) -> Any:
    """The equations, in one process, by gradients. sent[t][i]: the steps of worker i's message of round t.

    Gives the train losses (round, worker), the test losses of all rounds, and the last global model.
    """
    import torch
    from benchmarks.osp import datasets, models
    from torch.nn.functional import cross_entropy

    data = datasets.digits()
    example = data.inputs(data.test_x[:1])
    w, *nets = [models.build("DigitsCNN", example, config["seed"]) for _ in range(1 + len(sent[0]))]
    queues = []
    for i, net in enumerate(nets):
        net.train()
        mine = datasets.shard(len(data.train_y), i, len(nets), config["seed"])
        queues.append(datasets.batches(mine, config["batch_size"], config["seed"] + i + 1))

    def eta(done: int) -> float:
        return float(config["initial_lr"] * (1 - done / config["all_iterations"]))

    done, rates = 0, [eta(0)] * len(nets)
    losses, tested = [], []
    for steps in sent:
        messages = []
        losses.append([])
        for i, net in enumerate(nets):
            G = [torch.zeros_like(p) for p in net.parameters()]
            each: list[float] = []
            for _ in range(steps[i]):
                batch = next(queues[i])
                per_sample = cross_entropy(net(data.train_x[batch].float() / 16), data.train_y[batch], reduction="none")
                net.zero_grad()
                per_sample.mean().backward()
                each += per_sample.tolist()
                with torch.no_grad():
                    for p, total in zip(net.parameters(), G):
                        p -= rates[i] * p.grad
                        total += p.grad
            losses[-1].append(sum(each) / len(each))
            messages.append((rates[i], G, [b.clone() for b in net.buffers() if b.is_floating_point()]))
            if overlap:  # from the w that there is, and with its rate
                gamma = config["gamma"] if compensated else 0.0
                rates[i] = eta(done)
                restart(net, w, [gamma * g for g in G])
        done += sum(steps)
        with torch.no_grad():
            for n, p in enumerate(w.parameters()):
                p -= sum(rate * G[n] for rate, G, _ in messages) / len(nets)
            for n, b in enumerate(b for b in w.buffers() if b.is_floating_point()):
                b.copy_(sum(stats[n] for _, _, stats in messages) / len(nets))
            if not overlap:
                for i, net in enumerate(nets):
                    rates[i] = eta(done)
                    restart(net, w, [torch.zeros_like(p) for p in w.parameters()])
            w.eval()
            tested.append(cross_entropy(w(data.test_x.float() / 16), data.test_y).item())
    return losses, tested, {k: v for k, v in w.state_dict().items() if "num_batches" not in k}


def restart(net: Any, w: Any, moved: list[Any]) -> None:
    import torch

    with torch.no_grad():
        for p, q, move in zip(net.parameters(), w.parameters(), moved):
            p.copy_(q - move)
        for b, c in zip(net.buffers(), w.buffers()):
            if b.is_floating_point():
                b.copy_(c)


def assert_follows_the_equations(tmp_path: Path, algorithm: str, config: dict[str, Any], tolerance: float) -> None:
    import torch

    messages, rounds, _, folder = records(tmp_path)
    sent = [[m["iterations"] for m in messages if m["round"] == r["round"]] for r in rounds]
    overlap, compensated = algorithm != "localSGD", "LOSP" in algorithm
    losses, tested, weights = reference(sent, compensated, overlap, config)
    reported = [[m["train_loss"] for m in messages if m["round"] == r["round"]] for r in rounds]
    for got, wanted in zip(reported, losses):
        assert got == pytest.approx(wanted, rel=tolerance)
    assert [r["test_loss"] for r in rounds] == pytest.approx(tested, rel=tolerance)
    final = torch.load(folder / "weights.pt")
    for name, wanted in weights.items():
        distance = float((final[name] - wanted).norm() / wanted.norm())
        assert distance < tolerance, f"{name} differs by {distance:.1e}"


def assert_whole(tmp_path: Path, algorithm: str, config: dict[str, Any]) -> None:
    """Every message and round is there, and the totals are theirs."""
    messages, rounds, summary, folder = records(tmp_path)
    numbers = list(range(1, len(rounds) + 1))
    assert [r["round"] for r in rounds] == numbers
    assert [(m["round"], m["rank"]) for m in messages] == [(r, rank) for r in numbers for rank in (1, 2)]
    done = 0
    for r in rounds:
        of_round = [m for m in messages if m["round"] == r["round"]]
        assert all(1 <= m["iterations"] <= config["K"] and m["communication_s"] >= m["waited_s"] for m in of_round)
        assert len({m["model_crc32"] for m in of_round}) == 1
        assert done < config["all_iterations"]
        done += sum(m["iterations"] for m in of_round)
        assert (r["iterations"], r["progress"]) == (done, pytest.approx(done / config["all_iterations"]))
    assert done >= config["all_iterations"]
    assert sorted(r["elapsed_s"] for r in rounds) == [r["elapsed_s"] for r in rounds]
    assert (summary["rounds"], summary["iterations"], summary["algorithm"]) == (len(rounds), done, algorithm)
    for total in ("communication_s", "waited_s"):
        assert summary[total] == pytest.approx(sum(m[total] for m in messages) / 2)
    assert summary["bytes_workers_to_ps"] == sum(m["bytes_sent"] for m in messages)
    assert summary["bytes_ps_to_workers"] == summary["bytes_workers_to_ps"]
    assert summary["training_s"] >= rounds[-1]["elapsed_s"] > 0
    assert summary["test_loss"] == pytest.approx(rounds[-1]["test_loss"])
    assert summary["versions"].keys() >= {"python", "torch", "fptps"}
    written = json.loads((folder / "config.json").read_text())
    assert {**written, **config, "output_dir": str(tmp_path / "runs")} == written


def trained_in_threads(*args: str | Path) -> None:
    """The PS and two workers, each a thread of this process, which imports PyTorch once."""

    def work(kv: fptps.KVWorker) -> None:
        link = Link(kv, kv.rank)
        role = program.prepare(link, program.arguments(list(map(str, args))))
        try:
            role.train(link)
            role.end()
        finally:
            role.close()

    with workers_of_one_process(3) as workers:
        in_threads(*[lambda kv=kv: work(kv) for kv in workers])


def trained_by_fptps_run(*args: str | Path) -> None:
    """The PS and two workers, with a server."""
    done = fptps_run(3, 1, *args)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


@pytest.mark.parametrize(
    ("algorithm", "train"),
    [("OSP", trained_in_threads), ("LOSP", trained_by_fptps_run), ("DQLOSP", trained_in_threads)],
)
def test_overlapped(tmp_path: Path, algorithm: str, train: Callable[..., None]) -> None:
    train("--algorithm", algorithm, "--config", config_file(tmp_path, **OVERLAPPED))
    assert_whole(tmp_path, algorithm, OVERLAPPED)
    # 16-bit codes move the weights by some 1e-4 of a round's update.
    tolerance = 0.02 if algorithm == "DQLOSP" else 1e-3
    assert_follows_the_equations(tmp_path, algorithm, OVERLAPPED, tolerance)


def test_by_hand_as_the_original(tmp_path: Path) -> None:
    config = {0: ["--config", config_file(tmp_path)]}
    with by_hand([2, 0, 1], "--algorithm", "localSGD", own=config) as processes:
        for code, output in ends(processes):
            assert code == 0, output
    assert_whole(tmp_path, "localSGD", CONFIG)
    messages, rounds, *_ = records(tmp_path)
    assert {m["iterations"] for m in messages} == {5}
    assert [r["iterations"] for r in rounds] == [10, 20, 30, 40, 50, 60]
    assert_follows_the_equations(tmp_path, "localSGD", CONFIG, 1e-3)


def test_a_rank_started_twice_is_an_error(tmp_path: Path) -> None:
    config = {0: ["--config", config_file(tmp_path)]}
    with by_hand([0, 2, 2], "--algorithm", "localSGD", own=config) as processes:
        ended = ends(processes)
    assert all(code != 0 for code, _ in ended), in_words(ended)
    # The first to see it leaves, so another may see that instead.
    assert any("those that were started are [0, 2, 2]" in text for _, text in ended), in_words(ended)
    assert not (tmp_path / "runs").exists()


def failed_starts(arguments: dict[int, list[str | Path]]) -> list[str]:
    """Starts the PS and two workers in this process, each with its arguments: the error that each fails with."""

    def start(kv: fptps.KVWorker) -> str:
        with pytest.raises((SetupError, fptps.FptpsError)) as failure:
            program.prepare(Link(kv, kv.rank), program.arguments(list(map(str, arguments[kv.rank]))))
        return str(failure.value)

    with workers_of_one_process(3) as workers:
        return in_threads(*[lambda kv=kv: start(kv) for kv in workers])


def arguments_that_differ(tmp_path: Path, difference: str) -> dict[int, list[str | Path]]:
    """The arguments of the PS and two workers, of which worker 2 has others."""
    settings = {"model_type": "CNN", "dataset_type": "MNIST"}
    data = fake_mnist(tmp_path / "mnist")
    rest: list[str | Path] = ["--algorithm", "LOSP", "--data-dir", data]
    (tmp_path / "other").mkdir()
    other: list[str | Path] = {
        "algorithm": ["--algorithm", "OSP"],
        "settings": ["--config", config_file(tmp_path / "other", **settings, K=7)],
        "data": ["--data-dir", fake_mnist(tmp_path / "other" / "mnist", salt=1)],
    }[difference]
    return {0: [*rest, "--config", config_file(tmp_path, **settings)], 1: rest, 2: [*rest, *other]}


@pytest.mark.parametrize("difference", ["algorithm", "settings", "data"])
def test_worker_that_differs_is_named(tmp_path: Path, difference: str) -> None:
    failures = failed_starts(arguments_that_differ(tmp_path, difference))
    assert all(f"worker 2 has another {difference} than worker 0" in failure for failure in failures), failures
    assert not (tmp_path / "runs").exists()


def test_worker_that_differs_ends_all_processes(tmp_path: Path) -> None:
    with by_hand([0, 1, 2], own=arguments_that_differ(tmp_path, "settings")) as processes:
        ended = ends(processes)
    for code, output in ended:
        assert code == 1, output
        assert "Traceback" not in output
    # The first to see it leaves, so another may see that instead.
    assert any("worker 2 has another settings than worker 0" in output for _, output in ended), in_words(ended)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "arguments", "text"),
    [
        ({"model_type": "GPT"}, [], "model_type is 'GPT', but there are: CNN, AlexNet"),
        ({"model_type": "ResNet"}, [], "model ResNet takes no inputs of 1 x 8 x 8"),
        ({}, ["--run-dir", "."], "is there already"),
        ({"on_lost_worker": "continue"}, [], "start it as `fptps run --keep-going`"),
    ],
)
def test_all_learn_why_the_ps_cannot_start(
    tmp_path: Path, changes: dict[str, Any], arguments: list[str | Path], text: str
) -> None:
    everywhere: list[str | Path] = ["--algorithm", "OSP", "--config", config_file(tmp_path, **changes), *arguments]
    failures = failed_starts(dict.fromkeys(range(3), everywhere))
    assert all(text in failure for failure in failures), failures
    assert ["the PS cannot start" in failure for failure in failures] == [False, True, True]
    assert not (tmp_path / "runs").exists()


def test_a_ps_that_cannot_start_ends_all_processes(tmp_path: Path) -> None:
    done = fptps_run(3, 0, "--algorithm", "OSP", "--config", config_file(tmp_path, model_type="GPT"))
    assert done.returncode == 1, done.stdout
    assert "[worker 0] osp: model_type is 'GPT'" in done.stderr
    assert "the PS cannot start" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_ps_alone_is_an_error() -> None:
    command = [*PYTHON, *PROGRAM, "--algorithm", "localSGD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert "one process is too few" in done.stderr
    assert "Traceback" not in done.stderr


def killed_by_hand(tmp_path: Path, workers: int = 3, **changes: Any) -> list[tuple[int, str]]:
    """A run by hand whose worker 2, or the only one, is killed when some rounds are written."""
    config = {0: ["--config", config_file(tmp_path, **{**UNTIL_KILLED, **changes})]}
    with by_hand([*range(workers + 1)], "--algorithm", "LOSP", own=config) as processes:
        wait_for_messages(tmp_path, processes[0])
        processes[min(2, workers)].send_signal(signal.SIGKILL)
        return ends(processes)


def killed_in_fptps_run(tmp_path: Path, *options: str, **changes: Any) -> tuple[int, str]:
    """As killed_by_hand(), with `fptps run`."""
    config = config_file(tmp_path, **{**UNTIL_KILLED, **changes})
    command = [sys.executable, "-m", "fptps", "run", *options, "-n", 4, "-s", 0, "--", *PYTHON, *PROGRAM]
    command += ["--algorithm", "LOSP", "--config", config]
    running = started(command)
    try:
        wait_for_messages(tmp_path, running)
        (worker,) = (p for p in psutil.Process(running.pid).children() if p.environ().get("DMLC_WORKER_ID") == "2")
        worker.kill()
        return ends([running])[0]
    finally:
        running.terminate()
        running.communicate()


def wait_for_messages(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    while not any(path.stat().st_size for path in (tmp_path / "runs").glob("*/messages.jsonl")):
        assert process.poll() is None, process.communicate()
        threading.Event().wait(0.01)


def test_a_lost_worker_ends_the_run(tmp_path: Path) -> None:
    ended = killed_by_hand(tmp_path)
    assert [code for code, _ in ended] == [1, 1, -signal.SIGKILL, 1], in_words(ended)
    assert "osp: worker 2 was lost" in ended[0][1], ended[0][1]
    assert "Traceback" not in ended[0][1]
    assert_ended_with_all_files_whole(tmp_path)


def test_a_lost_worker_ends_fptps_run(tmp_path: Path) -> None:
    code, output = killed_in_fptps_run(tmp_path)
    assert code == 128 + signal.SIGKILL, output
    assert "osp: worker 2 was lost" in output
    assert "Traceback" not in output
    assert_ended_with_all_files_whole(tmp_path)


def assert_ended_with_all_files_whole(tmp_path: Path) -> None:
    messages, rounds, summary, folder = records(tmp_path)
    assert "worker 2 was lost" in summary["ended"]
    assert summary["test_accuracy"] is None
    # The reports of the last round may have been lost with the worker.
    assert 3 * (len(rounds) - 1) <= len(messages) <= 3 * len(rounds) == 3 * summary["rounds"]
    assert len(messages) % 3 == 0 < len(messages)
    assert (
        sum(m["iterations"] for m in messages)
        <= summary["iterations"]
        == rounds[-1]["iterations"]
        < UNTIL_KILLED["all_iterations"]
    )
    assert (folder / "weights.pt").exists()


def test_a_lost_worker_leaves_the_others_going_on(tmp_path: Path) -> None:
    ended = killed_by_hand(tmp_path, on_lost_worker="continue")
    assert [code for code, _ in ended] == [0, 0, -signal.SIGKILL, 0], in_words(ended)
    assert "worker 2 was lost" in ended[0][1]
    assert "continues with the 2 workers left" in ended[0][1]
    assert_went_on_without_worker_2(tmp_path)


def test_a_lost_worker_leaves_the_others_of_fptps_run_going_on(tmp_path: Path) -> None:
    code, output = killed_in_fptps_run(tmp_path, "--keep-going", on_lost_worker="continue")
    assert code == 128 + signal.SIGKILL, output  # the lost worker's is the worst
    assert "continues with the 2 workers left" in output
    assert "Traceback" not in output
    assert_went_on_without_worker_2(tmp_path)


def assert_went_on_without_worker_2(tmp_path: Path) -> None:
    messages, rounds, summary, _ = records(tmp_path)
    ranks = {r["round"]: [m["rank"] for m in messages if m["round"] == r["round"]] for r in rounds}
    kinds = list(ranks.values())
    assert kinds[0] == [1, 2, 3]
    assert kinds[-1] == [1, 3]
    assert all(kind in ([1, 2, 3], [1, 3], []) for kind in kinds)
    assert kinds.count([]) <= 1  # the reports of a round may have been lost with the worker
    assert list(ranks) == list(range(1, len(rounds) + 1))
    assert summary["ended"] == "all iterations are done"
    assert summary["iterations"] == rounds[-1]["iterations"] >= UNTIL_KILLED["all_iterations"]
    assert summary["test_accuracy"] > 0.5


def test_the_only_worker_that_is_lost_ends_the_run(tmp_path: Path) -> None:
    ended = killed_by_hand(tmp_path, workers=1, on_lost_worker="continue")
    assert [code for code, _ in ended] == [1, -signal.SIGKILL], in_words(ended)
    _, rounds, summary, _ = records(tmp_path)
    assert "worker 1 was lost" in summary["ended"]
    assert len(rounds) == summary["rounds"]


@pytest.mark.parametrize(
    ("dataset", "model", "train"),
    [
        ("MNIST", "CNN", trained_by_fptps_run),
        ("Cifar10", "AlexNet", trained_in_threads),
        ("Cifar10", "ResNet18", trained_in_threads),
    ],
)
def test_data_from_a_folder(tmp_path: Path, dataset: str, model: str, train: Callable[..., None]) -> None:
    settings = {"model_type": model, "dataset_type": dataset, "batch_size": 8, "K": 2, "all_iterations": 8}
    make = {"MNIST": fake_mnist, "Cifar10": fake_cifar10}[dataset]
    config = config_file(tmp_path, **settings)
    train("--algorithm", "localSGD", "--data-dir", make(tmp_path / "data"), "--config", config)
    messages, rounds, summary, _ = records(tmp_path)
    assert (len(messages), len(rounds), summary["iterations"]) == (4, 2, 8)
    # Two workers of the same model with other samples and other dropout.
    assert messages[0]["train_loss"] != messages[1]["train_loss"]
