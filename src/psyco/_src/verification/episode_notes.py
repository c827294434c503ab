"""Notes of a certificate on the episodes that are worth a look: those that violate, and those that came closest.

They are no part of the guarantee. A replay repeats and compares them like everything else in a certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from psyco._src.logic.ast import Constraint, Expectation, ProbabilityBound, Requirement
from psyco._src.logic.nnf import to_nnf
from psyco._src.verification.tally import MeanTally, Tally

if TYPE_CHECKING:
    from psyco._src.rollout.episodes import Episodes

MAX_LISTED = 1000  # violating episodes per constraint
MAX_CLOSEST = 20
# Numbers of episodes, counted from 0. A text, because a JSON list would have a line for each.
Numbers = Annotated[str, msgspec.Meta(pattern="^([0-9]{1,10}( [0-9]{1,10})*)?$")]


@dataclass(frozen=True)
class EpisodeNotes:
    """The episodes of one constraint that are worth a look, the worst first."""

    violating: Numbers  # all up to 1,000, else a sample; of a bound on a probability
    closest: Numbers  # satisfying ones that came closest to violating; of an expected value, the worst values

    @property
    def violating_episodes(self) -> list[int]:
        """The violating episodes, as numbers."""
        return list(map(int, self.violating.split()))

    @property
    def closest_episodes(self) -> list[int]:
        """The closest calls, or the worst values, as numbers."""
        return list(map(int, self.closest.split()))

    def fit(self, episodes: int, violated: Sequence[int]) -> bool:
        """Return whether they may be those of a finding with this many episodes, and violating ones if any."""
        lists = self.violating_episodes, self.closest_episodes
        every = [*lists[0], *lists[1]]
        counted = {min(count, MAX_LISTED) for count in violated} or {0}
        return len(set(every)) == len(every) and max(every, default=-1) < episodes and len(lists[0]) in counted


def bound_of(requirement: Requirement, constraint: int) -> tuple[int, ProbabilityBound]:
    """Return the formula that every episode should satisfy for a constraint on a probability, and its column."""
    bounds = enumerate(requirement.probability_bounds)
    return next((column, bound) for column, bound in bounds if bound.constraint == constraint)


def note_episodes(
    requirement: Requirement,
    columns: Sequence[NDArray[Any]],
    tallies: Sequence[Tally | MeanTally],
    played: Episodes | None = None,
) -> tuple[EpisodeNotes, ...]:
    """Return notes on each constraint.

    Args:
        requirement: the requirement.
        columns: of the episodes, as in `episode_columns`.
        tallies: of the tests, which say how many episodes each has consumed.
        played: the episodes, if more than their outcomes is known.
    """
    notes = []
    for k, (stated, tally) in enumerate(zip(requirement.constraints, tallies, strict=True)):
        own = columns[k][: tally.episodes]
        if isinstance(stated, Constraint):
            notes.append(_note_outcomes(*bound_of(requirement, k), own, played))
        else:
            worst = np.argsort(-_excess(stated, own), kind="stable")[:MAX_CLOSEST]
            notes.append(EpisodeNotes("", _text(worst)))
    return tuple(notes)


def _note_outcomes(
    column: int, bound: ProbabilityBound, held: NDArray[np.bool_], played: Episodes | None
) -> EpisodeNotes:
    violating, satisfying = np.flatnonzero(held == bound.negated), np.flatnonzero(held != bound.negated)
    if played is None:
        return EpisodeNotes(_text(_sample(violating)), "")
    from psyco._src.logic.shaping import has_shaping  # reading a certificate needs no JAX

    costs = played.cost if played.shaping_cost is None else played.shaping_cost
    cost = np.asarray(costs)[: len(held), column]
    # Without a shaping cost all satisfying episodes cost 0, and none is closer than another.
    graded = played.shaping_cost is not None and has_shaping(to_nnf(bound.formula, False))
    closest = satisfying[np.argsort(-cost[satisfying], kind="stable")] if graded else satisfying[:0]
    worst = violating[np.argsort(-cost[violating], kind="stable")]
    return EpisodeNotes(_text(_sample(worst)), _text(closest[:MAX_CLOSEST]))


def _sample(episodes: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the episodes, or some of them at equal distances, the first included."""
    if len(episodes) <= MAX_LISTED:
        return episodes
    return episodes[np.linspace(0, len(episodes) - 1, MAX_LISTED).astype(int)]


def _excess(stated: Expectation, values: NDArray[Any]) -> NDArray[np.float64]:
    """Return by how much the value of each episode is beyond the bound; for a rate, its average per step."""
    each = values if values.ndim == 1 else values[:, 0] / np.maximum(values[:, 1], 1)
    return np.maximum(stated.lower - each, each - stated.upper)


def _text(episodes: NDArray[np.intp]) -> str:
    return " ".join(map(str, episodes.tolist()))
