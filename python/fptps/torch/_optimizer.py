"""DistributedOptimizer: an optimizer whose gradients are the means, or sums, of all workers' gradients."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, takewhile
from typing import Any, Literal

import torch
from torch import nn

from ..optim import Optimizer as Rule
from ._bundle import Bundle, Slot
from ._calls import Average, Op, push_pull
from ._check import agree
from ._compression import Compression, Compressor
from ._forward import Forward
from ._gradients import Gradients
from ._late import late_reason, update
from ._process import current

_log = logging.getLogger("fptps")


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer: a step() takes the mean of all workers' gradients.

        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())

    All workers construct theirs in the same order, with the same parameters and arguments (else MismatchError), and
    take equally many steps (or call join()). It does not make the models equal: see broadcast_parameters() and
    prepare(). The wrapped optimizer keeps the parameter groups and the state; schedulers may be made with either.

    Each gradient leaves when the backward pass has computed it, in the place of which its sum comes back. The most
    urgent is the one of the parameter that the forward pass uses first, as recorded in the first iteration. Between
    backward() and step() gradients are under way: call synchronize() before you clip or read them. If the program
    changes one in that time, step() raises RuntimeError and names it. GradScaler needs no call.

    - named_parameters: names for errors, such as model.named_parameters(); all of the optimizer's must be among them.
      None: numbers.
    - compression: what travels in the place of the gradients, one of Compression.
    - backward_passes_per_step: gradients leave with this backward pass after each step. They are the sums over the
      passes, as in PyTorch. See also no_sync().
    - op: Average, or Sum.
    - overlap: "forward": step() returns at once. A parameter is updated as soon as a module's forward pass needs it,
      which waits for its sum alone. The weights are bit for bit those of overlap="none". After step() gradients are
      None, and **parameters are up to date** in any module's forward pass, in state_dict() of modules and of this
      optimizer, in check() and broadcast_parameters(); before you read or write them in any other way call flush(). An
      optimizer that does not update each parameter by itself, steps with a closure, and steps of an optimizer with
      step hooks are as with "none"; a line of the log says so. "none": step() waits for all sums.

    Any backward() may use any of the parameters, other ones on every worker: where a worker has no gradient it
    contributes zeros, and a parameter that no worker uses is left alone as in PyTorch. Several backward passes before
    step() add up; each but the first costs a further round. Sparse gradients are gathered by row.

    It waits as long as all workers live; after 5 s the log names those that it waits for.
    """

    _rule: Rule | None = None
    """What the aggregators apply to the sums: see ServerOptimizer."""
    # GradScaler would give the scale to an optimizer that says so, past this class.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
        compression: Compressor = Compression.none,
        backward_passes_per_step: int = 1,
        op: Op = Average,
        overlap: Literal["forward", "none"] = "forward",
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            raise TypeError("the optimizer is a DistributedOptimizer already: wrap optimizer.optimizer")
        if backward_passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step={backward_passes_per_step}: 1 or more is expected")
        if overlap not in ("forward", "none"):
            raise ValueError(f"overlap={overlap!r}: 'forward' or 'none' is expected")
        self.optimizer = optimizer
        """The wrapped optimizer."""
        self.steps = 0
        """How many steps it has taken."""
        self._names = None if named_parameters is None else _names(named_parameters)
        self._settings = (compression, backward_passes_per_step, op)
        self._overlap = overlap
        self._process = current()
        self._synchronized = False
        self._pending = False
        self._late: dict[Bundle, None] = {}
        """The bundles whose parameters' updates are to come, the most urgent first."""
        self._retired = False
        self._gradients: Gradients | None = None
        self._forward: Forward | None = None
        self._uncovered: set[int] = set()
        """The parameters that step() waits for, as no module's forward pass does."""
        self._set_up()
        self._process.optimizers.append(weakref.ref(self))

    def _set_up(self) -> None:
        """Declares the gradients' tensors, and hooks into the backward passes."""
        worker, number = self._process.worker, next(self._process.numbers)
        myself = weakref.proxy(self)  # it ends with the last reference of the program, on all workers alike
        slots = self._slots()
        self._take_over({id(slot.parameter) for slot in slots})
        facts = {slot.name: (tuple(slot.parameter.shape), str(slot.parameter.dtype)) for slot in slots}
        agree(worker, "DistributedOptimizer's parameters", facts)
        agree(worker, "DistributedOptimizer's arguments", {"": (*map(str, self._settings), self._overlap, self._rule)})
        if worker.num_workers == 1 and self._rule is None and not worker._recovers:  # else others may come
            return
        if self._overlap == "forward" and (reason := late_reason(self.optimizer)):
            _log.info("%s: step() waits for all sums, as %s", type(self.optimizer).__name__, reason)
        elif self._overlap == "forward":
            self._forward = Forward([slot.parameter for slot in slots], lambda indices: myself._update(indices))
        tensors = worker.namespace("torch").namespace(f"optimizer {number}")
        self._gradients = Gradients(
            worker,
            tensors,
            slots,
            *self._settings,
            rule=self._rule,
            finish=lambda slot: myself._update([slot.index]),
            drop=lambda: myself._dropped(),
            start=lambda: myself._start(),
        )

    def _slots(self) -> list[Slot]:
        """The parameters, each with its name; those without elements have nothing to send."""
        slots: list[Slot] = []
        for number, group in enumerate(self.optimizer.param_groups):
            for at, p in enumerate(group["params"]):
                name = f"{number}.{at}" if self._names is None else self._names.get(id(p))
                if name is None:
                    raise ValueError(
                        f"named_parameters has no name for parameter {at} of group {number}, of shape "
                        f"{tuple(p.shape)}: pass model.named_parameters() of the whole model"
                    )
                if p.numel():
                    slots.append(Slot(len(slots), name, p, number))
        return slots

    def _take_over(self, parameters: set[int]) -> None:
        """Retires an optimizer that has one of the parameters: it is about to be replaced, in a notebook say."""
        for other in self._process.living():
            gradients = other._gradients
            if gradients and any(id(slot.parameter) in parameters for slot in gradients.slots):
                other._retire()

    def _retire(self) -> None:
        if self._gradients is not None:
            self.flush()
            if self._gradients.open:
                self._drop()
            self._gradients.detach()
        if self._forward is not None:
            self._forward.close()
        self._retired, self._gradients, self._forward = True, None, None

    def _start(self) -> None:
        """Before the first gradient of a step is sent. The first forward pass has told the order by now."""
        gradients, forward = self._gradients, self._forward
        self._synchronized = False
        if gradients and forward and forward.recording:
            for position, index in enumerate(forward.order()):
                gradients.slots[index].priority = -position
            gradients.bundles.sort(key=lambda bundle: -bundle.priority)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters with the sums of the gradients; with overlap, returns before they are there.

        closure: as in PyTorch. Its gradients are exchanged each time that it is called, and its loss is averaged over
        the workers, so that all take the same decisions. Returns the wrapped optimizer's result.

        Raises RuntimeError for a gradient that was changed under way, and the errors of Ticket.result().
        """
        self._check_usable()
        self.steps += 1
        gradients = self._gradients
        if gradients is None:
            return self.optimizer.step(closure)
        self.flush()
        if closure is not None:
            return self._step_with(closure, gradients)
        if self._forward is not None and not self._synchronized and not _has_hooks(self.optimizer):
            self._step_later(gradients, self._forward)
            return None
        self._synchronize()
        result = self.optimizer.step()
        self._next_step()
        return result

    def _step_with(self, closure: Callable[[], Any], gradients: Gradients) -> Any:
        def averaged() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._synchronize()
            self._next_step()
            return None if loss is None else _mean(loss)

        return self.optimizer.step(averaged)

    def _step_later(self, gradients: Gradients, forward: Forward) -> None:
        gradients.close()
        if forward.recording:
            self._end_recording(gradients, forward)
        settings = [_frozen(group) for group in self.optimizer.param_groups]
        for slot in gradients.slots:
            slot.pending, slot.version = settings[slot.group], None
            slot.parameter.grad = None
        gradients.open, self._pending = False, True
        self._late = dict.fromkeys(gradients.bundles)
        self._process.updating.add(self)
        self.optimizer._opt_called = True  # type: ignore[attr-defined] # for schedulers made with it
        if self._uncovered:
            self._update(self._uncovered)

    def _end_recording(self, gradients: Gradients, forward: Forward) -> None:
        self._uncovered = forward.end_recording()
        for module in forward.owners():
            module.register_state_dict_pre_hook(Flush(self))
        if self._uncovered:
            _log.info(
                "step() waits for %d of %d parameters, which no module's forward pass uses",
                len(self._uncovered),
                len(gradients.slots),
            )

    def _update(self, indices: Iterable[int]) -> None:
        """Updates those of the parameters whose update is to come, when their sums are there.

        Those that share tensors with them, and those that follow and whose sums are there already, are updated in the
        same call of the optimizer: one call costs more than the update of a small parameter.
        """
        gradients = self._gradients
        if gradients is None or not self._late:
            return
        needed = dict.fromkeys(b for index in indices if (b := gradients.slots[index].bundle) in self._late)
        if not needed:
            return
        updates: dict[int, tuple[dict[str, Any], list[tuple[nn.Parameter, torch.Tensor]]]] = {}
        # Sums come in the order of urgency, so the search ends at the first one that is missing.
        others = takewhile(lambda bundle: bundle.arrived, [bundle for bundle in self._late if bundle not in needed])
        for bundle in chain(needed, others):
            for slot in bundle.slots:
                settings, sum_ = slot.pending, gradients.collect(slot)
                if sum_ is not None and settings is not None:
                    updates.setdefault(slot.group, (settings, []))[1].append((slot.parameter, sum_))
                slot.pending = None
            bundle.clear()
            del self._late[bundle]
        if updates:
            update(self.optimizer, updates.values())

    def flush(self) -> None:
        """Waits for the updates to come, so that all parameters are up to date."""
        if self._pending and self._gradients is not None:
            self._update(range(len(self._gradients.slots)))
            self._gradients.next_step()
            self._pending = False
            self._process.updating.discard(self)

    def synchronize(self) -> None:
        """Waits for the sums of all gradients, which are then in the parameters' grad; step() does not wait any more.

        To be called after backward() on all workers, where gradients are clipped, say. After step() it is flush().
        """
        self._synchronize()

    def _synchronize(self) -> None:
        self._check_usable()
        self.flush()
        gradients = self._gradients
        if gradients is None or self._synchronized:
            return
        gradients.close()
        for slot in gradients.slots:
            sum_ = gradients.collect(slot)
            if sum_ is not None:
                slot.parameter.grad = sum_
        gradients.next_step()
        self._synchronized = True

    def _dropped(self) -> None:
        """The program has dropped gradients that were sent."""
        self._drop()

    def _drop(self) -> None:
        """Ends a step whose gradients the program has dropped: the sums are received all the same."""
        self.flush()
        assert self._gradients is not None
        for slot in self._gradients.slots:
            slot.version = None
        self._gradients.complete()
        self._next_step()

    def _next_step(self) -> None:
        assert self._gradients is not None
        self._gradients.next_step()
        for bundle in self._gradients.bundles:
            bundle.clear()
        self._synchronized = False

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters with the names that errors use."""
        return [(slot.name, slot.parameter) for slot in self._slots()]

    @property
    def under_way(self) -> bool:
        """Whether gradients were sent, and the step not taken yet."""
        return self._gradients is not None and (self._gradients.open or self._synchronized)

    def admit(self, workers: tuple[int, ...]) -> None:
        """For State.admit(): these workers take part from now on."""
        if self._gradients is not None:
            self._gradients.workers = workers

    def begin_join(self) -> Gradients | None:
        """For join(): the exchange, between two steps; None if there is none."""
        self.flush()
        if self.under_way:
            raise RuntimeError("join() between backward() and step(): take the step first, or zero_grad()")
        return self._gradients

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in PyTorch. Gradients that are under way are dropped."""
        if self._gradients is not None and self._gradients.open:
            self.synchronize()
        if self._synchronized:
            self._next_step()
        self.optimizer.zero_grad(set_to_none)

    def no_sync(self) -> AbstractContextManager[None]:
        """Within it backward passes send nothing: their gradients add up, and leave with the next pass or step()."""
        return self._gradients.pause() if self._gradients is not None else nullcontext()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Does nothing: step() after synchronize() does not synchronize again. For programs of Horovod and BytePS."""
        yield

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's, up to date."""
        self.flush()
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the wrapped optimizer's. All workers have to load the same state."""
        self.flush()
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the wrapped optimizer's, on all workers. With named_parameters, give names: `"names": [...]`."""
        self._check_usable()
        self.flush()
        names = param_group.pop("names", None)
        self.optimizer.add_param_group(param_group)
        if self._names is not None and names is not None:
            added = self.optimizer.param_groups[-1]["params"]
            self._names.update((id(p), name) for p, name in zip(added, names))
        if self._gradients is not None:
            self._retire()
            self._retired = False
        self._set_up()

    @property
    def workers(self) -> tuple[int, ...]:
        """The ranks of the workers that took part in the last step whose sums have come, or were admitted since (see
        State): all, unless some have died (FPTPS_RECOVERY=1).

        At the same place of the program all workers get the same: divide the data of the next step among them.
        """
        return self._gradients.workers if self._gradients is not None else self._process.worker.workers

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's. While gradients are under way it waits for their sums: who asks then, such as
        GradScaler, may be about to read them."""
        if self._gradients is not None and self._gradients.open and not self._gradients.paused:
            self.synchronize()
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The wrapped optimizer's, up to date."""
        self.flush()
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self.optimizer.defaults

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"

    def _check_usable(self) -> None:
        if self._retired:
            raise RuntimeError("another DistributedOptimizer has taken over the parameters of this one: use that one")


