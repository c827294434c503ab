"""The registry: learner name -> learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from psyco._src.core.errors import RunError, check_has
from psyco._src.core.lazy_registry import Registry

if TYPE_CHECKING:  # the names of the learners are there without JAX
    from psyco._src.envs.actions import Actions
    from psyco._src.learners.base import Learner
    from psyco._src.learners.expectation_constraints import ExpectationBound
    from psyco._src.learners.search_space import Ranges
    from psyco._src.logic.ast import Requirement
    from psyco._src.policies.network import Network

# Frozen dataclasses: the fields p_req, c_req, means, budget, steps, sign, perhaps network, options with defaults, and
# the `ranges` in which these are worth trying.
LEARNERS = Registry(
    "learner",
    {
        "safe-es": "learners.safe_es:SafeES",
        "snes": "learners.snes:SNES",
        "evosax": "learners.evosax_es:EvosaxES",
        "ppo": "learners.ppo:PPO",
        "sac": "learners.sac:SAC",
    },
)
TUNED_BY_DEFAULT = "safe-es"  # by `psyco tune`, where none is named
AUTO_LEARNER = "auto"  # instead of a name: the one that fits, see synthesis/choice.py
# The type of an option's default -> what may be given, and its name.
KINDS: dict[type, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a word"),
}
GIVEN = ("p_req", "c_req", "means", "budget", "steps", "sign")
# What a learner may have to know of the problem: a field of its own, and where that comes from.
LOOKED_INTO = {
    "network": "the network of the policy",
    "actions": "what there is to choose from",
    "horizon": "the steps of an episode",
    "counters": "how many counters a trace has",
}


def make_learner(
    name: str,
    requirement: Requirement,
    *,
    means: Sequence[ExpectationBound] = (),
    network: Network | None = None,
    actions: Actions | None = None,
    horizon: int | None = None,
    budget: int = 60_000,
    steps: int = 0,
    **options: Any,
) -> Learner:
    """The learner of that name for a requirement; `options` replace its default hyperparameters.

    Args:
        name: of the learner.
        requirement: its goal, and the probabilities that it asks for.
        means: the expected values that it asks for, from `means_of`.
        network: that of the policy, for learners that look into it;
        actions: what it chooses from,
        horizon: and how many steps an episode has at most, likewise.
        budget: the number of training episodes, which schedules follow; of steps, the number that is expected.
        steps: that of training, where it is the budget; 0: the episodes are.
        **options: of the learner.
    """
    known = learner_options(name)
    check_has(name, "option", options, known)
    for option, value in options.items():
        kind, called = KINDS[type(known[option])]
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise RunError(f"{option} must be {called}, got {value!r}")
    from psyco._src.logic.batch_monitor import tracked

    demands = requirement.demands
    counters = len(tracked([demand.formula for demand in demands]))
    known_of = {"network": network, "actions": actions, "horizon": horizon, "counters": counters}
    for needed in {f.name for f in dataclasses.fields(LEARNERS[name])} & LOOKED_INTO.keys():
        if known_of[needed] is None:
            raise RunError(f"{name} needs {LOOKED_INTO[needed]}: make_learner(..., {needed}={needed})")
        options[needed] = known_of[needed]
    learner: Learner = LEARNERS[name](
        p_req=tuple(demand.p_req for demand in demands),
        c_req=(*(demand.confidence for demand in demands), *(mean.confidence for mean in means)),
        means=tuple(means),
        budget=budget,
        steps=steps,
        sign=1.0 if requirement.goal.maximize else -1.0,
        **options,
    )
    return learner


def looks_into_episodes(name: str) -> bool:
    """Whether a learner learns from single steps, for which it needs to know the policy's network."""
    return "network" in {f.name for f in dataclasses.fields(LEARNERS[name])}


def learner_options(name: str) -> dict[str, Any]:
    """The hyperparameters of a learner and their defaults; while none is chosen, those of all."""
    if name == AUTO_LEARNER:
        return {option: value for each in LEARNERS for option, value in learner_options(each).items()}
    return {
        f.name: f.default for f in dataclasses.fields(LEARNERS[name]) if f.name not in (*GIVEN, *LOOKED_INTO)
    }


def learner_ranges(name: str) -> Ranges:
    """The hyperparameters that are worth tuning, and between what; nothing where a learner declares none."""
    found: Ranges = getattr(LEARNERS[name], "ranges", {})
    return found
