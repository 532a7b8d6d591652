"""Trainings on shaped links: fptps.torch beside DDP over Gloo, fptps.mxnet beside MXNet. See benchmarks/README.md."""
