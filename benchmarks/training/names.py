"""The names of the models and the systems, in the order of the tables."""

from __future__ import annotations

from typing import Final

PROFILES: Final = ("resnet50", "vgg16", "bert_base")
CNN: Final = "cnn"
MODELS: Final = (*PROFILES, CNN)

GLOO: Final = "DDP, gloo"
"""The system that the others are compared with."""
HOOK: Final = "DDP, fptps's hook"
BACKEND: Final = "DDP, fptps's backend"
NONE: Final = "DistributedOptimizer, no overlap"
FORWARD: Final = "DistributedOptimizer"

PLAIN: Final = "plain PyTorch"
"""One process alone."""

LIBRARY: Final = (GLOO, HOOK, NONE, FORWARD)
AS_BACKEND: Final = (GLOO, BACKEND)
"""The systems that share their processes. fptps's backend joins the cluster itself, and has processes of its own."""

DIST_SYNC: Final = "dist_sync"
P3: Final = "dist_sync, P3"
"""Its mode that slices tensors and sends them by priority."""
MXNET: Final = "fptps.mxnet"
KVSTORES: Final = (DIST_SYNC, P3, MXNET)
"""MXNet's. Each has processes of its own."""
