"""How a test will behave, before any episode is sampled: exact dynamic programming over counts, means by simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.value_bounds import RecordedSystem, ValueRange, spans
from psyco._src.logic.ast import Constraint, Expectation, Requirement
from psyco._src.verification.base import ACCEPT, CONTINUE, REJECT, Counts, MeanTest, Test
from psyco._src.verification.methods import MEAN_METHODS, METHODS, make_tests
from psyco._src.verification.simulation import SimulationResult, simulate

CHANCES = (0.5, 0.9, 0.99)  # of a verdict; how many episodes it takes is shown for each
NEGLIGIBLE = 1e-25  # states rarer than this are dropped: together they weigh less than rounding errors


class Characteristics(NamedTuple):
    """The operating characteristics of a test at true probabilities p `[P]`, for a cap of N episodes."""

    p: NDArray[np.float64]  # [P]
    satisfied_by: NDArray[
        np.float64
    ]  # [N+1, P] probability of the verdict SATISFIED after at most n episodes
    violated_by: NDArray[np.float64]  # [N+1, P]

    @property
    def satisfied(self) -> NDArray[np.float64]:
        """Probability of the verdict SATISFIED, `[P]`."""
        return self.satisfied_by[-1]

    @property
    def violated(self) -> NDArray[np.float64]:
        """Probability of the verdict VIOLATED, `[P]`."""
        return self.violated_by[-1]

    @property
    def undecided(self) -> NDArray[np.float64]:
        """Probability that the cap comes first, `[P]`."""
        return np.maximum(1.0 - self.satisfied - self.violated, 0.0)

    @property
    def episodes(self) -> NDArray[np.float64]:
        """Expected episodes, `[P]`: the sum of the probabilities of going on."""
        return (1.0 - self.satisfied_by - self.violated_by)[:-1].sum(axis=0)

    def to_json(self) -> dict[str, Any]:
        """As plain data; None where more episodes than the cap are needed."""
        needed = {f"{chance:g}": self.needed(chance) for chance in CHANCES}
        return {
            "satisfied": self.satisfied.tolist(),
            "violated": self.violated.tolist(),
            "undecided": self.undecided.tolist(),
            "episodes": self.episodes.tolist(),
            "needed": {
                key: [float(n) if np.isfinite(n) else None for n in values] for key, values in needed.items()
            },
        }

    def needed(self, chance: float) -> NDArray[np.float64]:
        """Episodes after which a verdict is there with that probability, `[P]`; infinite beyond the cap."""
        enough = self.satisfied_by + self.violated_by >= chance
        return np.where(enough.any(axis=0), np.argmax(enough, axis=0), np.inf)


@dataclass(frozen=True, repr=False)
class VerificationPlan:
    """How tests of a requirement will behave.

    `characteristics[k][method]` are those of constraint k: exact for a probability, for an expected value one
    simulation per mean.
    """

    requirement: Requirement
    max_episodes: int
    share: float  # of the permitted error that the look may use
    tests: dict[str, list[Test | MeanTest]]  # by method, one per constraint
    characteristics: tuple[dict[str, Any], ...]

    def __repr__(self) -> str:
        what = "; ".join(map(str, self.requirement.constraints))
        return f"<Plan for {what}: {', '.join(self.tests)}, at most {self.max_episodes:,} episodes>"

    def __str__(self) -> str:
        head = f"{'method':11}{'satisfied':>10}{'violated':>10}{'undecided':>11}{'episodes':>10}"
        lines = []
        for constraint, found in zip(self.requirement.constraints, self.characteristics, strict=True):
            at = "true p" if isinstance(constraint, Constraint) else "true mean"
            lines += [f"{constraint}, at most {self.max_episodes:,} episodes", f"{at:>9}  {head}"]
            for name, c in found.items():
                lines += [
                    f"{truth:9g}  {name:11}{yes:10.3f}{no:10.3f}{open_:11.3f}{n:10.0f}"
                    for truth, yes, no, open_, n in _rows(c)
                ]
            if isinstance(constraint, Expectation):
                lines += [next(iter(found.values()))[0].note]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same table for notebooks."""
        names = ("truth", "method", "satisfied", "violated", "undecided", "episodes")
        parts = []
        for constraint, found in zip(self.requirement.constraints, self.characteristics, strict=True):
            head = "".join(f"<th>{name}</th>" for name in names)
            body = "".join(
                f"<tr><td>{truth:g}</td><td>{name}</td><td>{yes:.3f}</td><td>{no:.3f}</td><td>{open_:.3f}</td><td>{n:,.0f}</td></tr>"
                for name, c in found.items()
                for truth, yes, no, open_, n in _rows(c)
            )
            above = f"{escape(str(constraint))}, at most {self.max_episodes:,} episodes"
            parts.append(f"<table><caption>{above}</caption><tr>{head}</tr>{body}</table>")
        return "".join(parts)

    def to_json(self) -> list[dict[str, Any]]:
        """As plain data, one entry per constraint."""
        return [
            {
                "constraint": str(constraint),
                "max_episodes": self.max_episodes,
                "share": self.share,
                **(_exact if isinstance(constraint, Constraint) else _simulated)(found),
            }
            for constraint, found in zip(self.requirement.constraints, self.characteristics, strict=True)
        ]


