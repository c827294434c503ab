"""Which learner, where none is named: by the kind of domain, the budget, and how fast the simulator is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from psyco._src.envs.base import Domain
from psyco._src.envs.gym_env import GymDomain
from psyco._src.learners.learner_registry import AUTO_LEARNER
from psyco._src.rollout.throughput import Throughput, expected_length
from psyco._src.runs.settings import Settings

FEW = 300_000  # steps of a run, up to which an off-policy learner makes more of them
SLOW = 500.0  # steps per second, below which learning from a step costs less than making it


class LearnerChoice(NamedTuple):
    """A learner, and why it is this one."""

    learner: str
    reason: str  # empty: it was asked for


def choose(settings: Settings, domain: Domain, pace: Callable[[], Throughput]) -> LearnerChoice:
    """The learner that settings name, or that fits.

    Args:
        settings: of the run.
        domain: where it learns.
        pace: measures the simulator; not called where its speed does not matter.
    """
    if settings.learner != AUTO_LEARNER:
        return LearnerChoice(settings.learner, "")
    if not isinstance(domain, GymDomain):
        return LearnerChoice("safe-es", "on a compiled domain episodes cost next to nothing")
    if settings.bias == "one":
        return LearnerChoice("safe-es", "biases of the network are 1, which actor-critics can do without only badly")
    if (steps := settings.steps or settings.episodes * domain.horizon) <= FEW:
        return LearnerChoice("sac", f"of at most {steps:,} steps each must be learned from many times")
    found = pace()
    steps = settings.steps or round(settings.episodes * expected_length(domain, found))
    budget = f"about {steps:,} steps at {found.rate:,.0f} per second"
    if found.rate < SLOW:
        return LearnerChoice("sac", f"{budget}: a step takes longer than it takes to learn from it many times")
    return LearnerChoice(
        "ppo", f"{budget}: there are many, and they are made faster than an off-policy learner uses them"
    )
