"""The data sets, and each worker's share of the training data."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from config import SetupError
from sklearn.datasets import load_digits


@dataclass(frozen=True)
class Dataset:
    """Pictures (n, 1, height, width) as uint8, 0 to `white`; labels (n,) int64."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    white: int

    def inputs(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() / self.white


def load(dataset_type: str, data_dir: Path | None) -> Dataset:
    if dataset_type == "digits":
        return digits()
    if dataset_type != "MNIST":
        raise SetupError(f"dataset_type is {dataset_type!r}, but there are: MNIST, digits")
    if data_dir is None:
        raise SetupError("the PS trains on MNIST: start with --data-dir, the folder of the four *-ubyte.gz files")
    return mnist(data_dir)


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


def shard(samples: int, worker: int, workers: int, seed: int) -> torch.Tensor:
    """The samples of one worker (0 to workers - 1): no sample is in two shards, all are in one."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed))[worker::workers]


def batches(mine: torch.Tensor, size: int, seed: int) -> Iterator[torch.Tensor]:
    """Batches of a shard for ever, in a new order each epoch; an epoch's last batch may be short."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from mine[torch.randperm(len(mine), generator=generator)].split(size)
