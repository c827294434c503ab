"""L(m, φ): learn segment by segment, each ending in a verification. One loop for every kind of run.

What it finds goes two ways. Information, rows of the metrics table, goes to whoever listens, as soon as it is there.
State, all that is needed to go on, goes to whoever keeps it, at points that a run passes through whatever befalls it.
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

from psyco._src.verification.ledger import look_share
from psyco._src.verification.episode_stream import EpisodeStream
from psyco._src.verification.verifier import Verification, no_checks, rows_of, shown_by, verify_parameters
from psyco._src.envs.value_bounds import spans
from psyco._src.core.errors import EpisodeError, RangeError
from psyco._src.learners.base import LearnerState
from psyco._src.learners.candidate_buffer import CandidateBuffer
from psyco._src.learners.metrics import Metrics, tabulate
from psyco._src.learners.signal_check import SignalCheck
from psyco._src.learners.loop import bursts
from psyco._src.policies.serialization import Policy, check_finite, policy_for
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Episodes, Stream, stream_key
from psyco._src.verification.base import Tally, Verdict
from psyco._src.verification.methods import make_test
from psyco._src.runs.budget import RunPlan
from psyco._src.runs.problem import Problem
from psyco._src.runs.warm_start import first_parameters

logger = logging.getLogger(__name__)

CHECK_EPISODES = 100  # of a check while learning, which decides nothing


class TrainingState(NamedTuple):
    """Where learning stands: a pytree of arrays that can be kept in a checkpoint and read back."""

    generation: int  # generations done
    state: LearnerState
    # [n, 1 + C] what the learner's own checks of this segment showed: the return, and a column per constraint
    checks: NDArray[np.float64] = np.zeros((0, 1))


class RunProgress(NamedTuple):
    """How far a run has come in what it is doing."""

    phase: str  # "scaling", "learning", "checking", "selecting" or "certifying"
    done: int
    of: int  # all that this phase will do
    unit: str  # of both, "episodes" or "steps"


def _ignore(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Callback:
    """Somebody who follows a run: its files, a progress display, a tracker. What is not given is not listened to.

    Args:
        planned: called before learning begins with what the run will spend.
        rows: called with further rows of the metrics table, each once, in order.
        reached: called after a segment, or where episodes cost time after every generation, with where learning stands:
            from there the run can go on.
        progress: called now and then, always before the rows that belong to it.
        stopped: called when an episode failed and learning ends with an error, with where learning stood.
    """

    rows: Callable[[Problem, Metrics], None] = _ignore
    reached: Callable[[Problem, TrainingState], None] = _ignore
    stopped: Callable[[Problem, TrainingState], None] = _ignore
    progress: Callable[[RunProgress], None] = _ignore
    planned: Callable[[RunPlan], None] = _ignore

    @property
    def wants_plan(self) -> bool:
        """Whether somebody listens to the plan: to measure a simulator's speed takes some episodes."""
        return self.planned is not _ignore


def learn(problem: Problem, sinks: Sequence[Callback] = (), start: TrainingState | None = None) -> TrainingState:
    """Learn from the beginning, or from `start`, to the end; returns where learning ended.

    It ends before the episodes are spent if the settings say `until_satisfied` and a verification says so.
    """
    at = beginning(problem) if start is None else start
    key = stream_key(problem.settings.seed, Stream.TRAIN)
    # A run that goes on after its last verification ends where it would have ended.
    checked = at.generation > 0 and at.generation % problem.segment == 0
    enough = problem.settings.until_satisfied and problem.verified and checked and _check(problem, at)[1]
    demands = [str(demand.formula) for demand in problem.requirement.demands]
    silence = SignalCheck(demands, graded=problem.learner.checks > 0)
    for sink in sinks:
        sink.progress(_progress(problem, at))
    while not problem.is_over(at.generation, int(at.state.steps)) and not enough:
        at, enough = segment(problem, sinks, key, at, silence)
        # The end of a shorter last segment is no point that a longer run would pass through.
        if at.generation % problem.segment == 0:
            for sink in sinks:
                sink.reached(problem, at)
    return at


def beginning(problem: Problem) -> TrainingState:
    """Before the first generation."""
    none = no_checks(problem.requirement)
    if problem.start is not None:
        return TrainingState(0, _state_at(problem.keeper, first_parameters(problem.start, problem.network)), none)
    key = stream_key(problem.settings.seed, Stream.START)
    return TrainingState(0, _first_state(problem.keeper, problem.network, key), none)


def deployed(problem: Problem, at: TrainingState) -> Policy:
    """The policy that would be used if learning ended now."""
    return policy_for(problem.domain, problem.network, problem.keeper.deployed(at.state))


