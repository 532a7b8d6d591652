"""What the wrappers of a model and an optimizer have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from ...worker import KVWorker
from .algorithm import Act, Algorithm, Center, cut, decide
from .exchange import KEYS, Exchange, agree
from .exchange import seed_of as _seed_of
from .fragment import Fragment
from .vector import Vector, exact_dtype, set_whole, statistics, trained, whole

STEPS, TRAINERS, STATISTICS = 0, 1, 2  # the extras of a message: the update's steps, 1, the model's buffers
COMMON_KEYS = 2  # besides those of each fragment's exchange


class Round(NamedTuple):
    """A round that has ended, as this process saw it."""

    number: int
    """From 1. It was that of fragment (number - 1) % fragments."""
    steps: int
    """Of this worker's update; 0 in a process that only follows."""
    bytes: int
    """Sent, and as many received: without headers."""
    under_way_s: float
    """Seconds from the sending until the sum was found here: with overlap that is at the end of a step."""
    waited_s: float
    """Seconds of these in which the process did nothing but wait."""


class Local:
    """Trains a model with the others' by local updates; the subclasses are the algorithms.

    Makes rank 0's model everyone's, which takes part in the construction of all: it waits for all workers.
    MismatchError, in all of them, names those whose algorithm, settings or model's shape differ from rank 0's.

    model: any module. Its trained parameters are averaged, and so are its floating-point buffers (the running
        statistics of batch normalisation); integer buffers are each worker's own.
    optimizer: any, over the model's parameters; its state is each worker's own. None for a process that does not train
        but has the global model in its model after each round, to evaluate or save it: it calls follow(), not step().
    first_key: the training uses the KVWorker's keys from first_key to first_key + 1 + 2 * algorithm.fragments.
    """

    name: ClassVar[str] = "local"

    def __init__(
        self,
        kv: KVWorker,
        model: nn.Module,
        optimizer: Optimizer | None,
        algorithm: Algorithm,
        compensation: float = 0.0,
        first_key: int = 0,
        seed: int = 0,
    ) -> None:
        self.algorithm = algorithm
        self.compensation = compensation
        """c of LOSP; may be changed between two steps."""
        self.iterations = 0
        """Steps that all workers together had done when they sent the last round's updates."""
        self.round = 0
        """Rounds that are in the global model."""
        self.on_send: Callable[[int], None] | None = None
        """Called with its steps whenever an update has been sent."""
        self.on_round: Callable[[Round], None] | None = None
        """Called when a round is in the global model, before the worker goes on from there."""
        self._optimizer = optimizer
        self._model = model
        self._seed = (seed, kv.rank)
        self._steps = 0
        self._sent_steps = 0
        params = trained(model)
        parts = cut([p.numel() for p in params], algorithm.fragments)
        self._meet(kv, first_key)
        self._buffers = Vector(statistics(model), torch.float64)
        self._statistics = self._buffers.read()
        dtype = exact_dtype(params)
        self._w = Vector(params, dtype).read()
        self._fragments: list[Fragment] = []
        end = 0
        for number, part in enumerate(parts):
            vector = Vector(params[part], dtype)
            start, end = end, end + vector.size
            key = first_key + COMMON_KEYS + number * KEYS
            exchange = Exchange(kv, key, vector.size, dtype, STATISTICS + self._buffers.size, algorithm)
            self._fragments.append(Fragment(vector, Center(self._w[start:end], algorithm.outer), exchange))

    def _meet(self, kv: KVWorker, key: int) -> None:
        """Finds all workers of one mind, and gives them rank 0's model."""
        shapes = [(tuple(t.shape), t.dtype) for t in (*self._model.parameters(), *self._model.buffers())]
        facts = {"algorithm": (self.name, self.algorithm), "model": shapes}
        self._agree = functools.partial(agree, kv, key)
        kv.init(key, torch.zeros(kv.num_workers, len(facts), dtype=torch.int64))
        self._agree(facts)
        content = whole(self._model)
        kv.init(key + 1, content)
        kv.pull(key + 1, out=content).wait()
        set_whole(self._model, content)

    @property
    def finished(self) -> bool:
        """Whether total_steps are done. It becomes true on all workers in the same round, and then no more is sent."""
        return self.iterations >= self.algorithm.total_steps

    @property
    def w(self) -> torch.Tensor:
        """The global model's trained parameters, flat, in the order of model.parameters(). Not to be written to."""
        return self._w

    def step(self) -> None:
        """The optimizer's step on the gradients that are there, then what the algorithm does after it.

        Waits for the network where the algorithm has to, as long as it takes. Raises NodeLostError if a node is lost:
        the global model is then that of the last round. RuntimeError after the end, and where there is no optimizer.
        """
        if self._optimizer is None or self.finished:
            raise RuntimeError(
                "step() after the end" if self.finished else "step() without an optimizer: call follow()"
            )
        self._optimizer.step()
        self._steps += 1
        while not self.finished:
            exchange = self._current.exchange
            act = decide(self.algorithm, self._steps, exchange.in_flight, exchange.in_flight and exchange.arrived())
            if act is Act.STEP:
                return
            if act is Act.SEND:
                self._send()
            else:
                self._apply()

    def follow(self) -> None:
        """Waits for the next round, then has it in the model. For a process without an optimizer.

        The round after it is opened at once: the workers do not wait while the model is evaluated, until they have
        a further round complete.
        """
        if self._optimizer is not None or self.finished:
            why = "after the end" if self.finished else "with an optimizer: call step()"
            raise RuntimeError(f"follow() {why}")
        if not self._current.exchange.in_flight:
            self._current.exchange.skip()
        self._apply()
        if not self.finished:
            self._current.exchange.skip()

    @property
    def _current(self) -> Fragment:
        """What is under way, or next."""
        return self._fragments[self.round % len(self._fragments)]

    def _send(self) -> None:
        fragment = self._current
        update = fragment.update()
        extra = torch.cat([torch.tensor([self._steps, 1.0], dtype=torch.float64), self._buffers.read()])
        fragment.exchange.send(update, extra, seed=_seed_of(*self._seed, self.round))
        self._sent_steps, self._steps = self._steps, 0
        if self.on_send:
            self.on_send(self._sent_steps)
        if self.algorithm.overlap:
            fragment.go_on_from(fragment.center.restart(update, self.compensation))
            self._buffers.write(self._statistics)

    def _apply(self) -> None:
        fragment = self._current
        exchange = fragment.exchange
        exchange.collect()
        trainers = exchange.total_extra[TRAINERS].item()
        fragment.center.apply(exchange.total.div_(trainers))
        torch.div(exchange.total_extra[STATISTICS:], trainers, out=self._statistics)
        self.iterations += int(exchange.total_extra[STEPS])
        self.round += 1
        if self.on_round:
            self.on_round(Round(self.round, self._sent_steps, exchange.bytes, exchange.under_way_s, exchange.waited_s))
        if self.finished:
            for each in self._fragments:
                each.take_over(mixing=0)
        elif self._optimizer is None:
            fragment.take_over(mixing=0)
        elif not self.algorithm.overlap:
            fragment.take_over(self.algorithm.mixing)
        else:
            return  # until it sends
        self._buffers.write(self._statistics)

    def state_dict(self) -> dict[str, Any]:
        """This process's part of the training, beside the states of its model and its optimizer.

        To go on later, save all three on every worker in the same round: after the step() that ends it.
        """
        return {
            "round": self.round,
            "iterations": self.iterations,
            "steps": (self._steps, self._sent_steps),
            "compensation": self.compensation,
            "statistics": self._statistics.clone(),
            "fragments": [fragment.state_dict() for fragment in self._fragments],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where state_dict() was called, in a new cluster, on every worker; what was under way is sent again.

        Call it right after the construction, with the model and the optimizer loaded in between. MismatchError names
        the workers whose state is of another round.
        """
        self._agree({"round": state["round"], "total of steps": state["iterations"]})
        self.round, self.iterations = state["round"], state["iterations"]
        self._steps, self._sent_steps = state["steps"]
        self.compensation = state["compensation"]
        self._statistics.copy_(state["statistics"])
        for fragment, saved in zip(self._fragments, state["fragments"]):
            fragment.load_state_dict(saved)
