"""Everything besides domain and requirement that determines the outcome of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psyco._src.domain.checks import check_count, check_seed
from psyco._src.errors import RunError, check_known
from psyco._src.learn.learners import LEARNERS
from psyco._src.smc.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD, METHODS

SCALINGS = ("auto", "sampled", "none")
BIASES = ("auto", "one", "learned")


@dataclass(frozen=True)
class Settings:
    """What a run is a function of, with domain and requirement.

    Args:
        episodes: training episodes, rounded up to whole generations.
        seed: the run is a function of it.
        learner: how to learn; a name in `LEARNERS`.
        options: hyperparameters of that learner, where they differ from its defaults.
        hidden: hidden units of the policy network.
        bias: "one" as in the paper's equation, "learned", or "auto": one for snes, learned for all others.
        scaling: what the network makes of observations. "sampled": their mean and spread under random policies become
            0 and 1; "none": as they are; "auto": sampled for Gymnasium environments, none for compiled domains.
        severity: learn from how far a formula is from holding, instead of how often; satisfaction stays what it is.
        until_satisfied: end learning as soon as the current policy satisfies all constraints.
        candidates: how many policies from late in learning compete for the certificate; 1: only the last.
        selection_episodes: how many episodes of each candidate decide in which order they are certified.
        attempts: at most so many candidates are tried; they share the permitted error.
        verify_every: check the current policy after so many training episodes; 0: never.
        verify_episodes: at most so many episodes for each of these checks: 100, or for snes as Alg. BV needs them.
        method: how the final policy is verified; a name in `METHODS`.
        max_episodes: at most so many episodes for the certificate.
    """

    episodes: int = 60_000
    seed: int = 0
    learner: str = "safe-es"
    options: Mapping[str, Any] = field(default_factory=dict)
    hidden: int = 32
    bias: str = "auto"
    scaling: str = "auto"
    severity: bool = False
    until_satisfied: bool = False
    candidates: int = 5
    selection_episodes: int = 500
    attempts: int = 3
    verify_every: int = 1000
    verify_episodes: int = 1000
    method: str = DEFAULT_METHOD
    max_episodes: int = DEFAULT_MAX_EPISODES

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))
        if not isinstance(self.options, Mapping):
            raise RunError(f"options of a learner go by name, as in {{'alpha': 0.01}}, got {self.options!r}")
        object.__setattr__(self, "options", dict(self.options))
        check_known("learner", self.learner, LEARNERS)
        check_known("verification method", self.method, METHODS)
        for name, known in {"scaling": SCALINGS, "bias": BIASES}.items():
            if getattr(self, name) not in known:
                raise RunError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        for name in ("severity", "until_satisfied"):
            if not isinstance(getattr(self, name), bool):
                raise RunError(f"{name} must be true or false, got {getattr(self, name)!r}")
        for name, least in {
            "episodes": 1,
            "candidates": 1,
            "selection_episodes": 1,
            "attempts": 1,
            "verify_every": 0,
            "verify_episodes": 1,
            "max_episodes": 1,
        }.items():
            object.__setattr__(self, name, check_count(name, getattr(self, name), least))
        if self.until_satisfied and not self.verify_every:
            raise RunError("until_satisfied needs verify_every above 0: learning ends after a verification")
