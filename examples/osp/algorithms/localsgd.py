"""localSGD: exactly K local steps, then everyone waits for the sum and starts again from the same w."""

from __future__ import annotations

from worker import Worker


def train(worker: Worker) -> None:
    world = worker.world
    while not world.finished:
        rate = world.rate
        for _ in range(worker.config.K):
            worker.step(rate)
        total, table = worker.link.exchange(*worker.take())
        world.apply(total, iterations=int(table[:, 0].sum()))
        worker.model.vector.copy_(world.vector)
