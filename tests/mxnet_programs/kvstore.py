"""A worker that pushes and pulls on `dist_sync`, run by the Python that has MXNet. Prints one JSON object.

Argument: how many rounds. What it sends the test's own workers send too (test_ps_mxnet.py).
"""

import json
import sys

import mxnet as mx
import numpy as np

SHAPES = {3: ("float32", 5), 4: ("float64", 6), 5: ("float16", 7), 6: ("float64", 8), 7: ("float32", 1000)}
"""The dtype and size of each key. The last is above the bound: cut among the servers."""

kv = mx.kv.create("dist_sync")
keys = sorted(SHAPES)
kv.init(keys, [mx.nd.ones((SHAPES[key][1],), dtype=SHAPES[key][0]) for key in keys])
rounds = []
for number in range(int(sys.argv[1])):
    got = []
    for key in keys:
        dtype, size = SHAPES[key]
        value = mx.nd.array(np.arange(size) * (kv.rank + 1) + number, dtype=dtype)
        if key % 2:
            out = mx.nd.zeros((size,), dtype=dtype)
            kv.push(key, value, priority=-key)
            kv.pull(key, out=out, priority=-key)
        else:
            out = value
            kv.pushpull(key, value, out=out, priority=-key)
        got.append(out.asnumpy().astype(float).tolist())
    rounds.append(got)
print(json.dumps({"rank": kv.rank, "rounds": rounds}), flush=True)
