"""fptps.torch: updates after step(), in modes and ways of use in which they could go wrong."""

import logging

import pytest
from torch_workers import Net, by_hand, loss_of, same, torch_workers, weights

torch = pytest.importorskip("torch")
import fptps.torch as ft  # noqa: E402

pytestmark = pytest.mark.demo


@pytest.fixture(scope="module")
def on_all():
    with torch_workers(2) as call:
        yield call


def adam(model):
    return torch.optim.Adam(model.parameters(), 0.01)


class Scaled(torch.optim.Optimizer):
    """An optimizer of a user's."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"])


class Declared(Scaled):
    fptps_per_parameter = True


@pytest.mark.parametrize("mode", ["inference", "no_grad", "autocast"])
def test_updates_in_the_mode_of_a_forward_pass(on_all, mode):
    """The first forward pass after a step is in a mode that the optimizer must not see."""
    modes = {
        "inference": torch.inference_mode,
        "no_grad": torch.no_grad,
        "none": torch.enable_grad,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    }

    def work(rank):
        model = Net()
        optimizer = ft.DistributedOptimizer(adam(model), model.named_parameters())
        for number in range(3):
            optimizer.zero_grad()
            loss_of(model, rank, number).backward()
            optimizer.step()
            with modes[mode if number == 0 else "none"]():
                model(torch.ones(3, 4))
        optimizer.flush()
        return weights(model)

    for got in on_all(work):
        assert same(got, by_hand(2, adam, 3))


def test_a_module_that_goes_another_way_in_evaluation(on_all):
    """As nn.TransformerEncoderLayer, which then reads the parameters of modules that it does not call."""

    class TwoWays(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1, bias=False)
            torch.nn.init.ones_(self.layer.weight)

        def forward(self, x):
            return self.layer(x) if self.training else torch.nn.functional.linear(x, self.layer.weight)

    def work(rank):
        model = TwoWays()
        optimizer = ft.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.5), model.named_parameters())
        model(torch.full((1, 2), float(rank))).sum().backward()
        optimizer.step()
        return float(model.eval()(torch.ones(1, 2)).detach())

    assert on_all(work) == [1.5, 1.5]  # two weights of 1 - 0.5 * (0 + 1) / 2


def test_attention_reads_a_weight_without_calling_its_module(on_all):
    """The gradients of out_proj and the rest are those of one process, also where the sums come late."""

    def make():
        attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
        source = torch.Generator().manual_seed(1)
        for p in attention.parameters():
            p.data.copy_(torch.randn(p.shape, generator=source))
        return attention

    def loss(attention, rank, number):
        x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(10 * rank + number))
        return attention(x, x, x)[0].pow(2).sum()

    models = [make(), make()]
    plain = torch.optim.SGD(models[0].parameters(), 0.01)
    for number in range(3):
        models[1].load_state_dict(models[0].state_dict())
        for rank, model in enumerate(models):
            model.zero_grad()
            loss(model, rank, number).backward()
        for p, q in zip(*[m.parameters() for m in models]):
            p.grad = (p.grad + q.grad) / 2
        plain.step()

    def work(rank):
        model = make()
        optimizer = ft.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
        for number in range(3):
            optimizer.zero_grad()
            loss(model, rank, number).backward()
            optimizer.step()
        assert optimizer._uncovered == set()
        optimizer.flush()
        return weights(model)

    for got in on_all(work):
        assert same(got, weights(models[0]))


def test_parameters_of_no_module(on_all, caplog):
    """step() waits for them: nothing else could."""

    def work(rank):
        p = torch.nn.Parameter(torch.ones(3))
        optimizer = ft.DistributedOptimizer(torch.optim.SGD([p], 1.0))
        (p * (rank + 1)).sum().backward()
        optimizer.step()
        return p.tolist()

    with caplog.at_level(logging.INFO, "fptps"):
        assert on_all(work) == [[-0.5] * 3] * 2
    assert "step() waits for 1 of 1 parameters, which no module's forward pass uses" in caplog.text


@pytest.mark.parametrize("kind", [Scaled, Declared])
def test_an_optimizer_of_ones_own(on_all, kind, caplog):
    """Nothing is known of its updates, unless it says so."""

    def work(rank):
        model = Net()
        optimizer = ft.DistributedOptimizer(kind(model.parameters()), model.named_parameters())
        late = []
        for number in range(3):
            optimizer.zero_grad()
            loss_of(model, rank, number).backward()
            optimizer.step()
            late.append(bool(optimizer._late))
        optimizer.flush()
        return set(late), weights(model)

    with caplog.at_level(logging.INFO, "fptps"):
        found = on_all(work)
    wanted = by_hand(2, lambda model: Scaled(model.parameters()), 3)
    for late, got in found:
        assert late == {kind is Declared}
        assert same(got, wanted)
    assert ("Scaled: step() waits for all sums, as" in caplog.text) == (kind is Scaled)


class Counted(Declared):
    """Notes how many parameters each of its steps updates."""

    def __init__(self, parameters):
        super().__init__(parameters)
        self.updated = []

    def step(self, closure=None):
        self.updated.append(sum(p.grad is not None for group in self.param_groups for p in group["params"]))
        super().step(closure)


def test_sums_that_have_arrived_are_taken_along(on_all):
    """The first module that needs a parameter updates all whose sums are here, in one call of the optimizer."""

    def work(rank):
        model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(3)])
        ft.broadcast_parameters(model.state_dict())
        optimizer = ft.DistributedOptimizer(Counted(model.parameters()), model.named_parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 200)).sum().backward()
            optimizer.step()
            for bundle in optimizer._gradients.bundles:
                bundle.ticket.result()
        tensors = len(optimizer._gradients.bundles)
        model(torch.ones(2, 200))
        ft.check(model)
        return tensors, optimizer.updated

    assert on_all(work) == [(4, [6, 6, 6])] * 2


def test_step_hooks_run_once_a_step_after_the_update(on_all):
    def work(rank):
        model = Net()
        optimizer = ft.DistributedOptimizer(adam(model), model.named_parameters())
        seen = []
        optimizer.register_step_post_hook(lambda *_: seen.append(weights(model)))
        for number in range(2):
            optimizer.zero_grad()
            loss_of(model, rank, number).backward()
            optimizer.step()
        return seen

    for seen in on_all(work):
        assert [same(got, by_hand(2, adam, steps)) for steps, got in enumerate(seen, 1)] == [True, True]
