"""L(m, φ): learn segment by segment, each ending in a verification. One loop for every kind of run.

What it finds goes two ways. Information, rows of the metrics table, goes to whoever listens, as soon as it is there.
State, all that is needed to go on, goes to whoever keeps it, at points that a run passes through whatever befalls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psyco._src.certify.ledger import look_share
from psyco._src.certify.source import Source
from psyco._src.certify.verify import Verification, verify_parameters
from psyco._src.errors import EpisodeError
from psyco._src.learn.base import LearnerState
from psyco._src.learn.keep import Keeping
from psyco._src.learn.metrics import Metrics, tabulate
from psyco._src.learn.train import bursts
from psyco._src.policy.file import Policy, policy_for
from psyco._src.policy.network import Network
from psyco._src.rollout.episodes import Stream, stream_key
from psyco._src.smc.base import Tally, Verdict
from psyco._src.smc.methods import make_test
from psyco._src.synthesis.problem import Problem

CHECK_EPISODES = 100  # of a check while learning, which decides nothing


class Position(NamedTuple):
    """Where learning stands: a pytree of arrays that can be kept in a checkpoint and read back."""

    generation: int  # generations done
    state: LearnerState


def _ignore(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Sink:
    """Somebody who follows a run: its files, a progress display, a tracker. What is not given is not listened to.

    Args:
        rows: called with further rows of the metrics table, each once, in order.
        reached: called when a segment is complete, with where learning stands: from there the run can go on.
        stopped: called when an episode failed and learning ends with an error, with where learning stood.
    """

    rows: Callable[[Problem, Metrics], None] = _ignore
    reached: Callable[[Problem, Position], None] = _ignore
    stopped: Callable[[Problem, Position], None] = _ignore


def learn(problem: Problem, sinks: Sequence[Sink] = (), start: Position | None = None) -> Position:
    """Learn from the beginning, or from `start`, to the end; returns where learning ended.

    It ends before the episodes are spent if the settings say `until_satisfied` and a verification says so.
    """
    at = beginning(problem) if start is None else start
    key = stream_key(problem.settings.seed, Stream.TRAIN)
    # A run that goes on after its last verification ends where it would have ended.
    checked = problem.settings.until_satisfied and problem.verified and at.generation > 0
    enough = checked and _check(problem, at)[1]
    while at.generation < problem.generations and not enough:
        at, enough = _segment(problem, sinks, key, at)
        # The end of a shorter last segment is no point that a longer run would pass through.
        if at.generation % problem.segment == 0:
            for sink in sinks:
                sink.reached(problem, at)
    return at


def beginning(problem: Problem) -> Position:
    """Before the first generation."""
    key = stream_key(problem.settings.seed, Stream.START)
    return Position(0, _first_state(problem.keeper, problem.network, key))


def deployed(problem: Problem, at: Position) -> Policy:
    """The policy that would be used if learning ended now."""
    return policy_for(problem.domain, problem.network, problem.keeper.deployed(at.state))


def _segment(problem: Problem, sinks: Sequence[Sink], key: Array, at: Position) -> tuple[Position, bool]:
    """One segment: generations, then a verification; also says whether learning may end."""

    def tell(metrics: Metrics) -> None:
        if metrics.rows:
            for sink in sinks:
                sink.rows(problem, metrics)

    count = min(problem.segment, problem.generations - at.generation)
    last = at.generation + count
    enough = False
    unverified = Metrics({})  # the segment's last row, which shows what the verification found
    try:
        for state, seen in bursts(
            problem.keeper, problem.sampler, key, at.state,
            first=at.generation, generations=count, most=problem.segment,
        ):  # fmt: skip
            metrics = tabulate(
                seen, first=at.generation, episodes_per_generation=problem.learner.episodes_per_generation
            )
            at = Position(at.generation + metrics.rows, state)
            held_back = int(problem.verified and at.generation == last)
            unverified = metrics.tail(held_back)
            tell(metrics.head(metrics.rows - held_back))
        at = Position(at.generation, jax.device_get(at.state))
        if problem.verified:
            done, enough = _check(problem, at)
            _enter(unverified, problem, done)
        tell(unverified)
    except EpisodeError:
        tell(unverified)
        for sink in sinks:
            sink.stopped(problem, at)
        raise
    return at, enough


@jax.jit(static_argnums=(0, 1))
def _first_state(keeper: Keeping, network: Network, key: Array) -> LearnerState:
    return keeper.init(network.init(key))


def _check(problem: Problem, at: Position) -> tuple[Verification, bool]:
    """Look at the current policy outside the learning loop; also says whether learning may end.

    The paper verifies by Alg. BV, and so does its learner. Elsewhere a check plays a fixed number of episodes and shows
    what they let one believe: early on a verdict by Alg. BV would be its prior's. Where the outcome may end learning,
    every check is one look of many, by a test with an error rate: the i-th may use 1/(i(i+1)) of the error, so that all
    together keep to what is permitted.
    """
    settings = problem.settings
    theta = jnp.asarray(problem.keeper.deployed(at.state))
    key = stream_key(settings.seed, Stream.CHECK, at.generation)
    look = partial(
        verify_parameters, Source(problem.sampler, theta, key, problem.domain, problem.requirement)
    )
    if settings.until_satisfied:
        share = look_share(-(-at.generation // problem.segment))
        done = look(method="anytime", max_episodes=settings.max_episodes, share=share)
        return done, done.verdict is Verdict.SATISFIED
    if settings.learner == "snes":
        return look(method="bayes", max_episodes=settings.verify_episodes), False
    return look(method="fixed", max_episodes=min(settings.verify_episodes, CHECK_EPISODES)), False


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
