"""Local: the base class of the wrappers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from ...worker import KVWorker
from ._algorithm import Act, Algorithm, Center, cut, decide
from ._exchange import KEYS, Exchange, agree
from ._exchange import seed_of as _seed_of
from ._fragment import Fragment
from ._vector import Vector, exact_dtype, set_whole, statistics, trained, whole

STEPS, TRAINERS, STATISTICS = 0, 1, 2  # the extras of a message: the update's steps, 1, the model's buffers


class Round(NamedTuple):
    """A round that has ended, as this process measured it."""

    number: int
    """From 1. The round exchanged fragment (number - 1) % fragments."""
    steps: int
    """Steps in this worker's update; 0 in a process that only follows."""
    bytes: int
    """Bytes sent, and the same number received, without headers."""
    in_flight_s: float
    """Seconds from sending the update until this process collected the sum: with overlap, at the end of a step."""
    waited_s: float
    """The part of these seconds in which the process only waited."""


class Local:
    """Trains a model on all workers by local updates. Its subclasses are the algorithms.

    The constructor waits until all workers construct theirs, and copies rank 0's model to all of them. If a worker's
    algorithm, settings or model's shapes differ from rank 0's, all workers raise a MismatchError that names it.

    - model: any module. Its trained parameters are averaged, and its floating-point buffers (the running statistics of
      batch normalisation); every worker keeps its own integer buffers.
    - optimizer: any, over the model's parameters; every worker keeps its own state. None for a process that does not
      train but evaluates or saves the global model: it calls follow() for each round, not step().
    - first_key: the training uses the KVWorker's keys from first_key to first_key + 2 * algorithm.fragments - 1.
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
        """Steps of all workers together that are in the global model."""
        self.round = 0
        """Rounds that are in the global model."""
        self.on_send: Callable[[int], None] | None = None
        """Called after an update was sent, with the number of its steps."""
        self.on_round: Callable[[Round], None] | None = None
        """Called when a round has been applied to the global model, before the worker continues from there."""
        self._optimizer = optimizer
        self._model = model
        self._seed = (seed, kv.rank)
        self._steps = 0
        self._sent_steps = 0
        params = trained(model)
        parts = cut([p.numel() for p in params], algorithm.fragments)
        self._synchronise(kv)
        self._buffers = Vector(statistics(model), torch.float64)
        self._statistics = self._buffers.read()
        dtype = exact_dtype(params)
        self._w = Vector(params, dtype).read()
        self._fragments: list[Fragment] = []
        end = 0
        for number, part in enumerate(parts):
            vector = Vector(params[part], dtype)
            start, end = end, end + vector.size
            key = first_key + number * KEYS
            exchange = Exchange(kv, key, vector.size, dtype, STATISTICS + self._buffers.size, algorithm)
            self._fragments.append(Fragment(vector, Center(self._w[start:end], algorithm.outer), exchange))

    def _synchronise(self, kv: KVWorker) -> None:
        """Checks that all workers train the same, and copies rank 0's model to them."""
        shapes = [(tuple(t.shape), t.dtype) for t in (*self._model.parameters(), *self._model.buffers())]
        facts = {"algorithm": (self.name, self.algorithm), "model": shapes}
        self._agree = functools.partial(agree, kv)
        self._agree(facts)
        content = whole(self._model)
        kv.broadcast([content])
        set_whole(self._model, content)

    @property
    def finished(self) -> bool:
        """Whether total_steps are done. All workers find that in the same round; afterwards nothing is sent."""
        return self.iterations >= self.algorithm.total_steps

    @property
    def w(self) -> torch.Tensor:
        """The global model's trained parameters, flat, in the order of model.parameters(). Do not modify it."""
        return self._w

    def step(self) -> None:
        """Takes the optimizer's step with the current gradients, then sends or applies updates.

        Where the algorithm waits for the network it waits without a time limit. Raises NodeLostError if a node is lost:
        the global model is then that of the last round. RuntimeError once finished, and without an optimizer.
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
        """Waits for the end of the next round and copies the global model into the model, without an optimizer.

        It starts the round after it at once, so that the workers need not wait for this process during that round,
        whatever it does with the model.
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
        """The fragment of the round in flight, or of the next round."""
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
            fragment.restart(fragment.center.restart(update, self.compensation))
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
            self.on_round(Round(self.round, self._sent_steps, exchange.bytes, exchange.in_flight_s, exchange.waited_s))
        if self.finished:
            for each in self._fragments:
                each.take_over(mixing=0)
        elif self._optimizer is None:
            fragment.take_over(mixing=0)
        elif not self.algorithm.overlap:
            fragment.take_over(self.algorithm.mixing)
        else:
            return  # its model stays as it is until it sends
        self._buffers.write(self._statistics)

    def state_dict(self) -> dict[str, Any]:
        """This process's state of the training, without those of its model and its optimizer.

        To continue later, save all three on every worker in the same round, after the step() that ended it.
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
        """Restores a state of state_dict(), on every worker of a new cluster; an update in flight is sent again.

        Construct this object, load the states of the model and the optimizer, then call this. MismatchError names the
        workers whose state is of another round than rank 0's.
        """
        self._agree({"round": state["round"], "total of steps": state["iterations"]})
        self.round, self.iterations = state["round"], state["iterations"]
        self._steps, self._sent_steps = state["steps"]
        self.compensation = state["compensation"]
        self._statistics.copy_(state["statistics"])
        for fragment, saved in zip(self._fragments, state["fragments"]):
            fragment.load_state_dict(saved)
