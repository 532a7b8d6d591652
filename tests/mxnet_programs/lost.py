"""Worker 1 dies without a word while worker 0 has pushed. Worker 0 prints the error that reading the sum raises."""

import json
import os

import mxnet as mx

import fptps.mxnet

store = fptps.mxnet.DistFPTPS()
store.broadcast(0, mx.nd.ones((3,)), value := mx.nd.zeros((3,)))
value.wait_to_read()
if store.rank == 1:
    os._exit(7)
store.pushpull(0, value)
twice = value * 2
try:
    twice.wait_to_read()
except fptps.NodeLostError as error:
    print(json.dumps({"role": error.role, "rank": error.rank, "key": error.key}), flush=True)
