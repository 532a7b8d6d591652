"""The parts of benchmarks/osp that need no cluster: settings, data, and folders."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from osp import ROOT, config_file, fake_cifar10, fake_mnist, idx

pytestmark = pytest.mark.demo


def test_mnist_files(tmp_path: Path) -> None:
    from benchmarks.osp import datasets

    folder = fake_mnist(tmp_path / "mnist")
    data = datasets.mnist(folder)
    assert data.train_x.shape == (48, 1, 28, 28)
    assert data.test_x.shape == (16, 1, 28, 28)
    assert data.train_x[2, 0, 1, 3] == (2 * 37 + 28 + 3) % 256
    assert data.test_y.tolist() == [i % 10 for i in range(16)]
    assert data.inputs(data.test_x).max() <= 1

    labels = folder / "t10k-labels-idx1-ubyte.gz"
    for shape, content, message in [
        ((16,), bytes(15), "says 16 bytes of data but has 15"),
        ((4, 4), bytes(16), "is not an IDX file of bytes with 1 dimensions"),
        ((15,), bytes(15), "16 pictures but 15 labels in t10k"),
    ]:
        idx(labels, shape, content)
        with pytest.raises(ValueError, match=message):
            datasets.mnist(folder)


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_shards_share_out_the_samples(workers: int) -> None:
    from benchmarks.osp import datasets

    shards = [datasets.shard(100, i, workers, seed=5).tolist() for i in range(workers)]
    assert sorted(sample for shard in shards for sample in shard) == list(range(100))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert shards == [datasets.shard(100, i, workers, seed=5).tolist() for i in range(workers)]
    assert shards[0] != datasets.shard(100, 0, workers, seed=6).tolist()


def test_an_epoch_has_every_sample_once() -> None:
    import torch
    from benchmarks.osp import datasets

    mine = torch.arange(40, 50)
    queue = datasets.batches(mine, size=4, seed=1)
    epochs = [[next(queue).tolist() for _ in range(3)] for _ in range(2)]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [4, 4, 2]
        assert sorted(sample for batch in epoch for sample in batch) == mine.tolist()
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"K": 0}, "K is 0, but at least 1 is needed"),
        ({"initial_lr": 0}, "initial_lr is 0, but a number above 0 is needed"),
        ({"quant_range": -1}, "quant_range is -1, but a number above 0"),
        ({"quant_bits": 1}, "quant_bits is 1, but 2 to 16 are possible"),
        ({"learning_rate": 1}, "unknown settings: learning_rate"),
        ({"lr_schedule": "zigzag"}, "lr_schedule is 'zigzag', but there are: constant, linear, cosine"),
        ({"on_lost_worker": "panic"}, "on_lost_worker is 'panic', but there are: end, continue"),
        ({"model_type": "GPT"}, "model_type is 'GPT', but there are: CNN, AlexNet, ResNet, ResNet18, DigitsCNN"),
        ({"model_type": "CNN"}, "model CNN takes no inputs of 1 x 8 x 8"),
        ({"dataset_type": "ImageNet"}, "dataset_type is 'ImageNet', but there are: MNIST, Cifar10, digits"),
        ({"dataset_type": "MNIST"}, "start with --data-dir"),
    ],
)
def test_wrong_settings(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    from benchmarks.osp import config, datasets, models

    def start() -> None:
        settings = config.read(config_file(tmp_path, **changes))
        data = datasets.load(settings.dataset_type, None)
        models.build(settings.model_type, data.inputs(data.test_x[:1]), settings.seed)

    with pytest.raises(config.SetupError, match=message):
        start()


def test_cifar10_files(tmp_path: Path) -> None:
    from benchmarks.osp import datasets
    from benchmarks.osp.config import SetupError

    folder = fake_cifar10(tmp_path / "cifar10")
    data = datasets.cifar10(folder)
    assert (data.train_x.shape, data.test_x.shape) == ((80, 3, 32, 32), (16, 3, 32, 32))
    assert data.train_x[17, 2, 1, 3] == (2 + 41 + 2 * 1024 + 32 + 3) % 256
    assert data.train_y.tolist() == 5 * [i % 10 for i in range(16)]
    (folder / "data_batch_3").unlink()
    with pytest.raises(SetupError, match="data_batch_3 is not there"):
        datasets.load("Cifar10", folder)


@pytest.mark.parametrize(
    ("name", "channels", "size", "parameters"),
    [
        ("CNN", 1, 28, 1_199_882),
        ("AlexNet", 3, 32, 2_472_266),
        ("ResNet", 3, 32, 175_258),
        ("ResNet18", 3, 32, 11_181_642),
    ],
)
def test_models(name: str, channels: int, size: int, parameters: int) -> None:
    import torch
    from benchmarks.osp import models

    model = models.build(name, torch.zeros(1, channels, size, size), seed=1)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(3, channels, size, size)).shape == (3, 10)
    again = models.build(name, torch.zeros(1, channels, size, size), seed=1)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters()))


def test_alexnet_begins_with_signals_that_reach_its_end() -> None:
    import torch
    from benchmarks.osp import models

    x = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    model = models.build("AlexNet", x[:1], seed=1)
    with torch.no_grad():
        for layer in model:
            x = layer(x)
            if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
                assert x.std() > 0.1  # with PyTorch's own weights the last ones have 0.01


def test_schedules(tmp_path: Path) -> None:
    from benchmarks.osp import config, schedules

    for name, shares in {"constant": [1, 1, 1], "linear": [1, 0.75, 0], "cosine": [1, 0.853553, 0]}.items():
        settings = config.read(config_file(tmp_path, lr_schedule=name, gamma_schedule=name, all_iterations=80))
        rates = [schedules.get_ps_lr(settings, done) for done in (0, 20, 80)]
        gammas = [schedules.get_worker_gamma(settings, done) for done in (0, 20, 80)]
        assert rates == pytest.approx([settings.initial_lr * share for share in shares])
        assert gammas == pytest.approx([settings.gamma * share for share in shares])


def test_runs_of_the_same_second_have_their_own_folders(tmp_path: Path) -> None:
    from benchmarks.osp import records

    assert len({records.new_folder(tmp_path, "localSGD") for _ in range(3)}) == 3


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    from benchmarks.osp import records
    from benchmarks.osp.config import SetupError

    with pytest.raises(SetupError, match="is there already"):
        records.this_folder(tmp_path)


def test_a_full_disk_fails_before_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from benchmarks.osp import config, records

    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(records.shutil, "disk_usage", lambda folder: usage)
    settings = config.read(config_file(tmp_path))
    with pytest.raises(config.SetupError, match="1 MB are free on its disk, but 16 MB are needed"):
        records.Records(settings, "OSP", None, torch.nn.Linear(1, 1))


def test_a_disk_that_fills_up_leaves_whole_lines(tmp_path: Path) -> None:
    from benchmarks.osp import records

    lines = records.Lines(tmp_path / "lines")
    lines.append({"round": 1})
    size = (tmp_path / "lines").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, before[1]))
    try:
        with pytest.raises(OSError, match="disk is full"):
            lines.append({"round": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "lines").read_text() == '{"round": 1}\n'
    lines.append({"round": 3})
    lines.close()
    assert (tmp_path / "lines").read_text() == '{"round": 1}\n{"round": 3}\n'


def test_a_report_of_runs(tmp_path: Path) -> None:
    for name, accuracies in {"one": [0.5, 0.98], "other": [0.4, None]}.items():
        fake_run(tmp_path / name, accuracies)
    command = [
        sys.executable,
        "-m",
        "benchmarks.osp.report",
        tmp_path / "one",
        tmp_path / "other",
        "--out",
        tmp_path / "out",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    header, _, one, other = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
    assert dict(zip(header, one)) == {
        "run": "one",
        "workers": "2",
        "iterations": "20",
        "rounds": "2",
        "accuracy": "98.00 %",
        "to 97 %": "20 in 2.0 s",
        "s in all": "3.5",
        "iterations / s": "5.7",
        "s in flight / round": "0.500",
        "s waited / round": "0.1250",
        "MB to PS": "8.0",
        "MB from PS": "8.0",
        "MB / message": "2.000",
    }
    assert dict(zip(header, other))["to 97 %"] == "-"
    assert (tmp_path / "out" / "table.md").read_text() == done.stdout
    for picture in ("curves.png", "communication.png"):
        assert (tmp_path / "out" / picture).read_bytes()[:4] == b"\x89PNG"


SCORES: dict[str, list[float | None]] = {
    "localSGD": [0.5, 0.98],
    "OSP": [0.97, 0.96],
    "LOSP": [0.9, 0.965],
    "DQLOSP-8": [0.5, 0.963],
    "DQLOSP-16": [0.5, None, 0.967],
}


def test_the_claims_of_two_links_side_by_side(tmp_path: Path) -> None:
    from benchmarks.osp import claims, runs

    for name, accuracies in SCORES.items():
        fake_run(tmp_path / name, accuracies)
    slow = {name: runs.read(tmp_path / name) for name in SCORES}
    fast = {**slow, "OSP": slow["localSGD"]}  # the same seconds: no later than itself, and no more accurate than LOSP
    lines = claims.table({"slow": slow, "fast": fast}).splitlines()
    header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert header == ["claim", "slow", "bound", "holds", "fast", "bound", "holds"]
    assert [row[1:4] for row in rows] == [
        ["4", "2", "**no**"],
        ["1", "2", "yes"],
        ["0.125", "0.0125", "**no**"],
        ["0.96", "0.965", "yes"],
        ["0.96", "0.965", "yes"],
        *2 * [["1", "0.27", "**no**"]],
        ["0.2", "0.5", "yes"],
        *2 * [["1", "0.52", "**no**"]],
        ["0.2", "0.5", "yes"],
    ]
    assert [row[4:] for row in rows[1:5]] == [
        ["2", "2", "yes"],
        ["0.125", "0.0125", "**no**"],
        ["0.98", "0.965", "**no**"],
        ["0.98", "0.965", "**no**"],
    ]


def test_the_page_shows_both_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.osp import reproduce

    page = tmp_path / "osp.md"
    page.write_text(f"before\n{reproduce.BEGIN}\nold figures\n{reproduce.END}\nafter\n")
    for name, value in {"OUT": tmp_path, "PAGE": page, "PICTURES": tmp_path / "osp"}.items():
        monkeypatch.setattr(reproduce, name, value)
    for rate in reproduce.RATES:
        for name, accuracies in {**SCORES, "localSGD-0.025": [0.94], "OSP-0.025": [0.5, 0.94]}.items():
            fake_run(tmp_path / rate / name, accuracies)
    fake_run(tmp_path / "100mbit" / "AlexNet", [0.3])
    names = {**reproduce.COMPARED, **reproduce.SHORTER, **reproduce.SLOWER}
    reproduce.write_page({label: reproduce.ended(names, rate) for rate, label in reproduce.RATES.items()})
    text = page.read_text()
    assert text.startswith(f"before\n{reproduce.BEGIN}\n")
    assert text.endswith(f"{reproduce.END}\nafter\n")
    assert "old figures" not in text
    assert text.index("Links of 100 Mbit/s:") < text.index("Links of 20 Mbit/s:") < text.index("AlexNet")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert cells.count(["OSP-0.025", "20 in 2.0 s", "20 in 2.0 s", "-", "-", "-"]) == 2  # once for each rate
    for picture in ("curves.png", "communication.png"):
        assert (tmp_path / "osp" / picture).read_bytes()[:4] == b"\x89PNG"


def fake_run(folder: Path, accuracies: Sequence[float | None]) -> None:
    folder.mkdir(parents=True)
    rounds, messages = [], []
    for number, accuracy in enumerate(accuracies, start=1):
        moment = {"round": number, "iterations": 10 * number, "elapsed_s": float(number)}
        rounds.append({**moment, "test_accuracy": accuracy, "test_loss": accuracy and 1 - accuracy})
        for rank in (1, 2):
            times = {"communication_s": 0.5, "waited_s": 0.25 * (rank - 1)}
            messages.append({"round": number, "rank": rank, "iterations": 5, "bytes_sent": 2_000_000, **times})
    summary = {"iterations": 20, "rounds": 2, "test_accuracy": accuracies[-1], "training_s": 3.5, "versions": {}}
    summary |= {"bytes_workers_to_ps": 8_000_000, "bytes_ps_to_workers": 8_000_000}
    (folder / "config.json").write_text(json.dumps({"all_iterations": 20}))
    (folder / "summary.json").write_text(json.dumps(summary))
    for name, lines in (("rounds", rounds), ("messages", messages)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.osp.report", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "is not the folder of a run that has ended" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_reproduction_names_missing_data_at_once(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    command = [sys.executable, "-m", "benchmarks.osp.reproduce", "--mnist", fake_mnist(tmp_path / "mnist")]
    command += ["--cifar10", tmp_path / "cifar10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "data_batch_1 is not there" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""  # nothing was run
