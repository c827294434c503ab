"""Automatic settings of a run, and the plan: episodes, steps and time of every phase, known before the run starts.

In a Gymnasium environment an episode costs time. There everything but learning takes at most a third of the training
episodes, unless the certificate needs more; and never more than learning itself, except for a few episodes without
which no certificate is possible.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any, NamedTuple, cast

import numpy as np

from psyco._src.core.errors import RunError
from psyco._src.envs.actions import Actions, Discrete
from psyco._src.envs.agents import agent_spaces_of
from psyco._src.envs.base import Domain
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.model_file import ModelFile
from psyco._src.envs.program_file import ProgramFile
from psyco._src.envs.shield import with_shield
from psyco._src.learners.learner_registry import AUTO_LEARNER, LEARNERS, learner_class
from psyco._src.logic.ast import Constraint, Requirement, Signal, walk
from psyco._src.policies.joint_network import default_sharing
from psyco._src.policies.network import Bias, Hidden, one_hot_sizes
from psyco._src.rollout.obs_normalization import RANDOM_EPISODES
from psyco._src.rollout.repeatability import MAX_REPLAYS
from psyco._src.rollout.throughput import Throughput, expected_length
from psyco._src.runs.settings import Settings, duration
from psyco._src.verification.base import Counts, Test
from psyco._src.verification.environments import EnvironmentsTest, make_environment_tests, predict
from psyco._src.verification.ledger import look_share
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD, make_test
from psyco._src.verification.operating_characteristics import operating_characteristics

MAX_OFF_POLICY_STEPS = 300_000  # steps of a run up to which an off-policy learner is more sample-efficient
SLOW_SIMULATOR = 500.0  # steps per second below which learning from a step costs less than simulating it

# Episode numbers on compiled domains, where an episode costs next to nothing.
COMPILED_DEFAULTS = {
    "candidates": 5,
    "selection_episodes": 500,
    "attempts": 3,
    "verify_every": 1000,
    "verify_episodes": 1000,
    "max_episodes": DEFAULT_MAX_EPISODES,
}
VERIFICATION_SHARE = 1 / 3  # of the training episodes, for checks, selection and certificate
SELECTION_SHARE = 0.3  # of these, for the selection
MIN_COMPARED = 20  # episodes of a candidate in the selection, if there are constraints
MIN_RETURNS = 3  # episodes of the certificate of a run without constraints
NUM_CHECKS = 20  # checks during learning
CHECK_EPISODES = 100  # maximum number of episodes of a check by the method `fixed`
MAX_PREDICTED_EPISODES = 2000  # longest certificate whose length is computed
DECISION_PROBABILITY = 0.9  # probability of a verdict for which the budget should suffice
MAX_SHORTEST_CERTIFICATE = 2**24  # episodes; a search ends there
MAX_TABLE_STATES, MAX_TABLE_ACTIONS = 1000, 32  # of a domain for which a table is chosen
MAX_MODEL_STATES = 100_000  # of a PRISM or JANI file for which a table is chosen
PAPER_HIDDEN: Hidden = 32  # hidden units, as in the paper
TEAM_HIDDEN = 16  # of several agents: a search needs more episodes, the more parameters there are
CONTROL_HIDDEN: Hidden = (64, 64)  # hidden units of actor-critics on Gymnasium environments


# ---- automatic settings -------------------------------------------------------------------------------------


class LearnerChoice(NamedTuple):
    """A learner, and the reason for it."""

    learner: str
    reason: str  # empty: the settings name the learner


def select_learner(settings: Settings, domain: Domain, measure_simulator: Callable[[], Throughput]) -> LearnerChoice:
    """Return the learner that the settings name, or the one that fits the domain, the budget and the simulator's speed.

    Args:
        settings: settings of the run.
        domain: domain of the run.
        measure_simulator: measures the simulator; not called if its speed does not matter.
    """
    if settings.learner != AUTO_LEARNER:
        return LearnerChoice(settings.learner, "")
    if agent_spaces_of(domain) and isinstance(domain, GymDomain):
        return LearnerChoice("ppo", "it learns the policies of several agents")
    most = MAX_MODEL_STATES if getattr(domain, "known_transitions", None) else MAX_TABLE_STATES
    states = math.prod(one_hot_sizes(domain) or (most + 1,))
    if states <= most and _is_small(domain.actions) and _fits_table(settings):
        return LearnerChoice("table", f"{states:,} observations and {domain.actions.outputs} actions fit in a table")
    if settings.memory != "none":
        return LearnerChoice("ppo", "it learns policies with a memory, from whole sequences of steps")
    if settings.encoder != "dense" and settings.bias != "one" and getattr(domain, "image", None):
        return LearnerChoice("ppo", "it learns from images, by convolutions")
    if settings.violations_while_learning and not isinstance(domain, GymDomain):
        return LearnerChoice("ppo", "it learns more from each violation than an evolution strategy")
    if not isinstance(domain, GymDomain):
        return LearnerChoice("safe-es", "on a compiled domain episodes cost next to nothing")
    if settings.bias == "one":
        return LearnerChoice("safe-es", "biases of the network are 1, and actor-critics need learned biases")
    if (steps := settings.steps or settings.episodes * domain.horizon) <= MAX_OFF_POLICY_STEPS:
        return LearnerChoice("sac", f"of at most {steps:,} steps each must be learned from many times")
    simulator = measure_simulator()
    steps = settings.steps or round(settings.episodes * expected_length(domain, simulator))
    budget = f"about {steps:,} steps at {simulator.rate:,.0f} per second"
    if simulator.rate < SLOW_SIMULATOR:
        return LearnerChoice("sac", f"{budget}: simulating a step takes longer than learning from it many times")
    return LearnerChoice("ppo", f"{budget}: many steps, simulated faster than an off-policy learner uses them")


def fit_model(domain: Domain, requirement: Requirement, settings: Settings) -> Domain:
    """Return the domain for learning: a model with a horizon, with states as observations for a table; a shield."""
    if isinstance(domain, ProgramFile):
        domain = domain.for_learning(requirement, table=settings.learner == "table")
    elif isinstance(domain, ModelFile):
        small = domain.tables.states <= MAX_MODEL_STATES and _is_small(domain.actions) and _fits_table(settings)
        domain = domain.for_learning(requirement, table=settings.learner in ("table", *([AUTO_LEARNER] * small)))
    return with_shield(domain, requirement, settings.shield)


def _is_small(actions: Actions) -> bool:
    return isinstance(actions, Discrete) and actions.n <= MAX_TABLE_ACTIONS


def _fits_table(settings: Settings) -> bool:
    """Return whether settings ask for nothing that a table does not have."""
    plain = settings.normalization in ("auto", "none") and settings.bias != "one" and settings.hidden is None
    return plain and not settings.start_from and settings.memory == "none" and settings.encoder != "conv"


def expected_episodes(settings: Settings, domain: Domain) -> int:
    """Return the training episodes of the budget; of a budget in steps, those of episodes that last to the horizon."""
    return settings.episodes or -(-settings.steps // domain.horizon)


def resolve_bias(settings: Settings, learner: str) -> Bias:
    """Return the biases of the network; "auto" is the default of the learner."""
    if settings.bias == "auto":
        return learner_class(learner).default_bias if settings.memory == "none" else "learned"
    return cast(Bias, settings.bias)


def resolve_encoder(settings: Settings, learner: str, domain: Domain) -> str:
    """Return the encoder of observations, dense or conv; "auto" depends on learner and domain."""
    able = learner_class(learner).learns_images
    if settings.encoder == "conv" and not able:
        names = " or ".join(name for name in LEARNERS if learner_class(name).learns_images)
        raise RunError(f"{learner} learns networks without convolutions; encoder='conv' needs {names}")
    if settings.encoder != "auto":
        return settings.encoder
    return "conv" if able and settings.bias != "one" and getattr(domain, "image", None) else "dense"


def resolve_normalization(settings: Settings, learner: str, domain: Domain) -> str:
    """Return the observation normalization; "auto" depends on learner and domain.

    Actor-critics follow running statistics. Evolution strategies update too seldom for that.
    """
    if learner_class(learner).is_tabular:
        return "none"
    bias = resolve_bias(settings, learner)
    if resolve_encoder(settings, learner, domain) == "conv":
        if settings.normalization in ("running", "sampled"):
            raise RunError("images are scaled by the largest value of a pixel: leave out normalization")
        return "none"
    if settings.normalization == "running" and bias == "one":
        raise RunError(
            "running statistics of observations go into the biases of the network, which are 1 here: "
            "use bias='learned', or normalization='sampled'"
        )
    if settings.normalization == "sampled" and settings.violations_while_learning:
        raise RunError(
            "normalization='sampled' plays episodes of random policies, which may violate the requirement: with a "
            "limit of violations use 'running' or 'none'"
        )
    if settings.normalization != "auto":
        return settings.normalization
    if not isinstance(domain, GymDomain):
        return "none"
    if learner_class(learner).is_actor_critic and bias == "learned":
        return "running"
    return "none" if settings.violations_while_learning else "sampled"


def resolve_auto(settings: Settings, learner: str, domain: Domain, requirement: Requirement) -> dict[str, Any]:
    """Return values for the settings that are automatic, and the options of the learner; given values stay."""
    costly = isinstance(domain, GymDomain)
    actor_critic = costly and learner_class(learner).is_actor_critic
    resolved: dict[str, Any] = {"options": dict(settings.options)}
    if settings.memory != "none" and not learner_class(learner).learns_memory:
        raise RunError(
            f"{learner} learns policies without a memory; --memory {settings.memory} needs "
            f"{' or '.join(name for name in LEARNERS if learner_class(name).learns_memory)}"
        )
    if learner_class(learner).is_tabular:
        if not _fits_table(settings):
            raise RunError(
                f"{learner} starts from no policy, and has no hidden layers, biases or normalization: "
                "leave out --from, hidden, bias, memory, encoder and normalization, or use another learner"
            )
    elif settings.hidden is None:
        resolved["hidden"] = CONTROL_HIDDEN if actor_critic else PAPER_HIDDEN
        if agent_spaces_of(domain) and not learner_class(learner).is_actor_critic:
            resolved["hidden"] = TEAM_HIDDEN
    if spaces := agent_spaces_of(domain):
        if not learner_class(learner).several_agents:
            raise RunError(f"{learner} learns for one agent, and {domain.name} has {len(spaces)}: use safe-es or ppo")
        if settings.learning == "independent":
            _check_independent(settings, learner)
        if settings.policies is None and not settings.start_from:
            resolved["policies"] = "separate" if settings.learning == "independent" else default_sharing(spaces)
    elif settings.policies is not None:
        raise RunError(f"{domain.name} has one agent, so it has one policy: leave out --policies")
    elif settings.learning != "joint":
        raise RunError(f"{domain.name} has one agent, which learns by itself: leave out --learning")
    if costly:
        defaults = learner_class(learner).gymnasium_options(
            domain.actions, domain.horizon, _constrains_return(requirement)
        )
        resolved["options"] = defaults | dict(settings.options)
    if automatic := [name for name in COMPILED_DEFAULTS if getattr(settings, name) is None]:
        counts = _economical_counts(settings, learner, domain, requirement) if costly else COMPILED_DEFAULTS
        resolved |= {name: counts[name] for name in automatic}
        if "max_episodes" in automatic:  # with fewer than the shortest certificate takes, all would be wasted
            resolved["max_episodes"] = max(counts["max_episodes"], least_episodes(settings.method, requirement))
    if settings.violations_while_learning:
        _check_violation_limit(settings, requirement)
        resolved["verify_every"] = 0  # checks would play further episodes
    return resolved


def _check_independent(settings: Settings, learner: str) -> None:
    if not learner_class(learner).learns_independently:
        able = [name for name in LEARNERS if learner_class(name).learns_independently]
        raise RunError(f"{learner} learns for all agents together; --learning independent needs {' or '.join(able)}")
    if settings.violations_while_learning:
        raise RunError(
            "a limit of violations while learning needs one learner that keeps it; leave out --learning independent"
        )
    if settings.policies not in (None, "separate"):
        raise RunError(
            f"--policies {settings.policies} lets agents share a policy, and with --learning independent each learns "
            "its own: use separate, or leave it out"
        )


def _check_violation_limit(settings: Settings, requirement: Requirement) -> None:
    if not requirement.probability_bounds:
        raise RunError("violations while learning are limited for constraints on a probability, P>=p [ ... ]")
    if settings.until_satisfied or settings.verify_every:
        raise RunError(
            "checks while learning play further episodes, which may violate the requirement: with a limit of "
            "violations leave out --until-satisfied and verify_every"
        )


def _constrains_return(requirement: Requirement) -> bool:
    formulas = [bound.formula for bound in requirement.probability_bounds]
    return any(isinstance(n, Signal) and n.name == "return" for formula in formulas for n in walk(formula))


def _economical_counts(settings: Settings, learner: str, domain: Domain, requirement: Requirement) -> dict[str, int]:
    """Return numbers of episodes that keep to `VERIFICATION_SHARE`, for environments where episodes cost time."""
    constraints = requirement.probability_constraints
    training = expected_episodes(settings, domain)
    needed = max((certificate_length(c, DECISION_PROBABILITY) for c in constraints), default=0)
    available = min(max(int(VERIFICATION_SHARE * training), int(needed / (1.0 - SELECTION_SHARE))), training)
    sampled = resolve_normalization(settings, learner, domain) == "sampled"
    available = max(available - (RANDOM_EPISODES if sampled else 0), 1)
    # A learner whose checks are of fixed size plays them itself, as part of its generations.
    if learner_class(learner).check_method == "fixed":
        checks, check_episodes = NUM_CHECKS, 1
    else:
        checks, check_episodes = min(NUM_CHECKS, available // 100), 10
        available -= checks * check_episodes
    # If the episodes do not suffice for selection and certificate, most of them go to the certificate.
    compared = min(int(SELECTION_SHARE * available), max(available - needed, available // 10))
    fewest = MIN_COMPARED
    if not requirement.constraints:  # returns of a few episodes tell a policy that has just become worse
        fewest, compared = 1, max(compared, min(COMPILED_DEFAULTS["candidates"], available - 1))
    candidates = min(COMPILED_DEFAULTS["candidates"], max(1, compared // fewest))
    certificate = max(available - (compared if candidates > 1 else 0), min(available, MIN_RETURNS))
    if certificate < (shortest := least_episodes(settings.method, requirement)):
        candidates, certificate = 1, shortest
    expected = max((certificate_length(c) for c in constraints), default=0)
    attempts = max(1, min(2, candidates, certificate // max(expected, 1))) if requirement.constraints else 1
    # The policy that learning starts from is compared too, however few episodes there are.
    started = bool(settings.start_from)
    each = max(MIN_COMPARED if started else 1, compared // (candidates + started))
    return {
        "candidates": candidates,
        "selection_episodes": min(COMPILED_DEFAULTS["selection_episodes"], each),
        "attempts": attempts,
        "verify_every": max(1, training // checks) if checks else training * settings.until_satisfied,
        "verify_episodes": check_episodes,
        "max_episodes": min(COMPILED_DEFAULTS["max_episodes"], max(1, certificate // attempts)),
    }


# ---- the length of a certificate ----------------------------------------------------------------------------


@lru_cache
def _characteristics(constraint: Constraint) -> tuple[float, float, float]:
    """Return (p, expected episodes, episodes for `DECISION_PROBABILITY`) of a first look.

    The probability p of the policy lies halfway between the bound and certainty.
    """
    p = _middle(constraint)
    if constraint.environments is not None:
        most = 10 * DEFAULT_MAX_EPISODES  # many environments need more than one
        (predicted,) = predict(_first_look_at_environments(constraint), p, (0.0,), most)
        episodes = min(predicted.episodes, most)
        return p, episodes, episodes
    found = operating_characteristics(_first_look(constraint), [p], MAX_PREDICTED_EPISODES)
    needed = min(found.needed(DECISION_PROBABILITY)[0], MAX_PREDICTED_EPISODES)
    return p, float(found.episodes[0]), float(needed)


def certificate_length(constraint: Constraint, probability: float | None = None) -> int:
    """Return the episodes of a certificate of a policy halfway between bound and certainty.

    They are the expected number, or those that suffice with `DECISION_PROBABILITY` if a probability is given.
    """
    _, expected, needed = _characteristics(constraint)
    return round(expected if probability is None else needed)


@lru_cache
def shortest_certificate(constraint: Constraint, method: str = DEFAULT_METHOD) -> int:
    """Return the smallest number of episodes with which a first look can be SATISFIED, by the best possible outcomes.

    These are successes only, failures only for an upper bound, and a share in the middle of an interval.
    """
    if constraint.environments is not None:
        return _first_look_at_environments(constraint).fewest_episodes
    best = 1.0 if constraint.upper >= 1.0 else 0.0 if constraint.lower <= 0.0 else _middle(constraint)

    def suffices(episodes: int) -> bool:
        satisfied = round(best * episodes)
        test = _first_look(constraint, method, episodes)
        return int(np.asarray(test.decide(Counts(satisfied, episodes - satisfied)))) == 1

    most = 1
    while not suffices(most) and most < MAX_SHORTEST_CERTIFICATE:
        most *= 2
    return bisect_left(range(most), True, lo=most // 2 + 1, key=suffices)


def _first_look_at_environments(constraint: Constraint) -> EnvironmentsTest:
    (test,) = make_environment_tests(Requirement(constraints=(constraint,)), share=look_share(1))
    return test


def least_episodes(method: str, requirement: Requirement) -> int:
    """Return the smallest maximum number of episodes with which a first look can be SATISFIED; 0 if it is not known."""
    if method == "calibrated":  # its test depends on the maximum, and takes seconds to make
        return 0
    return max((shortest_certificate(c, method) for c in requirement.probability_constraints), default=0)


def certificate_warning(settings: Settings, requirement: Requirement) -> str:
    """Return the warning for a certificate that cannot be SATISFIED, with the smallest number; empty if it can."""
    least = least_episodes(settings.method, requirement)
    if settings.max_episodes >= least:
        return ""
    return (
        f"no policy can be certified with max_episodes = {settings.max_episodes:,}: at least {least:,} episodes are "
        f"needed, even if none fails; give --max-episodes {least} or more, or leave it out"
    )


def _first_look(constraint: Constraint, method: str = DEFAULT_METHOD, max_episodes: int | None = None) -> Test:
    delta = look_share(1) * (1.0 - constraint.confidence)
    return make_test(method, constraint, max_episodes=max_episodes, false_accept=delta, false_reject=delta)


def _middle(constraint: Constraint) -> float:
    return (max(constraint.lower, 0.0) + min(constraint.upper, 1.0)) / 2.0


@dataclass(frozen=True)
class LearningClock:
    """A clock that ends learning when a run needs the rest of its time for selection and certificate.

    Args:
        end: end of the run, by `time.perf_counter`.
        episodes: expected number of episodes after learning.
        simulator: speed of the simulator.
    """

    end: float
    episodes: int
    simulator: Throughput

    def is_over(self, length: float) -> bool:
        """Whether learning should end now, if an episode of its policy takes `length` steps."""
        replayed = MAX_REPLAYS * length / (self.simulator.alone or self.simulator.rate)
        return perf_counter() + self.simulator.seconds(self.episodes * length) + replayed >= self.end


# ---- the plan -----------------------------------------------------------------------------------------------


class Phase(NamedTuple):
    """One phase of a run."""

    name: str
    episodes: int | None  # maximum number; None: unknown, since the budget is in steps
    expected: int  # expected number of episodes
    steps: int  # of the expected episodes, at their expected length
    seconds: float | None  # None: the speed was not measured


@dataclass(frozen=True, repr=False)
class RunPlan:
    """Episodes, steps and time of a run, phase by phase; `str` formats it as a table.

    Args:
        phases: normalization, learning, checks, selection, certificate.
        throughput: measured speed of the simulator; None: not measured.
        length: expected steps per episode.
        learner: the automatically chosen learner and the reason for it; empty if the settings name one.
        certificate: the expected length of the certificate, in words; empty if it cannot be computed.
        time: how a budget in time became one in steps, in words; empty without one.
        learning: measured speed of simulator and learner together; None: not measured.
    """

    phases: tuple[Phase, ...]
    throughput: Throughput | None
    length: float
    learner: str = ""
    certificate: str = ""
    time: str = ""
    learning: Throughput | None = None

    @property
    def episodes(self) -> int:
        """Maximum number of episodes of the run; if the budget is in steps, the expected number."""
        return sum(phase.expected if phase.episodes is None else phase.episodes for phase in self.phases)

    @property
    def seconds(self) -> float | None:
        """Expected duration of the run; None: the speed was not measured."""
        if self.throughput is None:
            return None
        return sum(phase.seconds or 0.0 for phase in self.phases)

    def __repr__(self) -> str:
        time = "" if self.seconds is None else f", about {duration(self.seconds)}"
        return f"<RunPlan: at most {self.episodes:,} episodes{time}>"

    def __str__(self) -> str:
        lines = [line for line in (self.time, self.learner) if line]
        header = f"{'plan':14}{'episodes':>10}{'at most':>10}{'steps':>14}"
        lines.append(header if self.throughput is None else f"{header}      time")
        for name, most, expected, steps, seconds in [phase for phase in self.phases if phase.episodes != 0]:
            took = f"{duration(seconds):>10}" if seconds is not None else ""
            at_most = "" if most is None else f"{most:,}"
            lines.append(f"{name:14}{expected:10,}{at_most:>10}{steps:14,}{took}")
        if self.throughput is not None and self.seconds is not None:
            scope, learner = "of simulation", "; the computation of the learner comes on top"
            if self.learning is not None:
                scope, learner = "in all", f"; learning from them makes {self.learning.rate:,.0f} per second"
            lines.append(
                f"about {duration(self.seconds)} {scope}, by a simulator with {self.throughput.rate:,.0f} steps per "
                f"second{learner}"
            )
            measured, horizon = self.throughput.length, self.length**2 / self.throughput.length
            lines.append(
                f"an episode is expected to have {self.length:,.0f} steps: between the {measured:,.0f} of untrained "
                f"policies and the horizon of {horizon:,.0f}, of which the plan takes the geometric mean"
                if round(measured) < round(horizon)
                else f"an episode is expected to have {measured:,.0f} steps, the horizon, as those of untrained "
                "policies have"
            )
        return "\n".join([*lines, *([self.certificate] if self.certificate else [])])

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "phases": [phase._asdict() for phase in self.phases],
            "episodes": self.episodes,
            "seconds": self.seconds,
            "throughput": None if self.throughput is None else self.throughput._asdict(),
            "learning": None if self.learning is None else self.learning._asdict(),
            "length": self.length,
            "learner": self.learner,
            "certificate": self.certificate,
            "time": self.time,
        }


def make_run_plan(
    settings: Settings,
    domain: Domain,
    requirement: Requirement,
    *,
    simulator: Throughput | None = None,
    learning: Throughput | None = None,
    normalization: int = 0,
    learner: str = "",
    time: str = "",
    steps: int | None = None,
) -> RunPlan:
    """Return the plan of a run whose automatic settings are resolved.

    Args:
        settings: settings of the run.
        domain: domain of the run.
        requirement: requirement of the run.
        simulator: speed of the simulator; None: not measured.
        learning: speed of simulator and learner together; None: not measured.
        normalization: episodes from which the observation normalization is computed.
        learner: the automatically chosen learner and the reason for it.
        time: how a budget in time became one in steps, in words.
        steps: expected training steps, if another number than that of the settings.
    """
    training = expected_episodes(settings, domain)
    length = expected_length(domain, simulator)
    checks = training // settings.verify_every if settings.verify_every and requirement.constraints else 0
    per_check = settings.max_episodes if settings.until_satisfied else _check_episodes(settings, domain)
    competing = settings.candidates + bool(settings.start_from)
    compared = competing * settings.selection_episodes if competing > 1 else 0
    lengths = [certificate_length(c) for c in requirement.probability_constraints]
    certificate = max(lengths, default=0) or settings.max_episodes
    most_certified = settings.max_episodes * settings.attempts
    # Name, maximum and expected number of episodes.
    spent = [
        ("normalization", normalization, normalization),
        ("learning", training, training),
        ("checks", checks * per_check, checks * per_check),
        ("selection", compared, round(0.6 * compared)),
        ("certificate", most_certified, min(certificate, most_certified)),
    ]
    phases = []
    for name, most, expected in spent:
        random_policies = name == "normalization" and simulator is not None
        each = simulator.length if random_policies and simulator is not None else length
        in_steps = name == "learning" and settings.steps > 0
        count = (steps or settings.steps) if in_steps else round(expected * each)
        speed = learning or simulator if name == "learning" else simulator
        seconds = None if speed is None else speed.seconds(count)
        if in_steps:
            expected = max(1, round(count / length))
        phases.append(Phase(name, None if in_steps else most, expected, count, seconds))
    words = _describe_certificate(settings, requirement)
    return RunPlan(tuple(phases), simulator, length, learner, words, time, learning)


def _check_episodes(settings: Settings, domain: Domain) -> int:
    """Return the episodes of a check during learning that are not part of the learner's generations."""
    if learner_class(settings.learner).check_method != "fixed":
        return settings.verify_episodes
    if isinstance(domain, GymDomain) and settings.verify_episodes == 1:
        return 0
    return min(settings.verify_episodes, CHECK_EPISODES)


def _describe_certificate(settings: Settings, requirement: Requirement) -> str:
    """Return the expected length of the certificate in words; empty if it cannot be computed."""
    if settings.method != "anytime" or not requirement.probability_constraints:
        return ""
    hardest: Sequence[Constraint] = sorted(requirement.probability_constraints, key=certificate_length)
    p, expected, needed = _characteristics(hardest[-1])
    if needed < MAX_PREDICTED_EPISODES:
        takes = f"about {expected:,.0f} episodes, with probability {DECISION_PROBABILITY:.0%} at most {needed:,.0f}"
    else:
        takes = (
            f"more than {MAX_PREDICTED_EPISODES:,} episodes with a probability above {1.0 - DECISION_PROBABILITY:.0%}"
        )
    most = settings.max_episodes
    short = "" if needed <= most else f"; this run allows {most:,}, and more with --max-episodes {needed:.0f}"
    return f"a certificate of a policy with probability {p:g} takes {takes}{short}"
