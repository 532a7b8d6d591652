"""fptps.torch.DistributedOptimizer: its weights are, bit for bit, those of plain PyTorch with the mean of gradients.

Two workers: the sum of two floats does not depend on their order.
"""

import copy
import io
import threading

import pytest
from torch_workers import (
    Net,
    batch,
    by_hand,
    copy_parameters,
    loss_of,
    mean_into_first,
    same,
    torch_workers,
    weights,
)

torch = pytest.importorskip("torch")
import fptps.torch as ft  # noqa: E402
from fptps.torch import _bundle  # noqa: E402

pytestmark = pytest.mark.demo

OVERLAP = pytest.mark.parametrize("overlap", ["none", "forward"])
OPTIMIZERS = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-3),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), 0.01),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), 0.01, amsgrad=True),
    "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), 0.01),
}
BRANCHES = {
    "never": lambda rank, number: False,
    "now and then": lambda rank, number: number % 3 == 1,
    "on one worker": lambda rank, number: (rank + number) % 2 == 0,
}


@pytest.fixture(scope="module")
def on_all():
    with torch_workers(2) as call:
        yield call


@pytest.fixture
def apart(monkeypatch):
    """Each gradient travels alone, however small it is."""
    monkeypatch.setattr(_bundle, "LARGEST", 0)


@pytest.fixture(params=["together", "apart"])
def ways(request):
    """Small gradients travel together, as they do, or each alone."""
    if request.param == "apart":
        request.getfixturevalue("apart")
    return request.param


def sgd(model):
    return OPTIMIZERS["SGD"](model)


def train(make, steps, overlap, after=lambda optimizer: None, wrap=lambda optimizer: None, **options):
    """A function for on_all(): trains, and returns the weights as the model's state_dict() has them."""

    def work(rank):
        model = Net()
        optimizer = ft.DistributedOptimizer(make(model), model.named_parameters(), overlap=overlap)
        wrap(optimizer)
        for number in range(steps):
            optimizer.zero_grad()
            loss_of(model, rank, number, **{k: v(rank, number) for k, v in options.items()}).backward()
            optimizer.step()
            after(optimizer)
        optimizer.flush()
        return weights(model)

    return work


@OVERLAP
@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_are_those_of_plain_torch(on_all, ways, name, branch, overlap):
    wanted = by_hand(2, OPTIMIZERS[name], 5, branch=BRANCHES[branch])
    for got in on_all(train(OPTIMIZERS[name], 5, overlap, branch=BRANCHES[branch])):
        assert same(got, wanted)


@OVERLAP
@pytest.mark.parametrize("made_with", ["ours", "wrapped"])
def test_schedulers_change_the_next_step_alone(on_all, overlap, made_with):
    """The rate changes right after step(), whose updates are then still to come."""

    def schedule(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + 3 * n))

    schedulers = {}
    wanted = by_hand(
        2,
        lambda model: schedulers.setdefault("by hand", schedule(sgd(model))).optimizer,
        5,
        after=lambda optimizer: schedulers["by hand"].step(),
    )

    def after(optimizer):
        schedulers[id(optimizer)].step()

    def wrap(optimizer):
        schedulers[id(optimizer)] = schedule(optimizer if made_with == "ours" else optimizer.optimizer)

    for got in on_all(train(sgd, 5, overlap, after, wrap)):
        assert same(got, wanted)


def test_step_returns_before_the_sums_are_there(on_all):
    """Worker 1 computes no gradient before worker 0's step() has returned."""
    returned = threading.Event()

    def work(rank):
        model = Net()
        optimizer = ft.DistributedOptimizer(sgd(model), model.named_parameters())
        if rank == 1:
            assert returned.wait(60)
        loss_of(model, rank, 0).backward()
        optimizer.step()
        returned.set()

    on_all(work)


def test_a_forward_pass_waits_for_its_own_parameters_alone(on_all, apart):
    """Worker 1 sends its gradient of the last layer after worker 0 has passed the layers before it."""
    passed = threading.Event()

    def work(rank):
        model = Net()
        optimizer = ft.DistributedOptimizer(sgd(model), model.named_parameters())
        gradients, late = optimizer._gradients, []
        push = gradients._push

        def push_later(bundle, own):
            if bundle.name == "last.weight":
                bundle.sent = True
                late.append((bundle, own))
            else:
                push(bundle, own)

        if rank == 1:
            gradients._push = push_later
        loss_of(model, rank, 0).backward()
        optimizer.step()
        if rank == 1:
            assert passed.wait(60)
            for bundle, own in late:
                push(bundle, own)
            gradients._push = push
        else:
            model.twice.register_forward_hook(lambda *_: passed.set())
        loss_of(model, rank, 1).backward()
        optimizer.step()
        optimizer.flush()
        return weights(model)

    for got in on_all(work):
        assert same(got, by_hand(2, sgd, 2))


