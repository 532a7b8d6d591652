"""fptps._core: the door to the extension module."""

import ast
import importlib.metadata
import json
from pathlib import Path

import numpy as np
import pytest

import fptps
from fptps import _core, _fptps

STUB = Path(fptps.__file__).with_name("_fptps.pyi")


def test_stub_lists_what_the_module_has():
    stubbed = {node.name for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.FunctionDef)}
    exported = {name for name in dir(_fptps) if name.startswith("pybind_")}
    assert exported == stubbed


def test_version_is_that_of_the_package():
    assert _core.version() == fptps.__version__ == importlib.metadata.version("fptps")


def test_configuration():
    table = json.loads(_core.configuration())
    assert {"DMLC_ROLE", "DMLC_PS_ROOT_URI", "FPTPS_TOKEN"} <= {setting["name"] for setting in table}
    assert all(setting["doc"] for setting in table)


def test_handles_that_do_not_exist():
    for call in (_core.info, _core.stats, _core.reap, _core.sockets, _core.barrier, _core.free):
        with pytest.raises(fptps.ClosedError):
            call(10**9)


@pytest.mark.parametrize("options", ["", "[]", "{", '{"DMLC_ROLE": 3}', '{"DMLC_ROLE": "king"}'])
def test_options_that_make_no_sense(options):
    with pytest.raises(fptps.ConfigError):
        _core.open(options)


def test_panic_in_a_call_is_an_exception(alone):
    with pytest.raises(fptps.InternalError, match="injected"):
        _core.inject(alone._handle, "panic-caller")
    alone.init(0, np.ones(2))
    assert alone.pull(0).wait().tolist() == [1, 1]


def use_for_ever(kv):
    """Waits for one sum after another."""
    while True:
        kv.push_pull(0, np.ones(2)).wait()


def test_panic_in_the_data_plane_ends_waits_not_the_interpreter():
    kv = fptps.KVWorker()
    kv.init(0, np.ones(2))
    _core.inject(kv._handle, "panic-loop")
    with pytest.raises(fptps.InternalError, match="injected"):
        use_for_ever(kv)
    with pytest.raises(fptps.InternalError, match="injected"):
        kv.close()
