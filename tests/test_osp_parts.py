"""The parts of examples/osp that need no cluster: settings, data, and folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from osp import config_file, fake_mnist, idx

pytestmark = pytest.mark.demo


def test_mnist_files(tmp_path: Path) -> None:
    import datasets

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
    import datasets

    shards = [datasets.shard(100, i, workers, seed=5).tolist() for i in range(workers)]
    assert sorted(sample for shard in shards for sample in shard) == list(range(100))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert shards == [datasets.shard(100, i, workers, seed=5).tolist() for i in range(workers)]
    assert shards[0] != datasets.shard(100, 0, workers, seed=6).tolist()


def test_an_epoch_has_every_sample_once() -> None:
    import datasets
    import torch

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
        ({"learning_rate": 1}, "unknown settings: learning_rate"),
        ({"lr_schedule": "zigzag"}, "lr_schedule is 'zigzag', but there are: constant, linear"),
        ({"model_type": "GPT"}, "model_type is 'GPT', but there are: CNN, DigitsCNN"),
        ({"dataset_type": "ImageNet"}, "dataset_type is 'ImageNet', but there are: MNIST, digits"),
        ({"dataset_type": "MNIST"}, "start with --data-dir"),
    ],
)
def test_wrong_settings(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    import config
    import datasets
    import models
    import schedules

    def start() -> None:
        settings = config.read(config_file(tmp_path, **changes))
        schedules.get_ps_lr(settings, 0)
        datasets.load(settings.dataset_type, None)
        models.build(settings.model_type)

    with pytest.raises(config.SetupError, match=message):
        start()


def test_runs_of_the_same_second_have_their_own_folders(tmp_path: Path) -> None:
    import records

    assert len({records.new_folder(tmp_path, "localSGD") for _ in range(3)}) == 3