def test_priorities_follow_the_forward_pass(on_all, ways):
    """Not the order of definition: the network's last layer is defined first."""

    class Reversed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = torch.nn.Linear(4, 3), torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.first(x))

    def work(rank):
        model = Reversed()
        optimizer = ft.DistributedOptimizer(sgd(model), model.named_parameters())
        sent = []
        push = optimizer._gradients._push
        optimizer._gradients._push = lambda bundle, g: (sent.append((bundle.name, bundle.priority)), push(bundle, g))
        loss_of(model, rank, 0).backward()
        optimizer.step()
        return sent

    order = ["first.weight", "first.bias", "last.weight", "last.bias"]
    for sent in on_all(work):
        if ways == "apart":
            assert sorted(sent, key=lambda one: -one[1]) == [(name, -at) for at, name in enumerate(order)]
        else:
            assert sent == [("last.weight and 3 more", 0)]  # as its most urgent parameter


def test_which_gradients_travel_together(on_all):
    """Small ones that are alike, up to 512 KB. All workers heed worker 0's parameters."""

    def work(rank):
        sizes = [10, 20, 2 << 17, *[1 << 15] * 4, 50, 60]
        parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
        parameters[7].requires_grad = rank == 1
        parameters[1].requires_grad = rank == 0  # on worker 1 its gradient comes when the others have left
        parameters[8] = torch.nn.Parameter(torch.zeros(60, dtype=torch.float64))
        optimizer = ft.DistributedOptimizer(torch.optim.SGD(parameters, 0.1))
        parameters[1].requires_grad_(True)
        (sum(p.sum() * (1 + at) for at, p in enumerate(parameters)) * (rank + 1)).backward()
        optimizer.step()
        bundles = [[slot.index for slot in bundle.slots] for bundle in optimizer._gradients.bundles]
        return bundles, [float(p.detach()[0]) for p in parameters]

    for bundles, values in on_all(work):
        assert bundles == [[0, 1, 3, 4, 5], [2], [6], [7], [8]]
        means = [(1 + at) * (1.0 if at == 7 else 1.5) for at in range(9)]
        assert values == pytest.approx([-0.1 * mean for mean in means])


def test_codes_are_of_one_parameter(on_all):
    def work(rank):
        optimizer = ft.DistributedOptimizer(sgd(Net()), compression=ft.Compression.int8)
        return len(optimizer._gradients.bundles), len(optimizer._gradients.slots)

    assert [bundles == slots for bundles, slots in on_all(work)] == [True, True]


@OVERLAP
@pytest.mark.parametrize("way", ["backward_passes_per_step", "no_sync"])
def test_accumulation(on_all, ways, overlap, way):
    """The gradients of two passes add up on each worker, and leave once."""
    models = [Net(), Net()]
    optimizer = sgd(models[0])
    for step in range(3):
        for rank, model in enumerate(models):
            copy_parameters(models[0], model)
            model.zero_grad()
            for number in (2 * step, 2 * step + 1):
                loss_of(model, rank, number, branch=number % 2 == 0).backward()
        mean_into_first(models)
        optimizer.step()

    def work(rank):
        model = Net()
        passes = 2 if way == "backward_passes_per_step" else 1
        optimizer = ft.DistributedOptimizer(
            sgd(model), model.named_parameters(), backward_passes_per_step=passes, overlap=overlap
        )
        sent = []
        push = optimizer._gradients._push
        optimizer._gradients._push = lambda bundle, g: (sent.append(bundle.name), push(bundle, g))
        for step in range(3):
            optimizer.zero_grad()
            for number in (2 * step, 2 * step + 1):
                if way == "no_sync" and number % 2 == 0:
                    with optimizer.no_sync():
                        loss_of(model, rank, number, branch=True).backward()
                else:
                    loss_of(model, rank, number, branch=number % 2 == 0).backward()
            optimizer.step()
        optimizer.flush()
        assert len(sent) == 3 * len(set(sent))
        return weights(model)

    for got in on_all(work):
        assert same(got, weights(models[0]))


