"""fptps.arrays with PyTorch's tensors."""

import ctypes
import subprocess
import sys

import pytest

from fptps.arrays import NAMES, locate, maker

pytestmark = pytest.mark.demo
torch = pytest.importorskip("torch")


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(torch, name)])
def test_every_dtype(name):
    tensor = torch.zeros(2, 3, dtype=getattr(torch, name))
    place = locate(tensor, write=True)
    assert (place.dtype, place.address, place.nbytes) == (NAMES[name], tensor.data_ptr(), tensor.nbytes)
    made = maker(tensor)()
    assert (made.shape, made.dtype) == (tensor.shape, tensor.dtype)


def test_parameters_are_taken_as_they_are():
    parameter = torch.nn.Parameter(torch.arange(3.0))
    place = locate(parameter, write=True)
    assert place.address == parameter.data_ptr()
    assert ctypes.string_at(place.address, place.nbytes) == parameter.detach().numpy().tobytes()
    assert not maker(parameter)().requires_grad


def test_computed_tensors_can_be_read_only():
    computed = torch.ones(3, requires_grad=True) * 2
    assert locate(computed, write=False).nbytes == 12
    with pytest.raises(ValueError, match="detach"):
        locate(computed, write=True)


@pytest.mark.parametrize(
    ("tensor", "error", "text"),
    [
        (torch.arange(6.0)[::2], ValueError, "not contiguous"),
        (torch.ones(2, 3).t(), ValueError, "not contiguous"),
        (torch.ones(1).expand(4), ValueError, "not contiguous"),
        (torch.zeros(0), ValueError, "no elements"),
        (torch.zeros(3, device="meta"), TypeError, "meta"),
        (torch.zeros(3).to_sparse(), TypeError, "sparse"),
        (torch.zeros(2, dtype=torch.complex64).conj(), ValueError, "conj"),
        (torch.zeros(2).to(torch.float8_e5m2), TypeError, "float8_e5m2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(tensor, error, text):
    with pytest.raises(error, match=text):
        locate(tensor, write=False)


def test_fptps_does_not_import_torch():
    code = "import sys, fptps, numpy; fptps.KVWorker().close(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
