"""fptps.torch in programs that do unusual things, and wrong ones."""

import gc
import threading
import weakref

import pytest
from torch_workers import Net, batch, by_hand, copy_parameters, loss_of, mean_into_first, same, torch_workers, weights

import fptps

torch = pytest.importorskip("torch")
import fptps.torch as ft  # noqa: E402

pytestmark = pytest.mark.demo

OVERLAP = pytest.mark.parametrize("overlap", ["none", "forward"])


@pytest.fixture(scope="module")
def on_all():
    with torch_workers(2) as call:
        yield call


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr, momentum=0.9)


def wrapped(model, **options):
    return ft.DistributedOptimizer(sgd(model), model.named_parameters(), **options)


@OVERLAP
@pytest.mark.parametrize("zero", ["optimizer", "model", "in place"])
def test_two_networks_that_train_against_each_other(on_all, overlap, zero):
    """As in PyTorch's DCGAN: two backward passes for each step of the discriminator, whose gradients from the
    generator's loss are dropped."""

    class Generator(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x)

    def networks():
        g, d = Generator(), torch.nn.Linear(4, 1)
        for p in [*g.parameters(), *d.parameters()]:
            p.data.copy_(torch.arange(p.numel()).view(p.shape) / 9 - 0.5)
        return g, d

    def loss(d, x, real):
        return torch.nn.functional.binary_cross_entropy_with_logits(d(x), torch.full((8, 1), float(real)))

    def clear(optimizer, model):
        if zero == "model":
            model.zero_grad()
        else:
            optimizer.zero_grad(set_to_none=zero == "optimizer")

    pairs = [networks(), networks()]
    plain_g, plain_d = sgd(pairs[0][0]), sgd(pairs[0][1])
    for number in range(3):
        for pair in pairs[1:]:
            copy_parameters(pairs[0][0], pair[0])
            copy_parameters(pairs[0][1], pair[1])
        passes = [torch.zeros_like(p) for p in pairs[0][1].parameters()]
        fakes = []
        for real in (True, False):
            for rank, (g, d) in enumerate(pairs):
                d.zero_grad()
                x = batch(rank, number)[0]
                fakes.append(g(x))
                loss(d, x if real else fakes[-1].detach(), real).backward()
            mean_into_first([d for _, d in pairs])
            for sum_, p in zip(passes, pairs[0][1].parameters()):
                sum_ += p.grad
        for sum_, p in zip(passes, pairs[0][1].parameters()):
            p.grad = sum_
        plain_d.step()
        copy_parameters(pairs[0][1], pairs[1][1])
        for rank, (g, d) in enumerate(pairs):
            g.zero_grad()
            loss(d, g(batch(rank, number)[0]), True).backward()
        mean_into_first([g for g, _ in pairs])
        plain_g.step()

    def work(rank):
        g, d = networks()
        optimizer_g, optimizer_d = wrapped(g, overlap=overlap), wrapped(d, overlap=overlap)
        for number in range(3):
            x = batch(rank, number)[0]
            clear(optimizer_d, d)
            loss(d, x, True).backward()
            fake = g(x)
            loss(d, fake.detach(), False).backward()
            optimizer_d.step()
            clear(optimizer_g, g)
            loss(d, fake, True).backward()
            optimizer_g.step()
        optimizer_g.flush()
        optimizer_d.flush()
        return weights(g), weights(d)

    for got_g, got_d in on_all(work):
        assert same(got_g, weights(pairs[0][0]))
        assert same(got_d, weights(pairs[0][1]))


def test_evaluation_and_states_have_the_updated_weights(on_all):
    """Each right after step(), before the sums were asked for."""

    def work(rank):
        found = []
        for read in (
            lambda model, optimizer: model.state_dict(),
            lambda model, optimizer: model.eval()(torch.ones(2, 4)) is None or weights(model),
            lambda model, optimizer: optimizer.state_dict() and weights(model),
            lambda model, optimizer: ft.check(model) or weights(model),
            lambda model, optimizer: ft.broadcast_parameters(model.named_parameters(), 1) or weights(model),
        ):
            model = Net()
            optimizer = wrapped(model)
            loss_of(model, rank, 0).backward()
            optimizer.step()
            found.append({name: t.clone() for name, t in read(model, optimizer).items() if name in weights(model)})
        return found

    wanted = by_hand(2, sgd, 1)
    for found in on_all(work):
        assert [same(got, wanted) for got in found] == [True] * 5


