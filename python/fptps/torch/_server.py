"""ServerOptimizer: gradients go to the aggregators, whose optimiser sends the new parameters back."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import Any, Literal, NoReturn

import torch
from torch import nn

from ..optim import Optimizer as Rule
from ..optim import rule as checked
from ._calls import Average, Op
from ._optimizer import DistributedOptimizer


class _Received(torch.optim.Optimizer):
    """Writes the values that came in the place of gradients into the parameters."""

    fptps_per_parameter = True

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.copy_(p.grad)
                    p.grad = None


class ServerOptimizer(DistributedOptimizer):
    """An optimizer whose rule and state are on the aggregators: once in the cluster, not once on each worker.

        optimizer = ServerOptimizer(fptps.optim.AdamW(lr=1e-3), model.named_parameters())
        model, optimizer = prepare(model, ServerOptimizer(fptps.optim.AdamW(lr=1e-3)))

    A step() takes the mean of all workers' gradients, as DistributedOptimizer's: each gradient leaves by its hook, with
    the priority of the order in which the forward pass uses it, and the new value of the parameter comes back. The
    weights are those of torch.optim's optimizer of the same name, up to rounding. All workers construct it in the same
    order, with the same arguments (else MismatchError); worker 0's parameters are the first values.

    - rule: one of fptps.optim. named_parameters: such as model.named_parameters(), of floats (else TypeError); None
      leaves it to prepare().
    - backward_passes_per_step, op, overlap: as DistributedOptimizer's. See it also for flush() and no_sync().

    Schedulers change `param_groups[0]["lr"]`, which holds from worker 0's next gradients on. save() and load() keep
    the state, and the parameters; state_dict() raises RuntimeError, as it has neither.

    A gradient is applied as soon as all workers have sent theirs. So RuntimeError is raised by synchronize() between
    backward() and step() (clipping, GradScaler), zero_grad() there, a second backward() before step() outside of
    no_sync(), sparse gradients, step(closure) and add_param_group().
    """

    def __init__(
        self,
        rule: Rule,
        named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
        backward_passes_per_step: int = 1,
        op: Op = Average,
        overlap: Literal["forward", "none"] = "forward",
    ) -> None:
        checked(rule)
        self._rule = rule
        self._rate: float = rule.lr  # type: ignore[attr-defined] # all four have one
        self._options = (backward_passes_per_step, op, overlap)
        if named_parameters is not None:
            self.bind(named_parameters)

    def bind(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Begins with these parameters; on all workers. RuntimeError if it has parameters already."""
        if "optimizer" in vars(self):
            raise RuntimeError("this ServerOptimizer has its parameters already: make another one for another model")
        pairs = list(named_parameters)
        passes, op, overlap = self._options
        received = _Received([p for _, p in pairs], self._rate)
        super().__init__(received, pairs, backward_passes_per_step=passes, op=op, overlap=overlap)

    def __getattr__(self, name: str) -> Any:
        if "optimizer" not in vars(self) and not name.startswith("__"):
            raise AttributeError(
                f"{name}: this ServerOptimizer has no parameters yet: pass named_parameters, or call prepare(model, it)"
            )
        return super().__getattr__(name)

    def _start(self) -> None:
        super()._start()
        rate = float(self.optimizer.param_groups[0]["lr"])
        if rate != self._rate and self._gradients is not None:
            self._gradients.tensors.set_learning_rate(rate)
            self._rate = rate

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Puts the new values into the parameters: with overlap, when a module needs them. closure has to be None."""
        if closure is not None:
            self._refuse("step(closure) would apply the gradients of each call")
        return super().step()

    def synchronize(self) -> None:
        """As flush(). RuntimeError between backward() and step(): there are no sums of gradients on a worker."""
        if self._gradients is not None and self._gradients.open:
            self._refuse("gradients cannot be clipped or unscaled between backward() and step()")
        self.flush()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in PyTorch. RuntimeError between backward() and step()."""
        self._dropped()
        self.optimizer.zero_grad(set_to_none)

    def _dropped(self) -> None:
        if self._gradients is not None and self._gradients.open:
            self._refuse("gradients cannot be dropped between backward() and step()")

    def _refuse(self, why: str) -> NoReturn:
        raise RuntimeError(
            f"ServerOptimizer: {why}, as the aggregators apply each gradient when all workers have sent it. Use "
            "DistributedOptimizer for that"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """RuntimeError: one rule holds for all parameters."""
        self._refuse("one rule holds for all parameters, and none can be added")

    def state_dict(self) -> dict[str, Any]:
        """RuntimeError: see save()."""
        raise RuntimeError("ServerOptimizer: the state is on the aggregators. Call save(path), on all workers")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """RuntimeError: see load()."""
        raise RuntimeError("ServerOptimizer: the state is on the aggregators. Call load(path), on all workers")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the parameters and the optimiser's state to a file of worker 0, as KVWorker.save(). All workers call
        it, between two steps. The file has all of the cluster's tensors with an optimiser, not this one's alone."""
        self.flush()
        self._process.worker.save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Restores a file of save(), in a program that has made the same optimizers, as KVWorker.load(). All workers
        call it, between two steps. The learning rate is that of `param_groups`, as before: a scheduler has to be loaded
        by itself."""
        self.flush()
        self._process.worker.load(path)
        if self._gradients is not None:
            self._gradients.fetch()
            self._rate = math.nan  # unlike any: the file's is on the aggregators now
