"""The wrappers of a model and an optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from ...codec import Quantizer
from ...worker import KVWorker
from .algorithm import Act, Algorithm, Center, Nesterov, decide
from .exchange import Exchange, agree
from .exchange import seed_of as _seed_of
from .vector import ModelVector, set_whole, whole

STEPS, TRAINERS, STATISTICS = 0, 1, 2  # the extras of a message: the update's steps, 1, the model's buffers


class Round(NamedTuple):
    """A round that has ended, as this process saw it."""

    number: int
    """From 1."""
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
    first_key: the training uses the KVWorker's keys from first_key to first_key + 3.
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
        """Steps that are in the global model, of all workers together."""
        self.round = 0
        """Rounds that are in the global model."""
        self.on_send: Callable[[int], None] | None = None
        """Called with its steps whenever an update has been sent."""
        self.on_round: Callable[[Round], None] | None = None
        """Called when a round is in the global model, before the worker goes on from there."""
        self._optimizer = optimizer
        self._model = model
        self._vector = ModelVector(model)
        self._seed = (seed, kv.rank)
        self._steps = 0
        self._sent_steps = 0
        self._meet(kv, first_key)
        self._exchange = Exchange(
            kv, first_key, self._vector.size, self._vector.dtype, STATISTICS + self._vector.buffers_size, algorithm
        )
        self._center = Center(self._vector.read(), algorithm.outer)
        self._statistics = self._vector.read_buffers()
        self._begin = self._center.w.clone()  # where the steps since the last update began
        if optimizer is None:
            self._exchange.skip()

    def _meet(self, kv: KVWorker, first_key: int) -> None:
        """Finds all workers of one mind, and gives them rank 0's model."""
        shapes = [(tuple(t.shape), t.dtype) for t in (*self._model.parameters(), *self._model.buffers())]
        facts = {"algorithm": (self.name, self.algorithm), "model": shapes}
        self._agree = functools.partial(agree, kv, first_key + 2)
        kv.init(first_key + 2, torch.zeros(kv.num_workers, len(facts), dtype=torch.int64))
        self._agree(facts)
        content = whole(self._model)
        kv.init(first_key + 3, content)
        kv.pull(first_key + 3, out=content).wait()
        set_whole(self._model, content)

    @property
    def finished(self) -> bool:
        """Whether total_steps are done. It becomes true on all workers in the same round, and then no more is sent."""
        return self.iterations >= self.algorithm.total_steps

    @property
    def w(self) -> torch.Tensor:
        """The global model's trained parameters, flat, in the order of model.parameters(). Not to be written to."""
        return self._center.w

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
        while True:
            exchange = self._exchange
            act = decide(self.algorithm, self._steps, exchange.in_flight, exchange.in_flight and exchange.arrived())
            if act is Act.STEP:
                return
            if act is Act.SEND:
                self._send()
            else:
                self._apply()
                if self.finished:
                    self._go_on_from(self._center.w)
                    return
                if not self.algorithm.overlap:
                    self._go_on_from(self._center.w)

    def follow(self) -> None:
        """Waits for the next round, then has it in the model. For a process without an optimizer.

        The round after it is opened at once: the workers do not wait while the model is evaluated, until they have
        a further round complete.
        """
        if self._optimizer is not None or self.finished:
            why = "after the end" if self.finished else "with an optimizer: call step()"
            raise RuntimeError(f"follow() {why}")
        self._apply()
        if not self.finished:
            self._exchange.skip()
        self._go_on_from(self._center.w)

    def _send(self) -> None:
        update = self._begin - self._vector.read()
        extra = torch.cat([torch.tensor([self._steps, 1.0], dtype=torch.float64), self._vector.read_buffers()])
        self._exchange.send(update, extra, seed=_seed_of(*self._seed, self.round))
        self._sent_steps, self._steps = self._steps, 0
        if self.on_send:
            self.on_send(self._sent_steps)
        if self.algorithm.overlap:
            self._go_on_from(self._center.restart(update, self.compensation))

    def _apply(self) -> None:
        exchange = self._exchange
        exchange.collect()
        trainers = exchange.total_extra[TRAINERS].item()
        self._center.apply(exchange.total.div_(trainers))
        torch.div(exchange.total_extra[STATISTICS:], trainers, out=self._statistics)
        self.iterations += int(exchange.total_extra[STEPS])
        self.round += 1
        if self.on_round:
            self.on_round(Round(self.round, self._sent_steps, exchange.bytes, exchange.under_way_s, exchange.waited_s))

    def _go_on_from(self, x: torch.Tensor) -> None:
        self._vector.write(x)
        self._vector.write_buffers(self._statistics)
        self._begin = self._vector.read()  # what the model holds: less exact than x where that is 16 bits wide

    def state_dict(self) -> dict[str, Any]:
        """This process's part of the training, beside the states of its model and its optimizer.

        To go on later, save all three on every worker in the same round: after the step() that ends it.
        """
        return {
            "round": self.round,
            "iterations": self.iterations,
            "steps": (self._steps, self._sent_steps),
            "compensation": self.compensation,
            "begin": self._begin.clone(),
            "statistics": self._statistics.clone(),
            "center": self._center.state_dict(),
            "exchange": self._exchange.state_dict(),
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
        self._begin = state["begin"].clone()
        self._statistics.copy_(state["statistics"])
        self._center.load_state_dict(state["center"])
        self._exchange.load_state_dict(state["exchange"])


class LocalSGD(Local):
    """Local SGD (Stich, ICLR 2019): `steps` steps, then all wait for the mean of the models. Arguments: see Local."""

    name = "LocalSGD"

    def __init__(
        self,
        kv: KVWorker,
        model: nn.Module,
        optimizer: Optimizer | None,
        *,
        steps: int,
        total_steps: int,
        first_key: int = 0,
    ) -> None:
        super().__init__(kv, model, optimizer, Algorithm(steps, total_steps), first_key=first_key)


class OSP(Local):
    """Overlap synchronization parallel (Wang et al., ICPP 2019): at most `steps` steps while an update is under way."""

    name = "OSP"

    def __init__(
        self,
        kv: KVWorker,
        model: nn.Module,
        optimizer: Optimizer | None,
        *,
        steps: int,
        total_steps: int,
        first_key: int = 0,
    ) -> None:
        super().__init__(kv, model, optimizer, Algorithm(steps, total_steps, overlap=True), first_key=first_key)


class LOSP(Local):
    """OSP with local compensation (Wang et al., JSAC 39(8), 2021): x <- w - compensation * d, d being under way.

    In the paper's terms compensation is gamma / eta: with 1 the worker's own steps are never taken back.
    """

    name = "LOSP"

    def __init__(
        self,
        kv: KVWorker,
        model: nn.Module,
        optimizer: Optimizer | None,
        *,
        steps: int,
        total_steps: int,
        compensation: float = 1.0,
        first_key: int = 0,
    ) -> None:
        algorithm = Algorithm(steps, total_steps, overlap=True)
        super().__init__(kv, model, optimizer, algorithm, compensation, first_key)


class DQLOSP(Local):
    """LOSP with both directions quantised (see fptps.codec); buffers are not. The global model is the same everywhere.

    quantizer: its range, where it has one, is that of an update: with SGD, the rate times that of the gradients' sum.
    error_feedback: what an update's quantisation leaves out is added to the worker's next update. The quantisation of
        the sum has no such memory.
    seed: of the rounding.
    """

    name = "DQLOSP"

    def __init__(
        self,
        kv: KVWorker,
        model: nn.Module,
        optimizer: Optimizer | None,
        *,
        steps: int,
        total_steps: int,
        quantizer: Quantizer,
        error_feedback: bool = False,
        compensation: float = 1.0,
        first_key: int = 0,
        seed: int = 0,
    ) -> None:
        algorithm = Algorithm(steps, total_steps, overlap=True, quantizer=quantizer, error_feedback=error_feedback)
        super().__init__(kv, model, optimizer, algorithm, compensation, first_key, seed)


class DiLoCo(Local):
    """DiLoCo (Douillard et al., 2023): local steps, of AdamW there, and an outer SGD with Nesterov momentum.

    With a quantizer its quantised form; with overlap the workers step on meanwhile, with compensation 1. The forms that
    send a part of the model at a time are not there.
    """

    name = "DiLoCo"

    def __init__(
        self,
        kv: KVWorker,
        model: nn.Module,
        optimizer: Optimizer | None,
        *,
        steps: int,
        total_steps: int,
        outer: Nesterov = Nesterov(),  # noqa: B008 - frozen
        overlap: bool = False,
        quantizer: Quantizer | None = None,
        error_feedback: bool = False,
        first_key: int = 0,
        seed: int = 0,
    ) -> None:
        algorithm = Algorithm(steps, total_steps, overlap, outer, quantizer, error_feedback)
        super().__init__(kv, model, optimizer, algorithm, 1.0, first_key, seed)
