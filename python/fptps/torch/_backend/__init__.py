"""The backend "fptps" of torch.distributed.

    import torch.distributed as dist

    dist.init_process_group("fptps")

Every process group is an fptps cluster of its own, of its members alone. PyTorch finds the backend by an entry point:
see fptps._torch_backend, which makes the members.

    _as_backend  the class of a group's member from PyTorch 2.14 on, the first whose backends may be written in Python
    _as_group    the same before that
    _rendezvous  how the members of a group join one cluster, and leave it
    _group       torch.distributed's calls, as operations
    _operation   an operation: what it moves (Transfer), and its end
    _line        begins operations in order, declares tensors
    _pieces      cuts tensors of any length into tensors of few lengths
    _memory      CPU memory for tensors: staging
    _reduction   ReduceOp
    _messages    send and recv, in clusters of two
    _work        the Work that a call returns
"""
