"""Trainings with fptps.mxnet, on any number of workers, beside the same by MXNet alone in one process.

Started in every role, as MXNet's launchers start programs: servers and the scheduler end with the import. Prints one
JSON object: the largest difference of each training's weights from those of MXNet alone.
"""

import json
import os

import fptps.mxnet  # before mxnet: a server ends here

# isort: split
import mxnet as mx
import numpy as np

STEPS, BATCH, INPUTS = 6, 8, 5
STORE = fptps.mxnet.DistFPTPS()
RANK, WORKERS = STORE.rank, STORE.num_workers


def batches(rank):
    """The batches of one worker: inputs, labels and the numbers of embedded words."""
    random = np.random.RandomState(rank)
    for _ in range(STEPS):
        x = random.randn(BATCH, INPUTS)
        yield x, (x.sum(1) > 0).astype(np.float32), random.randint(0, 4 + 3 * rank, (BATCH, 2))


def of_all():
    """The batches of all workers as those of one."""
    for parts in zip(*map(batches, range(WORKERS))):
        yield tuple(map(np.concatenate, zip(*parts)))


def dense():
    net = mx.gluon.nn.Sequential()
    net.add(mx.gluon.nn.Dense(7, activation="tanh", in_units=INPUTS), mx.gluon.nn.Dense(2, in_units=7))
    return net


def embedding():
    net = mx.gluon.nn.Sequential()
    net.add(mx.gluon.nn.Embedding(12, 3, sparse_grad=True), mx.gluon.nn.Dense(2, in_units=6))
    return net


LOSS = mx.gluon.loss.SoftmaxCrossEntropyLoss()


def gluon(net, store, parts, optimizer, settings, on_store, words=False, devices=1, halve=False, less=None):
    """Trains a network by gluon's Trainer; returns its weights."""
    contexts = [mx.cpu(number) for number in range(devices)]
    mx.random.seed(7)  # the same on all workers: Trainer broadcasts the weights in the first step, after its gradients
    net.initialize(mx.init.Xavier(), ctx=contexts)
    settings = dict(settings)
    if "step" in settings:
        settings["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(settings.pop("step"), 0.5, base_lr=0.1)
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, settings, store, less, on_store)
    for number, (x, y, rows) in enumerate(parts):
        inputs = mx.gluon.utils.split_and_load(mx.nd.array(rows if words else x), contexts)
        labels = mx.gluon.utils.split_and_load(mx.nd.array(y), contexts)
        with mx.autograd.record():
            losses = [LOSS(net(a), b) for a, b in zip(inputs, labels)]
        mx.autograd.backward(losses)
        if halve and number == STEPS // 2:
            trainer.set_learning_rate(trainer.learning_rate / 2)
        trainer.step(BATCH * WORKERS)
    return [p.data(contexts[-1]).asnumpy() for p in net.collect_params().values()]


def module(store, parts, on_store):
    """Trains by a Module; returns its weights."""
    symbol = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=7, name="first")
    symbol = mx.sym.FullyConnected(mx.sym.Activation(symbol, act_type="tanh"), num_hidden=2, name="second")
    made = mx.mod.Module(mx.sym.SoftmaxOutput(symbol, name="softmax"))
    size = BATCH if store else BATCH * WORKERS
    made.bind([("data", (size, INPUTS))], [("softmax_label", (size,))])
    mx.random.seed(7)
    made.init_params(mx.init.Xavier())
    os.environ["MXNET_UPDATE_ON_KVSTORE"] = str(int(on_store))
    made.init_optimizer(store, "sgd", {"learning_rate": 0.3, "momentum": 0.9, "wd": 0.01})
    for x, y, _ in parts:
        made.forward_backward(mx.io.DataBatch([mx.nd.array(x)], [mx.nd.array(y)]))
        made.update()
    return [array.asnumpy() for _, array in sorted(made.get_params()[0].items())]


SGD = {"learning_rate": 0.3, "momentum": 0.9, "wd": 0.01}
GLUON = {
    "sgd on the worker": (dense, "sgd", SGD, False, {}),
    "sgd on the store": (dense, "sgd", SGD, True, {}),
    "sgd with a schedule": (dense, "sgd", {"momentum": 0.9, "step": 2}, True, {}),
    "sgd without momentum, with a schedule": (dense, "sgd", {"step": 2}, True, {}),
    "a rate that is set": (dense, "sgd", SGD, True, {"halve": True}),
    "nag on the store": (dense, "nag", {"learning_rate": 0.2, "momentum": 0.8}, True, {}),
    "adam on the store": (dense, "adam", {"learning_rate": 0.05, "wd": 0.01}, True, {}),
    "ftrl on the worker": (dense, "ftrl", {"learning_rate": 0.3}, False, {}),
    "compressed": (dense, "sgd", SGD, False, {"less": {"type": "fp16"}}),
    "two devices": (dense, "sgd", SGD, True, {"devices": 2}),
    "two devices, on the worker": (dense, "sgd", SGD, False, {"devices": 2}),
    "sparse gradients, sgd": (embedding, "sgd", SGD, True, {"words": True}),
    "sparse gradients, adam": (embedding, "adam", {"learning_rate": 0.05}, True, {"words": True}),
}


def difference(ours, theirs):
    return float(max(np.abs(a - b).max() for a, b in zip(ours, theirs)))


found = {"rank": RANK, "type": STORE.type, "capable": STORE.is_capable("optimizer"), "workers": WORKERS}
for name, (net, optimizer, settings, on_store, more) in GLUON.items():
    store = fptps.mxnet.DistFPTPS() if "devices" not in more else "distfptps"
    ours = gluon(net(), store, batches(RANK), optimizer, settings, on_store, **more)
    found[name] = difference(ours, gluon(net(), None, of_all(), optimizer, settings, False, **{**more, "devices": 1}))
for on_store in (True, False):
    ours = module(fptps.mxnet.DistFPTPS(), batches(RANK), on_store)
    found[f"module, {on_store}"] = difference(ours, module(None, of_all(), False))
print(json.dumps(found), flush=True)
