"""Tables, whose rows are pushed and pulled: compared with numpy and PyTorch's sparse optimisers; invalid arguments."""

import numpy as np
import pytest
from helpers import in_threads
from safetensors.numpy import load_file

import fptps
from fptps import optim

ROWS, COLUMNS = 500, 33


def pushed(rank, step, rows=ROWS, columns=COLUMNS, dtype=np.float32):
    """What a rank pushes in a step: small whole numbers, some rows twice, in a step now and then nothing."""
    rng = np.random.default_rng([rank, step])
    numbers = rng.integers(0, rows, rng.integers(0, 40) if (rank + step) % 4 else 0)
    return numbers, rng.integers(-8, 9, (len(numbers), columns)).astype(dtype)


def added(table, numbers, values):
    """The second version, without a thought."""
    for number, value in zip(numbers, values):
        table[number] += value
    return table


def embedding(rank, rows=ROWS, columns=COLUMNS, dtype=np.float32):
    return np.random.default_rng(rank).integers(-99, 99, (rows, columns)).astype(dtype)


CLUSTERS = {"1x1": (1, 1, {}), "3x2": (3, 2, {}), "2x0": (2, 0, {}), "2x1_lanes": (2, 1, {"FPTPS_LINK_RATE": "40gbit"})}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_sums_by_row_in_processes(cluster):
    def work():
        with fptps.KVWorker() as kv:
            kv.init_rows(0, embedding(kv.rank))
            kv.init_rows(1, embedding(kv.rank), consistency="async")
            everything = np.arange(ROWS)
            wrong = []
            if not np.array_equal(kv.pull_rows(0, everything).result(), embedding(0)):
                wrong.append("init")
            kv.barrier()
            for step in range(1, 6):
                numbers, values = pushed(kv.rank, step)
                ticket = kv.push_rows(0, numbers, values, priority=step) if len(numbers) else kv.skip(0)
                kv.push_rows(1, numbers.tolist(), values)
                values[:] = 0  # they were copied
                sums = np.zeros((ROWS, COLUMNS), np.float32)
                for rank in range(kv.num_workers):
                    added(sums, *pushed(rank, step))
                some = np.random.default_rng(step).integers(0, ROWS, 70)
                got = kv.pull_rows(0, some)
                ticket.result()
                if not np.array_equal(got.result(), sums[some]):
                    wrong.append(step)
            kv.pull_rows(1, [0]).result()  # after the last push
            kv.barrier()
            last = kv.pull_rows(1, everything).result()
            return wrong, last, kv.clock(0), kv.clock(1)

    workers, servers, environment = CLUSTERS[cluster]
    whole = embedding(0)
    for rank in range(workers):
        for step in range(1, 6):
            added(whole, *pushed(rank, step))
    for wrong, last, *clocks in fptps.LocalCluster(workers, servers, environment=environment).run(work):
        assert wrong == []
        assert np.array_equal(last, whole)
        assert clocks == [[5] * workers] * 2


@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float64", "complex64"])
@pytest.mark.parametrize("columns", [1, 7, 512])
def test_tables_of_any_shape_and_dtype(alone, key, dtype, columns):
    table = embedding(5, 100, columns, dtype)
    alone.init_rows(key, table, consistency="async")
    for step in range(1, 5):
        alone.push_rows(key, *pushed(0, step, 100, columns, dtype))
        added(table, *pushed(0, step, 100, columns, dtype))
    assert np.array_equal(alone.pull_rows(key, range(100)).result(), table)


def test_rows_as_large_as_a_packet(alone, key):
    alone.init_rows(key, np.ones((3, 4096), np.float32), consistency="async")
    alone.push_rows(key, [2, 0, 2], np.ones((3, 4096), np.float32))
    assert alone.pull_rows(key, [0, 1, 2]).result()[:, 4095].tolist() == [2, 1, 3]
    with pytest.raises(ValueError, match="16388 bytes"):
        alone.init_rows(key + 1000, np.ones((3, 4097), np.float32))