@OVERLAP
@pytest.mark.parametrize("op", [ft.Average, ft.Sum])
def test_several_backward_passes_before_a_step_add_up(on_all, ways, overlap, op):
    """As a discriminator's: the second pass of worker 1 uses parameters that no other pass uses.

    What has not left after the first pass, as it waits for others, adds up on its worker: in another order.
    """

    def passes(model, rank, step):
        yield loss_of(model, rank, 2 * step)
        yield loss_of(model, rank, 2 * step + 1, branch=rank == 1)

    models = [Net(), Net()]
    optimizer = sgd(models[0])
    for step in range(3):
        copy_parameters(models[0], models[1])
        sums = [torch.zeros_like(p) for p in models[0].parameters()]
        used = [False] * len(sums)
        for losses in zip(*[passes(model, rank, step) for rank, model in enumerate(models)]):
            for model, loss in zip(models, losses):
                model.zero_grad()
                loss.backward()
            for at, parameters in enumerate(zip(*[m.parameters() for m in models])):
                gradients = [p.grad for p in parameters if p.grad is not None]
                used[at] |= bool(gradients)
                sums[at] += sum(gradients) / (2 if op is ft.Average else 1) if gradients else 0
        for p, sum_, any_ in zip(models[0].parameters(), sums, used):
            p.grad = sum_ if any_ else None
        optimizer.step()

    def work(rank):
        model = Net()
        optimizer = ft.DistributedOptimizer(sgd(model), model.named_parameters(), op=op, overlap=overlap)
        for step in range(3):
            optimizer.zero_grad()
            for loss in passes(model, rank, step):
                loss.backward()
            optimizer.step()
        optimizer.flush()
        return weights(model)

    equal = same if ways == "apart" else torch.testing.assert_close
    for got in on_all(work):
        assert equal(got, weights(models[0])) is not False


@OVERLAP
def test_clipping_after_synchronize(on_all, overlap):
    def clipped(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    models = [Net(), Net()]
    optimizer = sgd(models[0])
    for number in range(3):
        for rank, model in enumerate(models):
            copy_parameters(models[0], model)
            model.zero_grad()
            loss_of(model, rank, number).backward()
        mean_into_first(models)
        clipped(models[0])
        optimizer.step()

    def work(rank):
        model = Net()
        optimizer = ft.DistributedOptimizer(sgd(model), model.named_parameters(), overlap=overlap)
        for number in range(3):
            optimizer.zero_grad()
            loss_of(model, rank, number).backward()
            optimizer.synchronize()
            clipped(model)
            with optimizer.skip_synchronize():
                optimizer.step()
        return weights(model)

    for got in on_all(work):
        assert same(got, weights(models[0]))


@OVERLAP
def test_gradient_scaler(on_all, overlap):
    """Without any call for it. A gradient of one worker that is infinite makes all skip the step."""

    def scaled(models, optimizer, scaler, exchange):
        for number in range(4):
            for rank, model in models:
                model.zero_grad()
                loss = loss_of(model, rank, number)
                scaler.scale(loss * (float("inf") if (rank, number) == (1, 1) else 1.0)).backward()
            exchange()
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale()

    def new_scaler():
        return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)

    pair = [Net(), Net()]
    plain = sgd(pair[0])

    def by_hand_exchange():
        mean_into_first(pair)

    original = plain.step

    def step(*args, **kwargs):
        result = original(*args, **kwargs)
        copy_parameters(*pair)
        return result

    plain.step = step
    wanted = scaled(list(enumerate(pair)), plain, new_scaler(), by_hand_exchange)

    def work(rank):
        model = Net()
        optimizer = ft.DistributedOptimizer(sgd(model), model.named_parameters(), overlap=overlap)
        scale = scaled([(rank, model)], optimizer, new_scaler(), lambda: None)
        optimizer.flush()
        return scale, weights(model)

    for scale, got in on_all(work):
        assert scale == wanted == 2.0**9 * 2
        assert same(got, weights(pair[0]))


@OVERLAP
def test_groups_that_come_later_and_parameters_that_thaw(on_all, overlap):
    """The frozen bias learns from step 2 on, then by its hook; the branch has a group of its own from step 4 on."""

    def stages(model, optimizer, number, names):
        if number == 2:
            model.last.bias.requires_grad_(True)
        if number == 4:
            group = {"params": list(model.branch.parameters()), "lr": 0.5}
            optimizer.add_param_group({**group, **names})

    def make(model):
        return torch.optim.SGD([p for n, p in model.named_parameters() if "branch" not in n], 0.1, momentum=0.5)

    models = [Net(), Net()]
    plain = make(models[0])
    for number in range(6):
        stages(models[0], plain, number, {})
        models[1].last.bias.requires_grad_(models[0].last.bias.requires_grad)
        for rank, model in enumerate(models):
            copy_parameters(models[0], model)
            model.zero_grad()
            loss_of(model, rank, number, branch=True).backward()
        mean_into_first(models)
        plain.step()

    def work(rank):
        model = Net()
        optimizer = ft.DistributedOptimizer(make(model), model.named_parameters(), overlap=overlap)
        for number in range(6):
            stages(model, optimizer, number, {})
            model.zero_grad()
            loss_of(model, rank, number, branch=True).backward()
            sent = {slot.name for slot in optimizer._gradients.slots if slot.ready}
            assert ("last.bias" in sent) == (number > 2)
            optimizer.step()
        optimizer.flush()
        return weights(model)

    for got in on_all(work):
        assert same(got, weights(models[0]))


