"""Data-parallel training of PyTorch models, by names that users of Horovod and BytePS know.

    import fptps.torch as fptps

    fptps.init()
    model, optimizer = fptps.prepare(model, optimizer)

Nothing here is imported by `import fptps`, which does not need PyTorch. `import fptps.torch` registers the backend
"fptps" of torch.distributed.
"""

from .._extras import load as _load

_load("torch", "torch", "fptps.torch")

from .._torch_backend import register as _register  # noqa: E402 - after the message about a missing PyTorch
from ._calls import (  # noqa: E402
    Average,
    Handle,
    Op,
    Sum,
    allgather_object,
    barrier,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    synchronize,
)
from ._check import check  # noqa: E402
from ._compression import Compression, Compressor  # noqa: E402
from ._hook import DDPState, ddp_hook  # noqa: E402
from ._optimizer import DistributedOptimizer  # noqa: E402
from ._prepare import average_buffers, join, prepare  # noqa: E402
from ._process import init, is_initialized, local_rank, local_size, rank, shutdown, size, workers  # noqa: E402
from ._server import ServerOptimizer  # noqa: E402
from ._state import State  # noqa: E402

__all__ = [
    "Average",
    "Compression",
    "Compressor",
    "DDPState",
    "DistributedOptimizer",
    "Handle",
    "Op",
    "ServerOptimizer",
    "State",
    "Sum",
    "allgather_object",
    "average_buffers",
    "barrier",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check",
    "ddp_hook",
    "declare",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "prepare",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "shutdown",
    "size",
    "synchronize",
    "workers",
]

_register()