def test_no_rows(alone, key):
    alone.init_rows(key, np.ones((3, 2)))
    assert alone.pull_rows(key, []).result().shape == (0, 2)
    alone.push_rows(key, [], np.ones((0, 2))).result()
    assert alone.pull_rows(key, [0, 1]).result().tolist() == [[0, 0], [0, 0]]
    assert alone.clock(key) == [1]


def sparse_steps(kv, key, rank, steps):
    for step in steps:
        numbers, values = pushed(rank, step)
        kv.push_rows(key, numbers, values).result()


def torch_sparse(make, steps, ranks=1):
    torch = pytest.importorskip("torch")
    weights = torch.nn.Parameter(torch.from_numpy(embedding(0)))
    optimizer = make(torch, [weights])
    for step in steps:
        every = [pushed(rank, step) for rank in range(ranks)]
        numbers = torch.from_numpy(np.concatenate([numbers for numbers, _ in every]))
        values = torch.from_numpy(np.concatenate([values for _, values in every]))
        weights.grad = torch.sparse_coo_tensor(numbers[None], values, weights.shape, check_invariants=True).coalesce()
        optimizer.step()
    return weights.detach().numpy()


SPARSE = {
    "adam": (optim.Adam(lr=0.05), lambda torch, weights: torch.optim.SparseAdam(weights, lr=0.05)),
    "sgd": (optim.SGD(lr=0.05), lambda torch, weights: torch.optim.SGD(weights, lr=0.05)),
    "adagrad": (optim.Adagrad(lr=0.05), lambda torch, weights: torch.optim.Adagrad(weights, lr=0.05)),
}


@pytest.mark.demo
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # within torch.optim
@pytest.mark.parametrize("rule", SPARSE)
def test_lazy_optimisers_are_pytorchs(pair, key, rule):
    ours, theirs = SPARSE[rule]
    in_threads(*[lambda kv=kv: kv.init_rows(key, embedding(0)) for kv in pair])
    pair[0].set_optimizer(ours, keys=[key])
    in_threads(*[lambda kv=kv: sparse_steps(kv, key, kv.rank, range(1, 31)) for kv in pair])
    expected = torch_sparse(theirs, range(1, 31), ranks=2)
    for kv in pair:
        np.testing.assert_allclose(kv.pull_rows(key, range(ROWS)).result(), expected, rtol=1e-5, atol=1e-5)
    untouched = sorted(set(range(ROWS)) - {n for rank in (0, 1) for s in range(1, 31) for n in pushed(rank, s)[0]})
    assert untouched
    assert np.array_equal(pair[0].pull_rows(key, untouched).result(), embedding(0)[untouched])


def test_momentum_and_decay_touch_pushed_rows_alone(alone, key):
    table = embedding(0)
    alone.init_rows(key, table)
    alone.init(key + 5000, table)
    alone.set_optimizer(optim.SGD(lr=0.5, momentum=0.5, weight_decay=0.25), keys=[key, key + 5000])
    numbers = [3, 4, 100, ROWS - 1]
    dense = np.zeros_like(table)
    for step in range(3):
        dense[numbers] = step + 1
        alone.push_rows(key, numbers, dense[numbers]).result()
        weights = alone.push_pull(key + 5000, dense).result()
    assert np.array_equal(alone.pull_rows(key, numbers).result(), weights[numbers])
    others = [n for n in range(ROWS) if n not in numbers]
    assert np.array_equal(alone.pull_rows(key, others).result(), table[others])


