"""fptps._core: the door to the extension module."""

import ast
import importlib.metadata
import json
import os
from pathlib import Path

import numpy as np
import pytest
from helpers import running_scheduler

import fptps
from fptps import _core, _fptps
from fptps._arrays import number_of

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
    for call in (_core.info, _core.stats, _core.sockets):
        with pytest.raises(fptps.ClosedError):
            call(10**9)
    _core.free(10**9)  # it is forgotten already


@pytest.mark.parametrize("options", ["", "[]", "{", '{"DMLC_ROLE": 3}', '{"DMLC_ROLE": "king"}'])
def test_invalid_options(options):
    with pytest.raises(fptps.ConfigError):
        _core.open(_core.new_handle(), options)


def test_panic_in_a_call_is_an_exception(alone):
    alone.init_rows(0, np.zeros((2, 3), np.int64))
    rows = np.zeros(1, np.int64)
    place = rows.ctypes.data
    with pytest.raises(fptps.InternalError, match=r"panic: .*unsafe\.Slice"):  # more rows than an address space holds
        _core.push_rows(alone._session.handle, 10**6, 0, number_of(rows.dtype), place, 1 << 62, place, 24, 0)
    alone.init(1, np.ones(2))
    assert alone.pull(1).result().tolist() == [1, 1]


def break_data_plane(kv):
    """Takes the epoll instances, without which its loops cannot go on, from a worker's data plane."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd in map(int, _core.sockets(kv._session.handle).split(",")):
        if os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventpoll]":
            os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)


def use_for_ever(kv):
    """Waits for one sum after another."""
    while True:
        kv.push_pull(0, np.ones(2)).result()


def test_failure_of_the_data_plane_ends_waits_not_the_interpreter():
    with running_scheduler(1, exit_code=1) as scheduler:
        kv = fptps.KVWorker(scheduler, 1, 0)
        kv.init(0, np.ones(2))
        break_data_plane(kv)
        with pytest.raises(fptps.InternalError, match=r"data plane.*epoll"):
            use_for_ever(kv)
        with pytest.raises(fptps.InternalError, match=r"data plane.*epoll"):
            kv.close()
