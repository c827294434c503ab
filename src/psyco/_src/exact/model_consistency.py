"""Compare the enumeration of a finite domain with samples of its `reset` and `step`.

An exact answer is about the enumeration (`initial_distribution`, `draw_probabilities`, `transition`), verification is
about `reset` and `step`. So episodes under random actions are sampled first and compared with the enumeration. A sample
that the enumeration excludes is an error at once. The frequencies are compared by a likelihood-ratio test: half of the
episodes suggest other probabilities, and the likelihood ratio of the other half, under these to the stated ones, is
computed. If the domain is consistent, that ratio has mean 1, whatever was suggested, so it exceeds 1/α with probability
at most α: exactly, for any number of samples.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError
from psyco._src.envs.actions import Discrete, first_offered
from psyco._src.envs.base import FiniteDomain, State, check_step

FALSE_ALARM_RATE = 1e-6  # of all tests of a domain together
SAMPLED_RESETS = 2**16  # sampled initial states; some of them start the episodes
SAMPLED_STEPS = 2**16  # steps of a batch of episodes
MAX_TABLE_CELLS = 2**23  # steps times draws of a batch
MAX_BATCHES = 8  # needed if episodes end long before the horizon
EM_ROUNDS = 10  # of expectation maximisation
PRIOR_WEIGHT = 20  # samples per outcome that the stated probabilities count as, against overfitting to few samples
TOLERANCE = 1e-9  # of a sum of probabilities
FAST_COMPILE = {"xla_backend_optimization_level": 0}  # these programs run only once


@cache
def check_consistency(domain: FiniteDomain) -> None:
    """Raise DomainError unless the enumeration is valid and agrees with samples; cached for equal domains."""
    start, states = domain.initial_distribution()
    initial = _rows(domain, states, "initial_distribution()")
    _check_probabilities(domain, "initial_distribution()", start, len(initial))
    _check_probabilities(domain, "draw_probabilities()", domain.draw_probabilities())
    sampled = jax.device_get(_resets(domain, _keys(SAMPLED_RESETS, seed=0)))
    _compare_initial_states(domain, np.asarray(start, np.float64), initial, sampled)
    _compare_steps(domain, np.asarray(domain.draw_probabilities(), np.float64), sampled)


def _check_probabilities(domain: FiniteDomain, where: str, given: Any, states: int | None = None) -> None:
    p = np.asarray(given)
    if p.ndim != 1 or not p.size or states not in (None, p.size):
        needed = "as many probabilities as states" if states is not None else "a list of probabilities"
        raise DomainError(f"{where} of {domain.name} gives an array of shape {p.shape}; it should give {needed}")
    if not np.isfinite(p).all() or p.min() < 0 or abs(math.fsum(p) - 1) > TOLERANCE:
        raise DomainError(
            f"{where} of {domain.name} gives probabilities from {p.min():g} to {p.max():g} with the sum "
            f"{math.fsum(p)}; none may be negative, and they sum to 1 within {TOLERANCE:g} (compute them in float64)"
        )


def _rows(domain: FiniteDomain, states: State, where: str) -> NDArray[np.int64]:
    """Return states with leaves `[S, ...]` as rows of integers `[S, W]`."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(states)]
    if any(leaf.ndim == 0 for leaf in leaves):
        raise DomainError(
            f"{where} of {domain.name} gives a state without a first axis; every field is [S], "
            "also for one state (S = 1)"
        )
    if any(leaf.dtype.kind not in "biu" for leaf in leaves):
        raise DomainError(
            f"{where} of {domain.name} gives states that are not integers: {_state_text(states, 0)}; "
            "use integers or Booleans for all fields of a state"
        )
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1).astype(np.int64)


# ---- initial states -------------------------------------------------------------------------------------------------


