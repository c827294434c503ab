"""What a run will spend, before it starts: episodes, steps and time of every phase.

Where an episode costs time, on Gymnasium environments, everything but learning takes at most a third of the training
episodes, unless a certificate could not be had with that; and no more than learning itself, but for a few episodes
without which there could be none at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from psyco._src.verification.ledger import look_share
from psyco._src.envs.base import Domain
from psyco._src.envs.gym_env import GymDomain
from psyco._src.core.errors import RunError
from psyco._src.learners.learner_registry import looks_into_episodes
from psyco._src.policies.network import Bias, Hidden
from psyco._src.rollout.throughput import Throughput, expected_length
from psyco._src.rollout.obs_normalization import EPISODES as SCALING
from psyco._src.verification.base import Counts, Test
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, make_test
from psyco._src.verification.operating_characteristics import operating_characteristics
from psyco._src.logic.ast import Constraint, Requirement, Signal, walk
from psyco._src.runs.settings import AUTO, Settings, duration

# Where an episode costs next to nothing, on compiled domains.
PLENTY = {
    "candidates": 5,
    "selection_episodes": 500,
    "attempts": 3,
    "verify_every": 1000,
    "verify_episodes": 1000,
    "max_episodes": DEFAULT_MAX_EPISODES,
}
SHARE = 1 / 3  # of the training episodes for everything but learning
SELECTION = 0.3  # of that
CHECKS = 20  # while learning
LOOKED_AT = 2000  # episodes of a certificate, up to which its length is computed
CHANCE = 0.9  # of a verdict, for which there should be room
NEARLY = 1.25  # times as many as learning has may a certificate take that could else not be had at all
PAPER: Hidden = 32  # hidden units, as in the paper
CONTROL: Hidden = (64, 64)  # the same for robots and the like
# Options of actor-critics there. The less a policy has to spare, the more episodes its certificate takes; there are few
# generations, in which a λ that has fallen must come back; and what was learned without the demand must be unlearned.
CONTROLLED: dict[str, Any] = {"margin": 0.5, "relief": 0.5, "press": 0.5, "curriculum": 0.25}
# Of ppo: some say is left to the return, or a policy may learn to end its episodes before it can violate anything.
LEAST = {"least": 0.1}
# Near a bound, what is learned with much noise keeps away from it further than the policy without noise has to; but
# little noise hardly ever makes another choice.
QUIET = {"std_end": 0.1}


class Phase(NamedTuple):
    """One thing that a run does."""

    name: str
    episodes: int | None  # at most; None: that is not known, since its budget is in steps
    expected: int  # episodes
    steps: int  # that the expected ones take, at the length that is expected
    seconds: float | None  # None: the speed was not measured


@dataclass(frozen=True, repr=False)
class RunPlan:
    """What a run will spend, phase by phase; `str` is a table of it.

    Args:
        phases: scaling, learning, checks, selection, certificate.
        pace: of the simulator, as it was measured; None: it was not.
        length: steps of an episode, as expected.
        learner: which one was chosen and why, in words; empty where it was asked for.
        needs: what the certificate takes, in words; empty where nothing is to be shown.
        time: what a budget in time was resolved to, in words; empty if there was none.
    """

    phases: tuple[Phase, ...]
    pace: Throughput | None
    length: float
    learner: str = ""
    needs: str = ""
    time: str = ""

    @property
    def episodes(self) -> int:
        """All of them, at most; where the budget is in steps, as expected."""
        return sum(phase.expected if phase.episodes is None else phase.episodes for phase in self.phases)

    @property
    def seconds(self) -> float | None:
        """How long all of it is expected to take."""
        if self.pace is None:
            return None
        return sum(phase.seconds or 0.0 for phase in self.phases)

    def __repr__(self) -> str:
        took = "" if self.seconds is None else f", about {duration(self.seconds)}"
        return f"<RunPlan: at most {self.episodes:,} episodes{took}>"

    def __str__(self) -> str:
        lines = [line for line in (self.time, self.learner) if line]
        timed = self.pace is not None
        lines.append(
            f"{'plan':12}{'episodes':>10}{'at most':>10}{'steps':>14}" + ("      time" if timed else "")
        )
        for name, most, expected, steps, seconds in [phase for phase in self.phases if phase.episodes != 0]:
            took = f"{duration(seconds):>10}" if seconds is not None else ""
            at_most = "" if most is None else f"{most:,}"
            lines.append(f"{name:12}{expected:10,}{at_most:>10}{steps:14,}{took}")
        if self.pace is not None and self.seconds is not None:
            what, beside = (
                ("in all, with a simulator", "")
                if self.time
                else ("of simulation,", "; what the learner computes comes on top")
            )
            lines.append(
                f"about {duration(self.seconds)} {what} at {self.pace.rate:,.0f} steps per second and "
                f"{self.length:,.0f} steps per episode{beside}"
            )
        return "\n".join([*lines, *([self.needs] if self.needs else [])])

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        pace = None if self.pace is None else self.pace._asdict()
        return {
            "phases": [phase._asdict() for phase in self.phases],
            "episodes": self.episodes,
            "seconds": self.seconds,
            "pace": pace,
            "length": self.length,
            "learner": self.learner,
            "needs": self.needs,
            "time": self.time,
        }


def expected_episodes(settings: Settings, domain: Domain) -> int:
    """How many the budget allows; of steps, if all were as long as they can be."""
    return settings.episodes or -(-settings.steps // domain.horizon)


def bias_of(settings: Settings) -> Bias:
    """What "auto" means for biases."""
    bias = {"auto": "one" if settings.learner == "snes" else "learned"}.get(settings.bias, settings.bias)
    return cast(Bias, bias)


def scaling_of(settings: Settings, domain: Domain) -> str:
    """What "auto" means for observations: actor-critics follow what they see, evolution strategies seldom update."""
    if settings.scaling == "running" and bias_of(settings) == "one":
        raise RunError(
            "running statistics of observations go into the biases of the network, which are 1 here: "
            "use bias='learned', or scaling='sampled'"
        )
    if settings.scaling != "auto":
        return settings.scaling
    if not isinstance(domain, GymDomain):
        return "none"
    follows = looks_into_episodes(settings.learner) and bias_of(settings) == "learned"
    return "running" if follows else "sampled"


def decided(settings: Settings, domain: Domain, requirement: Requirement) -> Settings:
    """The settings, whose learner is known, with a number for all that was left to the plan; what was given stays."""
    costly, options = isinstance(domain, GymDomain), settings.options
    changes: dict[str, Any] = {}
    if settings.hidden == AUTO:
        changes["hidden"] = CONTROL if costly and looks_into_episodes(settings.learner) else PAPER
    if costly and looks_into_episodes(settings.learner):
        changes["options"] = _controlled(settings, domain, requirement) | dict(options)
    if left := [name for name in PLENTY if getattr(settings, name) == AUTO]:
        numbers = _thrifty(settings, domain, requirement) if costly else PLENTY
        changes |= {name: numbers[name] for name in left}
    return dataclasses.replace(settings, **changes)


def _controlled(settings: Settings, domain: Domain, requirement: Requirement) -> dict[str, Any]:
    """Options of an actor-critic where episodes cost time, if they are not given."""
    options = dict(CONTROLLED)
    if settings.learner == "ppo":
        options |= LEAST if domain.actions.ranked else LEAST | QUIET
        # Of a return that is demanded, what comes late in an episode is as good as what comes soon.
        formulas = [demand.formula for demand in requirement.demands]
        if any(isinstance(n, Signal) and n.name == "return" for formula in formulas for n in walk(formula)):
            options["discount"] = max(0.95, 1.0 - 1.0 / domain.horizon)
    return options


def _thrifty(settings: Settings, domain: Domain, requirement: Requirement) -> dict[str, int]:
    """Where episodes cost time: so many of each that they keep to their share."""
    training = expected_episodes(settings, domain)
    needed = max((certificate_length(c, CHANCE) for c in requirement.probabilities), default=0)
    room = min(max(int(SHARE * training), int(needed / (1.0 - SELECTION))), training)
    room = max(room - (SCALING if scaling_of(settings, domain) == "sampled" else 0), 1)
    # The learners but the paper's play checks of their own, so that there are always enough.
    checks, each = (min(CHECKS, room // 100), 10) if settings.learner == "snes" else (CHECKS, 1)
    room -= checks * each if each > 1 else 0
    # Where there is too little for both, most of it goes to the certificate.
    compared = min(int(SELECTION * room), max(room - needed, room // 10))
    candidates = min(PLENTY["candidates"], max(1, compared // 20))
    shown = room - (compared if candidates > 1 else 0)
    least = max((shortest_certificate(c) for c in requirement.probabilities), default=0)
    if shown < least <= NEARLY * training:  # with a few less all of them would be in vain
        candidates, shown = 1, least
    expected = max((certificate_length(c) for c in requirement.probabilities), default=0)
    attempts = max(1, min(2, candidates, shown // max(expected, 1)))
    return {
        "candidates": candidates,
        "selection_episodes": min(PLENTY["selection_episodes"], max(1, compared // candidates)),
        "attempts": attempts,
        "verify_every": max(1, training // checks) if checks else training * settings.until_satisfied,
        "verify_episodes": each,
        "max_episodes": min(PLENTY["max_episodes"], max(1, shown // attempts)),
    }


@lru_cache
def _characteristics(constraint: Constraint) -> tuple[float, float, float]:
    """Of a first look at a policy halfway between the bound and certainty: p, expected episodes, those for CHANCE."""
    lower, upper = max(constraint.lower, 0.0), min(constraint.upper, 1.0)
    p = (lower + upper) / 2.0
    found = operating_characteristics(_first_look(constraint), [p], LOOKED_AT)
    return p, float(found.episodes[0]), float(min(found.needed(CHANCE)[0], LOOKED_AT))


def certificate_length(constraint: Constraint, chance: float | None = None) -> int:
    """Episodes that a certificate of a policy halfway between bound and certainty takes: expected, or with a chance."""
    _, expected, needed = _characteristics(constraint)
    return round(expected if chance is None else needed)


@lru_cache
def shortest_certificate(constraint: Constraint) -> int:
    """Episodes of a first look that must all be as asked for before a certificate can be had; at most `LOOKED_AT`."""
    good = np.arange(1, LOOKED_AT + 1)
    none = np.zeros_like(good)
    counts = Counts(good, none) if constraint.upper >= 1.0 else Counts(none, good)
    accepted = np.asarray(_first_look(constraint).decide(counts)) == 1
    return int(good[accepted.argmax()]) if accepted.any() else LOOKED_AT


def _first_look(constraint: Constraint) -> Test:
    delta = look_share(1) * (1.0 - constraint.confidence)
    return make_test("anytime", constraint, false_accept=delta, false_reject=delta)


def make_run_plan(
    settings: Settings,
    domain: Domain,
    requirement: Requirement,
    *,
    pace: Throughput | None = None,
    learning: Throughput | None = None,
    scaling: int = 0,
    learner: str = "",
    time: str = "",
) -> RunPlan:
    """The plan of a run with settings in which everything is decided.

    Args:
        settings: of the run.
        domain: where it learns.
        requirement: what must hold.
        pace: of the simulator.
        learning: of simulator and learner together; None: that was not measured.
        scaling: episodes that are played first, by which observations are scaled.
        learner: which one was chosen and why, in words.
        time: what a budget in time was resolved to, in words.
    """
    training = expected_episodes(settings, domain)
    length = settings.steps / training if settings.steps else expected_length(domain, pace)
    tested = bool(requirement.constraints)
    checks = training // settings.verify_every if settings.verify_every and tested else 0
    most = settings.max_episodes if settings.until_satisfied else _of_check(settings, domain)
    expected = (
        max((certificate_length(c) for c in requirement.probabilities), default=0) or settings.max_episodes
    )
    compared = settings.candidates * settings.selection_episodes if settings.candidates > 1 else 0
    spent: list[tuple[str, int, float]] = [
        ("scaling", scaling, 1.0),
        ("learning", training, 1.0),
        ("checks", checks * most, 1.0),
        ("selection", compared, 0.6),
        ("certificate", settings.max_episodes * settings.attempts, 0.0),
    ]
    phases = []
    for name, at_most, part in spent:
        count = min(expected, at_most) if name == "certificate" else round(part * at_most)
        each = pace.length if name == "scaling" and pace is not None else length
        steps = settings.steps if name == "learning" and settings.steps else round(count * each)
        clock = learning or pace if name == "learning" else pace
        seconds = None if clock is None else clock.seconds(steps)
        if name == "learning" and settings.steps:
            count = max(1, round(settings.steps / expected_length(domain, pace)))
            phases.append(Phase(name, None, count, steps, seconds))
        else:
            phases.append(Phase(name, at_most, count, steps, seconds))
    return RunPlan(tuple(phases), pace, length, learner, _needs(settings, requirement), time)


def _of_check(settings: Settings, domain: Domain) -> int:
    """Episodes of a check while learning that the learner does not play anyway."""
    if settings.learner == "snes":
        return settings.verify_episodes
    return (
        0
        if isinstance(domain, GymDomain) and settings.verify_episodes == 1
        else min(settings.verify_episodes, 100)
    )


def _needs(settings: Settings, requirement: Requirement) -> str:
    """What a certificate takes, where that can be computed."""
    if settings.method != "anytime" or not requirement.probabilities:
        return ""
    worst: Sequence[Constraint] = sorted(requirement.probabilities, key=certificate_length)
    p, expected, needed = _characteristics(worst[-1])
    enough = (
        ""
        if needed <= settings.max_episodes
        else f"; more than the {settings.max_episodes:,} that it may take"
    )
    takes = (
        f"about {expected:,.0f} episodes, with a chance of {CHANCE:.0%} at most {needed:,.0f}"
        if needed < LOOKED_AT
        else f"more than {LOOKED_AT:,} episodes with a chance of more than {1.0 - CHANCE:.0%}"
    )
    return f"a certificate of a policy with probability {p:g} takes {takes}{enough}"
