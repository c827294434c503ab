"""Operating characteristics of tests: exact by dynamic programming over counts; for means, by simulation.

The behaviour of a test of a mean depends on the distribution of the values, of which only mean and standard deviation
are known: so it is simulated with Beta-distributed values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.value_bounds import RecordedSystem, ValueRange, value_ranges
from psyco._src.logic.ast import Constraint, Expectation, Quantity, Question, Requirement
from psyco._src.verification.base import ACCEPT, CONTINUE, REJECT, Counts, MeanTask, MeanTest, Test, Verdict
from psyco._src.verification.cvar import beta_cvar
from psyco._src.verification.environments import (
    EnvironmentsPrediction,
    check_environments,
    make_environment_tests,
    predict_all,
)
from psyco._src.verification.estimation import Width, make_estimator, question_widths
from psyco._src.verification.fixed_width import WidthShare
from psyco._src.verification.methods import DEFAULT_METHOD, MEAN_METHODS, METHODS, make_tests
from psyco._src.verification.tally import run_tests

DECISION_QUANTILES = (0.5, 0.9, 0.99)  # probabilities of a verdict for which the number of episodes is shown
QUESTION_PROBABILITIES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)  # true ones for a table of a question
MEAN_STREAMS = 400  # simulated for a bound on a mean
QUESTION_STREAMS = 100  # for a question about a mean, and for a bound on a CVaR, whose test takes longer
CVAR_STREAMS = 20  # for a question about a CVaR
NEGLIGIBLE = 1e-25  # rarer states are dropped: their total probability is below rounding errors


class Characteristics(NamedTuple):
    """The operating characteristics of a test at true probabilities p `[P]`, for a cap of N episodes."""

    p: NDArray[np.float64]  # [P]
    satisfied_by: NDArray[np.float64]  # [N+1, P] probability of the verdict SATISFIED after at most n episodes
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
        """Probability of no verdict within the cap, `[P]`."""
        return np.maximum(1.0 - self.satisfied - self.violated, 0.0)

    @property
    def episodes(self) -> NDArray[np.float64]:
        """Expected number of episodes, `[P]`: the sum of the probabilities of going on."""
        return (1.0 - self.satisfied_by - self.violated_by)[:-1].sum(axis=0)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; None where more episodes than the cap are needed."""
        return {
            "satisfied": self.satisfied.tolist(),
            "violated": self.violated.tolist(),
            "undecided": self.undecided.tolist(),
            "episodes": self.episodes.tolist(),
            "needed": _needed_to_json(self),
        }

    def needed(self, chance: float) -> NDArray[np.float64]:
        """Return the episodes that give a verdict with probability `chance`, `[P]`; infinite beyond the cap."""
        return _first_with(self.satisfied_by + self.violated_by, chance)


