"""The algorithms of fptps.torch.local by their names on the command line, with the settings of an experiment.

In the papers' terms a worker sends G, the sum of its gradients, and the PS applies eta / P times the sum of all G. The
library's update is eta * G, its compensation gamma / eta, and the range of its quantiser eta times the range of G.
"""

from __future__ import annotations

from typing import Any, Callable

from torch import nn
from torch.optim import SGD

import fptps
from fptps.codec import Quantizer
from fptps.torch.local import DQLOSP, LOSP, OSP, Local, LocalSGD

from .config import Config
from .schedules import get_ps_lr, get_worker_gamma


def dqlosp(*parts: Any, config: Config, **rest: Any) -> Local:
    stated = None if config.quant_range is None else config.quant_range * config.initial_lr
    quantizer = Quantizer(config.quant_bits, stated)
    return DQLOSP(*parts, quantizer=quantizer, error_feedback=config.error_feedback, seed=config.seed, **rest)


ALGORITHMS: dict[str, Callable[..., Local]] = {
    "localSGD": lambda *parts, config, **rest: LocalSGD(*parts, **rest),
    "OSP": lambda *parts, config, **rest: OSP(*parts, **rest),
    "LOSP": lambda *parts, config, **rest: LOSP(*parts, **rest),
    "DQLOSP": dqlosp,
}
COMPENSATED = ("LOSP", "DQLOSP")


def make(name: str, kv: fptps.KVWorker, model: nn.Module, optimizer: SGD | None, config: Config, key: int) -> Local:
    return ALGORITHMS[name](
        kv, model, optimizer, config=config, steps=config.K, total_steps=config.all_iterations, first_key=key
    )


def set_rates(name: str, local: Local, optimizer: SGD, config: Config) -> None:
    """Between two rounds: sets eta for the next steps, and gamma for the update to send, which the last eta made."""
    (group,) = optimizer.param_groups
    if name in COMPENSATED:
        local.compensation = get_worker_gamma(config, local.iterations) / group["lr"]
    group["lr"] = get_ps_lr(config, local.iterations)
