"""MXNet's optimizers as those of fptps.optim, which the aggregators apply."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, Union

import mxnet as mx

from .. import optim
from .._keys import Key
from ..namespace import Namespace

Rule = Union[optim.SGD, optim.Adam]

HERE: Final = "pass update_on_kvstore=False to keep the optimizer on the worker"


def check(optimizer: Any) -> None:
    """ValueError unless fptps.optim has the optimizer's equations."""
    name = type(optimizer).__name__
    if type(optimizer) not in (mx.optimizer.SGD, mx.optimizer.NAG, mx.optimizer.Adam):
        raise ValueError(f"the optimizer {name} cannot run on the aggregators, which have SGD, NAG and Adam: {HERE}")
    if optimizer.clip_gradient:
        raise ValueError(f"{name}: the aggregators do not clip gradients (clip_gradient): {HERE}")
    if not optimizer.rescale_grad > 0:
        raise ValueError(f"{name}: rescale_grad={optimizer.rescale_grad}: a number above 0 is expected")


def translated(optimizer: Any, key: Key) -> Rule:
    """The optimizer as it is now for a key.

    The aggregators do not scale gradients by rescale_grad. Instead the state and what is compared with it have other
    units: with s the scale, SGD's velocity is v/s, so that the rate is lr*s and the decay wd/s.
    """
    scale = optimizer.rescale_grad
    lr, decay = optimizer._get_lr(key), optimizer._get_wd(key) / scale
    if type(optimizer) is mx.optimizer.Adam:
        return optim.Adam(lr, (optimizer.beta1, optimizer.beta2), optimizer.epsilon / scale, decay)
    nesterov = type(optimizer) is mx.optimizer.NAG and optimizer.momentum > 0
    if nesterov and decay:  # MXNet's own decays the velocity by the new weights
        raise ValueError(f"key {key!r}: the aggregators have no NAG with a weight decay (wd): {HERE}")
    return optim.SGD(lr * scale, optimizer.momentum, decay, nesterov)


class Steps:
    """The steps of one key's optimizer on the aggregators: counts them, for schedules, and carries over all changes."""

    def __init__(self, optimizer: Any, kv: Namespace, key: Key, rank: int, sync: bool) -> None:
        self._optimizer, self._kv, self._key, self._rank, self._sync = optimizer, kv, key, rank, sync
        self._scale = optimizer.rescale_grad
        self._applied = translated(optimizer, key)
        self._rate: float | None = None  # of the last step
        kv.set_optimizer(self._applied, [key])

    def next(self) -> Callable[[], None] | None:
        """Begins a step. Returns what has to be called just before its push; None: nothing has changed."""
        self._optimizer._update_count(self._key)
        if self._optimizer.rescale_grad != self._scale:
            raise ValueError(
                f"rescale_grad was {self._scale} and is now {self._optimizer.rescale_grad}: the state on the "
                f"aggregators has the old scale. Keep the batch's size, or {HERE}"
            )
        wanted, before = translated(self._optimizer, self._key), self._applied
        rule = self._with_velocity(wanted)
        self._rate = wanted.lr
        if rule == before or self._rank != 0:
            return None
        self._applied = rule
        if rule == dataclasses.replace(before, lr=rule.lr):
            return lambda: self._kv.set_learning_rate(rule.lr, [self._key])
        return lambda: self._kv.set_optimizer(rule, [self._key])

    def _with_velocity(self, rule: Rule) -> Rule:
        """The rule for a step whose rate may be a new one.

        In MXNet a rate multiplies the gradients that come after it, in fptps.optim the whole velocity. So the old
        velocity is scaled by old rate / new rate, in the one step that changes the rate.
        """
        rate = self._rate
        if not isinstance(rule, optim.SGD) or not rule.momentum or not self._sync or rate is None or rate == rule.lr:
            return rule
        if rule.nesterov or rule.lr == 0:
            raise ValueError(
                f"key {self._key!r}: the aggregators cannot change the learning rate of NAG, and with a momentum not "
                f"to 0: {HERE}"
            )
        return dataclasses.replace(rule, momentum=rule.momentum * rate / rule.lr)
