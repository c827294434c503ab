"""Domains by name, with parameters that are checked."""

import pytest

import psyco
from psyco._src.envs import registry
from psyco._src.envs.actions import Continuous
from psyco._src.envs.base import parameters, signal_table
from psyco._src.envs.registry import DomainDescription, make_from_description


@pytest.mark.parametrize("name", ["particle-dance", "obstacle-run"])
def test_every_domain_offers_the_common_signals(name):
    table = signal_table(psyco.make(name))
    assert {"distance", "collisions", "step", "reward", "return", "obs", "action", "agent"} <= set(table)


def test_parameters_replace_defaults_and_are_reported():
    domain = psyco.make("particle-dance", horizon=7, d_min=0.2)
    assert (domain.horizon, parameters(domain)["d_min"]) == (7, 0.2)
    assert psyco.make("particle-dance", horizon=7, d_min=0.2) == domain


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("particle-dancer", {}, "did you mean 'particle-dance'"),
        ("particle-dance", {"horizn": 5}, "did you mean 'horizon'"),
        ("particle-dance", {"horizon": 0}, "horizon must be a whole number of at least 1"),
        ("particle-dance", {"horizon": 2.5}, "horizon must be a whole number"),
        ("particle-dance", {"d_min": -1.0}, "d_min must be positive"),
        ("particle-dance", {"d_min": float("nan")}, "d_min must be positive"),
        ("particle-dance", {"d_min": "wide"}, "d_min must be a number"),
        ("obstacle-run", {"grid": True}, "grid must be a whole number"),
        ("particle-dance", {"horizon": 10**9}, "horizon can be at most 10,000,000"),
        ("particle-dance", {"name": "x"}, "has no parameter 'name'"),
        ("CartPole-v1", {"name": "x"}, "cannot make CartPole-v1: .*'name'"),
        ("CartPole-v1", {"source": "x"}, "cannot make CartPole-v1: .*'source'"),
        ("CartPole-v1", {"wrappers": 5}, "wrappers are a list"),
        ("CartPole-v1", {"signals": 5}, "signals a dictionary"),
    ],
)
def test_what_is_wrong_is_said(name, values, message):
    with pytest.raises(psyco.DomainError, match=message):
        psyco.make(name, **values)


def refuse(**parameters):
    raise ZeroDivisionError(parameters)


def test_what_others_raise_while_a_domain_is_made_is_said(monkeypatch):
    monkeypatch.setattr(registry, "PREFIXES", {"other": lambda env, /, **parameters: refuse(**parameters)})
    with pytest.raises(psyco.DomainError, match=r"cannot make other:x with {'env': 1}: ZeroDivisionError"):
        psyco.make("other:x", env=1)
    monkeypatch.setattr(registry, "PREFIXES", {"other": lambda env, /: []})
    with pytest.raises(psyco.DomainError, match=r"cannot make other:x with {}: TypeError: unhashable type"):
        psyco.make("other:x")


@pytest.mark.parametrize("where", ["wrappers", "signals"])
@pytest.mark.parametrize("shape", [["a:b"], {"a:b": 1}, {"x": "a:b"}, {"x": ["a:b"]}, [{"a:b": 1}], "a:b"], ids=str)
def test_a_file_names_no_code_whatever_shape_its_parameters_have(where, shape):
    with pytest.raises(psyco.DomainError, match="this needs the Python code a:b, and a file must not choose"):
        make_from_description(DomainDescription("CartPole-v1", {where: shape}))


def test_an_action_range_must_be_a_range():
    with pytest.raises(psyco.DomainError, match="low < high"):
        Continuous((0.0, 1.0), (1.0, 1.0))
    with pytest.raises(psyco.DomainError, match="finite"):
        Continuous((0.0,), (float("inf"),))
