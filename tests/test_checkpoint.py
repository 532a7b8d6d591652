"""KVWorker.clock(), save() and load(): in clusters of other sizes, with invalid files, with a kill in the middle."""

import json
import os
import signal
import time

import numpy as np
import pytest
from helpers import DTYPES, in_threads, pass_gate
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import fptps
from fptps import checkpoint, optim

RULES = {
    "momentum": optim.SGD(lr=0.1, momentum=0.9, nesterov=True),
    "adam": optim.Adam(lr=0.01, weight_decay=0.1),
    "adagrad": optim.Adagrad(lr=0.1, lr_decay=0.01, initial_accumulator_value=0.5),
}
SHAPES = {0: (3, 5), 1: (70, 129), 2: (10_000,)}
"""Of keys: less than a packet, several, and odd tails."""
FLOATS = {"float32": np.float32, "float64": np.float64, "float16": np.float16}


def gradients(step, dtype):
    """What all workers together push in a step: small whole numbers, so that all orders of summing give the same."""
    rng = np.random.default_rng(step)
    return {key: rng.integers(-8, 9, shape).astype(dtype) for key, shape in SHAPES.items()}


def begin(kv, dtype, rule=None, consistency="sync"):
    rng = np.random.default_rng(99)
    for key, shape in SHAPES.items():
        kv.init(key, rng.standard_normal(shape).astype(dtype), consistency=consistency)
    if rule is not None:
        kv.set_optimizer(rule)


def train(kv, dtype, steps):
    """Takes steps, in which each worker pushes a part of the gradient; gives the weights."""
    for step in steps:
        if step == 3 and kv.rank == 0:
            kv.set_learning_rate(0.05)
        last = kv.num_workers - 1
        for key, whole in gradients(step, dtype).items():
            share = np.trunc(whole / kv.num_workers)
            part = whole - last * share if kv.rank == last else share
            kv.push(key, part.astype(dtype))
        weights = [kv.pull(key).result() for key in SHAPES]
    return weights


def on_both(pair, call):
    """Calls call(kv) on both workers at the same time: its results, or its exceptions."""

    def outcome(kv):
        try:
            return call(kv)
        except Exception as error:
            return error

    return in_threads(*[lambda kv=kv: outcome(kv) for kv in pair])


def run(cluster, work, *arguments):
    """Runs work on a cluster of (workers, servers), with lanes, or alone."""
    if cluster is None:
        return [work(*arguments)]
    return fptps.LocalCluster(*cluster, environment={"FPTPS_LINK_RATE": "40gbit"}).run(work, *arguments)


@pytest.mark.parametrize(
    ("rule", "dtype"), [("momentum", "float32"), ("adam", "float32"), ("adam", "float16"), ("adagrad", "float64")]
)
def test_training_goes_on_in_clusters_of_other_sizes(tmp_path, rule, dtype):
    def first(path, until):
        with fptps.KVWorker() as kv:
            begin(kv, FLOATS[dtype], RULES[rule])
            weights = train(kv, FLOATS[dtype], range(until))
            kv.save(path)
            return weights

    def next_(source, target, steps):
        with fptps.KVWorker() as kv:
            begin(kv, FLOATS[dtype])
            for key, shape in SHAPES.items():  # of other values, and pushed to, with nothing kept for pulls
                kv.set_optimizer(optim.SGD(lr=1), keys=[key])
                kv.push_pull(key, np.ones(shape, FLOATS[dtype])).result()
            kv.load(source)
            assert all(kv.clock(key) == [steps.start] * kv.num_workers for key in SHAPES)
            loaded = [kv.pull(key).result() for key in SHAPES]
            kv.barrier()
            weights = train(kv, FLOATS[dtype], steps)
            kv.save(target)
            return loaded, weights

    straight = fptps.LocalCluster(2, 2).run(first, tmp_path / "straight", 9)[0]
    halves = fptps.LocalCluster(2, 2).run(first, tmp_path / "3", 4)[0]
    for cluster, steps in (((3, 1), range(4, 6)), (None, range(6, 9))):
        for loaded, weights in run(
            cluster, next_, tmp_path / str(steps.start - 1), tmp_path / str(steps.stop - 1), steps
        ):
            assert all(map(np.array_equal, loaded, halves))
            after = weights
        halves = after
    assert all(map(np.array_equal, halves, straight))
    assert load_file(tmp_path / "8").keys() == load_file(tmp_path / "straight").keys()
    for name, array in load_file(tmp_path / "8").items():
        assert np.array_equal(array, load_file(tmp_path / "straight")[name]), name


