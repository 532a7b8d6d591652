"""examples/osp: localSGD against its equations, both ways to start it, and all that it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from osp import CONFIG, OSP, config_file, fake_mnist

from fptps.launch import HOST, reserved_port

pytestmark = pytest.mark.demo


def fptps_run(processes: int, servers: int, *args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fptps", "run", "-n", str(processes), "-s", str(servers), "--"]
    command += [sys.executable, str(OSP / "main.py"), "--algorithm", "localSGD", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def by_hand(ranks: list[int], config: Path) -> list[tuple[int, str]]:
    """The original command line, a process per rank: exit codes and outputs."""
    processes = []
    with reserved_port() as port:
        for rank in ranks:
            command = [sys.executable, OSP / "main.py", "--algorithm", "localSGD", "--rank", rank]
            command += ["--ws", len(ranks), "--psip", HOST, "--psport", port]
            if rank == 0:
                command += ["--config", config]
            processes.append(
                subprocess.Popen(
                    [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        try:
            outputs = [process.communicate(timeout=100)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    return [(process.returncode, output) for process, output in zip(processes, outputs)]


def records(tmp_path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any], Path]:
    """Messages, rounds, summary and folder of the one run there."""
    (folder,) = (tmp_path / "runs").iterdir()
    messages, rounds = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("messages.jsonl", "rounds.jsonl")
    )
    return messages, rounds, json.loads((folder / "summary.json").read_text()), folder


def reference(workers: int) -> tuple[list[list[float]], list[tuple[float, float]], dict[str, Any]]:
    """localSGD by its equations, in one process: train losses (round, worker), (accuracy, loss) of each round, w."""
    import datasets
    import models
    import torch
    from torch.nn.functional import cross_entropy

    rounds, K, size = 6, CONFIG["K"], CONFIG["batch_size"]
    data = datasets.digits()
    torch.manual_seed(CONFIG["seed"])
    w = models.digits_cnn()
    start = {name: value.clone() for name, value in w.state_dict().items()}
    nets = [models.digits_cnn() for _ in range(workers)]
    for net in nets:
        net.load_state_dict(start)
    queues = []
    for i in range(workers):
        mine = datasets.shard(len(data.train_y), i, workers, CONFIG["seed"])
        queues.append(datasets.batches(mine, size, CONFIG["seed"] + i + 1))

    losses: list[list[float]] = []
    evaluations = []
    for t in range(rounds):
        eta = CONFIG["initial_lr"] * (1 - t * workers * K / CONFIG["all_iterations"])
        gradients = [[torch.zeros_like(p) for p in net.parameters()] for net in nets]
        losses.append([])
        for net, queue, total in zip(nets, queues, gradients):
            each: list[float] = []
            for _ in range(K):
                batch = next(queue)
                scores = net(data.train_x[batch].float() / 16)
                per_sample = cross_entropy(scores, data.train_y[batch], reduction="none")
                net.zero_grad()
                per_sample.mean().backward()
                each += per_sample.tolist()
                with torch.no_grad():
                    for p, sum_of_g in zip(net.parameters(), total):
                        p -= eta * p.grad
                        sum_of_g += p.grad
            losses[-1].append(sum(each) / len(each))
        with torch.no_grad():
            for p, *gs in zip(w.parameters(), *gradients):
                p -= eta / workers * sum(gs)
            for b, *bs in zip(w.buffers(), *(net.buffers() for net in nets)):
                if b.is_floating_point():
                    b.copy_(sum(bs) / workers)
            weights = {k: v for k, v in w.state_dict().items() if "num_batches" not in k}
            for net in nets:
                net.load_state_dict(weights, strict=False)
            w.eval()
            scores = w(data.test_x.float() / 16)
            right = (scores.argmax(1) == data.test_y).float().mean().item()
            evaluations.append((right, cross_entropy(scores, data.test_y).item()))
    return losses, evaluations, weights


def assert_follows_the_equations(tmp_path: Path) -> None:
    import torch

    messages, rounds, summary, folder = records(tmp_path)
    losses, evaluations, weights = reference(workers=2)
    told = [[m["train_loss"] for m in messages if m["round"] == r + 1] for r in range(6)]
    for got, wanted in zip(told, losses):
        assert got == pytest.approx(wanted, rel=1e-4)
    assert [r["test_loss"] for r in rounds] == pytest.approx([loss for _, loss in evaluations], rel=1e-4)
    # At most one of 360 test pictures may fall to the other side by rounding.
    assert [r["test_accuracy"] for r in rounds] == pytest.approx([a for a, _ in evaluations], abs=1.5 / 360)
    final = torch.load(folder / "weights.pt")
    for name, wanted in weights.items():
        distance = float((final[name] - wanted).norm() / wanted.norm())
        assert distance < 1e-4, f"{name} differs by {distance:.1e}"
    assert summary["test_loss"] == rounds[-1]["test_loss"]


def assert_whole(tmp_path: Path) -> None:
    """Every message and round is there, and the totals are theirs."""
    messages, rounds, summary, folder = records(tmp_path)
    assert [(m["round"], m["rank"]) for m in messages] == [(r, rank) for r in range(1, 7) for rank in (1, 2)]
    assert all(m["iterations"] == 5 and m["communication_s"] > 0 and m["bytes_sent"] > 40_000 for m in messages)
    assert [r["round"] for r in rounds] == [1, 2, 3, 4, 5, 6]
    assert [r["iterations"] for r in rounds] == [10, 20, 30, 40, 50, 60]
    assert rounds[-1]["progress"] == pytest.approx(60 / 55)
    assert sorted(r["elapsed_s"] for r in rounds) == [r["elapsed_s"] for r in rounds]
    assert (summary["rounds"], summary["iterations"], summary["algorithm"]) == (6, 60, "localSGD")
    assert summary["communication_s"] == pytest.approx(sum(m["communication_s"] for m in messages) / 2)
    assert summary["bytes_workers_to_ps"] == sum(m["bytes_sent"] for m in messages)
    assert summary["bytes_ps_to_workers"] == summary["bytes_workers_to_ps"]
    assert summary["training_s"] >= rounds[-1]["elapsed_s"] > 0
    written = json.loads((folder / "config.json").read_text())
    assert written == {**CONFIG, "output_dir": str(tmp_path / "runs")}


def test_by_fptps_run(tmp_path: Path) -> None:
    done = fptps_run(3, 1, "--config", config_file(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    assert_whole(tmp_path)
    assert_follows_the_equations(tmp_path)


def test_by_hand_as_the_original(tmp_path: Path) -> None:
    for code, output in by_hand([2, 0, 1], config_file(tmp_path)):
        assert code == 0, output
    assert_whole(tmp_path)
    assert_follows_the_equations(tmp_path)


def test_a_rank_started_twice_is_told(tmp_path: Path) -> None:
    ended = by_hand([0, 2, 2], config_file(tmp_path))
    assert all(code != 0 for code, _ in ended), ended
    # The first to see it leaves, so another may see that instead.
    assert any("ranks 0, 1, ... were started [1, 0, 2] times" in text for _, text in ended)
    assert not (tmp_path / "runs").exists()


def test_the_ps_alone_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(OSP / "main.py"), "--algorithm", "localSGD"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "one process is too few" in done.stderr
    assert "Traceback" not in done.stderr


def test_mnist_from_a_folder(tmp_path: Path) -> None:
    settings = {"model_type": "CNN", "dataset_type": "MNIST", "batch_size": 8, "K": 2, "all_iterations": 8}
    folder = fake_mnist(tmp_path / "mnist")
    done = fptps_run(3, 0, "--data-dir", folder, "--config", config_file(tmp_path, **settings))
    assert done.returncode == 0, done.stderr
    messages, rounds, summary, _ = records(tmp_path)
    assert (len(messages), len(rounds), summary["iterations"]) == (4, 2, 8)
    # Two workers of the same model with other samples and other dropout.
    assert messages[0]["train_loss"] != messages[1]["train_loss"]
