"""A worker of a gluon training, run by the Python that has MXNet.

Arguments: the digits as .npz; the kvstore, `dist_sync` or `distfptps`; 1 if the optimizer is the servers', else 0.
Prints one JSON object.
"""

import json
import sys

import mxnet as mx
import numpy as np

if sys.argv[2] == "distfptps":
    import fptps.mxnet  # noqa: F401 - registers the name

EPOCHS, BATCH = 10, 64

data = np.load(sys.argv[1])
kv = mx.kv.create(sys.argv[2])
mx.random.seed(7)
net = mx.gluon.nn.Sequential()
net.add(mx.gluon.nn.Dense(64, activation="relu", in_units=64), mx.gluon.nn.Dense(10, in_units=64))
net.initialize(mx.init.Xavier())
trainer = mx.gluon.Trainer(
    net.collect_params(), "sgd", {"learning_rate": 0.2}, kvstore=kv, update_on_kvstore=sys.argv[3] == "1"
)
loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
images = mx.nd.array(data["images"][kv.rank :: kv.num_workers])
labels = mx.nd.array(data["labels"][kv.rank :: kv.num_workers])
for _ in range(EPOCHS):
    for start in range(0, 640, BATCH):  # as many on every worker
        with mx.autograd.record():
            error = loss(net(images[start : start + BATCH]), labels[start : start + BATCH])
        error.backward()
        trainer.step(BATCH * kv.num_workers)
weights = np.concatenate([p.data().asnumpy().ravel() for p in net.collect_params().values()])
right = (net(mx.nd.array(data["images"])).argmax(1).asnumpy() == data["labels"]).mean()
print(json.dumps({"rank": kv.rank, "accuracy": float(right), "weights": weights.tolist()}), flush=True)