def test_an_optimizer_lives_until_its_updates_are_done(on_all):
    """A function that trains returns the model, and drops the optimizer right after step()."""

    def trained(rank):
        model = Net()
        optimizer = wrapped(model)
        loss_of(model, rank, 0).backward()
        optimizer.step()
        return model, weakref.ref(optimizer)

    def work(rank):
        model, optimizer = trained(rank)
        gc.collect()
        assert optimizer() is not None
        state = model.state_dict()
        assert optimizer() is None  # join() asks those that are alive, which has to be the same ones on all workers
        return {name: t for name, t in state.items() if name in weights(model)}

    for got in on_all(work):
        assert same(got, by_hand(2, sgd, 1))


def test_an_optimizer_that_is_made_again(on_all):
    """As in a notebook: the old one is still there, and says so if it is used."""

    def work(rank):
        model = Net()
        old = wrapped(model)
        loss_of(model, rank, 0).backward()
        old.step()
        new = wrapped(model)
        with pytest.raises(RuntimeError, match="taken over"):
            old.step()
        new.zero_grad()
        loss_of(model, rank, 1).backward()
        new.step()
        new.flush()
        return weights(model)

    models = [Net(), Net()]
    for number in range(2):
        for rank, model in enumerate(models):
            copy_parameters(models[0], model)
            model.zero_grad()
            loss_of(model, rank, number).backward()
        mean_into_first(models)
        sgd(models[0]).step()
    for got in on_all(work):
        assert same(got, weights(models[0]))


