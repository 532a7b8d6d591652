"""fptps.errors: one class for each code of the core."""

import builtins
import pickle
import re
from pathlib import Path

import pytest

import fptps
from fptps import errors

FAULT = Path(__file__).parent.parent / "gocore" / "fault" / "fault.go"


def test_codes_are_those_of_the_core():
    codes = re.findall(r'^\s*\w+\s+Code = "(\w+)"', FAULT.read_text(), re.MULTILINE)
    assert len(codes) > 5
    assert sorted(codes) == sorted(errors.CLASSES)


@pytest.mark.parametrize(("code", "kind"), errors.CLASSES.items())
def test_from_core(code, kind):
    error = errors.from_core(RuntimeError(f"fptps:{code}: key 3: what: where"))
    assert type(error) is kind
    assert error.args == ("key 3: what: where",)


@pytest.mark.parametrize("text", ["", "boom", "fptps:", "fptps:nonsense: x", "x fptps:busy: y"])
def test_what_the_core_should_not_say_is_an_internal_error(text):
    error = errors.from_core(RuntimeError(text))
    assert type(error) is fptps.InternalError
    assert str(error) == text


def test_families():
    ours = [kind for kind in errors.CLASSES.values() if kind.__module__ == "fptps.errors"]
    assert all(issubclass(kind, fptps.FptpsError) for kind in ours)
    assert issubclass(fptps.TimeoutError, builtins.TimeoutError)
    assert {kind for kind in errors.CLASSES.values() if kind not in ours} == {TypeError, ValueError, KeyError}


@pytest.mark.parametrize("kind", [*errors.CLASSES.values(), fptps.RankError])
def test_errors_survive_pickling(kind):
    again = pickle.loads(pickle.dumps(kind("text")))
    assert type(again) is kind
    assert again.args == ("text",)


def test_public_names():
    for name in fptps.__all__:
        assert getattr(fptps, name)
    with pytest.raises(AttributeError, match="no_such_name"):
        fptps.no_such_name  # noqa: B018