def test_contents_of_the_file(tmp_path):
    with fptps.KVWorker() as kv:
        kv.init(1, np.ones((2, 3), np.float32))
        kv.init(20, np.ones((2, 3), np.float16), consistency="async")
        kv.init(5, np.ones(4, np.int64), consistency=fptps.Bounded(2))
        kv.init(6, np.full(4, 2 + 1j), consistency="async")
        kv.init(7, np.ones(4))
        kv.set_optimizer(optim.Adam(), keys=[1])
        for _ in range(2):
            kv.push(1, np.ones((2, 3), np.float32)).result()
            kv.push(6, np.ones(4, complex)).result()
        kv.save(tmp_path / "file")
        value = kv.pull(1).result()
    arrays = load_file(tmp_path / "file")
    assert {name: (array.dtype.name, array.shape) for name, array in arrays.items()} == {
        "1": ("float32", (2, 3)),
        "1.exp_avg": ("float32", (2, 3)),
        "1.exp_avg_sq": ("float32", (2, 3)),
        "1.steps": ("int64", (1,)),
        "1.lr": ("float64", (1,)),
        "20": ("float32", (2, 3)),
        "5": ("int64", (4,)),
        "6": ("uint8", (64,)),
    }
    assert np.array_equal(arrays["1"], value)
    assert arrays["6"].view(complex).tolist() == [4 + 1j] * 4
    assert (arrays["1.steps"].tolist(), arrays["1.lr"].tolist()) == ([2], [0.001])
    with safe_open(tmp_path / "file", framework="np") as file:
        described = json.loads(file.metadata()["fptps"])["tensors"]
    assert {key: (t["consistency"], t["clock"]) for key, t in described.items()} == {
        "1": ("sync", [2]),
        "20": ("async", [0]),
        "5": ("bounded:2", [0]),
        "6": ("async", [2]),
        "7": ("sync", [0]),
    }
    assert described["1"]["optimizer"]["kind"] == "Adam"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_of_every_dtype_come_back(tmp_path, alone, key, dtype):
    value = (np.arange(9_000) % 2).astype(dtype)
    alone.init(key, value, consistency="async")
    alone.save(tmp_path / "file")
    alone.push(key, value).result()
    alone.load(tmp_path / "file")
    assert alone.pull(key).result().tobytes() == value.tobytes()


def test_other_orders_of_axes(tmp_path, alone, key):
    """The file has the elements in C order, whoever reads it; they come back to where they were."""
    name, raw = f"permuted {key}", f"raw {key}"
    value = np.arange(3_000_000.0, dtype=np.float32).reshape(100, 1, 300, 100).transpose(3, 1, 0, 2)
    alone.init(name, value, consistency="async")
    alone.init(raw, np.asfortranarray(value[:, 0, :5, 0] + 1j), consistency="async")
    alone.save(tmp_path / "file")
    assert np.array_equal(load_file(tmp_path / "file")[name], value)
    for changed in (name, raw):
        out = alone.push_pull(changed, alone.pull(changed).result()).result()
        assert not np.array_equal(out, value)
    alone.load(tmp_path / "file")
    assert np.array_equal(alone.pull(name).result(), value)
    assert np.array_equal(alone.pull(raw).result(), value[:, 0, :5, 0] + 1j)
    with fptps.KVWorker() as other:
        other.init(name, np.ascontiguousarray(value), consistency="async")
        other.init(raw, np.asfortranarray(value[:, 0, :5, 0] + 1j), consistency="async")
        with pytest.raises(fptps.CheckpointError, match=r"has order \[\], in the file \[2, 3, 0\]"):
            other.load(tmp_path / "file")


def test_clock_of_workers_that_are_apart(pair, key, tmp_path):
    in_threads(*[lambda kv=kv: kv.init(key, np.zeros(9_000), consistency="async") for kv in pair])
    for _ in range(3):
        pair[1].push(key, np.ones(9_000)).result()
    pair[0].skip(key).result()
    assert [kv.clock(key) for kv in pair] == [[1, 3], [1, 3]]
    in_threads(*[lambda kv=kv: kv.save(tmp_path / ("nothing" if kv.rank else "file")) for kv in pair])
    assert os.listdir(tmp_path) == ["file"]
    pair[0].push(key, np.ones(9_000)).result()
    in_threads(*[lambda kv=kv: kv.load(tmp_path / "file") for kv in pair])
    assert [kv.clock(key) for kv in pair] == [[1, 3], [1, 3]]
    assert pair[0].pull(key).result()[0] == pair[1].pull(key).result()[-1] == 3
    pair[1].skip(key).result()
    assert pair[0].clock(key) == [1, 4]
    with fptps.KVWorker() as alone:
        alone.init(key, np.zeros(9_000), consistency="async")
        alone.load(tmp_path / "file")
        assert alone.clock(key) == [1]  # the slowest of the two


