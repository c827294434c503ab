"""What a guard needs beforehand: the risk of a violation, learned from episodes of its policy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from psyco._src.api.argument_check import verb
from psyco._src.api.coerce import AnyDomain, PolicyLike, as_subject
from psyco._src.core.checks import check_count
from psyco._src.envs.base import counters_of
from psyco._src.logic.requirement import AnyRequirement
from psyco._src.logic.runtime_monitor import Monitor
from psyco._src.policies.risk import Risk, fit_risk
from psyco._src.rollout.episodes import Stream
from psyco._src.rollout.execution import Execution
from psyco._src.rollout.record import record_many

BATCH = 250  # episodes that are recorded side by side


@verb
def learn_risk(
    policy: PolicyLike,
    domain: AnyDomain | None = None,
    requirement: AnyRequirement | None = None,
    *,
    within: int | None = None,
    limit: float = 0.1,
    episodes: int = 1000,
    seed: int = 0,
    parameters: Mapping[str, Any] | None = None,
    trust: Collection[str] = (),
    workers: int = 1,
) -> Risk:
    """Learn from fresh episodes of a policy how likely a violation is; `print` shows how well it is calibrated.

    Args:
        policy: what acts, as in `verify`.
        domain: where it acts; by default where it was learned.
        requirement: what episodes should meet; by default what its run was made for.
        within: estimate the risk of a violation within so many steps; None: of one at all.
        limit: a guard hands over when the risk reaches it; `risk.above(limit)` has another.
        episodes: that are recorded for it; no other purpose uses them.
        seed: the episodes are a function of it.
        parameters: of the domain, over its own.
        trust: code (`module:name`) that files name and that may be imported, and files that may run code themselves.
        workers: how many processes step a Gymnasium environment.
    """
    found, where, wanted = as_subject(policy, domain, requirement, parameters, trust)
    found.check(where)
    count = check_count("episodes", episodes)
    if within is not None:
        within = check_count("within", within)
    monitor = Monitor(wanted, horizon=where.horizon, counters=counters_of(where))
    paths = []
    for first in range(0, count, BATCH):
        paths += record_many(
            where, found, seed=seed, first=first, count=min(BATCH, count - first), stream=Stream.RISK,
            execution=Execution(workers=workers),
        )  # fmt: skip
    return fit_risk(monitor, paths, within=within, limit=limit)
