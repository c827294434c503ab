"""Does a finite domain tell the truth about itself? `starts`, `chances` and `move` beside what `reset` and `step` do.

An exact answer is about what the domain says of itself, verification about what it does. So before anything is
enumerated, episodes under random actions are sampled and compared with the enumeration, one step at a time. What was
sampled and is not in the enumeration is an error at once. Whether the rest comes as often as it should is a test by
likelihood ratio: half of the episodes suggest other probabilities, the other half is then so many times more likely
under these than under the ones that the domain states. If the domain is right, that ratio is 1 on average, whatever
was suggested, and so exceeds 1/α with a chance of at most α: exactly, for any number of samples.
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
from psyco._src.envs.actions import Discrete
from psyco._src.envs.base import State
from psyco._src.envs.finite import FiniteDomain

FALSE_ALARM = 1e-6  # of all tests together
STARTS = 2**16  # initial states that are sampled; some of them begin the episodes
STEPS = 2**16  # places for steps in a batch of episodes
CELLS = 2**23  # of a batch's table of steps and draws, where there are many draws
BATCHES = 8  # at most so many, if episodes end long before the horizon
ROUNDS = 10  # of estimating which draw it was
TRUST = 20  # the stated probabilities weigh as much as so many samples of each: what few samples suggest is mostly luck
TOLERANCE = 1e-9  # of a sum of probabilities
ONCE = {"xla_backend_optimization_level": 0}  # what runs once should compile soon


@cache
def check_law(domain: FiniteDomain) -> None:
    """Raise DomainError unless the enumeration is sound and agrees with what is sampled; equal domains pass once."""
    start, states = domain.starts()
    initial = _rows(domain, states, "starts()")
    _check_probabilities(domain, "starts()", start, len(initial))
    _check_probabilities(domain, "chances()", domain.chances())
    sampled = jax.device_get(_resets(domain, _keys(STARTS, seed=0)))
    _compare_starts(domain, np.asarray(start, np.float64), initial, sampled)
    _compare_steps(domain, np.asarray(domain.chances(), np.float64), sampled)


def _check_probabilities(domain: FiniteDomain, where: str, given: Any, states: int | None = None) -> None:
    p = np.asarray(given)
    if p.ndim != 1 or not p.size or states not in (None, p.size):
        needed = "as many probabilities as states" if states is not None else "a list of probabilities"
        raise DomainError(
            f"{where} of {domain.name} gives an array of shape {p.shape}; it should give {needed}"
        )
    if not np.isfinite(p).all() or p.min() < 0 or abs(math.fsum(p) - 1) > TOLERANCE:
        raise DomainError(
            f"{where} of {domain.name} gives probabilities from {p.min():g} to {p.max():g} with the sum "
            f"{math.fsum(p)}; none may be negative, and they sum to 1 within {TOLERANCE:g} (compute them in float64)"
        )


def _rows(domain: FiniteDomain, states: State, where: str) -> NDArray[np.int64]:
    """States with leaves `[S, ...]` as rows of whole numbers, `[S, W]`."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(states)]
    if any(leaf.dtype.kind not in "biu" for leaf in leaves):
        raise DomainError(
            f"{where} of {domain.name} gives states that are no whole numbers: {_shown(states, 0)}; "
            "use integers or Booleans for all of a state"
        )
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1).astype(np.int64)


# ---- starts -----------------------------------------------------------------------------------------------------


