"""Calls of a DistFPTPS on two workers, one case after the other. Prints one JSON object with the result of each."""

import json
import multiprocessing

import mxnet as mx
import numpy as np

import fptps
import fptps.mxnet

STORE = fptps.mxnet.DistFPTPS()
RANK = STORE.rank
MINE = RANK + 1.0


def full(value, shape=(3,), dtype="float32"):
    return mx.nd.full(shape, value, dtype=dtype)


def lists(*arrays):
    return [array.asnumpy().tolist() for array in arrays]


def error(call, *arguments, **named):
    """The error of a call, or of reading what it gives."""
    try:
        call(*arguments, **named)
        mx.nd.waitall()
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
    return "no error"


def broadcast():
    """Rank 0's values, to all devices; keys are numbers and names."""
    outs = [full(-1), mx.nd.zeros((3,), ctx=mx.cpu(1))]
    STORE.broadcast(0, full(10 * MINE), outs)
    STORE.broadcast(["a", "b"], [full(MINE), full(5 * MINE)], [named := full(0), [full(0), other := full(0)]])
    return lists(*outs, named, other)


def pushpull():
    """In place, into another array, of two devices."""
    STORE.init([1, 2, 3], [full(0)] * 3)
    STORE.pushpull(1, one := full(MINE), priority=-1)
    STORE.pushpull([2], [full(MINE)], out=[two := full(0)])
    values = [full(MINE), mx.nd.full((3,), 10 * MINE, ctx=mx.cpu(1))]
    STORE.pushpull(3, values)
    return lists(one, two, *values)


def push_and_pull():
    """A pull gives rank 0's value, and then the last sum, any number of times."""
    STORE.init(4, full(7 * MINE))
    STORE.pull(4, out=(first := full(0)))
    STORE.push(4, full(MINE))
    STORE.push(4, full(10 * MINE))
    STORE.pull(4, out=(second := full(0)))
    STORE.pull(4, out=[third := full(0), fourth := full(0)])
    return lists(first, second, third, fourth)


def many_rounds():
    """Rounds of one key that are queued at once, with arrays of their own, keep their order."""
    STORE.init("many", full(0, (1000,)))
    arrays = [full(MINE * number, (1000,)) for number in range(20)]
    for array in arrays:
        STORE.pushpull("many", array)
    return [float(array.sum().asscalar()) for array in arrays]


def views():
    """Both arrays are parts of one."""
    STORE.init("views", full(0, (2,)))
    both = mx.nd.array([MINE, MINE, 0, 0])
    STORE.pushpull("views", both[0:2], out=both[2:4])
    return both.asnumpy().tolist()


def computed():
    """What computes the value, and what uses the result, is queued before either exists."""
    STORE.init("computed", full(0, (64, 64)))
    value = mx.nd.dot(full(MINE, (64, 64)), full(1, (64, 64)))
    STORE.pushpull("computed", value)
    return float((value * 2).max().asscalar())


def dtypes():
    found = {}
    for dtype in ("float64", "float16", "int32", "int64", "uint8", "int8"):
        STORE.init(dtype, full(0, dtype=dtype))
        STORE.pushpull(dtype, value := full(MINE, dtype=dtype))
        found[dtype] = [str(np.dtype(value.dtype)), *value.asnumpy().astype(float).tolist()]
    return found


def rows():
    """A table without an optimizer is the last round's sum by row."""
    table = mx.nd.full((6, 2), 0).tostype("row_sparse")
    STORE.init("table", table)
    value = mx.nd.sparse.row_sparse_array((np.full((2, 2), MINE), [RANK, 4]), shape=(6, 2), dtype="float32")
    STORE.push("table", value)
    out = mx.nd.sparse.zeros("row_sparse", (6, 2))
    STORE.row_sparse_pull("table", out=out, row_ids=mx.nd.array([4, 1, 4, 2]))
    STORE.pull("table", out=(dense := full(-1, (6, 2))))
    STORE.push("table", mx.nd.sparse.zeros("row_sparse", (6, 2)))  # no rows at all
    STORE.pull("table", out=(none := full(-1, (6, 2))))
    return [out.indices.asnumpy().tolist(), *lists(out.data, dense[:, 0], none[:, 0])]


def sparse_weights():
    """A row-sparse parameter, whose rows the optimizer on the aggregators changes."""
    weight = mx.gluon.Parameter("rows", shape=(4, 2), stype="row_sparse", grad_stype="row_sparse")
    weight.initialize(mx.init.Constant(1.0))
    store = fptps.mxnet.DistFPTPS()
    trainer = mx.gluon.Trainer([weight], "sgd", {"learning_rate": 0.5}, kvstore=store)
    ids = mx.nd.array([0, 2 + RANK])
    with mx.autograd.record():
        words = mx.nd.Embedding(ids, weight.row_sparse_data(ids), input_dim=4, output_dim=2, sparse_grad=True)
        (words * MINE).sum().backward()
    trainer.step(1)
    return weight.row_sparse_data(mx.nd.arange(4)).asnumpy().tolist()


