"""What fptps has for PyTorch. Nothing here is imported by `import fptps`, which does not need PyTorch."""

from .._extras import load as _load

_load("torch", "torch", "fptps.torch")