def rewrite(path, change_arrays=lambda arrays: None, change=lambda description: None):
    """Writes a checkpoint anew, with something else in it."""
    with safe_open(path, framework="np") as file:
        description = json.loads(file.metadata()["fptps"])
    arrays = load_file(path)
    change_arrays(arrays)
    change(description)
    save_file(arrays, path, {"fptps": json.dumps(description)})


def described(**changes):
    return lambda path: rewrite(path, change=lambda description: description["tensors"]["1"].update(changes))


DAMAGES = {
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut_by_a_byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "foreign": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(range(256)) * 99),
    "text": lambda path: path.write_text("weights: 1, 2, 3"),
    "other_safetensors": lambda path: save_file({"1": np.zeros((70, 129), np.float32)}, path),
    "other_metadata": lambda path: save_file({"1": np.zeros((70, 129), np.float32)}, path, {"fptps": "{"}),
    "no_object": lambda path: save_file({"1": np.zeros((70, 129), np.float32)}, path, {"fptps": "[1]"}),
    "other_version": lambda path: rewrite(path, change=lambda description: description.update(version=2)),
    "other_field": described(colour="red"),
    "other_shape": described(shape=[129, 70]),
    "other_dtype": described(dtype="float64"),
    "other_size": described(nbytes=0),
    "other_consistency": described(consistency="async"),
    "other_optimizer": described(optimizer={"kind": "LBFGS", "lr": 1}),
    "mad_optimizer": described(optimizer={"kind": "Adam", "lr": -1}),
    "text_for_optimizer": described(optimizer="Adam"),
    "other_clock": described(clock=[-1]),
    "no_optimizer": described(optimizer=None),
    "no_key": lambda path: rewrite(path, change=lambda description: description["tensors"].pop("1")),
    "more_keys": lambda path: rewrite(
        path, change=lambda description: description["tensors"].update({"3": description["tensors"]["1"]})
    ),
    "no_state": lambda path: rewrite(path, lambda arrays: arrays.pop("1.exp_avg")),
    "state_of_another_shape": lambda path: rewrite(path, lambda arrays: arrays.update({"2.exp_avg": np.zeros(3)})),
    "more_arrays": lambda path: rewrite(path, lambda arrays: arrays.update({"9": np.zeros(3)})),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path, damage):
    with fptps.KVWorker() as kv:
        begin(kv, np.float32, RULES["adam"])
        train(kv, np.float32, range(2))
        kv.save(tmp_path / "file")
        train(kv, np.float32, range(2, 4))
        kv.save(tmp_path / "before")
        DAMAGES[damage](tmp_path / "file")
        with pytest.raises(fptps.CheckpointError, match="file"):
            kv.load(tmp_path / "file")
        kv.save(tmp_path / "after")
        assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()
        train(kv, np.float32, [4])


def test_refused(tmp_path, alone, key):
    with pytest.raises(FileNotFoundError):
        alone.load(tmp_path / "nothing")
    alone.init(key, np.zeros(3))
    with pytest.raises(ValueError, match="set an optimiser"):
        alone.save(tmp_path / "plain")
    with pytest.raises(KeyError, match="never initialised"):
        alone.clock(key + 1)
    alone.set_optimizer(optim.SGD())
    with pytest.raises(FileNotFoundError):
        alone.save(tmp_path / "no folder" / "file")
    assert os.listdir(tmp_path) == []


def test_a_long_save_logs_its_progress(tmp_path, alone, key, monkeypatch, caplog):
    monkeypatch.setattr(checkpoint, "PROGRESS_S", 0)
    alone.init(key, np.zeros(5_000_000, np.float32), consistency="async")
    with caplog.at_level("INFO", "fptps"):
        alone.save(tmp_path / "file")
        alone.load(tmp_path / "file")
    verbs = [record.getMessage().split(f" {tmp_path}")[0] for record in caplog.records]
    assert verbs == ["saving"] * 3 + ["loading"] * 3  # 8 MB at a time
    assert "20 of 20 MB" in caplog.text


def test_a_push_in_flight(tmp_path, pair, key):
    in_threads(*[lambda kv=kv: kv.init(key, np.zeros(3)) for kv in pair])
    pair[0].set_optimizer(optim.SGD(), keys=[key])
    pushed = pair[0].push(key, np.ones(3))
    for error in on_both(pair, lambda kv: kv.save(tmp_path / "file")):
        assert isinstance(error, fptps.BusyError)
        assert "round 1 is under way" in str(error)
    assert os.listdir(tmp_path) == []
    pair[1].skip(key)
    pushed.result()
    assert on_both(pair, lambda kv: kv.save(tmp_path / "file")) == [None, None]


