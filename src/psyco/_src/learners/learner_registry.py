"""The registry: learner name -> class of options, and options + requirement -> learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from psyco._src.core.errors import RunError, check_has
from psyco._src.core.lazy_registry import Registry
from psyco._src.core.options import Declaration, declared

if TYPE_CHECKING:  # the names of the learners are available without importing JAX
    from psyco._src.core.options import Ranges
    from psyco._src.envs.actions import Actions
    from psyco._src.envs.model_file import KnownTransitions
    from psyco._src.learners.base import Learner, LearnerOptions, LearningTask
    from psyco._src.learners.expectation_constraints import ExpectationBound
    from psyco._src.logic.ast import Requirement
    from psyco._src.policies.network import Network

LEARNERS = Registry(
    "learner",
    {
        "safe-es": "learners.safe_es:SafeES",
        "snes": "learners.snes:SNES",
        "evosax": "learners.evosax_es:EvosaxES",
        "ppo": "learners.ppo:PPO",
        "sac": "learners.sac:SAC",
        "table": "learners.table:Table",
    },
)
TUNED_BY_DEFAULT = "safe-es"  # by `psyco tune`, if no learner is named
AUTO_LEARNER = "auto"  # instead of a name: see runs/budget.py
MEMBERS = ("episodes_per_generation", "checks", "init", "propose", "update", "deployed")  # of the protocol `Learner`


def make_learner(
    learner: str | LearnerOptions,
    requirement: Requirement,
    *,
    expectations: Sequence[ExpectationBound] = (),
    network: Network | None = None,
    actions: Actions | None = None,
    horizon: int | None = None,
    episode_budget: int = 60_000,
    step_budget: int | None = None,
    violation_limit: int | None = None,
    transitions: KnownTransitions | None = None,
) -> Learner:
    """Return a learner for a requirement.

    Args:
        learner: its options, as in `PPO(learning_rate=3e-4)`, or its name for the default options.
        requirement: the goal and the probability constraints.
        expectations: the bounds on expected values, from `expectation_bounds`.
        network: of the policy; actor-critics need it, and the next two.
        actions: the action space.
        horizon: the maximum number of steps of an episode.
        episode_budget: the number of training episodes, which schedules follow; with a step budget the expected one.
        step_budget: the number of training steps; None: the budget is in episodes.
        violation_limit: the largest number of violating training episodes; None: any.
        transitions: of a model, if the network is a table over its states.
    """
    options = make_options(learner, {}) if isinstance(learner, str) else learner
    task = make_task(
        requirement,
        expectations,
        network=network,
        actions=actions,
        horizon=horizon,
        episode_budget=episode_budget,
        step_budget=step_budget,
        violation_limit=violation_limit,
        transitions=transitions,
    )
    learner = dataclasses.replace(options, task=task)
    if missing := [name for name in MEMBERS if not hasattr(learner, name)]:
        raise RunError(f"{type(learner).__name__} lacks {', '.join(missing)}; see `Learner` in learners/base.py")
    return cast("Learner", learner)


def make_task(requirement: Requirement, expectations: Sequence[ExpectationBound], **further: Any) -> LearningTask:
    """Return the task of a learner: the constraints of a requirement, and `further` fields of `LearningTask`."""
    from psyco._src.learners.base import LearningTask
    from psyco._src.logic.batch_monitor import budget_terms
    from psyco._src.logic.nnf import to_nnf
    from psyco._src.logic.semantics import conjuncts

    probabilities = requirement.probability_bounds
    owners = [i for i, bound in enumerate(probabilities) for _ in conjuncts(to_nnf(bound.formula, False))]
    return LearningTask(
        p_req=tuple(bound.p_req for bound in probabilities),
        c_req=(*(each.confidence for each in probabilities), *(each.confidence for each in expectations)),
        expectations=tuple(expectations),
        sign=1.0 if requirement.goal.maximize else -1.0,
        conjuncts=(*owners, *(len(probabilities) + i for i in range(len(expectations)))),
        counters=len(budget_terms([bound.formula for bound in probabilities])),
        **further,
    )


def learner_class(learner: str | LearnerOptions) -> type[LearnerOptions]:
    """Return the class of a learner, for its traits, given its name or its options."""
    return cast("type[LearnerOptions]", LEARNERS[learner] if isinstance(learner, str) else type(learner))


def learner_name(options: LearnerOptions) -> str:
    """Return the name of the learner whose options these are."""
    place = f"{type(options).__module__.removeprefix('psyco._src.')}:{type(options).__name__}"
    for name, known in LEARNERS.paths.items():
        if place == known:
            return name
    raise RunError(f"learner must be one of {', '.join(LEARNERS)} or an options object, got {options!r}")


def make_options(name: str, values: Mapping[str, Any]) -> LearnerOptions:
    """Return the options of a learner with these values and defaults for the others; raise `RunError` for a bad one."""
    check_has(name, "option", values, learner_options(name))
    return learner_class(name)(**values)


def learner_options(name: str) -> Mapping[str, Declaration]:
    """Return the declared options of a learner; of "auto", those of all learners."""
    if name == AUTO_LEARNER:
        return {option: found for each in LEARNERS for option, found in learner_options(each).items()}
    return declared(LEARNERS[name])


def learner_ranges(name: str) -> Ranges:
    """Return the options that `psyco tune` searches by default, and their ranges."""
    return {option: found.search for option, found in learner_options(name).items() if found.search is not None}
