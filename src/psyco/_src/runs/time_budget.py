"""Measure the speed of learning, and turn a budget in time into a number of steps and a clock.

Schedules follow the number of steps. The clock ends learning when selection and certificate need the rest of the time;
the run records after how many steps, so that its configuration repeats it.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing, suppress
from typing import NamedTuple

import jax

from psyco._src.core.errors import EpisodeError, RunError
from psyco._src.envs.base import Domain, written_for
from psyco._src.envs.gym_env import GymDomain
from psyco._src.learners.learner_registry import learner_class
from psyco._src.learners.loop import SignalCheck, run_generations
from psyco._src.logic.ast import Requirement
from psyco._src.policies.network import Network
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.episodes import Stream, stream_key
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.throughput import Throughput, expected_length, measure_throughput
from psyco._src.runs.baselines import BUDGET_SHARE
from psyco._src.runs.baselines import MAX_EPISODES as BASELINE_EPISODES
from psyco._src.runs.budget import LearningClock, Phase, RunPlan, least_episodes
from psyco._src.runs.problem import Problem, measure_simulator, prepare
from psyco._src.runs.settings import MAX_STEPS, Settings, duration
from psyco._src.runs.train import initial_state, run_segment

AFTER_LEARNING = ("selection", "certificate")  # phases
MIN_LEARNING_SHARE = 0.5  # part of the time that learning gets at least
TRIAL_STEPS = 1_000_000  # budget of the first trial on a compiled domain
MAX_TRIALS = 10
TOLERANCE = 1.05  # ratio of two step numbers that count as equal
# A generation that takes at most these seconds, or this part of the time, is tried out as a whole.
SHORT_GENERATION, SHORT_GENERATION_SHARE = 3.0, 0.02
MEASURED_SECONDS = 2.0  # of generations after the first, which compiles
MAX_MEASURED_GENERATIONS = 100
ENDING_SECONDS = 1.0  # for the files and sample episodes of a run
UPDATE_SECONDS = 1e-3  # of a gradient step of an actor-critic, before it is measured
# A run keeps the steps for which its learner was compiled if the steps that fit the time are this part of them; the
# clock ends learning earlier. It keeps them too if compiling again would take a larger part of the time than this.
KEPT_RATIOS, MAX_COMPILING_SHARE = (0.6, 1.25), 0.2
MAX_MEASURING_SHARE = 0.5  # part of the time; if measuring takes more, the plan says so


class TimedProblem(NamedTuple):
    """A problem whose run takes a given time, and its plan."""

    problem: Problem
    plan: RunPlan


def simulator_throughput(problem: Problem) -> Throughput:
    """Return the speed of the simulator; measure it, unless the choice of the learner needed that already."""
    if problem.simulator is not None:
        return problem.simulator
    key = stream_key(problem.settings.seed, Stream.THROUGHPUT)
    return measure_throughput(problem.sampler, problem.network, key, workers=problem.execution.workers)


def learning_throughput(
    problem: Problem, simulator: Throughput | None, short: float = SHORT_GENERATION
) -> Throughput | None:
    """Measure the speed of simulator and learner together, by generations of learning; the first one compiles.

    Learning compiles nothing after that. None: a generation takes too long to be tried out, or an episode fails.

    Args:
        problem: the problem.
        simulator: speed of the simulator; None: the domain is compiled, and whole segments are tried out.
        short: seconds; a generation whose episodes take longer is not tried out.
    """
    key, at = stream_key(problem.settings.seed, Stream.THROUGHPUT, 1), initial_state(problem)
    size = problem.learner.episodes_per_generation
    if simulator is None:
        for _ in range(2):
            began, before = time.perf_counter(), int(at.state.steps)
            at, _ = run_segment(problem, (), key, at, SignalCheck([], shaped=False))
        steps, episodes = int(at.state.steps) - before, problem.check_interval * size
        return Throughput(steps / (time.perf_counter() - began), steps / episodes, 2 * episodes)
    if simulator.seconds(size * simulator.length) > short:
        return None
    marks: list[tuple[float, int]] = []  # time and steps after each generation
    generations = run_generations(
        problem.wrapped_learner, problem.training_sampler, key, at.state, first=0, generations=MAX_MEASURED_GENERATIONS
    )
    # Learning meets an episode that fails too, and keeps its policy.
    with closing(generations), suppress(EpisodeError):  # type: ignore[type-var]
        for state, _ in generations:
            steps = int(jax.block_until_ready(state).steps)
            marks.append((time.perf_counter(), steps))
            if len(marks) > 1 and marks[-1][0] - marks[0][0] >= MEASURED_SECONDS:
                break
    if len(marks) < 2:
        return None
    (began, before), (ended, after) = marks[0], marks[-1]
    count, steps = size * (len(marks) - 1), max(after - before, 1)
    # These episodes are still those of a random policy.
    learning = max((ended - began) / steps - 1.0 / (simulator.random_rate or simulator.rate), 0.0)
    return Throughput(1.0 / (learning + 1.0 / simulator.rate), steps / count, count)


def fit_to_time(
    domain: Domain,
    requirement: Requirement,
    settings: Settings,
    seconds: float,
    execution: Execution = IN_PROCESS,
    *,
    initial_policy: Policy | None = None,
    spent: float = 0.0,
) -> TimedProblem:
    """Return the problem whose run takes `seconds`, of which some are spent already, by the speed measured now.

    Learning gets the time that measuring, selection and certificate leave. The learner, its updates per step and the
    episodes of selection and certificate depend on the number of steps; so a fixed point is sought.
    """
    began = time.perf_counter() - spent
    requirement, simulator = written_for(requirement, domain), None
    if isinstance(domain, GymDomain):
        simulator = measure_simulator(domain, requirement, settings.seed, execution)
        _check_time(seconds, simulator, domain, settings, requirement)
    network: Network | None = None

    def problem_with(steps: float) -> Problem:
        count = int(min(max(steps, 1.0), MAX_STEPS))
        budget = dataclasses.replace(settings, episodes=0, steps=count, stop_after=0)
        return prepare(
            domain, requirement, budget, execution,
            network=network, initial_policy=initial_policy, simulator=simulator,
        )  # fmt: skip

    step_seconds = 0.0 if simulator is None else 1.0 / simulator.rate
    update_seconds: dict[str, float] = {}  # measured time of one update, by learner
    preparing = 0.0  # seconds for compiling

    def throughput(problem: Problem) -> Throughput:
        """Return the speed of learning; before it is measured, a guess."""
        seconds_each = update_seconds.get(problem.settings.learner)
        if seconds_each is None:
            seconds_each = UPDATE_SECONDS * learner_class(problem.settings.learner).is_actor_critic
        length = simulator.length if simulator is not None else float(domain.horizon)
        return Throughput(1.0 / max(step_seconds + _updates_per_step(problem) * seconds_each, 1e-9), length, 0)

    def rest(problem: Problem) -> list[Phase]:
        phases = problem.plan(simulator or throughput(problem)).phases
        return [phase for phase in phases if phase.name in AFTER_LEARNING]

    def wanted_steps(problem: Problem) -> float:
        """Return the number of steps that this problem's learner makes in its part of the time."""
        available = max(seconds - (time.perf_counter() - began) - preparing, 0.1 * seconds)
        other = sum(phase.seconds or 0.0 for phase in rest(problem))
        return max(available - other, MIN_LEARNING_SHARE * available) * throughput(problem).rate

    def settle(problem: Problem) -> Problem:
        """Return a problem whose number of steps is the wanted one."""
        for _ in range(MAX_TRIALS):
            wanted, steps = wanted_steps(problem), problem.settings.steps
            if 1 / TOLERANCE <= wanted / steps <= TOLERANCE:
                break
            # More steps mean more episodes after learning: the mean damps the oscillation.
            problem = problem_with((wanted * steps) ** 0.5)
        return problem

    problem = problem_with(TRIAL_STEPS if simulator is None else MIN_LEARNING_SHARE * seconds * simulator.rate)
    network = problem.network
    problem = problem if simulator is None else settle(problem)
    while (name := problem.settings.learner) not in update_seconds:
        asked = time.perf_counter()
        found = learning_throughput(problem, simulator, max(SHORT_GENERATION, SHORT_GENERATION_SHARE * seconds))
        speed = found or simulator
        assert speed is not None
        update_seconds[name] = max(1.0 / speed.rate - step_seconds, 0.0) / _updates_per_step(problem)
        if simulator is not None and "updates_per_step" not in problem.settings.options:
            # Some of this is the cost of a generation, which has more steps as soon as episodes are longer.
            update_seconds[name] *= (simulator.length / expected_length(domain, simulator)) ** 0.5
        # Another number of steps is another program, which has to be compiled again.
        left = seconds - (time.perf_counter() - began)
        preparing = max(time.perf_counter() - asked - MEASURED_SECONDS, 0.0) if found else 0.0
        fits = KEPT_RATIOS[0] <= wanted_steps(problem) / problem.settings.steps <= KEPT_RATIOS[1]
        if found and (fits or preparing > MAX_COMPILING_SHARE * left):
            preparing = 0.0
        else:
            problem = settle(problem)
    measuring = time.perf_counter() - began
    steps = min(problem.settings.steps, max(1, round(wanted_steps(problem))))
    words = f"{duration(seconds)} are about {steps:,} steps of learning, which ends in time for its certificate"
    if measuring > MAX_MEASURING_SHARE * seconds:
        words += f". Measuring the speed took {duration(measuring)}, so the run may take more than {duration(seconds)}"
    learning = throughput(problem)
    expected = sum(phase.expected for phase in rest(problem))
    expected += round(BUDGET_SHARE * steps / expected_length(domain, simulator))
    expected += BASELINE_EPISODES if initial_policy is not None else 0
    clock = LearningClock(began + seconds - ENDING_SECONDS, expected, simulator or learning)
    problem = dataclasses.replace(problem, clock=clock)
    return TimedProblem(problem, problem.plan(simulator or learning, learning, words, steps))


def _updates_per_step(problem: Problem) -> float:
    updates: float = getattr(problem.learner, "updates_per_step", 1.0)
    return updates


def _check_time(
    seconds: float, simulator: Throughput, domain: Domain, settings: Settings, requirement: Requirement
) -> None:
    """Raise RunError if the shortest certificate alone takes more than half of the time."""
    least = least_episodes(settings.method, requirement)
    shortest = simulator.seconds(least * expected_length(domain, simulator))
    if shortest > MIN_LEARNING_SHARE * seconds:
        raise RunError(
            f"{duration(seconds)} are too short: the {least:,} episodes of the shortest possible certificate alone "
            f"take about {duration(shortest)} at {simulator.rate:,.0f} steps per second; give at least --time "
            f"{max(1, round(2.5 * shortest))}s"
        )