class AnswerCharacteristics(NamedTuple):
    """The number of episodes until an answer is as narrow as wanted, at true probabilities or means `[T]`."""

    question: Question
    width: float
    truth: NDArray[np.float64]  # [T]
    narrow_by: NDArray[np.float64]  # [N+1, T] probability that the interval is narrow after at most n episodes
    streams: int  # number of simulated ones; 0: exact

    @property
    def exact(self) -> bool:
        """Whether no stream was simulated."""
        return not self.streams

    @property
    def truth_name(self) -> str:
        """What `truth` is, as in a table."""
        return "true mean" if isinstance(self.question.subject, Quantity) else "true p"

    @property
    def narrow(self) -> NDArray[np.float64]:
        """Probability of a narrow interval within the maximum, `[T]`."""
        return self.narrow_by[-1]

    @property
    def episodes(self) -> NDArray[np.float64]:
        """Expected number of episodes, `[T]`."""
        return (1.0 - self.narrow_by)[:-1].sum(axis=0)

    def needed(self, chance: float) -> NDArray[np.float64]:
        """Return the episodes that give a narrow interval with probability `chance`, `[T]`; infinite beyond the cap."""
        return _first_with(self.narrow_by, chance)

    @property
    def note(self) -> str:
        """The origin of the numbers, as text."""
        return (
            "exact, by dynamic programming"
            if self.exact
            else f"simulated with {self.streams} streams of Beta-distributed values; others may behave otherwise"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data; None where more episodes than the cap are needed."""
        return {
            "question": str(self.question),
            "width": self.width,
            self.truth_name.removeprefix("true "): self.truth.tolist(),
            "narrow": self.narrow.tolist(),
            "episodes": self.episodes.tolist(),
            "needed": _needed_to_json(self),
            "note": self.note,
        }


def _first_with(by: NDArray[np.float64], chance: float) -> NDArray[np.float64]:
    """Return the first n at which a probability `[N+1, P]` is at least `chance`, `[P]`; infinite if there is none."""
    enough = by >= chance
    return np.where(enough.any(axis=0), np.argmax(enough, axis=0), np.inf)


def _needed_to_json(found: Characteristics | AnswerCharacteristics) -> dict[str, list[float | None]]:
    return {
        f"{chance:g}": [float(n) if np.isfinite(n) else None for n in found.needed(chance)]
        for chance in DECISION_QUANTILES
    }


@dataclass(frozen=True, repr=False)
class VerificationPlan:
    """Operating characteristics of the tests of a requirement.

    `characteristics[k][method]` are those of constraint k: exact for a probability; for an expected value, one
    simulation per mean. `answers` are those of the questions, if a width of their intervals was given.
    """

    requirement: Requirement
    max_episodes: int
    share: float  # fraction of the permitted error for the look
    tests: dict[str, list[Test | MeanTest]]  # by method, one per constraint
    characteristics: tuple[dict[str, Any], ...]
    answers: tuple[AnswerCharacteristics, ...] = ()

    def __repr__(self) -> str:
        what = "; ".join(map(str, (*self.requirement.constraints, *(found.question for found in self.answers))))
        methods = f"{', '.join(self.tests)}, " if self.tests else ""
        return f"<Plan for {what}: {methods}at most {self.max_episodes:,} episodes>"

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
        for answer in self.answers:
            lines += [
                f"{answer.question}, width {answer.width:g}, at most {self.max_episodes:,} episodes",
                f"{answer.truth_name:>9}{'narrow':>10}{'episodes':>10}",
                *(f"{truth:9g}{yes:10.3f}{n:10.0f}" for truth, yes, n in _answer_rows(answer)),
                answer.note,
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
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
        for answer in self.answers:
            head = "".join(f"<th>{name}</th>" for name in ("truth", "narrow", "episodes"))
            body = "".join(
                f"<tr><td>{truth:g}</td><td>{yes:.3f}</td><td>{n:,.0f}</td></tr>"
                for truth, yes, n in _answer_rows(answer)
            )
            above = f"{escape(str(answer.question))}, width {answer.width:g}, at most {self.max_episodes:,} episodes"
            parts.append(f"<table><caption>{above}</caption><tr>{head}</tr>{body}</table>")
        return "".join(parts)

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain data, one entry per constraint and one per answer."""
        common = {"max_episodes": self.max_episodes, "share": self.share}
        constraints = [
            {
                "constraint": str(constraint),
                **common,
                **_plain(constraint, found),
            }
            for constraint, found in zip(self.requirement.constraints, self.characteristics, strict=True)
        ]
        return [*constraints, *({**answer.to_json(), **common} for answer in self.answers)]


def _rows(found: Any) -> Iterator[tuple[float, float, float, float, float]]:
    """Yield true value, probabilities of the three verdicts, and expected or median episodes."""
    if isinstance(found, Characteristics):
        columns = (found.p, found.satisfied, found.violated, found.undecided, found.episodes)
        yield from zip(*columns, strict=True)
    elif isinstance(found[0], EnvironmentsPrediction):
        yield from ((each.p, each.satisfied, each.violated, each.undecided, each.episodes) for each in found)
    else:
        yield from ((s.mean, s.satisfied, s.violated, s.undecided, s.median_episodes) for s in found)


def _answer_rows(found: AnswerCharacteristics) -> Iterator[tuple[float, float, float]]:
    yield from zip(found.truth, found.narrow, found.episodes, strict=True)


def _plain(constraint: Constraint | Expectation, found: dict[str, Any]) -> dict[str, Any]:
    if getattr(constraint, "environments", None) is not None:
        return {"methods": {name: [each.to_json() for each in predicted] for name, predicted in found.items()}}
    return (_exact if isinstance(constraint, Constraint) else _simulated)(found)


def _exact(found: dict[str, Characteristics]) -> dict[str, Any]:
    methods = {name: c.to_json() for name, c in found.items()}
    return {"p": next(iter(found.values())).p.tolist(), "methods": methods}


def _simulated(found: dict[str, list[SimulationResult]]) -> dict[str, Any]:
    first = next(iter(found.values()))
    return {
        "mean": [result.mean for result in first],
        **({} if first[0].cvar is None else {"cvar": [result.cvar for result in first]}),
        "spread": first[0].spread,
        "note": first[0].note,
        "methods": {name: [result.to_json() for result in results] for name, results in found.items()},
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
    width: Width = None,
    on_progress: Callable[[str], None] | None = None,
) -> VerificationPlan:
    """Return the operating characteristics of one method, or of all, for every constraint; and of the answers.

    Args:
        requirement: the requirement under test.
        method: name of a method; None: all methods.
        options: options of that method.
        max_episodes: maximum number of episodes.
        share: fraction of the permitted error for the look.
        p: true probabilities; by default those of `default_probabilities`.
        mean: true means of an expected value.
        spread: standard deviation of its values.
        horizon: maximum length of an episode, if the range of the values follows from it.
        width: wanted width of the intervals of answers, as in `question_widths`; None: questions are left out, as they
            use all episodes.
        on_progress: called with the name of each method before it is computed.
    """
    widths = question_widths(requirement, width)
    questions = requirement.questions if width is not None else ()
    if not requirement.constraints and not questions:
        raise RunError(
            "there is nothing to plan: the requirement has no constraint; for questions say how narrow their intervals "
            "should be, width=0.05 (--width 0.05)"
        )
    if options and method is None:
        raise RunError("options belong to one method; say which")
    if check_environments(requirement, None, method or DEFAULT_METHOD):
        if on_progress is not None:
            on_progress(DEFAULT_METHOD)
        planned = make_environment_tests(requirement, share)
        predictions = tuple({DEFAULT_METHOD: predict_all(test, p, max_episodes)} for test in planned)
        return VerificationPlan(requirement, max_episodes, share, {}, predictions, ())
    expected = [stated for stated in requirement.constraints if isinstance(stated, Expectation)]
    uncertain = [*expected, *(question for question in questions if isinstance(question.subject, Quantity))]
    means, deviation = np.unique(mean or []).tolist(), spread or 0.0
    if uncertain and (not means or spread is None):
        raise RunError(
            f"how a test of {uncertain[0]} behaves depends on the values: say their mean and standard deviation, "
            "mean=[10], spread=3 (--mean 10 --spread 3)"
        )
    if len(uncertain) > 1:
        raise RunError("one mean and spread fit one expected value: plan one at a time")
    # The average of a step of episodes of equal length is a mean like any other.
    known_ranges = [
        ValueRange(lo, hi) for lo, hi, _ in value_ranges(requirement, RecordedSystem(horizon=horizon or np.inf))
    ]
    tests: dict[str, list[Test | MeanTest]] = {}
    found: list[dict[str, Any]] = [{} for _ in requirement.constraints]
    methods = [method] if method else list(MEAN_METHODS if expected else METHODS)
    for name in methods if requirement.constraints else ():
        if on_progress is not None:
            on_progress(name)
        tests[name] = make_tests(
            name, requirement, value_ranges=known_ranges, max_episodes=max_episodes, share=share, **options
        )
        for k, (constraint, test) in enumerate(zip(requirement.constraints, tests[name], strict=True)):
            if isinstance(constraint, Constraint):
                grid = np.unique(p) if p else default_probabilities(constraint)
                found[k][name] = operating_characteristics(test, grid, max_episodes)
            else:
                streams = MEAN_STREAMS if constraint.subject.cvar is None else QUESTION_STREAMS
                found[k][name] = [
                    simulate(test, mean=m, spread=deviation, max_episodes=max_episodes, streams=streams) for m in means
                ]
    answers = tuple(
        _answer_characteristics(question, known, share, wanted or 0.0, max_episodes, p, means, deviation)
        for question, known, wanted in zip(
            questions, known_ranges[len(known_ranges) - len(questions) :], widths[: len(questions)], strict=True
        )
    )
    return VerificationPlan(requirement, max_episodes, share, tests, tuple(found), answers)


def _answer_characteristics(
    question: Question,
    known: ValueRange,
    share: float,
    width: float,
    max_episodes: int,
    p: Sequence[float] | None,
    means: Sequence[float],
    spread: float,
) -> AnswerCharacteristics:
    """Return the number of episodes of an answer: exact for a probability, unless it takes long; else simulated."""
    estimator = make_estimator(question, known, share=share, width=width, max_episodes=max_episodes)
    is_mean = isinstance(question.subject, Quantity)
    truth = np.array(means if is_mean else _check_probabilities(np.unique(p or QUESTION_PROBABILITIES)), np.float64)
    if isinstance(estimator, WidthShare):
        by = estimator.rule.narrow_by(truth)
        narrow_by = np.concatenate([by, np.repeat(by[-1:], max_episodes + 1 - len(by), axis=0)])
        return AnswerCharacteristics(question, width, truth, narrow_by, 0)
    streams = QUESTION_STREAMS if estimator.task.cvar is None else CVAR_STREAMS
    ends = np.zeros((max_episodes + 2, len(truth)))  # the last row: later than the maximum
    for i, value in enumerate(truth):
        shape = _beta_parameters(estimator.task, value, spread if is_mean else np.sqrt(value * (1.0 - value)))
        for stream in range(streams):
            estimate, finished = estimator, False
            for values in _beta_batches(estimator.task, *shape, np.random.default_rng(stream), max_episodes):
                estimate, finished = estimate.feed(values[:, 0])
                if finished:
                    break
            ends[estimate.episodes if finished else -1, i] += 1 / streams
    return AnswerCharacteristics(question, width, truth, np.cumsum(ends[:-1], axis=0), streams)


def operating_characteristics(test: Any, p: ArrayLike, max_episodes: int) -> Characteristics:
    """Return the exact behaviour of `test` on outcomes with true probability p `[P]`.

    The state after n episodes is the number of satisfying ones; states at which the test decides are absorbing.
    """
    if max_episodes < 1:
        raise RunError(f"the maximum number of episodes must be at least 1, got {max_episodes}")
    p = _check_probabilities(np.atleast_1d(np.asarray(p, np.float64)))
    by = {decision: np.zeros((max_episodes + 1, p.size)) for decision in (ACCEPT, REJECT)}
    alive, first = (
        np.ones((p.size, 1)),
        0,
    )  # [P, width] probability of first, first+1, ... satisfying episodes
    for n in range(1, max_episodes + 1):
        before, alive = alive, np.zeros((p.size, alive.shape[1] + 1))
        alive[:, :-1] = before * (1.0 - p)[:, None]
        alive[:, 1:] += before * p[:, None]
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


def _check_probabilities(p: NDArray[np.float64]) -> NDArray[np.float64]:
    if not ((p >= 0.0) & (p <= 1.0)).all():
        raise RunError(f"a true probability lies between 0 and 1, got {p.tolist()}")
    return p


def default_probabilities(constraint: Constraint) -> NDArray[np.float64]:
    """Return true probabilities for a table: the bounds, some points around them, and a coarse grid."""
    bounds = [b for b in (constraint.lower, constraint.upper) if 0.0 < b < 1.0]
    room = [min(b, 1.0 - b) for b in bounds]
    near = [b + x * r for b, r in zip(bounds, room, strict=True) for x in (-0.5, -0.2, -0.05, 0.0, 0.05, 0.2, 0.5)]
    grid: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    return np.unique(np.round([*near, *grid], 6))


def acceptance_probability(test: Test, counts: Counts, max_episodes: int) -> float:
    """Return the predictive probability that the test accepts at `max_episodes`, under a uniform prior.

    Ignores the rare paths that accept earlier and would not accept at the end. To stop a test for futility is always
    allowed: without a verdict it cannot err.
    """
    from scipy.special import betaln

    s, v = int(counts.satisfied), int(counts.violated)
    left = max_episodes - s - v
    further = np.arange(left + 1)  # satisfying episodes among those left
    accepted = test.decide(Counts(s + further, v + left - further)) == ACCEPT
    # Log probabilities of the beta-binomial distribution.
    log_chance = (
        betaln(s + 1.0 + further, v + 1.0 + left - further)
        - betaln(s + 1.0, v + 1.0)
        - betaln(1.0 + further, 1.0 + left - further)
        - np.log(left + 1.0)
    )
    return float(np.exp(log_chance[accepted]).sum())


# ---- means, by simulation -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SimulationResult:
    """Simulated operating characteristics for values with one mean and standard deviation."""

    mean: float
    spread: float  # standard deviation
    satisfied: float
    violated: float
    undecided: float
    median_episodes: float  # infinite if most streams end undecided
    streams: int
    seed: int
    cvar: float | None = None  # of these values; None if the test is about the mean

    @property
    def truth(self) -> float:
        """The true value that the test is about."""
        return self.mean if self.cvar is None else self.cvar

    def to_json(self) -> dict[str, float | None]:
        """Return plain data; None where more episodes than the cap are needed."""
        episodes = self.median_episodes if np.isfinite(self.median_episodes) else None
        shares = {name: getattr(self, name) for name in ("satisfied", "violated", "undecided")}
        return {**shares, "median_episodes": episodes}

    @property
    def note(self) -> str:
        """The origin and precision of the numbers, as text."""
        return (
            f"simulated with {self.streams:,} streams of Beta-distributed values (seed {self.seed}): a share is known "
            f"up to {1 / np.sqrt(self.streams):.3f}, and other distributions may behave otherwise"
        )


def simulate(
    test: Any, *, mean: float, spread: float, max_episodes: int, streams: int = MEAN_STREAMS, seed: int = 0
) -> SimulationResult:
    """Run `test` on many streams of Beta-distributed values with the given mean and standard deviation.

    Args:
        test: a test of a mean.
        mean: true mean.
        spread: standard deviation; at most sqrt((mean - lo) (hi - mean)), where all values are lo or hi.
        max_episodes: maximum number of values per stream.
        streams: number of streams.
        seed: seed of the random numbers; stream i uses (seed, i).
    """
    if max_episodes < 1 or streams < 1:
        raise RunError(f"max_episodes and streams must be at least 1, got {max_episodes} and {streams}")
    centre, size = _beta_parameters(test.task, mean, spread)
    tallies: list[Any] = []
    for stream in range(streams):
        rng = np.random.default_rng([seed, stream])
        batches = _beta_batches(test.task, centre, size, rng, max_episodes)
        tallies += run_tests([test], batches, max_episodes=max_episodes)
    share = {v: sum(tally.verdict is v for tally in tallies) / streams for v in Verdict}
    episodes = [t.episodes if t.verdict is not Verdict.UNDECIDED else np.inf for t in tallies]
    shares = (share[Verdict.SATISFIED], share[Verdict.VIOLATED], share[Verdict.UNDECIDED])
    cvar = None if test.task.cvar is None else beta_cvar(test.task, centre, size)
    return SimulationResult(mean, spread, *shares, float(np.median(episodes)), streams, seed, cvar)


def _beta_parameters(task: MeanTask, mean: float, spread: float) -> tuple[float, float]:
    """Return mean and a + b of a Beta distribution on [0, 1]; a + b is 0 if all values are lo or hi, inf if equal."""
    width = task.hi - task.lo
    centre, variance = (mean - task.lo) / width, (spread / width) ** 2
    largest = centre * (1.0 - centre)
    if not (0.0 <= centre <= 1.0 and 0.0 <= variance <= largest + 1e-9):
        raise RunError(
            f"no values in {task.range_text} have mean {mean:g} and standard deviation {spread:g}: the mean lies in "
            "the range, and the deviation is at most sqrt((mean - lo) (hi - mean))"
        )
    size = largest / variance - 1.0 if variance else np.inf
    return centre, size if size > 1e-6 else 0.0  # less is a rounding error


def _beta_batches(
    task: MeanTask, centre: float, size: float, rng: np.random.Generator, cap: int
) -> Iterator[NDArray[np.float64]]:
    """Yield values `[B, 1]` in growing batches: most streams end early."""
    drawn = 0
    while drawn < cap:
        batch = min(max(drawn, 100), 10_000, cap - drawn)
        if size == 0.0:
            position = (rng.random(batch) < centre).astype(np.float64)
        elif np.isinf(size):
            position = np.full(batch, centre)
        else:
            position = rng.beta(centre * size, (1.0 - centre) * size, batch)
        values = task.lo + (task.hi - task.lo) * position
        yield np.minimum(values, task.hi)[:, None]  # rounding could exceed it
        drawn += batch
