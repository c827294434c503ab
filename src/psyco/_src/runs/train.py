"""L(m, φ): the training loop. Every segment plays and learns from generations, checks the policy, records the outcome.

Callbacks receive two kinds of data. Rows of the metrics table arrive as soon as they are known. Training states, from
which the run can be resumed, arrive at points that every run passes through, interrupted or not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import EpisodeError, RangeError
from psyco._src.envs.variants import MEAN
from psyco._src.learners.base import Generation, LearnerState
from psyco._src.learners.candidate_buffer import CandidateBuffer
from psyco._src.learners.learner_registry import learner_class
from psyco._src.learners.loop import ReturnCheck, SignalCheck, run_generations
from psyco._src.learners.metrics import Metrics, tabulate
from psyco._src.policies.network import Network
from psyco._src.policies.serialization import Policy, check_finite
from psyco._src.rollout.episodes import Episodes, Stream, stream_key
from psyco._src.runs.budget import CHECK_EPISODES, RunPlan
from psyco._src.runs.problem import Problem
from psyco._src.runs.warm_start import initial_parameters
from psyco._src.verification.base import Verdict
from psyco._src.verification.episode_stream import EpisodeStream
from psyco._src.verification.ledger import look_share
from psyco._src.verification.methods import make_test
from psyco._src.verification.tally import Tally
from psyco._src.verification.verifier import (
    Verification,
    empty_rows,
    episode_rows,
    evaluate_rows,
    verify_parameters,
)

logger = logging.getLogger(__name__)


class TrainingState(NamedTuple):
    """The state of training after a generation: a pytree of arrays, which checkpoints hold."""

    generation: int  # generations done
    state: LearnerState
    # [n, 1 + C] outcomes of the learner's own check episodes in this segment: the return and a column per constraint
    checks: NDArray[np.float64] = np.zeros((0, 1))


class RunProgress(NamedTuple):
    """Progress of a run within its current phase."""

    phase: str  # "cloning", "learning", "checking", "selecting", "certifying" or "comparing with baselines"
    done: int
    total: int
    unit: str  # of both, "episodes", "steps" or "updates"


def _ignore(*_: Any) -> None:
    pass


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Callback:
    """Functions that a run calls: to write its files, to show progress, to track it. All are optional.

    Args:
        on_metrics: called with further rows of the metrics table, each once, in order.
        on_checkpoint: called after every segment, and if episodes cost time after every generation, with a state from
            which the run can be resumed.
        on_error: called with the state of training when an episode has failed and the run ends with an error.
        on_progress: called at irregular intervals, always before the rows that belong to it.
        on_plan: called with the plan of the run before learning starts.
        on_look: called with each batch of episodes of a certificate, and the index of its first episode.
        on_start: called with the policy that learning starts from, unless its parameters are random.
        should_stop: asked after every `on_metrics`; if it returns true, the run ends without a certificate and can be
            resumed.
    """

    on_metrics: Callable[[Problem, Metrics], None] = _ignore
    on_checkpoint: Callable[[Problem, TrainingState], None] = _ignore
    on_error: Callable[[Problem, TrainingState], None] = _ignore
    on_progress: Callable[[RunProgress], None] = _ignore
    on_plan: Callable[[RunPlan], None] = _ignore
    on_start: Callable[[Policy], None] = _ignore
    should_stop: Callable[[], bool] = _never
    on_look: Callable[[int, Episodes], None] = _ignore

    @property
    def wants_plan(self) -> bool:
        """Whether `on_plan` is given: a plan requires measuring the simulator, which takes some episodes."""
        return self.on_plan is not _ignore


def learn(problem: Problem, callbacks: Sequence[Callback] = (), start: TrainingState | None = None) -> TrainingState:
    """Train from random parameters, or from `start`, until the budget is spent; return the last state.

    With `until_satisfied`, training ends with the first check that finds all constraints satisfied.
    """
    at = initial_state(problem) if start is None else start
    key = stream_key(problem.settings.seed, Stream.TRAIN)
    signal_check = SignalCheck(
        [str(bound.formula) for bound in problem.requirement.probability_bounds],
        shaped=problem.learner.checks > 0,
    )
    return_check = ReturnCheck(
        problem.generations,
        p_req=max((bound.p_req for bound in problem.requirement.probability_bounds), default=None),
        sign=1.0 if problem.requirement.goal.maximize else -1.0,
        from_start=start is None and problem.initial_policy is None,
        has_margin=hasattr(problem.learner, "margin"),
    )

    def warn(problem: Problem, metrics: Metrics) -> None:
        for warning in return_check.warnings(metrics):
            logger.warning("%s", warning)

    callbacks = [*callbacks, Callback(on_metrics=warn)]
    for callback in callbacks:
        callback.on_progress(_learning_progress(problem, at))
    # A run that is resumed after its last check must end there, as it would have without the interruption.
    after_check = at.generation > 0 and at.generation % problem.check_interval == 0
    may_end = problem.settings.until_satisfied and problem.has_checks and after_check
    ended = may_end and _check(problem, at)[1]
    while not problem.is_finished(at.generation, at.state) and not ended:
        at, ended = run_segment(problem, callbacks, key, at, signal_check)
        if is_stopped(callbacks):
            break
        # A longer run does not pass through the end of a shorter last segment.
        if at.generation % problem.check_interval == 0:
            for callback in callbacks:
                callback.on_checkpoint(problem, at)
    return at


def run_segment(
    problem: Problem, callbacks: Sequence[Callback], key: Array, at: TrainingState, signal_check: SignalCheck
) -> tuple[TrainingState, bool]:
    """Play and learn until the next check, check the policy, record the outcome.

    Returns the state after the segment, and whether the check or the clock ends training.
    """
    settings = problem.settings
    generations = problem.check_interval - at.generation % problem.check_interval
    steps = problem.last_step - int(at.state.steps) if settings.steps else None
    if steps is None:
        generations = min(generations, problem.generations - at.generation)
    last = at.generation + generations
    unchecked = Metrics({})  # the last row of the segment; it will contain the outcome of the check
    satisfied = is_over = False
    try:
        # Play and learn: a compiled domain runs all generations at once, an environment one after the other.
        for state, played in run_generations(
            problem.wrapped_learner, problem.training_sampler, key, at.state,
            first=at.generation, generations=generations, capacity=problem.check_interval, steps=steps,
            violations=problem.violations_left(at.state),
        ):  # fmt: skip
            check_finite(problem.wrapped_learner.deployed(state))
            played = played._replace(episodes=problem.as_measured(played.episodes))
            if warning := signal_check.warning(played):
                logger.warning("%s", warning)
            metrics = _tabulate(problem, played, at.generation)
            checks = _append_checks(problem, at.checks, played.episodes)
            at = TrainingState(at.generation + metrics.rows, state, checks)
            is_over = problem.clock is not None and problem.clock.is_over(metrics["length"][-1])
            ends = is_over or at.generation == last or problem.is_finished(at.generation, state)
            held_back = int(problem.has_checks and ends)
            unchecked = metrics.tail(held_back)
            _record(problem, callbacks, at, metrics.head(metrics.rows - held_back))
            if is_stopped(callbacks):
                return at, False
            if ends:
                break
            for callback in callbacks:  # so that an interrupted run with long episodes loses at most a generation
                callback.on_checkpoint(problem, at)
        at = TrainingState(at.generation, jax.device_get(at.state), at.checks)
        # Check.
        if problem.has_checks:
            outcome, satisfied = _check(problem, at, callbacks)
            _enter_check(unchecked, problem, outcome)
        # Record.
        at = at._replace(checks=at.checks[:0])
        _record(problem, callbacks, at, unchecked)
    except EpisodeError:
        _record(problem, callbacks, at, unchecked)
        for callback in callbacks:
            callback.on_error(problem, at)
        raise
    return at, satisfied or is_over


def is_stopped(callbacks: Sequence[Callback]) -> bool:
    """Return whether a callback stops the run."""
    return any(callback.should_stop() for callback in callbacks)


def initial_state(problem: Problem) -> TrainingState:
    """Return the state before the first generation."""
    no_checks = empty_rows(problem.requirement)
    if problem.initial_policy is not None:
        theta = jnp.asarray(initial_parameters(problem.initial_policy, problem.network))
        return TrainingState(0, _state_from(problem.wrapped_learner, theta), no_checks)
    key = stream_key(problem.settings.seed, Stream.INIT)
    return TrainingState(0, _random_state(problem.wrapped_learner, problem.network, key), no_checks)


@jax.jit(static_argnums=(0, 1))
def _random_state(learner: CandidateBuffer, network: Network, key: Array) -> LearnerState:
    return learner.init(network.init(key))


@jax.jit(static_argnums=0)
def _state_from(learner: CandidateBuffer, theta: Array) -> LearnerState:
    return learner.init(theta)


def current_policy(problem: Problem, at: TrainingState) -> Policy:
    """Return the policy that would be deployed if training ended now."""
    return problem.policy(problem.wrapped_learner.deployed(at.state))


def initial_candidate(problem: Problem) -> Policy:
    """Return the policy before the first generation: untrained, or the one that learning starts from."""
    return current_policy(problem, initial_state(problem))


# ---- check --------------------------------------------------------------------------------------------------


def _check(problem: Problem, at: TrainingState, callbacks: Sequence[Callback] = ()) -> tuple[Verification, bool]:
    """Check the current policy; return the outcome, and whether it ends training.

    The paper's learner is checked by Alg. BV, as in the paper. The other learners are checked by a fixed number of
    episodes, since early on a verdict by Alg. BV would be that of its prior. If the outcome may end training, every
    check is one of many looks, by a test with a bounded error: the i-th may use 1/(i(i+1)) of the permitted error. If
    episodes cost time and the learner has played enough episodes of its policy in this segment, these are used.
    """
    settings = problem.settings
    if not settings.until_satisfied and len(at.checks) >= min(settings.verify_episodes, CHECK_EPISODES):
        # On an error other episodes are played, since their seeds are known and the message can name the episode.
        with suppress(RangeError):
            return evaluate_rows(problem.requirement, problem.value_ranges, at.checks), False
    most = settings.max_episodes if settings.until_satisfied else settings.verify_episodes
    source = EpisodeStream(
        problem.sampler,
        jnp.asarray(problem.wrapped_learner.deployed(at.state)),
        stream_key(settings.seed, Stream.CHECK, at.generation),
        problem.domain,
        problem.requirement,
        progress_reporter(callbacks, "checking", most),
        problem.value_ranges,
    )
    look = partial(verify_parameters, source)
    if settings.until_satisfied:
        share = look_share(-(-at.generation // problem.check_interval))
        outcome = look(method="anytime", max_episodes=settings.max_episodes, share=share)
        return outcome, outcome.verdict is Verdict.SATISFIED
    method = learner_class(settings.learner).check_method
    most = min(settings.verify_episodes, CHECK_EPISODES) if method == "fixed" else settings.verify_episodes
    return look(method=method, max_episodes=most), False


def _append_checks(problem: Problem, checks: NDArray[np.float64], episodes: Episodes) -> NDArray[np.float64]:
    """Append the check episodes of further generations `[G, B]`.

    In a compiled domain they are not needed. Robust learning has chosen their environments, and a check draws its own.
    """
    size = problem.learner.checks
    if problem.sampler.compiled or not size or not problem.has_checks or problem.settings.robust != MEAN:
        return checks

    def join(x: Any) -> Any:  # without formulas, columns have width 0, so no dimension can be inferred
        return x[:, -size:].reshape(len(x) * size, *x.shape[2:])

    played: Episodes = jax.tree.map(join, episodes._replace(trace=None, obs_stats=None))
    return np.concatenate([checks, episode_rows(problem.requirement, played)])


# ---- record -------------------------------------------------------------------------------------------------


def _tabulate(problem: Problem, played: Generation, first: int) -> Metrics:
    learner = problem.learner
    return tabulate(
        played,
        first=first,
        episodes_per_generation=learner.episodes_per_generation,
        checks=learner.checks,
    )


def _record(problem: Problem, callbacks: Sequence[Callback], at: TrainingState, metrics: Metrics) -> None:
    if metrics.rows:
        for callback in callbacks:
            callback.on_progress(_learning_progress(problem, at))
            callback.on_metrics(problem, metrics)


def _enter_check(metrics: Metrics, problem: Problem, outcome: Verification) -> None:
    """Enter the outcome of a check into the last row; of several probabilities, the one with the lowest share."""
    settings = problem.settings
    row: dict[str, Any] = {
        "verified_confidence": outcome.confidence,
        "verified_return": np.mean(outcome.returns, dtype=np.float64),
        "verified_episodes": outcome.episodes,
    }
    tallies = [tally for tally in outcome.tallies if isinstance(tally, Tally)]
    if tallies:
        lowest = min(range(len(tallies)), key=lambda k: tallies[k].share)
        constraint = problem.requirement.probability_constraints[lowest]
        belief, tail = make_test("bayes", constraint), (1.0 - constraint.confidence) / 2.0
        row["verified_share"] = tallies[lowest].share
        row["verified_lower"], row["verified_upper"] = belief.bounds(tallies[lowest].counts, tail)
    if settings.until_satisfied or learner_class(settings.learner).check_method != "fixed":
        row["verdict"] = outcome.verdict.name
    for name, value in row.items():
        metrics[name][-1] = value


def _learning_progress(problem: Problem, at: TrainingState) -> RunProgress:
    settings, size = problem.settings, problem.learner.episodes_per_generation
    done = int(at.state.steps) if settings.steps else at.generation * size
    total = problem.last_step or problem.generations * size
    return RunProgress("learning", min(done, total), total, settings.unit)


def progress_reporter(callbacks: Sequence[Callback], phase: str, total: int) -> Callable[[int], None]:
    """Return a function that reports further episodes of a phase to the callbacks."""
    done = 0

    def report(more: int) -> None:
        nonlocal done
        done += more
        for callback in callbacks:
            callback.on_progress(RunProgress(phase, min(done, total), total, "episodes"))

    return report
