"""Trainings with PyTorch on shaped links: fptps.torch beside DDP over Gloo. See benchmarks/README.md."""
