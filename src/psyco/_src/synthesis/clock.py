"""A budget in time: resolved once, by the measured speed, to a number of steps, so that the run can be repeated."""

from __future__ import annotations

import dataclasses
import time
from typing import NamedTuple

import jax
import numpy as np

from psyco._src.domain.base import Domain
from psyco._src.learn.train import bursts
from psyco._src.policy.file import Policy
from psyco._src.rollout.episodes import Stream, stream_key
from psyco._src.rollout.execution import HERE, Execution
from psyco._src.rollout.pace import Pace, measure
from psyco._src.spec.formula import Requirement
from psyco._src.synthesis.loop import beginning
from psyco._src.synthesis.problem import Problem, prepare
from psyco._src.synthesis.settings import MOST_STEPS, Settings, duration

LEARNING = 0.75  # of the time; the rest is for selection and certificate
TRIED = 1_000_000  # steps of the run that is tried out
SHORT = 3.0  # seconds: a generation that takes no longer is tried out as a whole


class Timed(NamedTuple):
    """A run that was made to fit a time."""

    problem: Problem
    pace: Pace
    words: str  # what the time was resolved to


def simulator_pace(problem: Problem) -> Pace:
    """How fast episodes are made."""
    key = stream_key(problem.settings.seed, Stream.PACE)
    return measure(problem.sampler, problem.network, key, workers=problem.execution.workers)


def learning_pace(problem: Problem) -> Pace:
    """How fast steps are made and learned from, where a generation is short enough to be tried out."""
    if problem.sampler.compiled:
        pace = Pace(np.inf, float(problem.domain.horizon), 0)
    else:
        pace = simulator_pace(problem)
    size = problem.learner.episodes_per_generation
    count = problem.segment if problem.sampler.compiled else 1
    if pace.seconds(count * size * pace.length) > SHORT:
        return pace  # compared to its episodes, learning from them takes little
    key, state = stream_key(problem.settings.seed, Stream.PACE, 1), beginning(problem).state
    for first in (0, count):  # the first time it is compiled
        began, steps = time.perf_counter(), 0
        for after, seen in bursts(
            problem.keeper,
            problem.sampler,
            key,
            state,
            first=first,
            generations=count,
            most=count,
            steps=TRIED,
        ):
            state, steps = jax.block_until_ready(after), steps + int(np.sum(seen.episodes.length))
        seconds = time.perf_counter() - began
    return Pace(steps / seconds, steps / (count * size), pace.episodes + 2 * count * size)


def in_time(
    domain: Domain,
    requirement: Requirement,
    settings: Settings,
    seconds: float,
    execution: Execution = HERE,
    *,
    start: Policy | None = None,
) -> Timed:
    """The run whose learning takes its part of a time, by the speed that is measured now."""
    tried = dataclasses.replace(settings, episodes=0, steps=TRIED)
    first = prepare(domain, requirement, tried, execution, start=start)
    pace = learning_pace(first)
    steps = int(min(max(LEARNING * seconds * pace.rate, 1.0), MOST_STEPS))
    problem = prepare(
        domain,
        requirement,
        dataclasses.replace(settings, episodes=0, steps=steps),
        execution,
        network=first.network,
        start=start,
    )
    words = (
        f"{duration(seconds)} are {steps:,} steps of learning at {pace.rate:,.0f} steps per second; a quarter of the "
        "time is left for selection and certificate"
    )
    return Timed(problem, pace, words)
