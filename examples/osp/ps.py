"""The role of rank 0: evaluates the global model after every round and writes the records."""

from __future__ import annotations

import datasets
import models
import torch
from config import Config
from globalmodel import GlobalModel
from link import Link, reports
from records import Records
from torch.nn.functional import cross_entropy
from tqdm import tqdm


def initial_model(config: Config) -> models.FlatModel:
    torch.manual_seed(config.seed)
    return models.build(config.model_type)


def serve(link: Link, config: Config, algorithm: str, data: datasets.Dataset) -> None:
    model = initial_model(config)
    link.model_from_ps(model.vector)
    world = GlobalModel(model.vector, model.weights, link.workers, config)
    total = torch.empty_like(model.vector)
    model.net.eval()
    bar = tqdm(total=config.all_iterations, desc=algorithm, unit="it", mininterval=0.5)
    with Records(config, algorithm) as records, bar:
        link.open_round()
        while not world.finished:
            table = link.collect(total)
            told = reports(table)
            done = sum(report.iterations for report in told)
            world.apply(total, done)
            if not world.finished:
                link.open_round()  # before evaluating: the workers go on meanwhile
            accuracy, loss = evaluate(model, data)
            records.round(told, world.iterations, accuracy, loss, answer_bytes=total.nbytes + table.nbytes)
            bar.set_postfix(accuracy=f"{accuracy:.4f}", refresh=False)
            bar.update(min(done, config.all_iterations - bar.n))
        records.end(model)
    print(f"{algorithm}: accuracy {accuracy:.4f} after {world.iterations} iterations; records in {records.folder}")


@torch.no_grad()
def evaluate(model: models.FlatModel, data: datasets.Dataset, size: int = 500) -> tuple[float, float]:
    """Accuracy and mean loss on the test set."""
    right, loss = 0, 0.0
    for x, y in zip(data.test_x.split(size), data.test_y.split(size)):
        scores = model.net(data.inputs(x))
        right += int((scores.argmax(1) == y).sum())
        loss += cross_entropy(scores, y, reduction="sum").item()
    return right / len(data.test_y), loss / len(data.test_y)