def _rows(found: Any) -> Iterator[tuple[float, float, float, float, float]]:
    """True value, chances of the three verdicts, expected or median episodes."""
    if isinstance(found, Characteristics):
        columns = (found.p, found.satisfied, found.violated, found.undecided, found.episodes)
        yield from zip(*columns, strict=True)
    else:
        yield from ((s.mean, s.satisfied, s.violated, s.undecided, s.median_episodes) for s in found)


def _exact(found: dict[str, Characteristics]) -> dict[str, Any]:
    methods = {name: c.to_json() for name, c in found.items()}
    return {"p": next(iter(found.values())).p.tolist(), "methods": methods}


def _simulated(found: dict[str, list[SimulationResult]]) -> dict[str, Any]:
    first = next(iter(found.values()))
    return {
        "mean": [each.mean for each in first],
        "spread": first[0].spread,
        "note": first[0].note,
        "methods": {name: [each.to_json() for each in streams] for name, streams in found.items()},
    }


def make_plan(
    requirement: Requirement,
    *,
    method: str | None = None,
    options: Mapping[str, Any],
    max_episodes: int,
    share: float,
    p: Sequence[float] | None = None,
    mean: Sequence[float] | None = None,
    spread: float | None = None,
    horizon: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> VerificationPlan:
    """The operating characteristics of one method, or of all, for every constraint.

    Args:
        requirement: what must hold.
        method: one method only.
        options: parameters of that method.
        max_episodes: at most so many episodes.
        share: the part of the permitted error that the look may use.
        p: true probabilities to look at; by default interesting ones.
        mean: true means to look at, of an expected value.
        spread: the standard deviation of its values.
        horizon: the longest episode, if the range of the values follows from it.
        on_progress: called with the name of each method before it is computed.
    """
    if not requirement.constraints:
        raise RunError("there is nothing to plan: the requirement has no constraint")
    if options and method is None:
        raise RunError("options belong to one method; say which")
    expected = [each for each in requirement.constraints if isinstance(each, Expectation)]
    means, deviation = np.unique(mean or []).tolist(), spread or 0.0
    if expected and (not means or spread is None):
        raise RunError(
            f"how a test of {expected[0]} behaves depends on the values: say their mean and standard deviation, "
            "mean=[10], spread=3 (--mean 10 --spread 3)"
        )
    if len(expected) > 1:
        raise RunError("one mean and spread fit one expected value: plan one at a time")
    # The average of a step of episodes of equal length is a mean like any other.
    known = [
        ValueRange(lo, hi) for lo, hi, _ in spans(requirement, RecordedSystem(horizon=horizon or np.inf))
    ]
    tests: dict[str, list[Test | MeanTest]] = {}
    found: list[dict[str, Any]] = [{} for _ in requirement.constraints]
    for name in [method] if method else list(MEAN_METHODS if expected else METHODS):
        if on_progress is not None:
            on_progress(name)
        tests[name] = make_tests(
            name, requirement, spans=known, max_episodes=max_episodes, share=share, **options
        )
        for k, (constraint, test) in enumerate(zip(requirement.constraints, tests[name], strict=True)):
            if isinstance(constraint, Constraint):
                grid = np.unique(p) if p else interesting_probabilities(constraint)
                found[k][name] = operating_characteristics(test, grid, max_episodes)
            else:
                found[k][name] = [
                    simulate(test, mean=m, spread=deviation, max_episodes=max_episodes) for m in means
                ]
    return VerificationPlan(requirement, max_episodes, share, tests, tuple(found))


def operating_characteristics(test: Any, p: ArrayLike, max_episodes: int) -> Characteristics:
    """Exactly how `test` behaves on outcomes with true probability p `[P]`.

    The states after n episodes are the numbers of satisfied ones; those at which the test has decided are absorbed.
    """
    if max_episodes < 1:
        raise RunError(f"the maximum number of episodes must be at least 1, got {max_episodes}")
    p = np.atleast_1d(np.asarray(p, np.float64))
    if not ((p >= 0.0) & (p <= 1.0)).all():
        raise RunError(f"a true probability lies between 0 and 1, got {p.tolist()}")
    by = {decision: np.zeros((max_episodes + 1, p.size)) for decision in (ACCEPT, REJECT)}
    alive, first = np.ones((p.size, 1)), 0  # [P, width] chances of first, first+1, ... satisfied episodes
    for n in range(1, max_episodes + 1):
        alive = np.pad(alive * (1.0 - p)[:, None], ((0, 0), (0, 1))) + np.pad(
            alive * p[:, None], ((0, 0), (1, 0))
        )
        satisfied = first + np.arange(alive.shape[1])
        decided = test.decide(Counts(satisfied, n - satisfied))
        for decision, absorbed in by.items():
            absorbed[n] = absorbed[n - 1] + alive[:, decided == decision].sum(axis=1)
        alive = np.where(decided == CONTINUE, alive, 0.0)
        kept = np.flatnonzero(alive.max(axis=0) > NEGLIGIBLE)
        if not len(kept):
            for absorbed in by.values():
                absorbed[n:] = absorbed[n]
            break
        alive, first = alive[:, kept[0] : kept[-1] + 1], first + int(kept[0])
    return Characteristics(p, by[ACCEPT], by[REJECT])


def interesting_probabilities(constraint: Constraint) -> NDArray[np.float64]:
    """True probabilities worth a row in a table: the bounds, some points around them, and a coarse grid."""
    bounds = [b for b in (constraint.lower, constraint.upper) if 0.0 < b < 1.0]
    room = [min(b, 1.0 - b) for b in bounds]
    near = [
        b + x * r for b, r in zip(bounds, room, strict=True) for x in (-0.5, -0.2, -0.05, 0.0, 0.05, 0.2, 0.5)
    ]
    grid: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    return np.unique(np.round([*near, *grid], 6))


def chance_left(test: Test, counts: Counts, most: int) -> float:
    """The chance that the test accepts after `most` episodes, under a uniform prior for the true probability.

    That it may accept on its way there and no more at the end is left out: it is rare. To end a test without a verdict
    is always allowed: it has neither accepted nor rejected, so it did not err.
    """
    from scipy.special import betaln

    s, v = int(counts.satisfied), int(counts.violated)
    left = most - s - v
    further = np.arange(left + 1)  # satisfied ones of those that are left
    accepted = test.decide(Counts(s + further, v + left - further)) == ACCEPT
    # The beta-binomial distribution.
    log_chance = (
        betaln(s + 1.0 + further, v + 1.0 + left - further)
        - betaln(s + 1.0, v + 1.0)
        - betaln(1.0 + further, 1.0 + left - further)
        - np.log(left + 1.0)
    )
    return float(np.exp(log_chance[accepted]).sum())
