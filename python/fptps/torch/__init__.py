"""What fptps has for PyTorch. Nothing here is imported by `import fptps`, which does not need PyTorch.

`import fptps.torch` registers the backend "fptps" of torch.distributed.
"""

from .._extras import load as _load

_load("torch", "torch", "fptps.torch")

from ._backend import register as _register  # noqa: E402
from ._hook import DDPState, ddp_hook  # noqa: E402

__all__ = ["DDPState", "ddp_hook"]

_register()
