"""fptps.mxnet: trainings beside MXNet alone, the store's calls, wrong uses, a death.

`make peers` installs MXNet in .venv-mxnet, and fptps beside it; without it these tests are skipped.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from ps_cluster import SCHEDULER, SERVER, cluster, run
from ps_kvstore import results

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-mxnet" / "bin" / "python"
PROGRAMS = Path(__file__).parent / "mxnet_programs"
SETTINGS = {"OMP_NUM_THREADS": "1"}

pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON.exists(), reason="MXNet is not installed: `make peers` puts it in .venv-mxnet"),
]


def program(name):
    return [str(PYTHON), str(PROGRAMS / name)]


@pytest.fixture(scope="module")
def trainings():
    """The differences from MXNet alone. All roles run the same program."""
    command = program("trainings.py")
    roles = ["scheduler", "server", "worker", "worker"]
    first, second = results(run(2, 1, *[(role, command) for role in roles], **SETTINGS))
    assert {**second, "rank": 0} == first  # the weights are the same on both, to the bit
    return first


def test_the_store_of_the_trainings(trainings):
    assert trainings["type"] == "dist_sync_fptps"
    assert trainings["capable"] is True
    assert trainings["workers"] == 2


@pytest.mark.parametrize(
    "name",
    [
        "sgd on the worker", "sgd on the store", "sgd with a schedule", "sgd without momentum, with a schedule",
        "a rate that is set", "nag on the store", "ftrl on the worker", "two devices", "two devices, on the worker",
        "sparse gradients, sgd", "module, True", "module, False",
    ],
)  # fmt: skip
def test_weights_of_a_training(trainings, name):
    assert trainings[name] < 1e-6


@pytest.mark.parametrize("name", ["adam on the store", "sparse gradients, adam"])
def test_weights_of_adam(trainings, name):
    """Its eps has another place in the equations: an early step differs by 1e-4 of itself where gradients are small."""
    assert trainings[name] < 1e-4


def test_weights_of_a_training_with_compression(trainings):
    assert 1e-6 < trainings["compressed"] < 1e-3


@pytest.fixture(scope="module")
def calls():
    """What the cases of mxnet_programs/store.py give, on both workers."""
    roles = [("scheduler", SCHEDULER), ("server", SERVER), *[("worker", program("store.py"))] * 2]
    return results(run(2, 1, *roles, **SETTINGS))


@pytest.fixture(params=[0, 1])
def call(request, calls):
    """The results on one worker."""
    return calls[request.param]


def test_broadcast(call):
    assert call["broadcast"] == [[10.0] * 3, [10.0] * 3, [1.0] * 3, [5.0] * 3]


def test_pushpull(call):
    assert call["pushpull"] == [[3.0] * 3, [3.0] * 3, [33.0] * 3, [33.0] * 3]


def test_push_and_pull(call):
    assert call["push_and_pull"] == [[7.0] * 3, [30.0] * 3, [30.0] * 3, [30.0] * 3]


def test_rounds_that_are_queued(call):
    assert call["many_rounds"] == [3000.0 * number for number in range(20)]


def test_views_of_one_array(call):
    rank = call["rank"]
    assert call["views"] == [rank + 1.0, rank + 1.0, 3.0, 3.0]


def test_values_that_are_computed_later(call):
    assert call["computed"] == 64 * 3 * 2


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "int64", "uint8", "int8"])
def test_dtypes(call, dtype):
    assert call["dtypes"][dtype] == [dtype, 3.0, 3.0, 3.0]


def test_rows(call):
    indices, data, dense, none = call["rows"]
    assert indices == [1, 2, 4]
    assert data == [[2.0, 2.0], [0.0, 0.0], [3.0, 3.0]]
    assert dense == [1.0, 2.0, 0.0, 0.0, 3.0, 0.0]
    assert none == [0.0] * 6


def test_sparse_weights(call):
    assert call["sparse_weights"] == [[-0.5, -0.5], [1.0, 1.0], [0.5, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize(("kind", "mean", "once"), [("fp16", 3e-3, 3e-3), ("int8", 1e-2, 0.1), ("int4", 0.3, 1.5)])
def test_compression(call, kind, mean, once):
    """The first value is not compressed; rounding errors of codes average out."""
    first, of_mean, of_one = call["compressed"][kind]
    assert first == 0.0
    assert 0.0 < of_mean < mean
    assert 0.0 < of_one < once


def test_async(call):
    assert call["asynchronous"] == [["dist_async_fptps", [10 - 0.25 * 3 * (1 + 2)] * 3]] * 2


def test_fork(call):
    assert call["own_process"] == 0


ERRORS = {
    "unknown key": r"KeyError: .*nobody.* was never initialised",
    "twice": "ValueError: key 'w' is initialised already",
    "shape": r"ValueError: key 'w' has shape \(3,\), the array has \(4,\)",
    "shape of out": r"ValueError: key 'w' has shape \(3,\), the array has \(4,\)",
    "dtype": "TypeError: key 'w' has dtype float32, the array has float64",
    "numpy": "TypeError: an object of type 'ndarray'",
    "csr": "TypeError: a CSRNDArray",
    "no out": "TypeError: an object of type 'NoneType'",
    "empty": "ValueError: an empty list",
    "keys": "ValueError: 1 keys: a list with one entry for each key",
    "pull": "ValueError: key 'w': nothing is kept",
    "rows of a dense key": "ValueError: key 'w' is no table",
    "sparse after dense": "ValueError: key 'w': a row-sparse value after dense ones",
    "row": "ValueError: key .*: row 9",
    "dense out for rows": "TypeError: key 'w': `out`",
    "optimizer": "ValueError: the optimizer Ftrl cannot run",
    "clipping": "ValueError: SGD: the aggregators do not clip",
    "nag's rate": "ValueError: key 'w': the aggregators cannot change the learning rate of NAG",
    "nag's decay": "ValueError: key 'w': the aggregators have no NAG with a weight decay",
    "lazy": "ValueError: key 'w': the aggregators update the rows",
    "pushed": "ValueError: key 1 was pushed",
    "scale": "ValueError: rescale_grad was 0.5 and is now 0.25",
    "2bit": "ValueError: compression_params=.*2bit",
    "late compression": "ValueError: set_gradient_compression",
    "both": "ValueError: gradient compression 'int8'",
    "consistency": "ValueError: consistency='eventual'",
    "capability": "ValueError: unknown capability 'flight'",
    "states": "RuntimeError: the optimizer's state is on the aggregators",
    "dimensions": "ValueError: an array of shape .* has no elements",
}


@pytest.mark.parametrize("use", ERRORS)
def test_wrong_use(call, use):
    assert re.match(ERRORS[use], call["wrong_uses"][use])


def test_every_wrong_use_is_tested(call):
    assert call["wrong_uses"].keys() == ERRORS.keys()


def test_example():
    """All workers print the same loss, of a network that has learned. docs/mxnet.md shows the program."""
    text = (ROOT / "examples" / "mxnet" / "trainer.py").read_text()
    assert f"```python\n{text.split(chr(34) * 3, 2)[2].lstrip()}```" in (ROOT / "docs" / "mxnet.md").read_text()
    worker = [str(PYTHON), str(ROOT / "examples" / "mxnet" / "trainer.py")]
    made = run(2, 1, ("scheduler", SCHEDULER), ("server", SERVER), ("worker", worker), ("worker", worker), **SETTINGS)
    found = sorted(out for out, _ in made if out.startswith("worker"))
    losses = [re.fullmatch(rf"worker {rank} of 2: mean loss (0\.\d+)\n", out)[1] for rank, out in enumerate(found)]
    assert losses[0] == losses[1]
    assert float(losses[0]) < 0.4


def test_the_engine_for_debugging():
    """Its operations end before the call returns. The worker is alone."""
    values = "store.init(0, mx.nd.zeros((3,))); store.pushpull(0, value := mx.nd.ones((3,)) * 2)"
    text = f"import mxnet as mx, fptps.mxnet; store = fptps.mxnet.DistFPTPS(); {values}; print(value.asnumpy())"
    done = subprocess.run(
        [str(PYTHON), "-c", text],
        env={**os.environ, "MXNET_ENGINE_TYPE": "NaiveEngine"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == ["[2. 2. 2.]"], done.stderr


def test_a_lost_worker():
    """The other raises where it reads the sum, and both nodes that are left end."""
    with cluster(2, 1, **SETTINGS) as made:
        scheduler, server = made.start("scheduler", SCHEDULER), made.start("server", SERVER)
        workers = [made.start("worker", program("lost.py")) for _ in range(2)]
        made.wait(scheduler, server, code=1)
        codes = sorted(made.processes[number].wait(60) for number in workers)
        assert codes == [0, 7]
        (found,) = [json.loads(made.output(number)) for number in workers if made.output(number)]
        assert found == {"role": "worker", "rank": 1, "key": "mxnet/0/0"}
