"""fptps.errors: one class for each code of the core."""

import builtins
import copy
import pickle
import re
from pathlib import Path

import cloudpickle
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
    error = errors.from_core(f'fptps:{code}{{"key":3}}: key 3: what: {{where}}')
    assert type(error) is kind
    assert error.args == ("key 3: what: {where}",)
    assert getattr(error, "key", 3) == 3


def test_attributes_are_those_of_the_core():
    fields = re.findall(r'`json:"(\w+),omitempty"`', FAULT.read_text())
    assert fields == ["role", "rank", "key", "missing"]
    error = errors.from_core('fptps:node_lost{"role":"worker","rank":0,"key":"a/b","missing":["server 1"]}: text')
    assert (error.role, error.rank, error.key, error.missing) == ("worker", 0, "a/b", ("server 1",))
    error = errors.from_core("fptps:closed{}: text")
    assert (error.role, error.rank, error.key, error.missing) == (None, None, None, ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "boom",
        "fptps:",
        "fptps:nonsense{}: x",
        "x fptps:busy{}: y",
        "fptps:busy: y",
        "fptps:busy{: y",
        "fptps:busy{} y",
    ],
)
def test_text_without_a_known_code_is_an_internal_error(text):
    error = errors.from_core(text)
    assert type(error) is fptps.InternalError
    assert str(error) == text


def test_families():
    ours = [kind for kind in errors.CLASSES.values() if kind.__module__ == "fptps.errors"]
    assert all(issubclass(kind, fptps.FptpsError) for kind in ours)
    assert issubclass(fptps.TimeoutError, builtins.TimeoutError)
    assert {kind for kind in errors.CLASSES.values() if kind not in ours} == {TypeError, ValueError, KeyError}


@pytest.mark.parametrize("kind", [*errors.CLASSES.values(), fptps.RankError])
def test_errors_survive_pickling(kind):
    about = (
        {"role": "worker", "rank": 2, "key": "w", "missing": ("server 0",)}
        if issubclass(kind, fptps.FptpsError)
        else {}
    )
    for module in (pickle, cloudpickle, copy):
        error = kind("text", **about)
        again = copy.copy(error) if module is copy else pickle.loads(module.dumps(error))
        assert type(again) is kind
        assert again.args == ("text",)
        assert vars(again) == about
        assert str(again) == str(error)


def test_public_names():
    for name in fptps.__all__:
        assert getattr(fptps, name)
    with pytest.raises(AttributeError, match="no_such_name"):
        fptps.no_such_name  # noqa: B018
