"""The price of safety: return against certified probability, from the runs of a study that differ in what they require.

front.csv    one row per point: certified probability and return with intervals, dominated or not, the knee
exact.csv    on finite domains: the best return of any controller
front.html   the picture
study.toml, cells/, cells.csv, ...    the study behind it; `psyco study FOLDER` takes it, too
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from psyco._src.core import atomic_io
from psyco._src.core.errors import PsycoError, RunError
from psyco._src.envs.base import Domain, signal_table
from psyco._src.envs.finite import is_finite
from psyco._src.envs.registry import remake
from psyco._src.envs.trust import NOBODY
from psyco._src.exact.solver import constrained_optimum, front_of
from psyco._src.logic.parser import parse, parse_formula
from psyco._src.studies import statistics
from psyco._src.studies.aggregate import plain, to_csv, to_html
from psyco._src.studies.collect import CellOutcome, Row
from psyco._src.studies.pareto_spec import ParetoSpec
from psyco._src.studies.statistics import IntervalEstimate
from psyco._src.studies.study_folder import PARENT, Study, run_study
from psyco._src.studies.study_progress import StudyProgress

FRONT, EXACT, PAGE = "front.csv", "exact.csv", "front.html"


@dataclass(frozen=True, repr=False)
class ParetoFront:
    """A front as it stands in its folder."""

    asked: ParetoSpec
    study: Study
    exact: tuple[tuple[float, float], ...] = ()  # (probability or parameter, best return of any controller)
    inexact: str = ""  # why a finite domain has no such line

    def __repr__(self) -> str:
        return f"<Front {self.folder}: {len(self.asked.values)} points, {self.study!r}>"

    def _repr_html_(self) -> str:
        """The points and what all of their certificates are worth together, for notebooks."""
        return to_html(f"{self!r}. {self.accounting}", self.points)

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.study.folder

    @property
    def page(self) -> Path:
        """Where its page is."""
        return self.folder / PAGE

    @property
    def accounting(self) -> str:
        """What all certificates together are worth, in words."""
        return self.asked.accounting

    @property
    def notes(self) -> list[str]:
        """What a reader should know besides."""
        return [*self.study.notes, *([f"there is no exact front: {self.inexact}"] if self.inexact else [])]

    @cached_property
    def points(self) -> list[Row]:
        """One row per point, in the order of what varies."""
        rows = [self._point(k) for k in range(len(self.asked.values))]
        if not self.asked.parameter:  # else each point certifies something else
            _mark(rows)
        return rows

    def runs_of(self, point: int) -> list[CellOutcome]:
        """The runs of a point, one for every seed."""
        return [outcome for outcome in self.study.outcomes if outcome.cell.task == self.asked.tasks[point]]

    def _point(self, k: int) -> Row:
        runs = self.runs_of(k)
        done = [outcome for outcome in runs if outcome.finished]
        bounds = [bound for outcome in done if (bound := certified_probability(outcome)) is not None]
        certified = statistics.estimated(statistics.iqm, [np.array(bounds)])
        returned = _returned(done)
        row: Row = {
            **({self.asked.parameter: self.asked.values[k]} if self.asked.parameter else {}),
            "required": self.asked.required[k],
            "runs": len(runs),
            "finished": len(done),
            "satisfied": sum(outcome.certified for outcome in done),
            "certified": certified.value,
            "certified_lower": certified.lower,
            "certified_upper": certified.upper,
            "certified_least": min(bounds, default=math.nan),
            "return": returned.value,
            "return_lower": returned.lower,
            "return_upper": returned.upper,
            "dominated": None,
            "knee": None,
        }
        if self.exact:
            at = self.asked.values[k] if self.asked.parameter else certified.value
            row["exact_return"] = self.exact_return(at)
            if not self.asked.parameter:
                row["exact_probability"] = self.exact_probability(returned.value)
        return row

    def exact_return(self, at: float) -> float:
        """The best return of any controller at a probability, or at a value of the parameter; NaN if there is none."""
        x, y = np.array(self.exact).T
        if self.asked.parameter:
            found = y[np.isclose(x, at)]
            return float(found[0]) if len(found) else math.nan
        return float(np.interp(at, x, y, right=math.nan)) if math.isfinite(at) else math.nan

    def exact_probability(self, returned: float) -> float:
        """The largest probability with which any controller has that return; NaN if none has it."""
        x, y = np.array(self.exact).T  # y falls in x
        return (
            float(np.interp(returned, y[::-1], x[::-1], right=math.nan)) if returned == returned else math.nan
        )

    def to_pandas(self) -> Any:
        """The points as a `pandas.DataFrame`."""
        try:
            import pandas
        except ImportError:
            raise RunError("a DataFrame needs pandas installed: pip install pandas") from None
        return pandas.DataFrame(self.points)

    def to_json(self) -> str:
        """Points, runs and the exact front as JSON."""
        content = {
            "front": str(self.folder),
            "varies": self.asked.axis,
            "formula": list(dict.fromkeys(self.asked.formulas)),
            "confidence": self.asked.confidence,
            "confidence_of_each": self.asked.each,
            "accounting": self.accounting,
            "complete": self.study.complete,
            "failed": self.study.failed,
            "notes": self.notes,
            "points": [_plain(row) for row in self.points],
            "exact": [list(pair) for pair in self.exact],
            "runs": [_plain(row) for row in self.study.answers.cells],
            "page": str(self.page),
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"


def run_front(
    asked: ParetoSpec,
    folder: Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    trust: Collection[str] = NOBODY,
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
) -> ParetoFront:
    """Bring a front to its end as `run_study` does, and write its table and its page.

    Args:
        asked: what is run.
        folder: of the front.
        workers: processes at the same time; default: one for each core.
        ray: the address of a Ray cluster to use instead, or "local".
        trust: the code that the domain may name.
        on_progress: called when something has happened, and about twice a second.
    """
    domain = remake(asked.plan.cells[0].config.description, trust)
    if asked.parameter in signal_table(domain):
        raise RunError(
            f"vary: {asked.parameter!r} is a signal of {domain.name}; give what varies a name of its own, as in n"
        )
    study = run_study(asked.plan, folder, workers=workers, ray=ray, trust=trust, on_progress=on_progress)
    try:
        front = ParetoFront(asked, study, exact_line(asked, domain))
    except (
        PsycoError
    ) as error:  # too many states, or a formula that has no optimum: the runs are there all the same
        front = ParetoFront(asked, study, inexact=str(error).partition("\n")[0].rstrip(":"))
    atomic_io.write(folder / FRONT, to_csv(front.points).encode())
    if front.exact:
        rows = [{asked.parameter or "probability": x, "return": y} for x, y in front.exact]
        atomic_io.write(folder / EXACT, to_csv(rows).encode())
    else:
        (folder / EXACT).unlink(missing_ok=True)  # of another front that was here before
    from psyco._src.studies.pareto_page import front_page

    atomic_io.write(front.page, front_page(front).encode())
    return front


def default_front_folder(asked: ParetoSpec) -> Path:
    """The same front has the same folder: by its domain, and a hash of what it asks for."""
    words = asked.plan.cells[0].name.rpartition("-seed")[0]
    return PARENT / f"front-{words}-{atomic_io.digest(asked.plan.to_toml().encode())[:8]}"


def exact_line(asked: ParetoSpec, domain: Domain) -> tuple[tuple[float, float], ...]:
    """The best return of any controller over what varies, as far as there is one; nothing where that is not known."""
    if not is_finite(domain):
        return ()
    if asked.parameter:
        found = [
            (value, constrained_optimum(domain, f"P>={required} [ {formula} ]"))
            for value, required, formula in zip(asked.values, asked.required, asked.formulas, strict=True)
        ]
        return tuple((value, best.expected_return) for value, best in found if best is not None)
    return tuple(front_of(domain, parse_formula(asked.formulas[0])))


def certified_probability(outcome: CellOutcome) -> float | None:
    """What a run's certificate says the probability is at least; one that is not SATISFIED says something, too.

    That is its lower bound, or if it is SATISFIED what was required, whichever is more: the interval of a certificate
    has two sides, of which each has half of the error that the verdict has, so that its lower end may lie below.
    Both are read off one e-process, which is larger for smaller probabilities: where one of them lies too high, the
    e-process of the true probability has reached 1/δ, and that happens with a chance of at most δ.
    """
    certificate = outcome.run.certificate if outcome.finished and outcome.run else None
    if certificate is None or not certificate.findings:
        return None
    lower = float(certificate.findings[0].lower)
    (constraint,) = parse(outcome.cell.config.requirement).constraints
    return max(lower, constraint.lower) if outcome.certified else lower


def _returned(done: Sequence[CellOutcome]) -> IntervalEstimate:
    """The return of a point, with its interval: runs are drawn again, and the return of each within its own error.

    Certificates that end early rest on few episodes, so that runs alone, of which there are few, would say too little.
    """
    known = [
        (outcome.score, outcome.run.certificate.return_error or 0.0)
        for outcome in done
        if math.isfinite(outcome.score) and outcome.run and outcome.run.certificate
    ]
    if not known:
        return statistics.NOTHING
    scores, errors = np.array(known, dtype=np.float64).T
    rng = np.random.default_rng(statistics.SEED)
    chosen = rng.integers(0, len(scores), (statistics.RESAMPLES, len(scores)))
    again = statistics.iqm(scores[chosen] + errors[chosen] * rng.standard_normal(chosen.shape))
    return IntervalEstimate(float(statistics.iqm(scores)), *map(float, statistics.bounds(again)))


def _mark(rows: Sequence[Row]) -> None:
    """Which points are dominated, and which of the others is the knee."""
    known = [row for row in rows if math.isfinite(row["certified"]) and math.isfinite(row["return"])]
    for row in known:
        row["dominated"] = int(any(_dominates(other, row) for other in known))
    left = sorted((row for row in known if not row["dominated"]), key=lambda row: float(row["certified"]))
    bend = knee([(row["certified"], row["return"]) for row in left])
    for k, row in enumerate(left):
        row["knee"] = int(k == bend)
    for row in known:
        row["knee"] = row["knee"] or 0


def _dominates(one: Row, other: Row) -> bool:
    """As good in both, and better in one."""
    a, b = ((row["certified"], row["return"]) for row in (one, other))
    return a[0] >= b[0] and a[1] >= b[1] and a != b


def knee(points: Sequence[tuple[float, float]]) -> int | None:
    """Where more safety begins to cost more: the point farthest above the line between the ends, both axes from 0 to 1.

    None if there are fewer than three points, or none lies above that line.
    """
    if len(points) < 3:
        return None
    found = np.array(points, dtype=np.float64)
    span = np.ptp(found, axis=0)
    if not span.all():
        return None
    x, y = ((found - found.min(axis=0)) / span).T
    above = x + y - 1.0  # the ends lie at (0, 1) and (1, 0)
    best = int(np.argmax(above))
    return best if above[best] > 1e-9 else None


def _plain(row: Row) -> Row:
    return {name: plain(value) for name, value in row.items()}
