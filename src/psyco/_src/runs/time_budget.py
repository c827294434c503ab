"""A budget in time: resolved once, by the measured speed, to a number of steps, so that the run can be repeated."""

from __future__ import annotations

import dataclasses
import time
from typing import NamedTuple

import jax

from psyco._src.envs.base import Domain
from psyco._src.envs.gym_env import GymDomain
from psyco._src.learners.signal_check import SignalCheck
from psyco._src.learners.loop import bursts
from psyco._src.policies.serialization import Policy
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Stream, stream_key
from psyco._src.rollout.execution import HERE, Execution
from psyco._src.rollout.throughput import Throughput, measure
from psyco._src.logic.ast import Requirement
from psyco._src.runs.train import beginning, segment
from psyco._src.runs.budget import RunPlan
from psyco._src.runs.problem import Problem, first_pace, prepare
from psyco._src.runs.settings import MOST_STEPS, Settings, duration

MOST, LEAST = 0.75, 0.5  # of the time for learning; the rest is for selection and certificate
TRIED = 1_000_000  # steps of the run that is tried out first, where the domain is compiled
TRIES = 10
NEAR = 1.05  # so close to what fits a run has to be
SHORT = 3.0  # seconds: a generation that takes no longer is tried out as a whole,
SPENT = 0.5  # of the time: who has spent more than that on measuring must say so
PART = 0.02  # and one that takes no longer than this part of the time


class TimedProblem(NamedTuple):
    """A run that was made to fit a time."""

    problem: Problem
    plan: RunPlan


def simulator_pace(problem: Problem) -> Throughput:
    """How fast episodes are made."""
    key = stream_key(problem.settings.seed, Stream.PACE)
    return measure(problem.sampler, problem.network, key, workers=problem.execution.workers)


def learning_pace(problem: Problem, simulator: Throughput | None, short: float = SHORT) -> Throughput:
    """How fast steps are made and learned from.

    Args:
        problem: the run.
        simulator: how fast episodes are made; None: the domain is compiled, and a whole segment is tried out.
        short: seconds; where a generation takes longer it is not tried out, and the simulator's pace is taken.
    """
    key, at = stream_key(problem.settings.seed, Stream.PACE, 1), beginning(problem)
    size = problem.learner.episodes_per_generation
    if simulator is not None and simulator.seconds(size * simulator.length) > short:
        return simulator  # compared to its episodes, learning from them takes little
    for turn in range(2):  # the first time it is compiled
        began, before = time.perf_counter(), int(at.state.steps)
        if simulator is None:
            at, _ = segment(problem, (), key, at, SignalCheck([], graded=False))
        else:
            for state, _ in bursts(problem.keeper, problem.sampler, key, at.state, first=turn, generations=1):
                at = at._replace(state=jax.block_until_ready(state))
        seconds, steps = time.perf_counter() - began, int(at.state.steps) - before
    count = problem.segment if simulator is None else 1
    return Throughput(steps / seconds, steps / (count * size), 2 * count * size)


def in_time(
    domain: Domain,
    requirement: Requirement,
    settings: Settings,
    seconds: float,
    execution: Execution = HERE,
    *,
    start: Policy | None = None,
) -> TimedProblem:
    """The run that takes a time, by the speed that is measured now.

    Learning gets three quarters of what is left after measuring, or what selection and certificate are expected to
    leave, but at least half. Which learner it is, and how much it makes of each step, depends on how many steps there
    are; so steps are sought that fit themselves.
    """
    began = time.perf_counter()
    simulator = None
    if isinstance(domain, GymDomain):
        simulator = first_pace(domain, requirement, settings.seed, execution)
    network: Network | None = None
    costs: dict[str, float] = {}  # seconds that each learner takes for what it makes of a step
    making = 0.0  # seconds that it takes before the first step is learned from

    def run_of(steps: float) -> Problem:
        budget = dataclasses.replace(settings, episodes=0, steps=int(min(max(steps, 1.0), MOST_STEPS)))
        return prepare(domain, requirement, budget, execution, network=network, start=start, pace=simulator)

    def pace_of(problem: Problem) -> Throughput:
        nonlocal making
        name, updates = problem.settings.learner, getattr(problem.learner, "updates", 1.0)
        playing = 0.0 if simulator is None else 1.0 / simulator.rate
        if name not in costs:
            asked = time.perf_counter()
            found = learning_pace(problem, simulator, max(SHORT, PART * seconds))
            costs[name], making = max(1.0 / found.rate - playing, 0.0) / updates, time.perf_counter() - asked
        length = simulator.length if simulator is not None else float(domain.horizon)
        return Throughput(1.0 / (playing + updates * costs[name]), length, 0)

    problem = run_of(TRIED if simulator is None else MOST * seconds * simulator.rate)
    network = problem.network
    for _ in range(TRIES):
        learning = pace_of(problem)
        available = max(seconds - (time.perf_counter() - began) - making, 0.1 * seconds)
        phases = problem.plan(simulator or learning).phases
        beside = sum(phase.seconds or 0.0 for phase in phases if phase.name not in ("scaling", "learning"))
        part = min(max(1.0 - beside / available, LEAST), MOST)
        fits = min(max(part * available * learning.rate, 1.0), MOST_STEPS)
        if 1 / NEAR <= fits / problem.settings.steps <= NEAR:
            break
        problem = run_of(fits)
    measuring = time.perf_counter() - began
    words = (
        f"{duration(seconds)} are {problem.settings.steps:,} steps of learning at {learning.rate:,.0f} steps per "
        f"second; {1.0 - part:.0%} of the time are left for selection and certificate"
    )
    if measuring > SPENT * seconds:
        words += f". To find that out took {duration(measuring)}, so it will be more than {duration(seconds)} in all"
    return TimedProblem(problem, problem.plan(simulator or learning, learning, words))