def _compare_starts(
    domain: FiniteDomain, start: NDArray[np.float64], initial: NDArray[np.int64], states: State
) -> None:
    sampled = _rows(domain, states, "reset")
    if sampled.shape[1] != initial.shape[1]:
        raise DomainError(f"starts() and reset of {domain.name} give states of different shape")
    _, number = np.unique(np.concatenate([initial, sampled]), axis=0, return_inverse=True)
    listed, found = np.split(number.ravel(), [len(initial)])
    p = np.asarray(np.bincount(listed, start, number.max() + 1), np.float64)  # a state may be listed twice
    impossible = np.flatnonzero(p[found] == 0)
    if len(impossible):
        raise DomainError(
            f"reset of {domain.name} gives {_shown(states, impossible[0])}, which starts() does not list with a "
            "positive probability; complete it"
        )
    fit, rest = found[: STARTS // 2], found[STARTS // 2 :]
    suggested = _smooth(np.bincount(fit, minlength=len(p)), p)
    _judge(np.log(suggested[rest] / p[rest]).sum(), f"reset of {domain.name} does not draw as starts() says")


@jax.jit(static_argnums=0, compiler_options=ONCE)
def _resets(domain: FiniteDomain, keys: Array) -> State:
    return jax.vmap(domain.reset)(keys)


def _keys(count: int, *, seed: int) -> Array:
    """Random keys `[count]`, drawn by NumPy: that needs no compilation."""
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    drawn = np.random.default_rng(seed).integers(2**32, size=(count, *shape), dtype=np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(drawn))


# ---- steps ------------------------------------------------------------------------------------------------------


class _Steps(NamedTuple):
    """Every step of B episodes; what stands behind an episode's end is not alive."""

    state: State  # [B, n, ...] each leaf
    action: NDArray[np.int32]  # [B, n]
    following: State  # [B, n, ...] each leaf
    reward: NDArray[np.float32]  # [B, n]
    done: NDArray[np.bool_]  # [B, n]
    alive: NDArray[np.bool_]  # [B, n]
    possible: NDArray[np.bool_]  # [B, n, C] would `move` with this draw have led to the same?
    counted: NDArray[np.bool_]  # [B, n] do the counters do nothing but count?


def _compare_steps(domain: FiniteDomain, chances: NDArray[np.float64], initial: State) -> None:
    steps = _sample_steps(domain, len(chances), initial)
    alive, possible = steps.alive, steps.possible & (chances > 0)
    _check_single_steps(domain, steps, possible)
    episode, time = np.nonzero(alive)
    state, action = jax.tree.map(lambda leaf: leaf[alive], (steps.state, steps.action))
    _, place = np.unique(_rows(domain, (state, action), "step"), axis=0, return_inverse=True)
    # A draw that fits the step before; 0 at first.
    before = np.pad(1 + possible.argmax(axis=-1), [(0, 0), (1, 0)])[:, :-1]
    for group, seen in (
        (np.zeros(len(action), int), ""),
        (time, ", as can be seen from one time step to the next"),
        (before[alive], ", as can be seen from what the step before has drawn"),
        (place.ravel(), ", as can be seen from state to state"),
    ):
        evidence = _evidence(possible[alive], chances, episode % 2 == 0, group)
        _judge(evidence, f"step of {domain.name} does not draw as chances() says{seen}")


def _sample_steps(domain: FiniteDomain, draws: int, initial: State) -> _Steps:
    """Episodes from the initial states, an even number; those with even numbers will suggest, the others judge."""
    fitting = min(STEPS, CELLS // draws) // domain.horizon
    episodes = max(2, min(STARTS // BATCHES, fitting)) // 2 * 2
    batches: list[_Steps] = []
    # How many there will be must not be decided by those that judge.
    while len(batches) < BATCHES and sum(batch.alive[::2].sum() for batch in batches) < STEPS // 8:
        part = slice(len(batches) * episodes, (len(batches) + 1) * episodes)
        begin = jax.tree.map(lambda leaf: leaf[part], initial)  # noqa: B023
        batches.append(jax.device_get(_play(domain, begin, *_chance(domain, episodes, seed=part.stop))))
    together: _Steps = jax.tree.map(lambda *parts: np.concatenate(parts), *batches)
    return together


def _check_single_steps(domain: FiniteDomain, steps: _Steps, possible: NDArray[np.bool_]) -> None:
    for at in map(tuple, np.argwhere(steps.alive & ~possible.any(axis=-1))):
        end = "the end" if steps.done[at] else "not the end"
        raise DomainError(
            f"step of {domain.name} leads from {_shown(steps.state, at)} with action {steps.action[at]} to "
            f"{_shown(steps.following, at)}, reward {steps.reward[at]:g}, {end}; no draw with a positive chance makes "
            "move do so: let both follow the same rule"
        )
    for at in map(tuple, np.argwhere(steps.alive & ~steps.counted)):
        raise DomainError(
            f"{domain.name} does not do in {_shown(steps.state, at)} with action {steps.action[at]} what it does with "
            f"its counters ({', '.join(domain.counters)}) at 0; name as counters only what influences nothing else"
        )


def _chance(domain: FiniteDomain, episodes: int, *, seed: int) -> tuple[Array, NDArray[np.int32]]:
    """Keys `[B]` of the steps, and random actions `[B, n]`."""
    assert isinstance(domain.actions, Discrete)
    size = episodes, domain.horizon
    actions = np.random.default_rng((seed, 1)).integers(domain.actions.n, size=size, dtype=np.int32)
    return _keys(episodes, seed=seed), actions


@jax.jit(static_argnums=0, compiler_options=ONCE)
def _play(domain: FiniteDomain, initial: State, keys: Array, actions: Array) -> _Steps:
    """Episodes as rollouts make them, from initial states and with actions `[B, n]`."""
    draws = jnp.arange(len(domain.chances()))

    def step(now: tuple[State, Array], drawn: Any) -> tuple[tuple[State, Array], _Steps]:
        (state, alive), (chance, action) = now, drawn
        following, reward, done = outcome = domain.step(chance, state, action)
        possible = jax.vmap(lambda draw: _same(domain.move(state, action, draw), outcome))(draws)
        counted = _counted(domain, chance, state, action, outcome)
        seen: list[Any] = [state, action, following, reward, done, alive, possible, counted]
        return (following, alive & jnp.logical_not(done)), _Steps(*seen)

    def episode(state: State, key: Array, actions: Array) -> _Steps:
        chances = domain.draw(key) if hasattr(domain, "draw") else jax.random.split(key, domain.horizon)
        return jax.lax.scan(step, (state, jnp.bool_(True)), (chances, actions))[1]

    return jax.vmap(episode)(initial, keys, actions)


def _counted(domain: FiniteDomain, chance: Array, state: State, action: Array, outcome: Any) -> Array:
    """Is the step, and what is seen of the state, the same if the counters had begun at 0?"""
    if not domain.counters:
        return jnp.bool_(True)
    counts = {name: getattr(state, name) for name in domain.counters}
    fresh = state._replace(**jax.tree.map(jnp.zeros_like, counts))
    following, *rest = domain.step(chance, fresh, action)
    further = {name: getattr(following, name) + count for name, count in counts.items()}
    signals = [{**domain.signals(each), **counts} for each in (state, fresh)]
    upwards = [jnp.all(getattr(following, name) >= 0) for name in counts]
    return (
        _same((following._replace(**further), *rest), outcome)
        & _same(domain.observe(state), domain.observe(fresh))
        & _same(*signals)
        & jnp.all(jnp.stack(upwards))
    )


def _same(a: Any, b: Any) -> Array:
    """Are all leaves equal? Those that are no whole numbers may be rounded otherwise where they are compiled apart."""
    forms = {str(jax.tree.structure(each)) for each in (a, b)}
    if len(forms) > 1:
        raise DomainError(
            f"states, or what is seen of them, should be of one form: {' or '.join(sorted(forms))}?"
        )

    def equal(x: Any, y: Any) -> Array:
        whole = not jnp.issubdtype(jnp.result_type(x), jnp.floating)
        return jnp.array_equal(x, y) if whole else jnp.allclose(x, y, rtol=1e-6, atol=1e-6)

    return jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(equal, a, b))))


def _evidence(
    possible: NDArray[np.bool_],
    chances: NDArray[np.float64],
    fit: NDArray[np.bool_],
    group: NDArray[np.int64],
) -> float:
    """Log likelihood ratio of the steps that are not `fit`, for chances of each group's own as the others suggest.

    Args:
        possible: `[N, C]`, which draws may have led to each step.
        chances: `[C]`, as the domain states them.
        fit: `[N]`, the steps that suggest.
        group: `[N]`, numbers from 0.
    """
    suggested = np.tile(chances, (group.max() + 1, 1))
    seen, of = possible[fit], group[fit]
    for _ in range(ROUNDS):  # expectation maximisation, since draws that lead to the same are not told apart
        part = seen * suggested[of]
        part /= part.sum(axis=1, keepdims=True)
        counts = [np.bincount(of, each, len(suggested)) for each in part.T]
        suggested = _smooth(np.stack(counts, axis=1), chances)
    likely = (possible * suggested[group]).sum(axis=1) / (possible @ chances)
    return float(np.log(likely[~fit]).sum())


# ---- both -------------------------------------------------------------------------------------------------------


def _smooth(counts: NDArray[Any], p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities from counts `[..., C]`, drawn to p where these are few; positive where p is."""
    weight = TRUST * len(p)
    smooth: NDArray[np.float64] = (counts + weight * p) / (counts.sum(axis=-1, keepdims=True) + weight)
    return smooth


def _judge(evidence: float, problem: str) -> None:
    tests = 5  # starts, and steps in four ways
    if evidence >= math.log(tests / FALSE_ALARM):
        raise DomainError(
            f"{problem}: the samples are e^{evidence:.0f} times more likely under other probabilities (a false alarm "
            f"has a chance of at most {FALSE_ALARM:g}); let both follow the same rule"
        )


def _shown(states: State, at: Any) -> str:
    return str(jax.tree.map(lambda leaf: np.asarray(leaf)[at].tolist(), states))
