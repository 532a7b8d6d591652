"""The wrappers of a model and an optimizer, one for each algorithm. See Local for what all of them have in common."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from ...codec import Quantizer
from ...worker import KVWorker
from .algorithm import Algorithm, Nesterov
from .local import Local


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

    With a quantizer its quantised form; with overlap the workers step on meanwhile, with compensation 1.
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
    """Streaming DiLoCo (Douillard et al., 2025): DiLoCo of a part of the model at a time, overlapped.

    The parameters are cut into fragments: neighbours, of about equal size. Every `steps` steps the next fragment sends
    how far it has moved from its global values; `delay` steps later its new global values are there, are waited for
    if not, and become the worker's, but for a share `mixing` of its own. So at most one fragment is under way, and all
    workers send the same ones after the same steps.

    In the paper's terms H is steps * fragments, tau is delay, at most `steps`, and alpha is mixing. The paper cuts
    between a transformer's layers, and quantises to floating-point numbers of 4 bits; here the codes of a quantizer
    are linear. The model is the worker's own mixture during the training; w, and the model at the end, are global.
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
