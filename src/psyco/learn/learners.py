"""The registry: learner name -> learner."""

from __future__ import annotations

import dataclasses
from typing import Any

from psyco.domain.base import suggest
from psyco.errors import RunError
from psyco.learn.base import Learner
from psyco.learn.safe_es import SafeES
from psyco.learn.snes import SNES
from psyco.spec.formula import Requirement

# Frozen dataclasses with the fields p_req, c_req, budget, sign, and hyperparameters with defaults.
LEARNERS: dict[str, type] = {
    "safe-es": SafeES,
    "snes": SNES,
}
GIVEN = ("p_req", "c_req", "budget", "sign")


def make_learner(name: str, requirement: Requirement, *, budget: int = 60_000, **options: Any) -> Learner:
    """The learner of that name for a requirement; `options` replace its default hyperparameters.

    `budget` is the number of training episodes that schedules follow.
    """
    if name not in LEARNERS:
        raise RunError(
            f"unknown learner {name!r}{suggest(name, list(LEARNERS))}; there are: {', '.join(LEARNERS)}"
        )
    known = learner_options(name)
    for option in options:
        if option not in known:
            raise RunError(
                f"{name} has no option {option!r}{suggest(option, list(known))}; it has: {', '.join(known)}"
            )
    demands = requirement.demands
    learner: Learner = LEARNERS[name](
        p_req=tuple(demand.p_req for demand in demands),
        c_req=tuple(demand.confidence for demand in demands),
        budget=budget,
        sign=1.0 if requirement.goal.maximize else -1.0,
        **options,
    )
    return learner


def learner_options(name: str) -> dict[str, Any]:
    """The hyperparameters of a learner and their defaults."""
    return {f.name: f.default for f in dataclasses.fields(LEARNERS[name]) if f.name not in GIVEN}
