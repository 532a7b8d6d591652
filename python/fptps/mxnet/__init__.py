"""A KVStore for Apache MXNet 1.9: gluon's Trainer and Module over fptps.

    import fptps.mxnet
    import mxnet as mx

    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=fptps.mxnet.DistFPTPS())

Import it before mxnet: in a process with DMLC_ROLE=server or scheduler, as MXNet's launchers start them, it runs
fptps's server or scheduler, and the process ends with the cluster. MXNet itself would run one of its own.
"""

from .._extras import load as _load
from ._role import serve_if_asked as _serve_if_asked

_serve_if_asked()
_version = _load("mxnet", "mxnet", "fptps.mxnet").__version__
if not _version.startswith("1.9."):
    raise ImportError(f"fptps.mxnet is for MXNet 1.9, the last release, and {_version} is installed")

from ._process import shutdown  # noqa: E402 - after the messages about MXNet
from ._store import DistFPTPS  # noqa: E402

__all__ = ["DistFPTPS", "shutdown"]
