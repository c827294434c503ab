"""Domains by name, with parameters that are checked."""

import pytest

import psyco
from psyco._src.domain.actions import Continuous
from psyco._src.domain.base import parameters, signal_table


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
    ],
)
def test_what_is_wrong_is_said(name, values, message):
    with pytest.raises(psyco.DomainError, match=message):
        psyco.make(name, **values)


def test_an_action_range_must_be_a_range():
    with pytest.raises(psyco.DomainError, match="low < high"):
        Continuous((0.0, 1.0), (1.0, 1.0))
    with pytest.raises(psyco.DomainError, match="finite"):
        Continuous((0.0,), (float("inf"),))
