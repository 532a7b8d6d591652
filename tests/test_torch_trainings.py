"""PyTorch's own distributed classes on the backend "fptps" and on gloo: the same weights, bit for bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch_group  # noqa: E402
import torch_trainings  # noqa: E402

pytestmark = pytest.mark.demo


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By backend, rank, training and name: tensors. Two processes: their sums do not depend on the order of adding."""
    folder = tmp_path_factory.mktemp("trainings")
    return {b: torch_group.run(folder / b, torch_trainings.all_trainings, 2, b) for b in ("gloo", "fptps")}


@pytest.mark.parametrize("training", [training.__name__ for training in torch_trainings.TRAININGS])
def test_trains_as_on_gloo(trained, training):
    for got, wanted in zip(trained["fptps"], trained["gloo"]):
        assert got[training].keys() == wanted[training].keys()
        for name, tensor in wanted[training].items():
            assert torch.equal(got[training][name], tensor), name
    first, second = (result[training] for result in trained["fptps"])
    assert all(torch.equal(first[name], second[name]) for name in first if "running" not in name)


def test_the_hook_averages_as_ddp_does(tmp_path):
    """DDP over gloo, plain and with compressed gradients, which it divides before the sum and not after it."""
    results = torch_group.under_fptps_run(tmp_path, torch_trainings.hooks, 2, 1, "gloo")
    for result in results:
        for name, (own, ours) in result.items():
            assert own.keys() == ours.keys()
            for tensor in own:
                tolerance = {"rtol": 0, "atol": 2e-3 if name == "compressed" else 0}
                assert torch.allclose(own[tensor].float(), ours[tensor].float(), **tolerance), (name, tensor)


def test_the_bucket_that_ddp_completes_last_is_the_most_urgent(tmp_path):
    """It has the layer that the next forward pass uses first, which is here the one that is defined last."""
    for calls in torch_group.under_fptps_run(tmp_path, torch_trainings.priorities_of_the_hook, 2, 0, "gloo"):
        urgencies = [set(priorities.values()) for priorities in calls]
        assert all(len(one) == 1 for one in urgencies), "the tensors of a bucket are equally urgent"
        in_order = [urgency for one in urgencies for urgency in one]
        assert in_order == sorted(set(in_order)), "each bucket is more urgent than those completed before it"
        layers = [name.split(".")[2] for priorities in calls for name in priorities]  # module.layers.3.weight float32
        assert list(dict.fromkeys(layers)) == ["0", "1", "2", "3"]


def test_the_cluster_of_the_environment(tmp_path):
    assert torch_group.under_fptps_run(tmp_path, torch_trainings.the_cluster_of_the_environment, 2, 1) == [[1, 0]] * 2