def test_a_table_in_a_checkpoint(tmp_path):
    def work(path, load):
        with fptps.KVWorker() as kv:
            kv.init_rows(0, embedding(9 if load else 0))
            kv.init(1, np.zeros(3))
            kv.set_optimizer(optim.Adam(lr=0.1), keys=[0])
            if load:
                kv.load(path)
            else:
                sparse_steps(kv, 0, kv.rank, range(1, 4))
                kv.barrier()
                kv.save(path)
                kv.barrier()
            before = kv.pull_rows(0, range(ROWS)).result()
            for step in range(4, 6):  # all that is pushed comes from rank 0
                numbers, values = pushed(0, step)
                kv.push_rows(0, numbers, values).result() if kv.rank == 0 else kv.skip(0).result()
            return before, kv.pull_rows(0, range(ROWS)).result()

    first = fptps.LocalCluster(2, 2).run(work, tmp_path / "file", False)
    second = fptps.LocalCluster(3, 1).run(work, tmp_path / "file", True)
    for before, after in [*first, *second]:
        assert np.array_equal(before, first[0][0])
        assert np.array_equal(after, first[0][1])
    arrays = load_file(tmp_path / "file")
    assert {name: array.shape for name, array in arrays.items() if name in ("0", "0.exp_avg", "1")} == {
        "0": (ROWS, COLUMNS),
        "0.exp_avg": (ROWS, COLUMNS),
    }
    assert np.array_equal(arrays["0"], first[0][0])


def test_refused(alone, key):
    table = np.ones((4, 3), np.float32)
    alone.init_rows(key, table)
    alone.init(key + 1000, table)
    row = np.ones((1, 3), np.float32)
    for numbers, values, error, text in [
        ([4], row, ValueError, "row 4 .* of a table of 4 rows"),
        ([-1], row, ValueError, "row -1"),
        ([0, 1], row, ValueError, "2 rows of 3 columns"),
        ([0], np.ones((1, 2), np.float32), ValueError, "1 rows of 3 columns"),
        ([0], np.ones(3, np.float32), ValueError, "shape is \\(3,\\)"),
        ([0], np.ones((1, 3)), TypeError, "float32"),
        ([0.0], row, TypeError, "whole numbers"),
        ([[0]], row, ValueError, "one dimension"),
        (3, row, ValueError, "one dimension"),
    ]:
        for call in (alone.push_rows, alone.pull_rows):
            with pytest.raises(error, match=text):
                call(key, numbers, values)
    for call in (alone.push_rows, alone.pull_rows):
        with pytest.raises(ValueError, match=r"is not a table: use push\(\)"):
            call(key + 1000, [0], row)
        with pytest.raises(KeyError, match="never initialised"):
            call(key + 2000, [0], row)
    for call in (lambda: alone.push(key, table), lambda: alone.push_pull(key, table), lambda: alone.pull(key)):
        with pytest.raises(ValueError, match=r"is a table: use push_rows\(\)"):
            call()
    with pytest.raises(ValueError, match="rows and columns"):
        alone.init_rows(key + 2000, np.ones(3))
    out = row.copy()
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        alone.pull_rows(key, [0], out)
    alone.push_rows(key, [0], row).result()
    assert alone.pull_rows(key, [0, 1]).result().tolist() == [[1, 1, 1], [0, 0, 0]]


def test_tables_that_differ(pair, key):
    shapes = [(8, 3), (4, 6)]
    with pytest.raises(fptps.MismatchError, match="rows of 24 bytes"):
        in_threads(*[lambda kv=kv: kv.init_rows(key, np.ones(shapes[kv.rank])) for kv in pair])


@pytest.mark.demo
def test_tensors_of_pytorch(alone, key):
    torch = pytest.importorskip("torch")
    alone.init_rows(key, torch.ones(5, 2, dtype=torch.bfloat16), consistency="async")
    alone.push_rows(key, torch.tensor([1, 1, 4]), torch.ones(3, 2, dtype=torch.bfloat16))
    rows = alone.pull_rows(key, torch.tensor([0, 1, 4])).result()
    assert rows.dtype is torch.bfloat16
    assert rows.tolist() == [[1, 1], [3, 3], [2, 2]]