def _compare_initial_states(
    domain: FiniteDomain, start: NDArray[np.float64], initial: NDArray[np.int64], states: State
) -> None:
    sampled = _rows(domain, states, "reset")
    if sampled.shape[1] != initial.shape[1]:
        raise DomainError(f"initial_distribution() and reset of {domain.name} give states of different shapes")
    _, number = np.unique(np.concatenate([initial, sampled]), axis=0, return_inverse=True)
    listed, found = np.split(number.ravel(), [len(initial)])
    p = np.asarray(np.bincount(listed, start, number.max() + 1), np.float64)  # a state may be listed twice
    impossible = np.flatnonzero(p[found] == 0)
    if len(impossible):
        raise DomainError(
            f"reset of {domain.name} gives {_state_text(states, impossible[0])}, which has no positive probability in "
            "initial_distribution(); add it there"
        )
    fit, rest = found[: SAMPLED_RESETS // 2], found[SAMPLED_RESETS // 2 :]
    suggested = _smooth(np.bincount(fit, minlength=len(p)), p)
    log_ratio = np.log(suggested[rest] / p[rest]).sum()
    _reject_if_unlikely(log_ratio, f"reset of {domain.name} disagrees with initial_distribution()")


@jax.jit(static_argnums=0, compiler_options=FAST_COMPILE)
def _resets(domain: FiniteDomain, keys: Array) -> State:
    return jax.vmap(domain.reset)(keys)


def _keys(count: int, *, seed: int) -> Array:
    """Return random keys `[count]`, drawn by NumPy, which needs no compilation."""
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    drawn = np.random.default_rng(seed).integers(2**32, size=(count, *shape), dtype=np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(drawn))


# ---- steps ------------------------------------------------------------------------------------------------------


class _Steps(NamedTuple):
    """All steps of B episodes; `alive` is false after the end of an episode."""

    state: State  # [B, n, ...] each leaf
    action: NDArray[np.int32]  # [B, n]
    following: State  # [B, n, ...] each leaf
    reward: NDArray[np.float32]  # [B, n]
    done: NDArray[np.bool_]  # [B, n]
    alive: NDArray[np.bool_]  # [B, n]
    possible: NDArray[np.bool_]  # [B, n, C] does `transition` with this draw give the same step?
    only_count: NDArray[np.bool_]  # [B, n] do the counters influence nothing else?


def _compare_steps(domain: FiniteDomain, draw_probabilities: NDArray[np.float64], initial: State) -> None:
    steps = _sample_steps(domain, len(draw_probabilities), initial)
    alive, possible = steps.alive, steps.possible & (draw_probabilities > 0)
    _check_single_steps(domain, steps, possible)
    episode, time = np.nonzero(alive)
    state, action = jax.tree.map(lambda leaf: leaf[alive], (steps.state, steps.action))
    _, state_action = np.unique(_rows(domain, (state, action), "step"), axis=0, return_inverse=True)
    # A draw that explains the previous step; 0 at the first step.
    previous = np.pad(1 + possible.argmax(axis=-1), [(0, 0), (1, 0)])[:, :-1]
    for group, where in (
        (np.zeros(len(action), int), ""),
        (time, ", as a comparison of time steps shows"),
        (previous[alive], ", as a comparison of steps after different draws shows"),
        (state_action.ravel(), ", as a comparison of states shows"),
    ):
        log_ratio = _log_likelihood_ratio(possible[alive], draw_probabilities, episode % 2 == 0, group)
        _reject_if_unlikely(log_ratio, f"step of {domain.name} disagrees with draw_probabilities(){where}")


def _sample_steps(domain: FiniteDomain, draws: int, initial: State) -> _Steps:
    """Return an even number of episodes; those with even index suggest probabilities, the others test them."""
    fitting = min(SAMPLED_STEPS, MAX_TABLE_CELLS // draws) // domain.horizon
    episodes = max(2, min(SAMPLED_RESETS // MAX_BATCHES, fitting)) // 2 * 2
    batches: list[_Steps] = []
    # The episodes that test must not influence the number of batches.
    while len(batches) < MAX_BATCHES and sum(batch.alive[::2].sum() for batch in batches) < SAMPLED_STEPS // 8:
        part = slice(len(batches) * episodes, (len(batches) + 1) * episodes)
        begin = jax.tree.map(lambda leaf: leaf[part], initial)  # noqa: B023
        batches.append(jax.device_get(_simulate(domain, begin, *_keys_and_actions(domain, episodes, seed=part.stop))))
    together: _Steps = jax.tree.map(lambda *parts: np.concatenate(parts), *batches)
    return together


def _check_single_steps(domain: FiniteDomain, steps: _Steps, possible: NDArray[np.bool_]) -> None:
    for at in map(tuple, np.argwhere(steps.alive & ~possible.any(axis=-1))):
        end = "terminated" if steps.done[at] else "not terminated"
        raise DomainError(
            f"step of {domain.name} leads from {_state_text(steps.state, at)} with action {steps.action[at]} to "
            f"{_state_text(steps.following, at)}, reward {steps.reward[at]:g}, {end}; no draw of positive probability "
            "makes transition do so: let both follow the same rule"
        )
    for at in map(tuple, np.argwhere(steps.alive & ~steps.only_count)):
        raise DomainError(
            f"{domain.name} behaves differently in {_state_text(steps.state, at)} with action {steps.action[at]} than "
            f"with its counters ({', '.join(domain.counters)}) at 0; a counter must influence nothing else"
        )


def _keys_and_actions(domain: FiniteDomain, episodes: int, *, seed: int) -> tuple[Array, NDArray[np.int32]]:
    """Return keys `[B]` of the episodes, and random actions `[B, n]`."""
    assert isinstance(domain.actions, Discrete)
    size = episodes, domain.horizon
    actions = np.random.default_rng((seed, 1)).integers(domain.actions.n, size=size, dtype=np.int32)
    return _keys(episodes, seed=seed), actions


@jax.jit(static_argnums=0, compiler_options=FAST_COMPILE)
def _simulate(domain: FiniteDomain, initial: State, keys: Array, actions: Array) -> _Steps:
    """Return episodes as rollouts make them, from initial states and with actions `[B, n]`."""
    draws = jnp.arange(len(domain.draw_probabilities()))

    def step(now: tuple[State, Array], drawn: Any) -> tuple[tuple[State, Array], _Steps]:
        (state, alive), (chance, action) = now, drawn
        if getattr(domain, "has_mask", False):
            action = first_offered(action, domain.observe(state)[-domain.actions.outputs :])
        outcome = domain.step(chance, state, action)
        check_step(domain, state, outcome)
        following, reward, done = outcome
        possible = jax.vmap(lambda draw: _equal(domain.transition(state, action, draw), outcome))(draws)
        only_count = _counters_only_count(domain, chance, state, action, outcome)
        fields: list[Any] = [state, action, following, reward, done, alive, possible, only_count]
        return (following, alive & jnp.logical_not(done)), _Steps(*fields)

    def episode(state: State, key: Array, actions: Array) -> _Steps:
        chances = domain.draw(key) if hasattr(domain, "draw") else jax.random.split(key, domain.horizon)
        return jax.lax.scan(step, (state, jnp.bool_(True)), (chances, actions))[1]

    return jax.vmap(episode)(initial, keys, actions)


def _counters_only_count(domain: FiniteDomain, chance: Array, state: State, action: Array, outcome: Any) -> Array:
    """Return whether step, observation and signals are the same as with all counters at 0."""
    if not domain.counters:
        return jnp.bool_(True)
    counts = {name: getattr(state, name) for name in domain.counters}
    fresh = state._replace(**jax.tree.map(jnp.zeros_like, counts))
    following, *rest = domain.step(chance, fresh, action)
    further = {name: getattr(following, name) + count for name, count in counts.items()}
    signals = [{**domain.signals(each), **counts} for each in (state, fresh)]
    upwards = [jnp.all(getattr(following, name) >= 0) for name in counts]
    return (
        _equal((following._replace(**further), *rest), outcome)
        & _equal(domain.observe(state), domain.observe(fresh))
        & _equal(*signals)
        & jnp.all(jnp.stack(upwards))
    )


def _equal(a: Any, b: Any) -> Array:
    """Return whether all leaves are equal; floats up to the rounding of separate compilations."""
    structures = {str(jax.tree.structure(each)) for each in (a, b)}
    if len(structures) > 1:
        raise DomainError(
            f"states, observations and signals must keep their structure: {' or '.join(sorted(structures))}?"
        )

    def equal(x: Any, y: Any) -> Array:
        whole = not jnp.issubdtype(jnp.result_type(x), jnp.floating)
        return jnp.array_equal(x, y) if whole else jnp.allclose(x, y, rtol=1e-6, atol=1e-6)

    return jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(equal, a, b))))


def _log_likelihood_ratio(
    possible: NDArray[np.bool_],
    draw_probabilities: NDArray[np.float64],
    fit: NDArray[np.bool_],
    group: NDArray[np.int64],
) -> float:
    """Return the log likelihood ratio of the steps not in `fit`, for probabilities per group suggested by the others.

    Args:
        possible: `[N, C]`, draws that explain each step.
        draw_probabilities: `[C]`, as the domain states them.
        fit: `[N]`, steps that suggest probabilities.
        group: `[N]`, group numbers from 0.
    """
    suggested = np.tile(draw_probabilities, (group.max() + 1, 1))
    fit_possible, fit_group = possible[fit], group[fit]
    for _ in range(EM_ROUNDS):  # expectation maximisation: several draws may explain a step
        part = fit_possible * suggested[fit_group]
        part /= part.sum(axis=1, keepdims=True)
        counts = [np.bincount(fit_group, weights, len(suggested)) for weights in part.T]
        suggested = _smooth(np.stack(counts, axis=1), draw_probabilities)
    ratio = (possible * suggested[group]).sum(axis=1) / (possible @ draw_probabilities)
    return float(np.log(ratio[~fit]).sum())


# ---- likelihood ratios ----------------------------------------------------------------------------------------------


def _smooth(counts: NDArray[Any], p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return probabilities from counts `[..., C]`, shrunk towards p; positive where p is."""
    weight = PRIOR_WEIGHT * len(p)
    smooth: NDArray[np.float64] = (counts + weight * p) / (counts.sum(axis=-1, keepdims=True) + weight)
    return smooth


def _reject_if_unlikely(log_ratio: float, problem: str) -> None:
    tests = 5  # initial states, and steps in four groupings
    if log_ratio >= math.log(tests / FALSE_ALARM_RATE):
        raise DomainError(
            f"{problem}: the samples are e^{log_ratio:.0f} times more likely under other probabilities (a false alarm "
            f"has probability at most {FALSE_ALARM_RATE:g}); let both follow the same rule"
        )


def _state_text(states: State, at: Any) -> str:
    return str(jax.tree.map(lambda leaf: np.asarray(leaf)[at].tolist(), states))
