"""The algorithms, as wrappers of a model and an optimizer. Local documents the arguments that all of them have."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from ...codec import Quantizer
from ...worker import KVWorker
from ._algorithm import Algorithm, Nesterov
from ._local import Local


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
    """Overlap synchronization parallel (Wang et al., ICPP 2019): at most `steps` steps while an update is in flight."""

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
    """OSP with local compensation (Wang et al., JSAC 39(8), 2021): x <- w - compensation * d, with d in flight.

    In the paper's terms compensation is gamma / eta. With 1 a worker keeps its own steps that are not in w yet.
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
    """LOSP with both directions quantised (see fptps.codec), but not the buffers.

    - quantizer: its range, if it has one, is that of an update: with SGD, the rate times the range of the gradients'
      sum.
    - error_feedback: a worker adds the quantisation error of an update to its next one. The error of the sum's own
      quantisation is not fed back.
    - seed: of the rounding.
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

    quantizer: of the updates and their sum. overlap: the workers continue to step, with compensation 1.
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


class StreamingDiLoCo(Local):
    """Streaming DiLoCo (Douillard et al., 2025): DiLoCo for one fragment of the model at a time, overlapped.

    A fragment is some neighbouring parameters; all fragments have about the same size. After every `steps` steps the
    workers send the update of the next fragment. After `delay` more steps they wait for its sum, if it has not arrived,
    and mix the fragment: x <- mixing * x + (1 - mixing) * w. So at most one fragment is in flight, and all workers send
    the same fragment after the same number of steps.

    In the paper's terms H is steps * fragments, tau is delay, at most `steps`, and alpha is mixing. The paper cuts
    between a transformer's layers, and quantises to floating-point numbers of 4 bits; here the codes of a quantizer
    are linear. During the training the model is the worker's own mixture; w, and the model at the end, are global.
    """

    name = "StreamingDiLoCo"

    def __init__(
        self,
        kv: KVWorker,
        model: nn.Module,
        optimizer: Optimizer | None,
        *,
        steps: int,
        total_steps: int,
        fragments: int,
        delay: int = 1,
        mixing: float = 0.5,
        outer: Nesterov = Nesterov(),  # noqa: B008 - frozen
        quantizer: Quantizer | None = None,
        error_feedback: bool = False,
        first_key: int = 0,
        seed: int = 0,
    ) -> None:
        algorithm = Algorithm(
            steps,
            total_steps,
            outer=outer,
            quantizer=quantizer,
            error_feedback=error_feedback,
            fragments=fragments,
            delay=delay,
            mixing=mixing,
        )
        super().__init__(kv, model, optimizer, algorithm, first_key=first_key, seed=seed)
