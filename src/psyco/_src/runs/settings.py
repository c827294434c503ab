"""Everything besides domain and requirement that determines the outcome of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psyco._src.core.checks import check_count, check_seed
from psyco._src.core.errors import RunError, check_known
from psyco._src.core.options import changed, check_declared, option
from psyco._src.envs.variants import MEAN, read_tail
from psyco._src.learners.learner_registry import AUTO_LEARNER, LEARNERS
from psyco._src.policies.image_network import ENCODERS
from psyco._src.policies.joint_network import SHARINGS
from psyco._src.policies.network import MEMORIES, Hidden, check_hidden
from psyco._src.verification.methods import DEFAULT_METHOD, METHODS

DEFAULT_EPISODES = 60_000
DEFAULT_ADVERSARY_EPISODES = 20_000  # of learning an adversary
DEFAULT_RESPONSE_EPISODES = 40_000  # of learning the best response of an agent
MAX_STEPS = 2_000_000_000  # they, and violations, are counted in 32 bits
NORMALIZATIONS = ("auto", "running", "sampled", "none")
LEARNINGS = ("joint", "independent")  # of several agents: one learner for all, or one for each
BIASES = ("auto", "one", "learned")
# Headings of the command line; the first is that of options without a heading.
MAIN, LEARNING, CERTIFICATE = "Options", "Learning", "Certificate"


@dataclass(frozen=True)
class Settings:
    """Settings of a run: learning, selection and certificate.

    `None` means automatic: `resolve_auto` in `budget.py` chooses a value for the domain before the run starts.
    `learner` is a name or an options object such as `psyco.PPO(learning_rate=3e-4)`, which becomes its name and its
    `options`.
    """

    episodes: int = option(DEFAULT_EPISODES, "Training episodes.", minimum=1, group=MAIN)
    steps: int = option(
        0,
        "Training steps, instead of episodes.",
        minimum=0,
        maximum=MAX_STEPS,
        group=MAIN,
    )
    violations_while_learning: int = option(
        None,
        "Limit on violating training episodes.",
        kind=int,
        minimum=1,
        maximum=MAX_STEPS,
        group=LEARNING,
    )
    # Where `--time` ended learning: part of the record that repeats a run.
    stop_after: int = option(
        0,
        "Steps after which learning ends although its budget, which schedules follow, is larger. 0: all of the budget.",
        minimum=0,
        maximum=MAX_STEPS,
    )
    seed: int = option(0, "Seed of all randomness.", minimum=0, maximum=2**31 - 1, group=MAIN)
    learner: Any = option(
        AUTO_LEARNER,
        f"Learning algorithm: {', '.join((AUTO_LEARNER, *LEARNERS))}.",
        kind=None,
        choices=(AUTO_LEARNER, *LEARNERS),
        group=MAIN,
    )
    # Hyperparameters of the learner that differ from its defaults.
    options: Mapping[str, Any] = field(default_factory=dict)
    hidden: Hidden = option(
        None,
        "Hidden units by layer; default 32, or 64,64.",
        group=LEARNING,
    )
    bias: str = option(
        "auto",
        "Biases of the network: one (the paper's equation), learned, or auto: one for snes, learned otherwise.",
        choices=BIASES,
    )
    memory: str = option(
        "none",
        "Memory of the policy: none, or gru.",
        choices=MEMORIES,
        group=LEARNING,
    )
    encoder: str = option(
        "auto",
        "Encoder of observations: conv (convolutions, of images), dense (none), or auto: conv for images with ppo.",
        choices=ENCODERS,
    )
    normalization: str = option(
        "auto",
        "Observation normalization: running (statistics of all observations so far), sampled (statistics under "
        "random policies), none, or auto.",
        choices=NORMALIZATIONS,
    )
    policies: str = option(
        None,
        "Policies of several agents: shared, separate, group.",
        kind=str,
        choices=SHARINGS,
        group=LEARNING,
    )
    learning: str = option(
        "joint",
        "Several agents: joint, independent.",
        choices=LEARNINGS,
        group=LEARNING,
    )
    # Digest of the policy that learning starts from, "sha256:..."; empty: random parameters.
    start_from: str = ""
    shield: float = option(
        None,
        "Models: allow only choices that keep this probability.",
        kind=float,
        above=0.0,
        maximum=1.0,
        group=LEARNING,
    )
    severity: bool = option(False, "Learn from distances to satisfaction.", group=LEARNING)
    robust: str = option(
        MEAN,
        "Part of a family to learn for: mean, cvar:0.1, worst.",
        group=LEARNING,
    )
    until_satisfied: bool = option(
        False,
        "Stop learning once satisfied.",
        group=LEARNING,
    )
    candidates: int = option(
        None,
        "Late checkpoints to choose from.",
        kind=int,
        minimum=1,
        group=CERTIFICATE,
    )
    selection_episodes: int = option(None, "Episodes that rank a candidate.", kind=int, minimum=1, group=CERTIFICATE)
    attempts: int = option(
        None,
        "Candidates that may be tried; they share the permitted error.",
        kind=int,
        minimum=1,
        group=CERTIFICATE,
    )
    verify_every: int = option(
        None, "Training episodes between two checks of the current policy; 0: no checks.", kind=int, minimum=0
    )
    verify_episodes: int = option(None, "Maximum number of episodes per check.", kind=int, minimum=1)
    method: str = option(
        DEFAULT_METHOD,
        f"Statistical test: {', '.join(METHODS)}.",
        choices=tuple(METHODS),
        group=CERTIFICATE,
    )
    max_episodes: int = option(None, "Most episodes of the certificate.", kind=int, minimum=1, group=CERTIFICATE)

    def __post_init__(self) -> None:
        if not isinstance(self.learner, str):
            if self.options:
                raise RunError("give the learner's options in the learner object or in options, not in both")
            from psyco._src.learners.learner_registry import learner_name

            name = learner_name(self.learner)  # raises an error for anything else than an options object
            object.__setattr__(self, "options", changed(self.learner))
            object.__setattr__(self, "learner", name)
        if not isinstance(self.options, Mapping):
            raise RunError(
                f"options of a learner are given by name, as in {{'learning_rate': 0.01}}, got {self.options!r}"
            )
        object.__setattr__(self, "options", dict(self.options))
        object.__setattr__(self, "steps", check_steps(self.steps, 0))
        if self.steps and self.episodes not in (0, DEFAULT_EPISODES):
            check_one_budget(episodes=self.episodes, steps=self.steps)
        episodes = 0 if self.steps else check_count("episodes", self.episodes)
        object.__setattr__(self, "episodes", DEFAULT_EPISODES)
        check_known("learner", self.learner, (AUTO_LEARNER, *LEARNERS))
        check_known("verification method", self.method, METHODS)
        object.__setattr__(self, "seed", check_seed(self.seed))
        if self.hidden is not None:
            object.__setattr__(self, "hidden", check_hidden(self.hidden))
        if self.learning == "alternating":
            raise RunError(
                "a joint policy is learned first, and then in turn with the best responses of an agent: psyco exploit "
                "RUN --agent AGENT --train-against ROUNDS, or psyco.train_against(run, agent=..., rounds=...)"
            )
        check_declared(self)
        object.__setattr__(self, "episodes", episodes)
        read_tail(self.robust)
        if not isinstance(self.start_from, str) or not re.fullmatch(r"(sha256:[0-9a-f]{64})?", self.start_from):
            raise RunError(
                f"start_from = {self.start_from!r} is not allowed: settings name the policy that learning starts from "
                "by its digest, sha256:...; give the policy itself with --from"
            )
        if self.until_satisfied and self.verify_every == 0:
            raise RunError("until_satisfied needs verify_every above 0: learning ends after a check")

    @property
    def unit(self) -> str:
        """The unit of the budget."""
        return "steps" if self.steps else "episodes"

    @property
    def budget(self) -> str:
        """The length of learning, in words."""
        return f"{self.steps or self.episodes:,} {self.unit}"


def check_one_budget(**given: Any) -> None:
    """Raise an error if more than one budget is given."""
    if len(given) > 1:
        values = [f"{value:,}" if isinstance(value, int) else str(value) for value in given.values()]
        words = " or ".join(f"{name} ({value})" for name, value in zip(given, values, strict=True))
        raise RunError(f"the budget is either {words}: give one of them")


def check_steps(steps: Any, minimum: int = 1) -> int:
    """Return a budget of steps as a plain int; 3e6 is a whole number too."""
    whole = int(steps) if isinstance(steps, float) and steps.is_integer() else steps
    if (checked := check_count("steps", whole, minimum)) > MAX_STEPS:
        raise RunError(f"steps must be at most {MAX_STEPS:,}, got {checked:,}")
    return checked


SECONDS_PER_UNIT = {"s": 1.0, "min": 60.0, "h": 3600.0}


def read_time(time: str | float) -> float:
    """Return the seconds of a number or of a text such as 90s, 10min or 1.5h."""
    found = re.fullmatch(r"\s*([0-9.]+)\s*(s|min|h)\s*", time) if isinstance(time, str) else None
    try:
        if found:
            seconds = float(found[1]) * SECONDS_PER_UNIT[found[2]]
        else:
            seconds = 0.0 if isinstance(time, str) else float(time)
    except (TypeError, ValueError):
        seconds = 0.0
    if isinstance(time, bool) or not 0.0 < seconds < 1e7:
        raise RunError(f"a time is a number with a unit, as in 90s, 10min or 1.5h, got {time!r}")
    return seconds


def duration(seconds: float) -> str:
    """Format a time: 42 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