@OVERLAP
def test_gradients_that_are_changed_under_way_are_an_error(on_all, overlap):
    def clip(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    def replace(model):
        model.first.weight.grad = model.first.weight.grad * 2

    def work(rank):
        for change in (clip, replace):
            model = Net()
            optimizer = wrapped(model, overlap=overlap)
            loss_of(model, rank, 0).backward()
            change(model)
            with pytest.raises(
                RuntimeError, match=r"gradient of first\.weight was changed while its sum was under way"
            ):
                optimizer.step()

    on_all(work)


def test_wrong_arguments(on_all):
    def work(rank):
        model = Net()
        with pytest.raises(ValueError, match=r"no name for parameter 0 of group 0, of shape \(6, 4\)"):
            ft.DistributedOptimizer(sgd(model), [])
        with pytest.raises(ValueError, match="'x' twice"):
            ft.DistributedOptimizer(sgd(model), [("x", p) for p in model.parameters()])
        with pytest.raises(ValueError, match="overlap='backward'"):
            ft.DistributedOptimizer(sgd(model), overlap="backward")
        with pytest.raises(ValueError, match="backward_passes_per_step=0"):
            ft.DistributedOptimizer(sgd(model), backward_passes_per_step=0)
        optimizer = ft.DistributedOptimizer(sgd(model))
        with pytest.raises(TypeError, match=r"wrap optimizer\.optimizer"):
            ft.DistributedOptimizer(optimizer)
        with pytest.raises(RuntimeError, match="is part of a graph"):
            loss_of(model, rank, 0).backward(create_graph=True)

    on_all(work)


def test_models_that_differ_are_named(on_all):
    def other_shape(rank):
        model = Net()
        if rank == 1:
            model.twice = torch.nn.Linear(6, 7)
        return model

    def other_name(rank):
        model = Net()
        if rank == 1:
            model.more = torch.nn.Linear(1, 1)
        return model

    def other_dtype(rank):
        return Net().double() if rank == 1 else Net()

    def work(rank):
        for make, text in (
            (
                other_shape,
                r"twice\.weight: worker 0 has shape \(6, 6\) and torch\.float32, worker 1 has shape \(7, 6\)",
            ),
            (other_name, r"more\.weight: worker 0 has none, worker 1 has shape \(1, 1\)"),
            (other_dtype, r"first\.weight: worker 0 has .*float32, worker 1 has .*float64"),
        ):
            model = make(rank)
            with pytest.raises(fptps.MismatchError, match="the models differ: " + text):
                ft.prepare(model, sgd(model))
        with pytest.raises(fptps.MismatchError, match=r"arguments differ: they: .*fp16"):
            wrapped(Net(), compression=ft.Compression.fp16 if rank else ft.Compression.none)

    on_all(work)


def test_check_names_the_first_parameter_that_differs(on_all):
    def work(rank):
        model = Net()
        ft.check(model)
        with torch.no_grad():
            model.last.weight[0, 0] += 1e-6 if rank == 1 else 0
            model.last.bias[0] += rank
        with pytest.raises(fptps.MismatchError, match=r"parameter last\.weight differs: worker 1 has other values"):
            ft.check(model)

    on_all(work)


def test_prepare_makes_all_start_as_worker_0(on_all):
    """With its parameters, buffers and state of the optimizer; buffers are averaged on demand."""

    def work(rank):
        model = Net(seed=rank)
        optimizer = sgd(model, lr=0.1 + rank)
        if rank == 0:
            loss_of(model, 0, 0).backward()
            optimizer.step()
            optimizer.zero_grad()
        model, distributed = ft.prepare(model, optimizer)
        ft.check(model)
        start = {name: t.clone() for name, t in model.state_dict().items()}
        loss_of(model, rank, 1).backward()
        distributed.step()
        own = model.norm.running_mean.clone()
        ft.average_buffers(model)
        return start, model.state_dict(), own, distributed.param_groups[0]["lr"]

    (start, end, mine, lr), (start_1, end_1, other, lr_1) = on_all(work)
    assert same(start, start_1)
    assert same(end, end_1)
    assert lr == lr_1 == 0.1
    assert not torch.equal(mine, other)
    assert torch.equal(end["norm.running_mean"], ((mine.double() + other.double()) / 2).float())


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_16_bit_floats(on_all, name, dtype):
    """Each gradient is rounded, and their mean, which is made in float32."""

    def exchanged(gradients):
        return (sum(g.to(dtype).float() for g in gradients) / 2).to(dtype).float()

    models = [Net(), Net()]
    plain = sgd(models[0])
    for number in range(2):
        for rank, model in enumerate(models):
            copy_parameters(models[0], model)
            model.zero_grad()
            loss_of(model, rank, number).backward()
        for pair in zip(*[m.parameters() for m in models]):
            pair[0].grad = None if pair[0].grad is None else exchanged([p.grad for p in pair])
        plain.step()

    def work(rank):
        model = Net()
        optimizer = wrapped(model, compression=getattr(ft.Compression, name))
        for number in range(2):
            optimizer.zero_grad()
            loss_of(model, rank, number).backward()
            optimizer.step()
        optimizer.flush()
        return weights(model)

    for got in on_all(work):
        assert same(got, weights(models[0]))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_codes(on_all, name):
    """All workers take the same steps, near those of the true mean."""

    def work(rank):
        p = torch.nn.Parameter(torch.zeros(2000))
        compression = getattr(ft.Compression, name)
        optimizer = ft.DistributedOptimizer(torch.optim.SGD([p], 1.0), compression=compression)
        for _ in range(20):
            optimizer.zero_grad()
            (p * torch.linspace(-1, 1, 2000) * (1 + rank)).sum().backward()
            optimizer.step()
        return p.detach()

    first, second = on_all(work)
    assert torch.equal(first, second)
    error = (-first / 20 - torch.linspace(-1, 1, 2000) * 1.5).abs().mean()
    assert 0 < float(error) < (0.01 if name == "int8" else 0.1)


@pytest.mark.parametrize(("name", "levels"), [("int8", 127), ("int4", 7)])
def test_error_feedback_sends_what_rounding_has_left(name, levels):
    """What 40 messages say together differs from the values by one rounding error, not by 40."""
    values = torch.linspace(-1, 1, 2000)
    wire = getattr(ft.Compression, name).wire(values, "a name", 0)
    total, decoded = torch.zeros(2000), torch.empty(2000)
    for _ in range(40):
        wire.decode(wire.encode(values), decoded)
        total += decoded
    assert float((total - 40 * values).abs().max()) < 1.5 / levels


def test_uneven_data(on_all):
    """Worker 1 has 2 batches, worker 0 has 5; then both train again."""

    def work(rank):
        model = Net()
        optimizer = wrapped(model)

        def train(numbers):
            for number in numbers:
                optimizer.zero_grad()
                loss_of(model, rank, number, branch=number == 4).backward()
                optimizer.step()
            return ft.join()

        lasts = [train(range(5 if rank == 0 else 2)), train(range(5, 6 if rank == 0 else 8))]
        ft.check(model)
        return lasts, weights(model)

    models = [Net(), Net()]
    plain = sgd(models[0])
    for numbers in ([(n, n) for n in range(2)], [(n, None) for n in range(2, 5)], [(5, 5)], [(None, 6), (None, 7)]):
        for pair in numbers:
            for rank, (model, number) in enumerate(zip(models, pair)):
                copy_parameters(models[0], model)
                model.zero_grad()
                if number is not None:
                    loss_of(model, rank, number, branch=number == 4).backward()
            for p, other in zip(*[m.parameters() for m in models]):
                gradients = [q.grad for q in (p, other) if q.grad is not None]
                p.grad = sum(gradients) / 2 if gradients else None
            plain.step()
    for lasts, got in on_all(work):
        assert lasts == [0, 1]
        assert same(got, weights(models[0]))


def test_push_pull_as_horovod_and_byteps_have_it(on_all):
    def work(rank):
        x = torch.arange(6.0).view(2, 3).t() + rank  # not contiguous
        wanted = torch.arange(6.0).view(2, 3).t()
        assert torch.equal(ft.push_pull(x), wanted + 0.5)
        assert torch.equal(ft.push_pull(x, average=False, name="x"), 2 * wanted + 1)
        assert torch.equal(ft.push_pull(x, op=ft.Sum, name="x"), 2 * wanted + 1)
        assert torch.equal(ft.push_pull(x, name="x", compression=ft.Compression.fp16), wanted + 0.5)
        ft.declare("y", torch.zeros(3))
        handles = [ft.push_pull_async(torch.full((3,), float(rank + n)), name="y") for n in range(3)]
        assert [ft.synchronize(handle).tolist() for handle in handles] == [[n + 0.5] * 3 for n in range(3)]
        assert all(ft.poll(handle) for handle in handles)
        y = torch.full((3,), float(rank))
        assert ft.push_pull_inplace(y) is y
        assert y.tolist() == [0.5] * 3
        handle = ft.push_pull_async_inplace(y, average=False)
        ft.synchronize(handle)
        assert y.tolist() == [1.0] * 3
        counts = torch.tensor([rank, 1])
        assert ft.push_pull(counts, average=False).tolist() == [1, 2]
        with pytest.raises(TypeError, match="mean"):
            ft.push_pull(counts)
        assert ft.broadcast_object({"rank": rank}, 1) == {"rank": 1}
        assert ft.allgather_object(rank) == [0, 1]
        ft.barrier()
        tensors = {
            "half": torch.full((2,), float(rank), dtype=torch.bfloat16),
            "strided": torch.full((4, 4), rank)[::2],
        }
        ft.broadcast_parameters({**tensors, "a word": "is left alone"}, 1)
        assert [t.float().mean() for t in tensors.values()] == [1, 1]
        return ft.rank(), ft.size(), ft.local_rank(), ft.local_size()

    assert on_all(work) == [(0, 2, 0, 2), (1, 2, 1, 2)]


def test_the_optimizer_states_of_all_become_one_workers(on_all):
    def work(rank):
        model = Net(seed=rank)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
        if rank == 1:  # worker 0 has no state yet
            loss_of(model, rank, 0).backward()
            optimizer.step()
        ft.broadcast_optimizer_state(optimizer, root_rank=1)
        states = [optimizer.state[p] for p in model.parameters() if optimizer.state[p]]
        return optimizer.param_groups[0]["lr"], [(s["step"], s["exp_avg"], s["exp_avg_sq"]) for s in states]

    (lr, states), (lr_1, states_1) = on_all(work)
    assert lr == lr_1 == 0.2
    assert len(states) == len(states_1) > 5
    assert all(torch.equal(a, b) for one, other in zip(states, states_1) for a, b in zip(one, other))


def test_without_init():
    for call in (ft.rank, ft.size, ft.local_rank, ft.local_size, ft.barrier, ft.join):
        with pytest.raises(RuntimeError, match=r"call fptps\.torch\.init\(\) first"):
            call()
    ft.shutdown()


def test_threads_are_not_left_behind(on_all):
    """Every test of this module trains on the same two workers; none has left a callback's thread per call."""
    on_all(lambda rank: ft.barrier())
    assert len([t for t in threading.enumerate() if t.name == "fptps callbacks"]) <= 2
