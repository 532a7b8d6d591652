"""The data sets, and each worker's shard of the training data."""

from __future__ import annotations

import gzip
import math
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits

from .config import SetupError


@dataclass(frozen=True)
class Dataset:
    """Pictures (n, channels, height, width) uint8, from 0 to `white`; labels (n,) int64."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    white: int

    def inputs(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures as a model takes them, float32 in 0..1."""
        return x.float() / self.white

    def fingerprint(self) -> str:
        """A text that differs for different data."""
        parts = (self.train_x, self.train_y, self.test_x, self.test_y)
        sums = [f"{zlib.crc32(part.numpy().data):08x}" for part in parts]
        return f"{len(self.train_y)} and {len(self.test_y)} samples of crc32 {' '.join(sums)}"


def load(dataset_type: str, data_dir: Path | None) -> Dataset:
    if dataset_type == "digits":
        return digits()
    if dataset_type not in FOLDERS:
        raise SetupError(f"dataset_type is {dataset_type!r}, but there are: {', '.join(FOLDERS)}, digits")
    files, read = FOLDERS[dataset_type]
    if data_dir is None:
        raise SetupError(f"the PS trains on {dataset_type}: start with --data-dir, the folder of {files}")
    try:
        return read(data_dir)
    except FileNotFoundError as error:
        raise SetupError(f"{error.filename} is not there: --data-dir is the folder of {files}") from error


def digits(test_size: int = 360) -> Dataset:
    pixels, labels = load_digits(return_X_y=True)
    x = torch.as_tensor(pixels).to(torch.uint8).reshape(-1, 1, 8, 8)
    y = torch.as_tensor(labels).long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    test, train = order[:test_size], order[test_size:]
    return Dataset(x[train], y[train], x[test], y[test], white=16)


def mnist(folder: Path) -> Dataset:
    train_x, train_y = mnist_part(folder, "train")
    test_x, test_y = mnist_part(folder, "t10k")
    return Dataset(train_x, train_y, test_x, test_y, white=255)


def mnist_part(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = read_idx(folder / f"{part}-images-idx3-ubyte.gz", dimensions=3).unsqueeze(1)
    y = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", dimensions=1).long()
    if len(x) != len(y):
        raise SetupError(f"{folder}: {len(x)} pictures but {len(y)} labels in {part}")
    return x, y


def cifar10(folder: Path) -> Dataset:
    train = [cifar10_part(folder / f"data_batch_{number}") for number in range(1, 6)]
    test_x, test_y = cifar10_part(folder / "test_batch")
    return Dataset(torch.cat([x for x, _ in train]), torch.cat([y for _, y in train]), test_x, test_y, white=255)


def cifar10_part(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """A file of CIFAR-10's version for Python. It is a pickle: take it from a source that you trust."""
    with path.open("rb") as file:
        content = pickle.load(file, encoding="bytes")
    if not isinstance(content, dict) or not {b"data", b"labels"} <= content.keys():
        raise SetupError(f"{path} is not a file of CIFAR-10's version for Python")
    x = torch.from_numpy(np.array(content[b"data"], np.uint8))
    return x.reshape(-1, 3, 32, 32), torch.tensor(content[b"labels"])


def read_idx(path: Path, dimensions: int) -> torch.Tensor:
    """An IDX file of bytes: 0, 0, type 8, number of dimensions, each size (big-endian, 32 bits), the data."""
    with gzip.open(path) as file:
        content = file.read()
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, 8, dimensions)):
        raise SetupError(f"{path} is not an IDX file of bytes with {dimensions} dimensions")
    shape = [int(n) for n in np.frombuffer(content, ">u4", dimensions, offset=4)]
    if len(content) - start != math.prod(shape):
        raise SetupError(f"{path} says {math.prod(shape)} bytes of data but has {len(content) - start}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


FOLDERS: dict[str, tuple[str, Callable[[Path], Dataset]]] = {
    "MNIST": ("the four *-ubyte.gz files", mnist),
    "Cifar10": ("cifar-10-batches-py's files data_batch_1 to 5 and test_batch", cifar10),
}
"""The data sets that are read from a folder: its files, and the function that reads them."""


def shard(samples: int, worker: int, workers: int, seed: int) -> torch.Tensor:
    """The samples of one worker (0 to workers - 1). Each sample is in exactly one shard."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed))[worker::workers]


def batches(mine: torch.Tensor, size: int, seed: int) -> Iterator[torch.Tensor]:
    """Batches of a shard without end, in a new order each epoch; an epoch's last batch may be short."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from mine[torch.randperm(len(mine), generator=generator)].split(size)