def test_a_failure_of_rank_0_is_raised_by_all(tmp_path, pair, key):
    in_threads(*[lambda kv=kv: kv.init(key, np.zeros(3), "async") for kv in pair])
    missing = tmp_path / "nothing"
    for rank, error in enumerate(on_both(pair, lambda kv: kv.load(missing))):
        assert isinstance(error, FileNotFoundError)
        assert ("worker 0" in str(error)) == (rank == 1)
    for error in on_both(pair, lambda kv: kv.save(tmp_path / "no folder" / "file")):
        assert isinstance(error, FileNotFoundError)
    (tmp_path / "file").write_text("no checkpoint")
    for error in on_both(pair, lambda kv: kv.load(tmp_path / "file")):
        assert isinstance(error, fptps.CheckpointError)
        assert "is no whole safetensors file" in str(error)
    assert on_both(pair, lambda kv: kv.pull(key).result().tolist()) == [[0.0] * 3] * 2


@pytest.mark.parametrize("verb", ["save", "load"])
def test_the_others_wait_as_long_as_rank_0_makes_progress(tmp_path, pair, key, monkeypatch, verb):
    in_threads(*[lambda kv=kv: kv.init(key, np.zeros(3), "async") for kv in pair])
    if verb == "load":
        assert on_both(pair, lambda kv: kv.save(tmp_path / "file")) == [None, None]
    work = getattr(checkpoint, verb)

    def slow(worker, path, progress):
        end = time.monotonic() + 6
        while time.monotonic() < end:
            progress()
            time.sleep(0.01)  # work that takes longer than the other worker's timeout
        work(worker, path, progress)

    monkeypatch.setattr(checkpoint, verb, slow)
    monkeypatch.setattr(pair[1]._session, "timeout", 4.0)
    assert on_both(pair, lambda kv: getattr(kv, verb)(tmp_path / "file")) == [None, None]


@pytest.mark.parametrize("verb", ["save", "load"])
def test_the_others_learn_of_the_death_of_rank_0(tmp_path, gate, verb):
    def work(path):
        with fptps.KVWorker() as kv:
            kv.init(0, np.zeros(3), "async")
            if kv.rank == 0:
                setattr(checkpoint, verb, lambda *_: pass_gate(address, b""))
            getattr(kv, verb)(path)

    address = gate.address
    with fptps.LocalCluster(2, 1).start(work, tmp_path / "file") as run_:
        gate.wait()
        os.kill(run_.process("worker", 0).pid, signal.SIGKILL)
        outcomes = run_.outcomes()
    assert isinstance(outcomes[1].error, fptps.NodeLostError), outcomes[1].error


@pytest.mark.parametrize("moment", ["while_writing", "before_the_replacing"])
@pytest.mark.parametrize("victim", ["worker 0", "server 0"])
def test_a_kill_leaves_the_old_file(tmp_path, gate, victim, moment):
    def work(path):
        with fptps.KVWorker() as kv:
            begin(kv, np.float32, RULES["adam"])
            train(kv, np.float32, range(2))
            kv.save(path)
            old = path.read_bytes()
            train(kv, np.float32, range(2, 4))
            if moment == "while_writing":
                fetch = checkpoint._fetch
                fetched = []

                def slow(*arguments):
                    if fetched == [1] * 5:
                        pass_gate(address, old)
                    fetched.append(1)
                    return fetch(*arguments)

                checkpoint._fetch = slow
            else:
                replace = os.replace

                def late(*arguments):
                    pass_gate(address, old)
                    kv.clock(0)  # which ends by the death of the server
                    replace(*arguments)

                checkpoint.os.replace = late
            kv.save(path)

    address, path = gate.address, tmp_path / "file"
    with fptps.LocalCluster(1, 1).start(work, path) as run:
        (old,) = gate.wait()
        role, _, rank = victim.partition(" ")
        os.kill(run.process(role, int(rank)).pid, signal.SIGKILL)
        if victim == "worker 0":
            gate.wait_for_the_end()
        else:
            gate.open()
        (outcome,) = run.outcomes()
    if victim == "server 0":
        assert isinstance(outcome.error, fptps.NodeLostError), outcome.error
    assert path.read_bytes() == old
    assert sorted(os.listdir(tmp_path)) == (["file"] if victim == "server 0" else [".file.part", "file"])
    with fptps.KVWorker() as kv:
        begin(kv, np.float32)
        kv.load(path)
        kv.save(path)
    assert os.listdir(tmp_path) == ["file"]
    assert load_file(path).keys() >= {"1", "1.exp_avg"}
