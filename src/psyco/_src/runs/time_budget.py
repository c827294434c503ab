"""A budget in time, turned into a number of steps once, by the measured speed, so that the run can be repeated."""

from __future__ import annotations

import dataclasses
import time
from typing import NamedTuple

import jax

from psyco._src.envs.base import Domain
from psyco._src.envs.gym_env import GymDomain
from psyco._src.learners.loop import run_generations
from psyco._src.learners.loop import SignalCheck
from psyco._src.logic.ast import Requirement
from psyco._src.policies.network import Network
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.episodes import Stream, stream_key
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.throughput import Throughput, measure_throughput
from psyco._src.runs.budget import RunPlan
from psyco._src.runs.problem import Problem, measure_simulator, prepare
from psyco._src.runs.settings import MAX_STEPS, Settings, duration
from psyco._src.runs.train import initial_state, run_segment

# Part of the time for learning; the rest is for selection and certificate.
MAX_LEARNING_SHARE, MIN_LEARNING_SHARE = 0.75, 0.5
TRIAL_STEPS = 1_000_000  # budget of the first trial on a compiled domain
MAX_TRIALS = 10
TOLERANCE = 1.05  # ratio of two step numbers that count as equal
# A generation that takes at most these seconds, or this part of the time, is tried out as a whole.
SHORT_GENERATION, SHORT_GENERATION_SHARE = 3.0, 0.02
MAX_MEASURING_SHARE = 0.5  # part of the time; if measuring takes more, the plan says so


class TimedProblem(NamedTuple):
    """A problem whose budget fits a time, and its plan."""

    problem: Problem
    plan: RunPlan


def simulator_throughput(problem: Problem) -> Throughput:
    """Measure the speed of the simulator."""
    key = stream_key(problem.settings.seed, Stream.THROUGHPUT)
    return measure_throughput(problem.sampler, problem.network, key, workers=problem.execution.workers)


def learning_throughput(
    problem: Problem, simulator: Throughput | None, short: float = SHORT_GENERATION
) -> Throughput:
    """Measure the speed of simulator and learner together.

    Args:
        problem: the problem.
        simulator: speed of the simulator; None: the domain is compiled, and a whole segment is tried out.
        short: seconds; a generation that takes longer is not tried out, and the simulator's speed is returned.
    """
    key, at = stream_key(problem.settings.seed, Stream.THROUGHPUT, 1), initial_state(problem)
    size = problem.learner.episodes_per_generation
    if simulator is not None and simulator.seconds(size * simulator.length) > short:
        return simulator  # learning takes little time compared to the episodes
    for turn in range(2):  # the first turn compiles
        began, before = time.perf_counter(), int(at.state.steps)
        if simulator is None:
            at, _ = run_segment(problem, (), key, at, SignalCheck([], shaped=False))
        else:
            for state, _ in run_generations(
                problem.wrapped_learner, problem.sampler, key, at.state, first=turn, generations=1
            ):
                at = at._replace(state=jax.block_until_ready(state))
        seconds, steps = time.perf_counter() - began, int(at.state.steps) - before
    generations = problem.check_interval if simulator is None else 1
    return Throughput(steps / seconds, steps / (generations * size), 2 * generations * size)


def fit_to_time(
    domain: Domain,
    requirement: Requirement,
    settings: Settings,
    seconds: float,
    execution: Execution = IN_PROCESS,
    *,
    initial_policy: Policy | None = None,
) -> TimedProblem:
    """Return the problem whose run takes `seconds`, by the speed that is measured now.

    Learning gets three quarters of the time that measuring leaves, or less if selection and certificate are expected to
    need more than a quarter, but at least half. The learner, and its updates per step, depend on the number of steps;
    so a fixed point is sought: a number of steps whose learner makes that many in the time.
    """
    began = time.perf_counter()
    simulator = None
    if isinstance(domain, GymDomain):
        simulator = measure_simulator(domain, requirement, settings.seed, execution)
    network: Network | None = None
    update_seconds: dict[str, float] = {}  # of one update, by learner
    preparing = 0.0  # seconds until the first step is learned from

    def problem_with(steps: float) -> Problem:
        budget = dataclasses.replace(settings, episodes=0, steps=int(min(max(steps, 1.0), MAX_STEPS)))
        return prepare(
            domain, requirement, budget, execution,
            network=network, initial_policy=initial_policy, simulator=simulator,
        )  # fmt: skip

    def throughput(problem: Problem) -> Throughput:
        nonlocal preparing
        name, updates = problem.settings.learner, getattr(problem.learner, "updates_per_step", 1.0)
        step_seconds = 0.0 if simulator is None else 1.0 / simulator.rate
        if name not in update_seconds:
            asked = time.perf_counter()
            found = learning_throughput(
                problem, simulator, max(SHORT_GENERATION, SHORT_GENERATION_SHARE * seconds)
            )
            update_seconds[name] = max(1.0 / found.rate - step_seconds, 0.0) / updates
            preparing = time.perf_counter() - asked
        length = simulator.length if simulator is not None else float(domain.horizon)
        return Throughput(1.0 / (step_seconds + updates * update_seconds[name]), length, 0)

    problem = problem_with(
        TRIAL_STEPS if simulator is None else MAX_LEARNING_SHARE * seconds * simulator.rate
    )
    network = problem.network
    for _ in range(MAX_TRIALS):
        learning = throughput(problem)
        available = max(seconds - (time.perf_counter() - began) - preparing, 0.1 * seconds)
        phases = problem.plan(simulator or learning).phases
        other = sum(
            phase.seconds or 0.0 for phase in phases if phase.name not in ("normalization", "learning")
        )
        share = min(max(1.0 - other / available, MIN_LEARNING_SHARE), MAX_LEARNING_SHARE)
        steps = min(max(share * available * learning.rate, 1.0), MAX_STEPS)
        if 1 / TOLERANCE <= steps / problem.settings.steps <= TOLERANCE:
            break
        problem = problem_with(steps)
    measuring = time.perf_counter() - began
    words = (
        f"{duration(seconds)} are {problem.settings.steps:,} steps of learning at {learning.rate:,.0f} steps per "
        f"second; {1.0 - share:.0%} of the time are left for selection and certificate"
    )
    if measuring > MAX_MEASURING_SHARE * seconds:
        words += f". Measuring the speed took {duration(measuring)}, so the run takes more than {duration(seconds)}"
    return TimedProblem(problem, problem.plan(simulator or learning, learning, words))