def segment(
    problem: Problem, sinks: Sequence[Callback], key: Array, at: TrainingState, silence: SignalCheck
) -> tuple[TrainingState, bool]:
    """One segment: generations, then a verification; also says whether learning may end."""

    def tell(metrics: Metrics) -> None:
        if metrics.rows:
            for sink in sinks:
                sink.progress(_progress(problem, at))
                sink.rows(problem, metrics)

    count = problem.segment - at.generation % problem.segment
    steps = problem.settings.steps - int(at.state.steps) if problem.settings.steps else None
    if steps is None:
        count = min(count, problem.generations - at.generation)
    last = at.generation + count
    enough = False
    unverified = Metrics({})  # the segment's last row, which shows what the verification found
    try:
        for state, seen in bursts(
            problem.keeper, problem.sampler, key, at.state,
            first=at.generation, generations=count, most=problem.segment, steps=steps,
        ):  # fmt: skip
            check_finite(problem.keeper.deployed(state))
            if news := silence.heard(seen):
                logger.warning("%s", news)
            metrics = tabulate(
                seen,
                first=at.generation,
                episodes_per_generation=problem.learner.episodes_per_generation,
                checks=problem.learner.checks,
            )
            at = TrainingState(
                at.generation + metrics.rows, state, _with_checks(problem, at.checks, seen.episodes)
            )
            ends = at.generation == last or problem.is_over(at.generation, int(state.steps))
            held_back = int(problem.verified and ends)
            unverified = metrics.tail(held_back)
            tell(metrics.head(metrics.rows - held_back))
            if not ends:  # so that a run of long episodes loses no more than a generation
                for sink in sinks:
                    sink.reached(problem, at)
        at = TrainingState(at.generation, jax.device_get(at.state), at.checks)
        if problem.verified:
            done, enough = _check(problem, at, sinks)
            _enter(unverified, problem, done)
        at = at._replace(checks=at.checks[:0])
        tell(unverified)
    except EpisodeError:
        tell(unverified)
        for sink in sinks:
            sink.stopped(problem, at)
        raise
    return at, enough


def _progress(problem: Problem, at: TrainingState) -> RunProgress:
    settings = problem.settings
    done = int(at.state.steps) if settings.steps else at.generation * problem.learner.episodes_per_generation
    of = settings.steps or problem.generations * problem.learner.episodes_per_generation
    return RunProgress("learning", min(done, of), of, settings.unit)


@jax.jit(static_argnums=(0, 1))
def _first_state(keeper: CandidateBuffer, network: Network, key: Array) -> LearnerState:
    return keeper.init(network.init(key))


@jax.jit(static_argnums=0)
def _state_at(keeper: CandidateBuffer, theta: Array) -> LearnerState:
    return keeper.init(theta)


def teller(sinks: Sequence[Callback], phase: str, most: int) -> Callable[[int], None]:
    """Tells the sinks how many episodes of a phase there were, whenever there are more."""
    done = 0

    def told(more: int) -> None:
        nonlocal done
        done += more
        for sink in sinks:
            sink.progress(RunProgress(phase, min(done, most), most, "episodes"))

    return told


def _check(problem: Problem, at: TrainingState, sinks: Sequence[Callback] = ()) -> tuple[Verification, bool]:
    """Look at the current policy outside the learning loop; also says whether learning may end.

    The paper verifies by Alg. BV, and so does its learner. Elsewhere a check plays a fixed number of episodes and shows
    what they let one believe: early on a verdict by Alg. BV would be its prior's. Where the outcome may end learning,
    every check is one look of many, by a test with an error rate: the i-th may use 1/(i(i+1)) of the error, so that all
    together keep to what is permitted. Where episodes cost time and the learner has played enough of its policy in this
    segment, no other episodes are played.
    """
    settings = problem.settings
    if not settings.until_satisfied and len(at.checks) >= min(settings.verify_episodes, CHECK_EPISODES):
        with suppress(RangeError):  # episodes whose seeds are known say better which one it was
            return shown_by(problem.requirement, spans(problem.requirement, problem.domain), at.checks), False
    theta = jnp.asarray(problem.keeper.deployed(at.state))
    key = stream_key(settings.seed, Stream.CHECK, at.generation)
    most = settings.max_episodes if settings.until_satisfied else settings.verify_episodes
    source = EpisodeStream(problem.sampler, theta, key, problem.domain, problem.requirement)
    look = partial(verify_parameters, source._replace(told=teller(sinks, "checking", most)))
    if settings.until_satisfied:
        share = look_share(-(-at.generation // problem.segment))
        done = look(method="anytime", max_episodes=settings.max_episodes, share=share)
        return done, done.verdict is Verdict.SATISFIED
    if settings.learner == "snes":
        return look(method="bayes", max_episodes=settings.verify_episodes), False
    return look(method="fixed", max_episodes=min(settings.verify_episodes, CHECK_EPISODES)), False


def _with_checks(problem: Problem, checks: NDArray[np.float64], episodes: Episodes) -> NDArray[np.float64]:
    """The checks so far and those of further generations `[G, B]`; none where episodes cost next to nothing."""
    learner = problem.learner
    if problem.sampler.compiled or not learner.checks or not problem.verified:
        return checks

    def joined(x: Any) -> Any:  # a requirement without formulas has columns of no width
        return x[:, -learner.checks :].reshape(len(x) * learner.checks, *x.shape[2:])

    own: Episodes = jax.tree.map(joined, episodes._replace(trace=None, seen=None))
    return np.concatenate([checks, rows_of(problem.requirement, own)])


def _enter(metrics: Metrics, problem: Problem, done: Verification) -> None:
    """The outcome of a verification goes into the last row; of several probabilities, that which held least often."""
    row: dict[str, Any] = {
        "verified_confidence": done.confidence,
        "verified_return": np.mean(done.returns, dtype=np.float64),
        "verified_episodes": done.episodes,
    }
    shares = [tally for tally in done.progress if isinstance(tally, Tally)]
    if shares:
        least = min(range(len(shares)), key=lambda k: shares[k].share)
        constraint = problem.requirement.probabilities[least]
        belief, beside = make_test("bayes", constraint), (1.0 - constraint.confidence) / 2.0
        row["verified_share"] = shares[least].share
        row["verified_lower"], row["verified_upper"] = belief.bounds(shares[least].counts, beside)
    if problem.settings.until_satisfied or problem.settings.learner == "snes":
        row["verdict"] = done.verdict.name
    for name, value in row.items():
        metrics[name][-1] = value
