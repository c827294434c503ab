"""The registry: learner name -> learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from psyco._src.errors import RunError, check_has
from psyco._src.registry import Registry

if TYPE_CHECKING:  # the names of the learners are there without JAX
    from psyco._src.learn.base import Learner
    from psyco._src.learn.means import Mean
    from psyco._src.policy.network import Network
    from psyco._src.spec.formula import Requirement

# Frozen dataclasses with the fields p_req, c_req, means, budget, sign, perhaps network, and options with defaults.
LEARNERS = Registry(
    "learner",
    {
        "safe-es": "learn.safe_es:SafeES",
        "snes": "learn.snes:SNES",
        "evosax": "learn.evosax_es:EvosaxES",
        "ppo": "learn.ppo:PPO",
    },
)
# The type of an option's default -> what may be given, and its name.
KINDS: dict[type, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a word"),
}
GIVEN = ("p_req", "c_req", "means", "network", "budget", "sign")


def make_learner(
    name: str,
    requirement: Requirement,
    *,
    means: Sequence[Mean] = (),
    network: Network | None = None,
    budget: int = 60_000,
    **options: Any,
) -> Learner:
    """The learner of that name for a requirement; `options` replace its default hyperparameters.

    Args:
        name: of the learner.
        requirement: its goal, and the probabilities that it asks for.
        means: the expected values that it asks for, from `means_of`.
        network: that of the policy, for learners that look into it.
        budget: the number of training episodes, which schedules follow.
        **options: of the learner.
    """
    known = learner_options(name)
    check_has(name, "option", options, known)
    for option, value in options.items():
        kind, called = KINDS[type(known[option])]
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise RunError(f"{option} must be {called}, got {value!r}")
    if "network" in {f.name for f in dataclasses.fields(LEARNERS[name])}:
        if network is None:
            raise RunError(f"{name} needs the network of the policy: make_learner(..., network=network)")
        options["network"] = network
    demands = requirement.demands
    learner: Learner = LEARNERS[name](
        p_req=tuple(demand.p_req for demand in demands),
        c_req=(*(demand.confidence for demand in demands), *(mean.confidence for mean in means)),
        means=tuple(means),
        budget=budget,
        sign=1.0 if requirement.goal.maximize else -1.0,
        **options,
    )
    return learner


def learner_options(name: str) -> dict[str, Any]:
    """The hyperparameters of a learner and their defaults."""
    return {f.name: f.default for f in dataclasses.fields(LEARNERS[name]) if f.name not in GIVEN}
