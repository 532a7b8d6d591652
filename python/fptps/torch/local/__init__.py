"""Local-update training: many steps on each worker for each round of communication.

    with fptps.KVWorker() as kv:
        local = LOSP(kv, model, optimizer, steps=64, total_steps=100_000, compensation=1.0)
        for x, y in endless(loader):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            local.step()  # the optimizer's, and what there is to do between two steps
            if local.finished:
                break

On every worker, in the beginning rank 0's model, and in the end the same global model.

w is the global model, x_i worker i's. A worker's update in a round is how far its steps have moved, d_i = x_i before
them - x_i after them: with plain SGD at rate eta, d_i = eta * (the sum of its gradients). So any optimizer will do. In
every round of every algorithm w <- w - (the mean of all d_i), and

    LocalSGD  steps K times, sends d_i, waits; x_i <- w                        (Stich, ICLR 2019)
    OSP       steps on while its d_i is under way; when w is there it sends
              the next one and goes on from x_i <- w                           (Wang et al., ICPP 2019)
    LOSP      OSP with compensation c: x_i <- w - c * d_i, as d_i, on its way,
              is not in w yet                                                  (Wang et al., JSAC 39(8), 2021)
    DQLOSP    LOSP with d_i and the mean quantised, in both directions
    DiLoCo    LocalSGD with Nesterov momentum on w                             (Douillard et al., 2023)

StreamingDiLoCo (Douillard et al., 2025) does the last for a fragment of the model at a time, overlapped.

Every process has a copy of w and applies the same sums to it, so that all copies are equal, bit for bit.
"""

from .algorithm import Algorithm, Nesterov
from .local import Local, Round
from .wrappers import DQLOSP, LOSP, OSP, DiLoCo, LocalSGD, StreamingDiLoCo

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
