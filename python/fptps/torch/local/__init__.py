"""Local-update training: many steps on each worker for each round of communication.

    with fptps.KVWorker() as kv:
        local = LOSP(kv, model, optimizer, steps=64, total_steps=100_000, compensation=1.0)
        for x, y in endless(loader):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            local.step()  # the optimizer's step, and the exchange with the other workers
            if local.finished:
                break

All workers start from rank 0's model, and end with the same global model.

w is the global model, x_i the model of worker i. In a round worker i takes some steps; its update d_i is x_i before
them minus x_i after them. With plain SGD at rate eta, d_i = eta * (the sum of its gradients), but any optimizer
can take the steps. Every algorithm ends a round with w <- w - (the mean of all d_i). A worker

    LocalSGD  takes K steps, sends d_i and waits for w; x_i <- w               (Stich, ICLR 2019)
    OSP       continues to step while d_i is in flight; once w has arrived,
              it sends the next d_i and continues from x_i <- w                (Wang et al., ICPP 2019)
    LOSP      as OSP, but x_i <- w - c * d_i with a compensation c, since
              the d_i in flight is not in w yet                                (Wang et al., JSAC 39(8), 2021)
    DQLOSP    as LOSP, with d_i and the mean quantised
    DiLoCo    as LocalSGD, with Nesterov momentum on w                         (Douillard et al., 2023)

StreamingDiLoCo (Douillard et al., 2025) is DiLoCo for one fragment of the model at a time, overlapped with the steps.

Every process keeps a copy of w and applies the same sums to it, so all copies are equal, bit for bit.
"""

from ._algorithm import Algorithm, Nesterov
from ._local import Local, Round
from ._wrappers import DQLOSP, LOSP, OSP, DiLoCo, LocalSGD, StreamingDiLoCo

__all__ = [
    "DQLOSP",
    "LOSP",
    "OSP",
    "Algorithm",
    "DiLoCo",
    "Local",
    "LocalSGD",
    "Nesterov",
    "Round",
    "StreamingDiLoCo",
]
