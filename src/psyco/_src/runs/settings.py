"""Everything besides domain and requirement that determines the outcome of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psyco._src.core.checks import check_count, check_seed
from psyco._src.core.errors import RunError, check_known
from psyco._src.learners.learner_registry import AUTO_LEARNER, LEARNERS
from psyco._src.policies.network import Hidden, check_hidden
from psyco._src.verification.methods import DEFAULT_METHOD, METHODS

SCALINGS = ("auto", "running", "sampled", "none")
# Of these the plan of a run decides, where they are not given.
PLANNED = (
    "hidden",
    "candidates",
    "selection_episodes",
    "attempts",
    "verify_every",
    "verify_episodes",
    "max_episodes",
)
AUTO = -1  # instead of a number: as the plan of the run decides
EPISODES = 60_000  # of a run that does not say how long it should be
MOST_STEPS = 2_000_000_000  # that are counted in 32 bits
BIASES = ("auto", "one", "learned")


@dataclass(frozen=True)
class Settings:
    """What a run is a function of, with domain and requirement.

    Args:
        episodes: training episodes, rounded up to whole generations; 0 where the budget is in steps.
        steps: of training, rounded up to whole generations, instead of episodes; 0: the budget is in episodes.
        seed: the run is a function of it.
        learner: how to learn; a name in `LEARNERS`, or "auto": what fits the domain, the budget and the speed.
        options: hyperparameters of that learner, where they differ from its defaults.
        hidden: hidden units of the policy network, or of each of its hidden layers, as in (64, 64). `AUTO`: 32, and
            (64, 64) for actor-critics on Gymnasium environments.
        bias: "one" as in the paper's equation, "learned", or "auto": one for snes, learned for all others.
        scaling: what the network makes of observations. "running": the mean and spread of all that were seen so far
            become 0 and 1, until learning ends; "sampled": those under random policies do; "none": they stay as they
            are; "auto": none for compiled domains; in Gymnasium environments running for actor-critics, else sampled.
        start_from: the policy that learning starts from, as "sha256:..." of its file; empty: from random parameters.
        severity: learn from how far a formula is from holding, instead of how often; satisfaction stays what it is.
        until_satisfied: end learning as soon as the current policy satisfies all constraints.
        candidates: how many policies from late in learning compete for the certificate; 1: only the last. This and what
            follows is decided by the plan of the run where it is `AUTO`: see `plan.py`.
        selection_episodes: how many episodes of each candidate decide in which order they are certified.
        attempts: at most so many candidates are tried; they share the permitted error.
        verify_every: check the current policy after so many training episodes; 0: never.
        verify_episodes: at most so many episodes for each of these checks: 100, or for snes as Alg. BV needs them.
        method: how the final policy is verified; a name in `METHODS`.
        max_episodes: at most so many episodes for the certificate.
    """

    episodes: int = EPISODES
    steps: int = 0
    seed: int = 0
    learner: str = AUTO_LEARNER
    options: Mapping[str, Any] = field(default_factory=dict)
    hidden: Hidden = AUTO
    bias: str = "auto"
    scaling: str = "auto"
    start_from: str = ""
    severity: bool = False
    until_satisfied: bool = False
    candidates: int = AUTO
    selection_episodes: int = AUTO
    attempts: int = AUTO
    verify_every: int = AUTO
    verify_episodes: int = AUTO
    method: str = DEFAULT_METHOD
    max_episodes: int = AUTO

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))
        if not isinstance(self.options, Mapping):
            raise RunError(f"options of a learner go by name, as in {{'alpha': 0.01}}, got {self.options!r}")
        object.__setattr__(self, "options", dict(self.options))
        check_known("learner", self.learner, (AUTO_LEARNER, *LEARNERS))
        check_known("verification method", self.method, METHODS)
        if self.hidden != AUTO:
            object.__setattr__(self, "hidden", check_hidden(self.hidden))
        for name, known in {"scaling": SCALINGS, "bias": BIASES}.items():
            if getattr(self, name) not in known:
                raise RunError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if not isinstance(self.start_from, str) or not re.fullmatch(
            r"(sha256:[0-9a-f]{64})?", self.start_from
        ):
            raise RunError(
                f"start_from = {self.start_from!r} is not allowed: settings name the policy that learning starts from "
                "by its digest, sha256:...; give the policy itself with --from"
            )
        for name in ("severity", "until_satisfied"):
            if not isinstance(getattr(self, name), bool):
                raise RunError(f"{name} must be true or false, got {getattr(self, name)!r}")
        object.__setattr__(self, "steps", check_steps(self.steps, 0))
        if self.steps and self.episodes not in (0, EPISODES):
            check_one_budget(episodes=self.episodes, steps=self.steps)
        if self.steps:
            object.__setattr__(self, "episodes", 0)
        for name, least in {
            "episodes": 0 if self.steps else 1,
            "candidates": 1,
            "selection_episodes": 1,
            "attempts": 1,
            "verify_every": 0,
            "verify_episodes": 1,
            "max_episodes": 1,
        }.items():
            if getattr(self, name) != AUTO or name == "episodes":
                object.__setattr__(self, name, check_count(name, getattr(self, name), least))
        if self.until_satisfied and not self.verify_every:
            raise RunError("until_satisfied needs verify_every above 0: learning ends after a verification")

    @property
    def unit(self) -> str:
        """What the budget is measured in."""
        return "steps" if self.steps else "episodes"

    @property
    def budget(self) -> str:
        """How long learning goes on, in words."""
        return f"{self.steps or self.episodes:,} {self.unit}"


def check_one_budget(**given: Any) -> None:
    """Refuse two budgets, of which one is meant."""
    if len(given) > 1:
        values = [f"{value:,}" if isinstance(value, int) else str(value) for value in given.values()]
        words = " or ".join(f"{name} ({value})" for name, value in zip(given, values, strict=True))
        raise RunError(f"the budget is either {words}: give the one that learning should end with")


def check_steps(steps: Any, least: int = 1) -> int:
    """A budget of steps as a plain int; 3e6 is a whole number too."""
    whole = int(steps) if isinstance(steps, float) and steps.is_integer() else steps
    if (checked := check_count("steps", whole, least)) > MOST_STEPS:
        raise RunError(f"steps must be at most {MOST_STEPS:,}, got {checked:,}")
    return checked


UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def read_time(time: str | float) -> float:
    """Seconds, of a number of them or of a text such as 90s, 10min or 1.5h."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*(s|min|h)\s*", time) if isinstance(time, str) else None
    try:
        seconds = (
            float(found[1]) * UNITS[found[2]] if found else float(time) if not isinstance(time, str) else 0.0
        )
    except (TypeError, ValueError):
        seconds = 0.0
    if isinstance(time, bool) or not 0.0 < seconds < 1e7:
        raise RunError(f"a time is a number with a unit, as in 90s, 10min or 1.5h, got {time!r}")
    return seconds


def duration(seconds: float) -> str:
    """A time for people: 42 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
