"""Mistakes in a compiled domain are sentences about the domain, not errors of JAX."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.envs.base import check_step, require_finite, signal_table


class Place(NamedTuple):
    x: Any
    hits: Any


@dataclass(frozen=True)
class Line:
    """A walk on the numbers 0 to 3, finite and correct."""

    horizon: int = 3
    name: ClassVar[str] = "line"
    actions: ClassVar[psyco.Discrete] = psyco.Discrete(2)
    observation_size: ClassVar[int] = 1
    counters: ClassVar[tuple[str, ...]] = ("hits",)

    def reset(self, key):
        return Place(jnp.int32(0), jnp.int32(0))

    def step(self, key, state, action):
        return self.transition(state, action, 0)

    def observe(self, state):
        return state.x[None].astype(jnp.float32)

    def signals(self, state):
        return {"x": state.x, "hits": state.hits}

    def initial_distribution(self):
        return np.ones(1), Place(jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))

    def draw_probabilities(self):
        return np.ones(1)

    def transition(self, state, action, draw):
        x = jnp.minimum(state.x + action.astype(jnp.int32), 3)
        return Place(x, state.hits + (x == 3)), jnp.float32(x), False


class LongObservation(Line):
    observation_size = 3


class ScalarObservation(Line):
    def observe(self, state):
        return state.x.astype(jnp.float32)


class FailingObservation(Line):
    def observe(self, state):
        return state.y[None]


class ChangingType(Line):
    def step(self, key, state, action):
        return state._replace(x=state.x + 0.5), 0.0, False


class ChangingShape(Line):
    def step(self, key, state, action):
        return state._replace(x=state.x[None]), 0.0, False


class ChangingStructure(Line):
    def step(self, key, state, action):
        return (state.x, state.hits), 0.0, False


class TwoRewards(Line):
    def step(self, key, state, action):
        return state, jnp.zeros(2), False


class NoTermination(Line):
    def step(self, key, state, action):
        return state, 0.0


class NoSignals(Line):
    signals = property()  # raises AttributeError


class BareState(Line):
    counters = ()

    def reset(self, key):
        return jnp.int32(0)

    def observe(self, state):
        return state[None].astype(jnp.float32)

    def signals(self, state):
        return {"x": state}


class NoSuchField(Line):
    counters = ("hit",)


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        (LongObservation, r"observe of line gives float32 \[1\]; give a vector of length 3, as observation_size says"),
        (ScalarObservation, r"observe of line gives float32 \[\]; give a vector of length 1"),
        (FailingObservation, "observe of line fails: AttributeError"),
        (ChangingType, r"step of line gives float32 \[\] as the state\.x, which was int32 \[\]; keep shapes and types"),
        (ChangingShape, r"step of line gives int32 \[1\] as the state\.x, which was int32 \[\]"),
        (ChangingStructure, "step of line gives a state .* keep its structure"),
        (TwoRewards, r"step of line gives the reward as float32 \[2\]; give a single value"),
        (NoTermination, "step of line gives tuple; give the next state, the reward and whether it terminates"),
        (NoSignals, "is not a domain: it lacks signals"),
    ],
)
def test_a_mistake_is_a_sentence(domain, words):
    with pytest.raises(psyco.DomainError, match=words):
        psyco.verify(lambda observation: 0, domain(), "P>=0.5 [ G x >= 0 ] & C>=0.9", max_episodes=1)


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        (BareState, "its state is not a NamedTuple"),
        (NoSuchField, r"counters of line has 'hit', which is not a field of its state \(did you mean 'hits'\?\)"),
        (ChangingType, "step of line gives float32"),
    ],
)
def test_a_mistake_in_a_finite_domain_is_a_sentence(domain, words):
    with pytest.raises(psyco.DomainError, match=words):
        psyco.exact(lambda observation: 0, domain(), "P>=0.5 [ G x >= 0 ]")


def test_a_correct_domain_passes():
    domain = Line()
    assert signal_table(domain)["x"].whole and require_finite(domain) is domain
    state, action = domain.reset(None), jnp.int32(1)
    check_step(domain, state, domain.step(None, state, action))
    converted = state._replace(x=jnp.add(0, 0)), (state._replace(x=jnp.float32(1)), 0.0, False)
    check_step(domain, *converted)  # JAX converts numbers without a type of their own
    with_key = state._replace(x=jax.random.key(0))
    check_step(domain, with_key, (with_key, 0.0, False))
    assert psyco.exact(lambda observation: 1, domain, "P>=0.5 [ F x >= 3 ]").value.probabilities == (1.0,)


class NotANumber(Line):
    def observe(self, state):
        return jnp.full(1, jnp.nan)


class Unlisted(Line):
    def initial_distribution(self):
        return np.ones(1), Place(jnp.ones(1, jnp.int32), jnp.zeros(1, jnp.int32))


def test_a_check_of_a_compiled_domain_says_what_is_wrong():
    def failed(domain):
        return {each.name: each.message for each in psyco.check(domain(), "P>=0.5 [ G x >= 0 ]") if not each.passed}

    assert failed(Line) == {}
    assert "observation_size" in failed(LongObservation)["functions"]
    assert "keep shapes and types" in failed(ChangingType)["functions"]
    assert "it lacks signals" in failed(NoSignals)["functions"]
    assert "obs is not a finite number at step 0" in failed(NotANumber)["episodes"]
    assert "which is not a field" in failed(NoSuchField)["enumeration"]
    assert "no positive probability in initial_distribution" in failed(Unlisted)["enumeration"]
    [named] = [each for each in psyco.check(Line(), "P>=0.5 [ G y >= 0 ]") if each.passed is False]
    assert named.name == "signals" and "'y'" in named.message


def test_a_check_of_a_compiled_domain_ends_with_a_plan():
    results = list(psyco.check(Line(), "P>=0.5 [ G x >= 0 ]", episodes=300))
    assert [each.name for each in results] == ["spaces", "signal names", "signals", "episodes", "enumeration", "plan"]
    assert "hits, x, obs[1]" in results[1].message and "300" in results[-1].message
