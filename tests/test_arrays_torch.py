"""fptps._arrays with PyTorch's tensors."""

import ctypes
import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest

import fptps
from fptps import _autograd
from fptps._arrays import NAMES, locate, maker, order_text

pytestmark = pytest.mark.demo
torch = pytest.importorskip("torch")


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(torch, name)])
def test_every_dtype(name):
    tensor = torch.zeros(2, 3, dtype=getattr(torch, name))
    place = locate(tensor, write=True)
    assert (place.dtype, place.address, place.nbytes) == (NAMES[name], tensor.data_ptr(), tensor.nbytes)
    made = maker(tensor)()
    assert (made.shape, made.dtype) == (tensor.shape, tensor.dtype)


def content(place):
    """What lies where the core would look."""
    return ctypes.string_at(place.address, place.nbytes)


def test_parameters_are_taken_as_they_are():
    parameter = torch.nn.Parameter(torch.arange(3.0))
    place = locate(parameter, write=True)
    assert place.address == parameter.data_ptr()
    assert content(place) == parameter.detach().numpy().tobytes()
    assert not maker(parameter)().requires_grad


def test_computed_tensors_can_be_read_only():
    computed = torch.ones(3, requires_grad=True) * 2
    assert locate(computed, write=False).nbytes == 12
    with pytest.raises(ValueError, match="detach"):
        locate(computed, write=True)


@pytest.mark.parametrize(
    ("tensor", "error", "text"),
    [
        (torch.arange(6.0)[::2], ValueError, "no dense block"),
        (torch.ones(2, 3, 4).permute(2, 0, 1)[..., ::2], ValueError, "no dense block"),
        (torch.ones(1).expand(4), ValueError, "no dense block"),
        (torch.zeros(0), ValueError, "no elements"),
        (torch.zeros(3, device="meta"), TypeError, "meta"),
        (torch.zeros(3).to_sparse(), TypeError, "sparse"),
        (torch.zeros(2, dtype=torch.complex64).conj(), ValueError, "conj"),
        (torch.zeros(2).to(torch.float8_e5m2), TypeError, "float8_e5m2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(tensor, error, text):
    with pytest.raises(error, match=text):
        locate(tensor, write=False)


@pytest.mark.parametrize(
    "replace",
    [
        lambda module: setattr(module.weight, "data", torch.zeros(2, 3)),
        lambda module: module.weight.detach_().set_(torch.zeros(2, 3)),
        lambda module: module.half(),
        lambda module: module.to(torch.float64),
    ],
    ids=["data", "set_", "half", "to"],
)
def test_memory_lives_on_when_a_tensor_gets_another(replace):
    memory = np.ones((2, 3), np.float32)
    module = torch.nn.Linear(3, 2, bias=False)
    module.weight.data = torch.from_numpy(memory)
    alive = weakref.ref(memory)
    del memory
    place = locate(module.weight, write=True)
    replace(module)
    gc.collect()
    assert alive() is not None
    assert content(place) == np.ones((2, 3), np.float32).tobytes()
    del place
    gc.collect()
    assert alive() is None


def test_autograd_sees_what_was_written():
    """The gradient of sum(w * w) at w = 1 is 2; from the sum that has come into w it would be 4."""
    with fptps.KVWorker() as kv:
        kv.init(0, torch.ones(3))
        w = torch.nn.Parameter(torch.ones(3))
        for call in (
            lambda: kv.push_pull(0, torch.full((3,), 2.0), out=w),
            lambda: kv.push(0, torch.full((3,), 2.0)).result() or kv.pull(0, out=w),
        ):
            with torch.no_grad():
                w.fill_(1.0)
            loss = (w * w).sum()
            call().result()
            assert w.tolist() == [2.0] * 3
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


def test_autograd_sees_what_is_written_after_a_value_was_saved():
    """Both the value before the sum and any that is read while it comes must not count."""

    def work():
        with fptps.KVWorker() as kv:
            kv.init(0, torch.ones(3))
            if kv.rank == 1:
                kv.barrier()
                kv.push(0, torch.full((3,), 2.0)).result()
                return None
            w = torch.nn.Parameter(torch.ones(3))
            before = (w * w).sum()
            ticket = kv.push_pull(0, torch.full((3,), 1.0), out=w)
            while_it_comes = (w * w).sum()
            errors = []
            for loss, end in ((before, kv.barrier), (while_it_comes, ticket.result)):
                end()
                try:
                    loss.backward()
                except RuntimeError as error:
                    errors.append("modified by an inplace operation" in str(error))
            return errors

    assert fptps.LocalCluster(2, 0).run(work)[0] == [True, True]


def test_tensors_of_inference_are_received_into():
    with torch.inference_mode(), fptps.KVWorker() as kv:
        out = torch.zeros(2)
        kv.init(0, out)
        assert kv.push_pull(0, torch.full((2,), 3.0), out=out).result().tolist() == [3.0, 3.0]


@pytest.mark.parametrize("count", [lambda torch: None, _autograd._increment_version], ids=["older", "this"])
def test_modified(monkeypatch, count):
    if count(torch) is None:
        monkeypatch.setattr(_autograd, "_increment_version", lambda torch: _autograd._write_nothing)
    for tensor in (torch.ones(3), torch.tensor(2.0), torch.ones(2, 3).t(), torch.nn.Parameter(torch.ones(1))):
        before, values = tensor._version, tensor.tolist()
        _autograd.modified(tensor)
        assert tensor._version > before
        assert tensor.tolist() == values
    _autograd.modified(None)
    _autograd.modified(np.ones(3))


def test_made_in_the_memory_of_the_cpu():
    torch.set_default_device("meta")
    try:
        made = maker(torch.ones(2, device="cpu"))()
    finally:
        torch.set_default_device(None)
    assert made.is_cpu


def test_the_advice_for_an_out_keeps_the_sum():
    """In tensor.contiguous() it would be lost: that is a copy."""
    every_other = torch.ones(2, 6)[:, ::2]
    with pytest.raises(ValueError, match=r"copy_\(\)") as refused:
        locate(every_other, write=True)
    assert "contiguous()" not in str(refused.value)


IMAGES = torch.arange(120.0).reshape(2, 3, 4, 5)


@pytest.mark.parametrize(
    ("tensor", "order", "text"),
    [
        (IMAGES.to(memory_format=torch.channels_last), (0, 2, 3, 1), "channels_last"),
        (IMAGES[:1].to(memory_format=torch.channels_last), (2, 3, 1), "channels_last"),
        (IMAGES[:, :1].to(memory_format=torch.channels_last), (), "contiguous"),
        (IMAGES[None].to(memory_format=torch.channels_last_3d), (2, 3, 4, 1), "channels_last"),
        (IMAGES[0, 0].t(), (1, 0), "in Fortran order"),
        (IMAGES.permute(1, 0, 3, 2), (1, 0, 3, 2), "in memory in the order (1, 0, 3, 2) of its axes"),
    ],
    ids=["channels_last", "one image", "one channel", "3d", "transposed", "permuted"],
)
def test_dense_tensors_are_taken_in_any_order_of_axes(tensor, order, text):
    place = locate(tensor, write=True)
    assert (place.address, place.shape, place.order) == (tensor.data_ptr(), tuple(tensor.shape), order)
    assert order_text(place.shape, place.order) == text
    assert content(place) == tensor.numpy().ravel("K").tobytes()
    made = maker(tensor)()
    assert made.stride() == tensor.stride()
    assert locate(made, write=True).order == order


def test_fptps_does_not_import_torch():
    code = "import sys, fptps, numpy; fptps.KVWorker().close(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
