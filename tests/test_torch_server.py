"""fptps.torch.ServerOptimizer: the weights are those of torch.optim with the mean of gradients, up to rounding."""

import pytest
from torch_workers import Net, by_hand, loss_of, torch_workers, weights

torch = pytest.importorskip("torch")
import fptps  # noqa: E402
import fptps.torch as ft  # noqa: E402

pytestmark = pytest.mark.demo

RULES = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-3},
}
"""The large eps keeps Adam from magnifying a gradient that is rounding alone: of the bias before a BatchNorm."""


@pytest.fixture(scope="module", params=[0, 1], ids=["0 servers", "1 server"])
def on_all(request):
    with torch_workers(2, request.param) as call:
        yield call


def rule(name="SGD"):
    return getattr(fptps.optim, name)(**RULES[name])


def plain(name="SGD"):
    return lambda model: getattr(torch.optim, name)(model.parameters(), **RULES[name])


def halved(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def close(got, wanted):
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("overlap", ["forward", "none"])
@pytest.mark.parametrize("name", RULES)
def test_weights_are_those_of_plain_torch(on_all, name, overlap):
    """With a branch that each worker takes in other iterations, and a scheduler; prepare() gives worker 0's values."""
    branch = {"branch": lambda rank, number: number > 1 and (rank + number) % 2 == 0}
    made = []
    wanted = by_hand(
        2,
        lambda model: made.append(halved(plain(name)(model))) or made[0].optimizer,
        6,
        after=lambda _: made[0].step(),
        **branch,
    )

    def work(rank):
        model, optimizer = ft.prepare(Net(seed=rank), ft.ServerOptimizer(rule(name), overlap=overlap))
        scheduler = halved(optimizer)
        for number in range(6):
            optimizer.zero_grad()
            loss_of(model, rank, number, branch=branch["branch"](rank, number)).backward()
            optimizer.step()
            scheduler.step()
        optimizer.flush()
        return weights(model)

    for got in on_all(work):
        close(got, wanted)


def test_saved_and_loaded(on_all, tmp_path):
    """Training goes on as if it had not been interrupted, also in an optimizer that has gone on meanwhile."""
    made = []

    def twice_the_rate(optimizer):
        made.append(optimizer)
        optimizer.param_groups[0]["lr"] *= 2 if len(made) == 2 else 1

    wanted = by_hand(2, plain("AdamW"), 4, after=twice_the_rate)

    def work(rank):
        model = Net()
        optimizer = ft.ServerOptimizer(rule("AdamW"), model.named_parameters())

        def train(numbers):
            for number in numbers:
                optimizer.zero_grad()
                loss_of(model, rank, number).backward()
                optimizer.step()

        train([0, 1])
        optimizer.save(tmp_path / "state.safetensors")
        optimizer.param_groups[0]["lr"] = 0.02
        train([7])
        optimizer.load(tmp_path / "state.safetensors")
        train([2, 3])  # at the rate that it had, not at the file's
        ft.check(model)
        return weights(model)

    for got in on_all(work):
        close(got, wanted)


def test_what_cannot_work_is_refused(on_all):
    """By name, on every worker; the step can be taken all the same."""

    def work(rank):
        model = Net()
        optimizer = ft.ServerOptimizer(rule(), model.named_parameters())
        loss_of(model, rank, 0).backward()
        for call, text in [
            (optimizer.synchronize, "cannot be clipped"),
            (optimizer.zero_grad, "cannot be dropped"),
            (lambda: optimizer.step(lambda: 0), r"step\(closure\)"),
            (lambda: loss_of(model, rank, 1).backward(), "of a second backward"),
            (lambda: optimizer.add_param_group({}), "none can be added"),
            (optimizer.state_dict, r"Call save\(path\)"),
            (lambda: optimizer.load_state_dict({}), r"Call load\(path\)"),
            (lambda: optimizer.bind([]), "its parameters already"),
        ]:
            with pytest.raises(RuntimeError, match=text):
                call()
        optimizer.step()
        optimizer.flush()

    on_all(work)


def test_before_it_has_parameters():
    with pytest.raises(AttributeError, match="has no parameters yet"):
        ft.ServerOptimizer(rule()).step()
    with pytest.raises(TypeError, match=r"an optimiser of fptps\.optim"):
        ft.ServerOptimizer(torch.optim.SGD([torch.zeros(1)], 0.1))


def test_alone():
    with torch_workers(1) as on_all:

        def work(rank):
            model = Net()
            optimizer = ft.ServerOptimizer(rule(), model.named_parameters())
            for number in range(3):
                optimizer.zero_grad()
                loss_of(model, rank, number).backward()
                optimizer.step()
            optimizer.flush()
            return weights(model)

        close(on_all(work)[0], by_hand(1, plain(), 3))
