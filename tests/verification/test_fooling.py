"""What else was tried to get a false SATISFIED; docs/guarantees.md lists all of it and where it is tested."""

import dataclasses
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import psyco
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.rollout.sampler import make_sampler
from psyco._src.verification import episode_stream

pytestmark = pytest.mark.slow  # plays episodes

outcomes = st.lists(st.booleans(), min_size=1, max_size=300).map(np.array)
METHODS = ("anytime", "fixed", "sprt", "bayes")


def same(one: psyco.Certificate, other: psyco.Certificate) -> bool:
    return (one.verdict, one.episodes) == (other.verdict, other.episodes)


@given(outcomes, st.sampled_from(METHODS), st.sampled_from([0.05, 0.3, 0.5, 0.9]))
def test_at_most_p_of_a_formula_is_at_least_1_minus_p_of_its_negation(held, method, p):
    low = psyco.verify_outcomes(held, f"P<={p} & C>=0.9", method=method)
    high = psyco.verify_outcomes(~held, f"P>={round(1 - p, 6)} & C>=0.9", method=method)
    assert same(low, high)


@given(outcomes, st.sampled_from(METHODS), st.sampled_from([0.05, 0.3, 0.5, 0.9]))
def test_an_interval_that_ends_at_0_or_1_is_a_bound(held, method, p):
    # An interval of which one end cannot fail promises no less and needs no more than the bound at the other end.
    assert same(
        psyco.verify_outcomes(held, f"P in [{p},1] & C>=0.9", method=method),
        psyco.verify_outcomes(held, f"P>={p} & C>=0.9", method=method),
    )
    assert same(
        psyco.verify_outcomes(held, f"P in [0,{p}] & C>=0.9", method=method),
        psyco.verify_outcomes(held, f"P<={p} & C>=0.9", method=method),
    )


decimals = st.decimals(-999, 999, allow_nan=False, places=3)


@given(decimals, decimals, st.sampled_from([np.float32, np.float64]))
def test_up_to_six_digits_a_comparison_means_what_is_written(value, threshold, precision):
    """0.1 is no float32, but a signal that was set to 0.1 is at least 0.1, at most 0.1, and not above or below it."""
    path = {"x": np.array([value], precision)}
    expected = {
        ">=": value >= threshold, "<=": value <= threshold, ">": value > threshold, "<": value < threshold,
        "=": value == threshold, "!=": value != threshold,
    }  # fmt: skip
    for operator, holds in expected.items():
        text = f"G x {operator} {threshold:f}"
        assert (
            psyco.check_path(psyco.parse(f"P>=0.5 [ {text} ]").probability_bounds[0].formula, path).satisfied == holds
        )
    assert Decimal(str(path["x"][0].round(3))) == value


@dataclasses.dataclass(frozen=True)
class Brief:
    """It ends after `last` steps; `late` is true in the very last state only."""

    last: int
    horizon: int

    name: ClassVar[str] = "brief"
    actions: ClassVar[psyco.Discrete] = psyco.Discrete(2)
    observation_size: ClassVar[int] = 1

    def reset(self, key: Any) -> Any:
        return jnp.int32(0)

    def step(self, key: Any, state: Any, action: Any) -> Any:
        return state + 1, jnp.float32(1), state + 1 >= self.last

    def observe(self, state: Any) -> Any:
        return jnp.float32(state)[None]

    def signals(self, state: Any) -> dict[str, Any]:
        return {"t": state, "late": state == min(self.last, self.horizon)}


@pytest.mark.parametrize(("last", "horizon"), [(1, 1), (1, 9), (9, 9), (4, 9), (99, 9)])
def test_the_last_state_counts_and_nothing_after_it(last, horizon):
    """Ended at once, terminated at the horizon, cut off by it: `late` is met once, and it is the end."""
    domain, requirement = Brief(last, horizon), psyco.parse(
        'P>=0.5 [ F late ]; P>=0.5 [ G !late ]; P>=0.5 [ F ("end" & late) ]; P>=0.5 [ F ("end" & !late) ];'
        f"P>=0.5 [ F t > {min(last, horizon)} ]"
    )  # fmt: skip
    network = network_for(domain)
    keys = episode_keys(stream_key(0, Stream.RECORD), 0, 3)
    theta = jnp.zeros((3, network.size))
    episodes = jax.device_get(make_sampler(domain, network, requirement)(theta, keys))
    assert (episodes.length == min(last, horizon)).all()
    assert (episodes.satisfied == [True, False, True, False, False]).all()


def test_a_certificate_about_short_episodes_says_nothing_about_long_ones():
    short, long = Brief(99, 4), Brief(99, 9)
    policy = policy_for(short, network_for(short), np.zeros(network_for(short).size, np.float32))
    certificate = psyco.verify(policy, short, "P>=0.5 [ G t <= 4 ] & C>=0.9")
    assert certificate.verdict is psyco.Verdict.SATISFIED
    assert certificate.horizon == 4
    assert "4 steps" in str(certificate)
    differences = psyco.replay(certificate, policy, domain=long).differences
    assert any(each.startswith("horizon") for each in differences)
    assert any(each.startswith("verdict") for each in differences)


@pytest.mark.more
def test_episodes_that_ended_learning_are_not_those_of_the_certificate(monkeypatch):
    """A run that learns until it is satisfied has looked many times: the certificate is made of none of that."""
    used: dict[str, set[Any]] = {}
    sample = episode_stream.sample_episodes

    def watched(sampler, theta, key, count, **where):
        used.setdefault("keys", set()).add(tuple(jax.random.key_data(key).tolist()))
        return sample(sampler, theta, key, count, **where)

    monkeypatch.setattr(episode_stream, "sample_episodes", watched)
    requirement = "P>=0.05 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.9"
    settings = psyco.Settings(hidden=4, verify_every=100, until_satisfied=True, candidates=1)
    result = psyco.synthesize("particle-dance", requirement, parameters={"horizon": 5}, episodes=400, settings=settings)
    assert result.certificate.verdict is psyco.Verdict.SATISFIED
    own = stream_key(0, Stream.CERTIFY, result.certificate.seed_block)
    assert tuple(jax.random.key_data(own).tolist()) in used["keys"]
    assert len(used["keys"]) == len(result.metrics["verdict"][result.metrics["verdict"] != ""]) + len(
        result.certificate.looks
    )


def test_everything_that_was_tried_is_a_test():
    """The table in docs/guarantees.md names files that are there."""
    tests = Path(__file__).parents[1]
    text = (tests.parent / "docs" / "guarantees.md").read_text()
    table = text[text.index("## Attempts to fool the certificate") :]
    named = re.findall(r"`(\w+/test_\w+\.py)`", table)
    assert len(named) > 15
    assert [name for name in named if not (tests / name).exists()] == []


def test_a_cap_that_was_never_reached_is_named_as_not_compared():
    domain = Brief(99, 4)
    policy = policy_for(domain, network_for(domain), np.zeros(network_for(domain).size, np.float32))
    certificate = psyco.verify(policy, domain, "P>=0.5 [ G t <= 4 ] & C>=0.9")
    assert (
        f"max_episodes beyond the {certificate.episodes} that were needed"
        in psyco.replay(certificate, policy, domain=domain).not_compared
    )