@OVERLAP
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients(on_all, overlap, kind):
    """Rows of an embedding: other ones on each worker, and none on worker 1 in one iteration."""

    def embedding():
        source = torch.Generator().manual_seed(3)
        table = torch.nn.Embedding(10, 3, sparse=True)
        table.weight.data.copy_(torch.randn(10, 3, generator=source))
        return table

    def loss(table, rank, number):
        rows = torch.tensor([rank, (number + rank) % 10, 7, 7])
        return table(rows).pow(2).sum()

    tables = [embedding(), embedding()]
    plain = kind(tables[0].parameters(), 0.1)
    for number in range(4):
        tables[1].weight.data.copy_(tables[0].weight.data)
        for rank, table in enumerate(tables):
            table.zero_grad()
            if (rank, number) != (1, 2):
                loss(table, rank, number).backward()
        gradients = [t.weight.grad for t in tables if t.weight.grad is not None]
        tables[0].weight.grad = sum(gradients[1:], gradients[0]).coalesce() / 2
        plain.step()

    def work(rank):
        table = embedding()
        optimizer = ft.DistributedOptimizer(kind(table.parameters(), 0.1), overlap=overlap)
        for number in range(4):
            optimizer.zero_grad()
            if (rank, number) != (1, 2):
                loss(table, rank, number).backward()
            optimizer.step()
        optimizer.flush()
        return weights(table)

    for got in on_all(work):
        assert same(got, weights(tables[0]))


def test_closures_and_an_optimizer_that_needs_all_gradients(on_all):
    """LBFGS takes its decisions by the mean loss, so that all workers take the same."""
    x, y = torch.cat([batch(rank, 0)[0] for rank in range(2)]), torch.cat([batch(rank, 0)[1] for rank in range(2)])

    def make(model):
        return torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure(model, optimizer, x, y):
        def call():
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return call

    def linear():
        torch_model = torch.nn.Linear(4, 3)
        for p in torch_model.parameters():
            p.data.copy_(torch.arange(p.numel()).view(p.shape) / 10)
        return torch_model

    whole = linear()
    plain = make(whole)
    for _ in range(2):
        wanted = plain.step(closure(whole, plain, x, y))

    def work(rank):
        model = linear()
        optimizer = ft.DistributedOptimizer(make(model), model.named_parameters())
        for _ in range(2):
            loss = optimizer.step(closure(model, optimizer, *batch(rank, 0)))
        return float(loss), weights(model)

    (loss, first), (_, second) = on_all(work)
    assert same(first, second)
    assert loss == pytest.approx(float(wanted.detach()), rel=1e-4)
    assert all(torch.allclose(first[name], p, atol=1e-4) for name, p in weights(whole).items())


@OVERLAP
def test_resumed_training_is_the_uninterrupted_one(on_all, overlap):
    """The states are taken right after step(); the copy and the pickle of the model are of the same values."""
    make = OPTIMIZERS["AdamW"]

    def work(rank):
        model = Net()
        optimizer = ft.DistributedOptimizer(make(model), model.named_parameters(), overlap=overlap)
        for number in range(2):
            optimizer.zero_grad()
            loss_of(model, rank, number).backward()
            optimizer.step()
        saved = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
        assert same(weights(copy.deepcopy(model)), weights(model))
        torch.save(model, io.BytesIO())

        saved.seek(0)
        states = torch.load(saved)
        model = Net(seed=5)
        model.load_state_dict(states["model"])
        optimizer = ft.DistributedOptimizer(make(model), model.named_parameters(), overlap=overlap)
        optimizer.load_state_dict(states["optimizer"])
        for number in range(2, 4):
            optimizer.zero_grad()
            loss_of(model, rank, number).backward()
            optimizer.step()
        optimizer.flush()
        return weights(model)

    for got in on_all(work):
        assert same(got, by_hand(2, make, 4))