def compressed():
    """The mean over rounds of what travels as codes or 16-bit floats, beside the true sum."""
    found = {}
    values = np.linspace(-1, 1, 5000).astype(np.float32)
    for kind in ("fp16", "int8", "int4"):
        store = fptps.mxnet.DistFPTPS()
        store.set_gradient_compression({"type": kind})
        store.broadcast(0, mx.nd.array(values * MINE), first := mx.nd.zeros((5000,)))
        total = np.zeros(5000)
        for _ in range(20):
            store.pushpull(0, gradient := mx.nd.array(values * MINE))
            total += gradient.asnumpy()
        store.push(0, mx.nd.array(values * MINE))
        store.pull(0, out=gradient)
        found[kind] = [
            float(np.abs(first.asnumpy() - values).max()),
            float(np.abs(total / 20 - 3 * values).max()),
            float(np.abs(gradient.asnumpy() - 3 * values).max()),
        ]
    return found


def asynchronous():
    return [applied_by_itself(consistency) for consistency in ("async", fptps.Bounded(1))]


def applied_by_itself(consistency):
    """Each push is applied by itself; at the end all are."""
    store = fptps.mxnet.DistFPTPS(consistency)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, rescale_grad=0.5))
    store.broadcast("w", full(10), weights := full(0))
    for _ in range(3):
        store.pushpull("w", full(MINE), out=weights)
    weights.wait_to_read()
    store._barrier()
    store.pushpull("w", full(0), out=weights)
    return [store.type, *lists(weights)]


def own_process():
    """A process that was forked from this one ends well, as DataLoader's do."""
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join(60)
    return process.exitcode


def wrong_uses():
    """The error of each, by a name for it. Both workers make the same mistakes."""
    STORE.init("w", full(0))
    STORE.pushpull("w", full(1))
    table = fptps.mxnet.DistFPTPS()
    table.init("w", full(0, (4, 2)).tostype("row_sparse"))
    served = fptps.mxnet.DistFPTPS()
    served.set_optimizer(nag := mx.optimizer.NAG(learning_rate=0.5, momentum=0.5))
    served.init("w", full(0))
    served.pushpull("w", full(0))
    nag.set_learning_rate(0.1)
    late = fptps.mxnet.DistFPTPS()
    late.init("w", full(0))
    scaled = fptps.mxnet.DistFPTPS()
    scaled.set_optimizer(sgd := mx.optimizer.SGD(rescale_grad=0.5))
    scaled.init("w", full(0))
    sgd.rescale_grad = 0.25
    fresh = fptps.mxnet.DistFPTPS()
    return {
        "unknown key": error(STORE.pushpull, "nobody's", full(1)),
        "twice": error(STORE.broadcast, "w", full(1), full(1)),
        "shape": error(STORE.pushpull, "w", full(1, (4,))),
        "shape of out": error(STORE.pushpull, "w", full(1), out=full(1, (4,))),
        "dtype": error(STORE.pushpull, "w", full(1, dtype="float64")),
        "numpy": error(STORE.pushpull, "w", np.ones(3)),
        "csr": error(STORE.push, "w", full(1, (1, 3)).tostype("csr")),
        "no out": error(STORE.pull, "w"),
        "empty": error(STORE.pushpull, "w", []),
        "keys": error(STORE.pushpull, ["w"], full(1)),
        "pull": error(STORE.pull, "w", out=full(1)),
        "rows of a dense key": error(STORE.row_sparse_pull, "w", out=full(1), row_ids=full(1)),
        "sparse after dense": error(STORE.push, "w", full(1).reshape((3, 1)).tostype("row_sparse")),
        "row": error(table.row_sparse_pull, "w", out=mx.nd.sparse.zeros("row_sparse", (4, 2)), row_ids=full(9)),
        "dense out for rows": error(table.row_sparse_pull, "w", out=full(0, (4, 2)), row_ids=full(1)),
        "optimizer": error(fresh.set_optimizer, mx.optimizer.Ftrl()),
        "clipping": error(fresh.set_optimizer, mx.optimizer.SGD(clip_gradient=1.0)),
        "nag's rate": [error(served.pushpull, "w", full(1)) for _ in range(2)][1],
        "nag's decay": error(late.set_optimizer, mx.optimizer.NAG(momentum=0.5, wd=0.1)),
        "lazy": error(table.set_optimizer, mx.optimizer.NAG()),
        "pushed": error(STORE.set_optimizer, mx.optimizer.SGD()),
        "scale": error(scaled.pushpull, "w", full(1)),
        "2bit": error(fresh.set_gradient_compression, {"type": "2bit", "threshold": 0.5}),
        "late compression": error(late.set_gradient_compression, {"type": "int8"}),
        "both": error(lambda: (fresh.set_gradient_compression({"type": "int8"}), fresh.set_optimizer(sgd))),
        "consistency": error(fptps.mxnet.DistFPTPS, "eventual"),
        "capability": error(STORE.is_capable, "flight"),
        "states": error(STORE.save_optimizer_states, "file"),
        "dimensions": error(fptps.mxnet.DistFPTPS().init, "w", full(0, (0,))),
    }


CASES = [broadcast, pushpull, push_and_pull, many_rounds, views, computed, dtypes, rows, sparse_weights, compressed]
CASES += [asynchronous, own_process, wrong_uses]
print(json.dumps({"rank": RANK, **{case.__name__: case() for case in CASES}}), flush=True)
