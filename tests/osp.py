"""What the tests of benchmarks/osp share: settings, and files of made-up data."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROGRAM = ["-m", "benchmarks.osp"]
"""A process of an experiment, for Python; to be started in ROOT."""
# A shard has 718 samples: the epoch's fifteenth batch is a short one, of 46.
CONFIG: dict[str, Any] = {
    "initial_lr": 0.05,
    "gamma": 0.05,
    "quant_range": 1,
    "all_iterations": 55,  # 6 rounds of 2 * 5, the last one past the end
    "batch_size": 48,
    "K": 5,
    "model_type": "DigitsCNN",
    "dataset_type": "digits",
    "lr_schedule": "linear",
    "seed": 3,
}


def config_file(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "output_dir": str(tmp_path / "runs"), **changes}))
    return path


def idx(path: Path, shape: tuple[int, ...], content: bytes) -> None:
    path.write_bytes(gzip.compress(struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + content))


def fake_mnist(folder: Path, salt: int = 0) -> Path:
    folder.mkdir()
    for part, n in (("train", 48), ("t10k", 16)):
        pixels = bytes((sample * 37 + i + salt) % 256 for sample in range(n) for i in range(784))
        idx(folder / f"{part}-images-idx3-ubyte.gz", (n, 28, 28), pixels)
        idx(folder / f"{part}-labels-idx1-ubyte.gz", (n,), bytes(i % 10 for i in range(n)))
    return folder


def fake_cifar10(folder: Path) -> Path:
    folder.mkdir()
    for number, name in enumerate(["test_batch", *(f"data_batch_{n}" for n in range(1, 6))]):
        pixels = [[(number + sample * 41 + i) % 256 for i in range(3072)] for sample in range(16)]
        content = {b"data": pixels, b"labels": [sample % 10 for sample in range(16)]}
        (folder / name).write_bytes(pickle.dumps(content))
    return folder
