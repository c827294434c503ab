"""Learn the risk of a violation, by which a guard hands over."""

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
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.record import record_episodes

RECORD_BATCH = 250  # episodes that are recorded at the same time


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
    execution: Execution = IN_PROCESS,
) -> Risk:
    """Fit the probability of a violation to fresh episodes of a policy; `print` shows its calibration.

    Args:
        policy: the policy, as in `verify`.
        domain: the domain in which the policy acts; default: that of its training.
        requirement: the requirement; default: that of its run.
        within: estimate the risk of a violation within this number of steps; None: in the rest of the episode.
        limit: risk at which a guard hands over; `risk.with_limit(limit)` changes it.
        episodes: number of recorded episodes; they serve no other purpose.
        seed: the episodes are a function of it.
        parameters: changes to the parameters of the domain.
        trust: code (`module:name`) that files name and that may be imported, and files that may run code themselves.
        execution: worker processes of a Gymnasium environment.
    """
    found, where, wanted = as_subject(policy, domain, requirement, parameters, trust)
    found.check(where)
    count = check_count("episodes", episodes)
    if within is not None:
        within = check_count("within", within)
    monitor = Monitor(wanted, horizon=where.horizon, counters=counters_of(where))
    paths = []
    for first in range(0, count, RECORD_BATCH):
        paths += record_episodes(
            where, found, seed=seed, first=first, count=min(RECORD_BATCH, count - first), stream=Stream.RISK,
            execution=execution,
        )  # fmt: skip
    return fit_risk(monitor, paths, within=within, limit=limit)
