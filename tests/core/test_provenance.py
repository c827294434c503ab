"""A hash of a domain's code notices changes of the simulator."""

import importlib
import sys
from functools import partial

import pytest

import psyco
from psyco._src.core.provenance import code_digest
from tests.environments import Walk


def cut(env):
    return env


def test_parameters_do_not_change_the_code():
    digests = {code_digest(psyco.make("obstacle-run", grid=grid)) for grid in (4, 5)}
    assert len(digests) == 1 and None not in digests
    assert digests != {code_digest(psyco.make("particle-dance"))}


def test_an_environment_is_its_class_with_wrappers_and_signals():
    plain = psyco.make(Walk, horizon=5)
    assert code_digest(plain) == code_digest(psyco.make(lambda: Walk(), horizon=5))
    assert code_digest(plain) != code_digest(psyco.make(Walk, horizon=5, wrappers=[cut]))
    assert code_digest(plain) != code_digest(psyco.make(Walk, horizon=5, signals={"x": lambda observation, info: 1.0}))


MODULE = """
import math

GRAVITY = 9.8
UNUSED = 1

def pull(x):
    return scale(x) * GRAVITY

def scale(x):
    return math.sqrt(x)

class Base:
    def fall(self):
        return pull(2.0)

@staticmethod
def other():
    return UNUSED

class Env(Base):
    def step(self):
        return self.fall()
"""


def digest_of(text, monkeypatch, tmp_path, name="falling"):
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return code_digest(importlib.import_module(name).Env())


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("self.fall()", "0.0", True),
        ("9.8", "1.6", True),
        ("math.sqrt(x)", "x", True),
        ("pull(2.0)", "pull(3.0)", True),
        ("UNUSED = 1", "UNUSED = 2", False),
        ("return UNUSED", "return None", False),
    ],
)
def test_constants_functions_and_base_classes_belong_to_the_code(old, new, changes, monkeypatch, tmp_path):
    before = digest_of(MODULE, monkeypatch, tmp_path)
    after = digest_of(MODULE.replace(old, new), monkeypatch, tmp_path)
    assert before is not None and (before != after) == changes


def test_code_that_cannot_be_found_has_no_hash():
    assert code_digest(psyco.make(Walk, horizon=5, wrappers=[partial(cut)])) is None
