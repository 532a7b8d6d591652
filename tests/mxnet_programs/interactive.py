"""A worker of MXNet's: each line of stdin is a round of pushpull of one key, "end" ends it."""

import json
import sys

import mxnet as mx

kv = mx.kv.create("dist_sync")
kv.init(3, mx.nd.ones((4,)))
print(json.dumps({"rank": kv.rank}), flush=True)
for line in sys.stdin:
    if line == "end\n":
        break
    value = mx.nd.full((4,), kv.rank + 1.0)
    kv.pushpull(3, value, out=value)
    print(json.dumps({"got": value.asnumpy().tolist()}), flush=True)