def _mean(loss: Any) -> Any:
    """The mean of a number over the workers, of the same kind."""
    mean = push_pull(torch.as_tensor(loss).detach().double(), name="loss of a closure")
    return mean.to(loss) if isinstance(loss, torch.Tensor) else float(mean)


class Flush:
    """Before a module's state_dict(): brings its parameters up to date. In copies of the module it does nothing."""

    def __init__(self, optimizer: DistributedOptimizer | None = None) -> None:
        self._optimizer = weakref.ref(optimizer) if optimizer is not None else None

    def __call__(self, *module_and_options: Any) -> None:
        optimizer = self._optimizer() if self._optimizer is not None else None
        if optimizer is not None:
            optimizer.flush()

    def __deepcopy__(self, memo: Any) -> Flush:
        return Flush()

    def __reduce__(self) -> tuple[type[Flush], tuple[()]]:
        return Flush, ()


def _names(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[int, str]:
    """Names by id. ValueError for a name that comes twice."""
    pairs = list(named_parameters)
    seen: dict[str, int] = {}
    for name, p in pairs:
        if seen.setdefault(name, id(p)) != id(p):
            raise ValueError(f"named_parameters has {name!r} twice, for two parameters")
    return {id(p): name for name, p in pairs}


def _frozen(group: dict[str, Any]) -> dict[str, Any]:
    """The settings of a group as they are now."""
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def _has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    own = vars(optimizer)
    return bool(own.get("_optimizer_step_pre_hooks") or own.get("_optimizer_step_post_hooks"))
