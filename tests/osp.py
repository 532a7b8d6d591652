"""What the tests of examples/osp share. After importing this, `import models` and the like find the example's."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

OSP = Path(__file__).parents[1] / "examples" / "osp"
# A shard has 718 samples: with K = 5 of 150 the epoch's fifth batch is a short one, of 118.
CONFIG: dict[str, Any] = {
    "initial_lr": 0.05,
    "gamma": 0.05,
    "quant_range": 1,
    "all_iterations": 55,  # 6 rounds of 2 * 5, the last one past the end
    "batch_size": 150,
    "K": 5,
    "model_type": "DigitsCNN",
    "dataset_type": "digits",
    "lr_schedule": "linear",
    "seed": 3,
}

sys.path.insert(0, str(OSP))


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
