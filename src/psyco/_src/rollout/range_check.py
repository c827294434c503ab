"""Episodes whose value lies outside of its range: a test of the mean would mean nothing, so nothing is clipped."""

from __future__ import annotations

import numpy as np
from jax import Array

from psyco._src.core.errors import EpisodeError
from psyco._src.envs.base import Domain
from psyco._src.envs.value_bounds import spans, worth_range
from psyco._src.logic.ast import Instant, Quantity, Requirement
from psyco._src.rollout.episodes import Episodes, episode_seeds


def check_values(episodes: Episodes, requirement: Requirement, domain: Domain, keys: Array) -> None:
    """Raise EpisodeError for the first episode with a value or a step outside of its range, with seed, step and value.

    Args:
        episodes: B of them, with their values.
        requirement: what they were measured by.
        domain: where they took place.
        keys: `[B]` of the episodes.
    """
    if episodes.value is None:
        return
    values, length = np.asarray(episodes.value, np.float64), np.asarray(episodes.length)
    strays = np.asarray(episodes.stray)
    for stated, column, stray in zip(requirement.measured, values.T, strays.T, strict=True):
        for row in np.flatnonzero(stray)[:1].tolist():
            low, high = worth_range(stated.subject.x, domain)
            raise EpisodeError(
                domain.name,
                episode_seeds(keys)[row],
                int(stray[row]),
                f"{stated.subject.x} is {column[row]:.9g}, outside of its range [{low:.9g}, {high:.9g}]; correct the "
                "range, or say where the value of an episode lies, with `within [lo,hi]` after the property",
            )
    for stated, span, column in zip(requirement.measured, spans(requirement, domain), values.T, strict=True):
        # Of a rate, short episodes count less: what they may sum up to depends on their length.
        weight, what = (
            (np.ones(len(length)), "comes to") if span.steps is None else (length, "has on average")
        )
        outside = ~((span.lo * weight <= column) & (column <= span.hi * weight))  # NaN is outside, too
        for row in np.flatnonzero(outside)[:1].tolist():
            step = int(length[row])
            match stated.subject:
                case Quantity(_, Instant(at)):
                    step = min(at, step)
            raise EpisodeError(
                domain.name,
                episode_seeds(keys)[row],
                step,
                f"{stated} {what} {column[row] / weight[row]:.9g}, outside of its range "
                f"[{span.lo:.9g}, {span.hi:.9g}]; correct the range",
            )
