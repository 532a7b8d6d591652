"""A gluon training: the store makes it distributed.

fptps run -n 2 -s 1 python examples/mxnet/trainer.py
python examples/mxnet/trainer.py                          # alone
"""

import fptps.mxnet  # before mxnet

# isort: split
import mxnet as mx
from mxnet import autograd, gluon

store = fptps.mxnet.DistFPTPS()
mx.random.seed(0)  # the same weights on all workers, from the first gradient on
net = gluon.nn.Sequential()
net.add(gluon.nn.Dense(32, activation="relu"), gluon.nn.Dense(2))
net.initialize(mx.init.Xavier())
net(mx.nd.zeros((1, 20)))
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=store)
loss = gluon.loss.SoftmaxCrossEntropyLoss()

mx.random.seed(1 + store.rank)  # each worker has batches of its own
for _ in range(100):
    x = mx.nd.random.normal(shape=(32, 20))
    with autograd.record():
        error = loss(net(x), x.sum(axis=1) > 0)
    error.backward()
    trainer.step(32 * store.num_workers)

mean = error.mean()
store.init("loss", mean)
store.pushpull("loss", mean)
print(f"worker {store.rank} of {store.num_workers}: mean loss {mean.asscalar() / store.num_workers:.3f}")
