"""The training loop: generations of propose, play, update; compiled for compiled domains, a host loop for others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import EpisodeError
from psyco._src.learners.base import (
    Generation,
    Learner,
    LearnerState,
    Proposal,
    Propose,
    UpdateInfo,
    ahead_of,
    count_steps,
    count_violations,
)
from psyco._src.learners.belief import double_precision, single_precision
from psyco._src.learners.metrics import Metrics
from psyco._src.rollout.episodes import COMPILER_OPTIONS, Episodes, Sampler, episode_keys, in_members
from psyco._src.rollout.jax_sampler import raise_nonfinite


def run_generations(
    learner: Learner,
    sampler: Sampler,
    key: Array,
    state: LearnerState,
    *,
    first: int,
    generations: int,
    capacity: int | None = None,
    steps: int | None = None,
    violations: int | None = None,
) -> Iterator[tuple[LearnerState, Generation]]:
    """Run generations and yield the new state with the generations so far, stacked `[G]`.

    A compiled sampler runs all generations in one program and yields once. Any other sampler yields after each
    generation, so that callbacks know the state of learning when an episode fails. The result is a function of `key`
    and the generations' numbers: 2 x 50 generations are 100, on any number of devices or workers.

    Args:
        learner: the learner.
        sampler: plays the episodes.
        key: of all randomness.
        state: of the learner.
        first: the number of the first generation.
        generations: how many to run.
        capacity: of the compiled program, by default `generations`; calls with equal capacity share one program.
        steps: end with the generation in which this number of steps is reached.
        violations: end before a generation whose episodes might bring the violating ones above this number.
    """
    if sampler.compiled:
        capacity = generations if capacity is None else capacity

        def run(count: int) -> _LoopState:
            budgets: list[Any] = [None if budget is None else np.int32(budget) for budget in (steps, violations)]
            left = _Remaining(*budgets)
            with double_precision():
                return _loop(learner, sampler, capacity, key, state, np.int32(first), np.int32(count), left)

        after = run(generations)
        done = int(after.done)
        played: Generation = jax.tree.map(lambda rows: rows[:done], jax.device_get(after.rows))
        if (nonfinite := played.episodes.nonfinite) is not None and nonfinite.any():
            good = int(nonfinite.any(axis=1).argmax())  # generations before the first invalid one
            with double_precision():
                proposal, keys = _propose(learner, False, key, run(good).state, np.int32(first + good))
            raise_nonfinite(sampler, nonfinite[good], proposal.theta, keys, proposal.std, proposal.hold)
        yield after.state, played
        return
    yield from _host_loop(learner, sampler, key, state, range(first, first + generations), steps, violations)


def _host_loop(
    learner: Learner,
    sampler: Sampler,
    key: Array,
    state: LearnerState,
    numbers: range,
    steps: int | None,
    violations: int | None,
) -> Iterator[tuple[LearnerState, Generation]]:
    """Run generations one by one. If a learner proposes ahead, the next episodes are played during an update."""
    coming: tuple[Proposal, Episodes] | None = None
    failed: EpisodeError | None = None
    for number in numbers:
        with double_precision():
            if coming is None:
                coming = _play(sampler, *_propose(learner, False, key, state, np.int32(number)))
            proposal, episodes = coming
            if steps is not None:
                steps -= int(count_steps(episodes))
            goes_on = number + 1 in numbers and (steps is None or steps > 0)
            if violations is not None:
                violations -= int(count_violations(episodes))
                goes_on = goes_on and violations >= learner.episodes_per_generation
            ahead = None
            if goes_on and ahead_of(learner):
                ahead = jax.block_until_ready(_propose(learner, True, key, state, np.int32(number + 1)))
            # JAX computes the update in the background, until its result is needed.
            state, info = _update(learner, state, proposal, episodes)
            try:
                coming = None if ahead is None else _play(sampler, *ahead)
            except EpisodeError as error:
                failed = error
        played = Generation(episodes._replace(trace=None, obs_stats=None), info)
        yield state, jax.tree.map(lambda x: np.asarray(x)[None], jax.device_get(played))
        if failed is not None:  # raised after this generation, which succeeded, has been yielded
            raise failed
        if not goes_on:
            return


def train(
    learner: Learner, sampler: Sampler, key: Array, state: LearnerState, **schedule: Any
) -> tuple[LearnerState, Generation]:
    """Run generations to the end; return the last state and all generations, stacked `[G]`."""
    states, rows = zip(*run_generations(learner, sampler, key, state, **schedule), strict=True)
    return states[-1], jax.tree.map(lambda *parts: np.concatenate(parts), *rows)


class _Remaining(NamedTuple):
    """Remaining budgets beside the generations; None: not limited."""

    steps: Array | None  # [] int32
    violations: Array | None  # [] int32


class _LoopState(NamedTuple):
    """The state of the compiled loop."""

    done: Array  # [] int32, generations
    left: _Remaining
    state: LearnerState
    rows: Generation  # [capacity], filled up to `done`


@jax.jit(static_argnums=(0, 1, 2), compiler_options=COMPILER_OPTIONS)
def _loop(
    learner: Learner,
    sampler: Sampler,
    capacity: int,
    key: Array,
    state: LearnerState,
    first: Array,
    generations: Array,
    left: _Remaining,
) -> _LoopState:
    """Run up to `generations` of `capacity` generations, and none after another budget is used up."""

    def generation(state: LearnerState, keys: _GenerationKeys) -> tuple[LearnerState, Generation]:
        with single_precision():
            proposal, episodes = _play(sampler, *_with_keys(learner.propose, keys, state))
        state, info = learner.update(state, proposal, episodes)
        return state, Generation(episodes._replace(trace=None, obs_stats=None), info)

    def step(now: _LoopState) -> _LoopState:
        state, row = generation(now.state, jax.tree.map(lambda key: key[now.done], keys))
        rows = jax.tree.map(lambda rows, row: rows.at[now.done].set(row), now.rows, row)
        spent = count_steps(row.episodes), count_violations(row.episodes)
        left = _Remaining(
            *(None if budget is None else budget - each for budget, each in zip(now.left, spent, strict=True))
        )
        return _LoopState(now.done + 1, left, state, rows)

    def goes_on(now: _LoopState) -> Array:
        more = (now.done < generations) & (True if now.left.steps is None else now.left.steps > 0)
        return more & (now.left.violations is None or now.left.violations >= learner.episodes_per_generation)

    with single_precision():
        numbers = first + jnp.arange(capacity, dtype=jnp.int32)
        keys = jax.vmap(lambda number: _keys(learner, key, number))(numbers)  # cheaper all at once
    one = jax.eval_shape(generation, state, jax.tree.map(lambda key: key[0], keys))[1]
    rows = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), one)
    return jax.lax.while_loop(goes_on, step, _LoopState(jnp.int32(0), left, state, rows))


@jax.jit(static_argnums=(0, 1))
def _propose(learner: Learner, ahead: bool, key: Array, state: LearnerState, number: Array) -> tuple[Proposal, Array]:
    """Return a proposal and the key of each of its episodes; `ahead`: the one after the next update."""
    propose = ahead_of(learner) if ahead else learner.propose
    assert propose is not None
    with single_precision():
        return _with_keys(propose, _keys(learner, key, number), state)


@jax.jit(static_argnums=0)
def _update(
    learner: Learner, state: LearnerState, proposal: Proposal, episodes: Episodes
) -> tuple[LearnerState, UpdateInfo]:
    return learner.update(state, proposal, episodes)


class _GenerationKeys(NamedTuple):
    """The random keys of one generation."""

    learner: Array  # []
    episodes: Array  # [B]


def _keys(learner: Learner, key: Array, number: Array) -> _GenerationKeys:
    own, episodes = episode_keys(key, 2 * number, 2)  # two keys for each generation
    return _GenerationKeys(own, episode_keys(episodes, 0, learner.episodes_per_generation))


def _with_keys(propose: Propose, keys: _GenerationKeys, state: LearnerState) -> tuple[Proposal, Array]:
    proposal = propose(keys.learner, state)
    seeds = keys.episodes if proposal.member is None else in_members(keys.episodes, proposal.member)
    return proposal, seeds if proposal.episode is None else seeds[proposal.episode]


def _play(sampler: Sampler, proposal: Proposal, keys: Array) -> tuple[Proposal, Episodes]:
    with single_precision():
        if proposal.std is None:
            return proposal, sampler(proposal.theta, keys)
        return proposal, sampler.explore(proposal.theta, proposal.std, keys, proposal.hold)


# Warn when a constraint gives no learning signal: all episodes violate it with equal cost for 20 generations.


PATIENCE = 20  # successive generations
ADVICE = (
    "To help: use --severity, which learns from the distance to satisfaction; state the formula about return, "
    "count(...) or sum(...), whose distance is always known; or start from a policy that satisfies it sometimes, "
    "by --from"
)


class SignalCheck:
    """A monitor of the generations of a run, which warns once.

    Args:
        constraints: the formulas of the probability constraints, as text.
        shaped: whether the learner uses shaping costs where episodes have them.
    """

    def __init__(self, constraints: Sequence[str], *, shaped: bool) -> None:
        self.constraints, self.shaped = constraints, shaped
        self.streak = np.zeros(len(constraints), int)  # successive generations without signal, of each constraint
        self.warned = False

    def warning(self, generations: Generation) -> str | None:
        """Return the warning that is due after further generations, stacked `[G]`, or None."""
        episodes, lam = generations.episodes, np.asarray(generations.info.lam)
        costs = np.asarray(
            episodes.shaping_cost if self.shaped and episodes.shaping_cost is not None else episodes.cost
        )  # [G, B, K]
        failing = ~np.asarray(episodes.satisfied).any(axis=1)  # [G, K] in all episodes
        no_signal = failing & (np.ptp(costs, axis=1) == 0)
        for weight, now in zip(lam, no_signal, strict=True):
            self.streak = np.where(now, self.streak + 1, 0)
            if not self.warned and self.streak.max(initial=0) >= PATIENCE:
                self.warned = True
                return self._text(self.constraints[int(self.streak.argmax())], float(weight))
        return None

    def _text(self, constraint: str, weight: float) -> str:
        effect = (
            "learning follows the return alone"
            if weight > 0
            else "there is nothing to learn from; other learners than snes would follow the return alone"
        )
        return (
            f"{constraint} gives no learning signal: in {PATIENCE} generations all episodes violated it with equal "
            f"cost, so {effect} (λ is {weight:.2g}). {ADVICE}"
        )


# Warn when the return is lost to the constraints.


WATCHED_FRACTION = 0.2  # of learning
MIN_WATCHED = 10  # generations
FIRST = 3  # generations at the start, before much is learned
ROOM = 0.5  # of the distance from the required probability to 1, above which there is room to spare
LOW_LAMBDA = 0.02  # at which the return has no weight
FALL = 0.25  # of the range of the mean return, from which it falls
MARGIN_ADVICE = "aim less far above the required probability (--option margin=0.1), "
RETURN_ADVICE = (
    "use another learner (--learner) or more steps, or start from a policy that was learned without the constraints, "
    "by --from"
)


class ReturnCheck:
    """A monitor of the metrics of a run; each of its three warnings comes once.

    Args:
        generations: of the whole run, or the expected number.
        p_req: largest required probability; None: no probability is required.
        sign: 1 if the return is maximised, -1 if it is minimised.
        from_start: whether the metrics begin with an untrained policy.
        has_margin: whether the learner has the option `margin`.
    """

    def __init__(
        self,
        generations: int,
        *,
        p_req: float | None,
        sign: float = 1.0,
        from_start: bool,
        has_margin: bool,
    ) -> None:
        self.window = max(MIN_WATCHED, round(WATCHED_FRACTION * generations))
        self.p_req, self.sign, self.from_start = p_req, sign, from_start
        self.advice = f"To help: {MARGIN_ADVICE * has_margin}{RETURN_ADVICE}"
        self.rows = np.zeros((0, 3))  # return, satisfied share and λ of each generation
        self.warned: set[str] = set()

    def warnings(self, metrics: Metrics) -> list[str]:
        """Return the warnings that are due after further rows of the metrics table."""
        kind = "deployed_" if "deployed_return" in metrics else ""
        columns = metrics[f"{kind}return"], metrics[f"{kind}satisfied"], metrics["lambda"]
        self.rows = np.concatenate([self.rows, np.stack(columns, axis=1)])
        if len(self.rows) < self.window:
            return []
        due = {name: text for name, text in self._found().items() if name not in self.warned}
        self.warned |= due.keys()
        return [f"{text}. {self.advice}" for text in due.values()]

    def _found(self) -> dict[str, str]:
        returns, satisfied, lam = self.rows[-self.window :].T
        half = self.window // 2
        found = {}
        if lam.max() <= LOW_LAMBDA:
            found["weight"] = (
                f"λ, the weight of the return, has been {lam.max():.2g} for a fifth of learning: learning follows the "
                "constraints alone"
            )
        if self.p_req is None:
            return found
        start, before, now = self.rows[:FIRST, 0], returns[:half], returns[-half:]
        gain, noise = self.sign * (now.mean() - start.mean()), float(now.std() * np.sqrt(1.0 / FIRST + 1.0 / half))
        # One episode with a large return makes the noise large: the median tells whether the others have improved.
        still = gain <= 2.0 * noise and np.median(self.sign * now) <= (self.sign * start).max()
        if self.from_start and len(self.rows) >= 2 * self.window and satisfied.min() == 1.0 and still:
            found["still"] = (
                f"all episodes have satisfied the constraints for a fifth of learning, and the return stands still at "
                f"{now.mean():.4g}, where it began"
            )
        means = [part.mean() for part in np.array_split(self.rows[:, 0], len(self.rows) // half)]
        fall = self.sign * (before.mean() - now.mean())
        room = min(satisfied[:half].mean(), satisfied[-half:].mean()) >= self.p_req + ROOM * (1.0 - self.p_req)
        if room and fall > max(FALL * np.ptp(means), 6.0 * _standard_error(before, now)):
            found["fall"] = (
                f"the return has become worse, {now.mean():.4g} after {before.mean():.4g}, although the constraints "
                f"hold with room to spare (in {satisfied.mean():.1%} of the episodes)"
            )
        return found


def _standard_error(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the standard error of the difference of two means."""
    return float(np.sqrt(one.var() / len(one) + other.var() / len(other)))
