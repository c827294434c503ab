"""The Pareto front of return and safety: a study whose tasks differ in the required probability, or in a parameter.

The plan of the study is made by `make_pareto_spec`; its folder is that of a study with three files more:

    pareto.csv           one row per point: certified probability and return with intervals, dominated, knee
    pareto_exact.csv     on finite domains: the largest expected return of any controller
    pareto.html          the page

If each of m certificates were wrong with probability 1 - C, one of them would be wrong far more often. So each is
issued at confidence 1 - (1 - C)/m (Bonferroni), and all of them hold together with confidence C, whatever their
dependence. Any point of the front may therefore be chosen after looking at all of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from psyco._src.core import files
from psyco._src.core.checks import check_count, check_seed
from psyco._src.core.errors import PsycoError, RunError
from psyco._src.envs.base import Domain, is_finite_domain, signal_table
from psyco._src.envs.registry import TRUST_NOTHING, make_from_description
from psyco._src.exact.solver import constrained_optimum, exact_pareto_front
from psyco._src.logic.ast import Number
from psyco._src.logic.parser import parse_formula
from psyco._src.studies import statistics
from psyco._src.studies.aggregate import to_csv, to_html, to_json_rows, to_pandas
from psyco._src.studies.collect import CellOutcome, Row
from psyco._src.studies.study_folder import PARENT, Study, run_study
from psyco._src.studies.study_plan import MAX_CELLS, StudyPlan, make_plan
from psyco._src.studies.study_progress import StudyProgress
from psyco._src.verification.methods import DEFAULT_METHOD

TABLE, EXACT_TABLE, PAGE = "pareto.csv", "pareto_exact.csv", "pareto.html"
DEFAULT_POINTS = 8
DEFAULT_PROBABILITIES = "0.5:0.99"
DEFAULT_PROBABILITY = 0.9  # where a parameter of the formula varies
MAX_POINTS = 200
DIGITS = 6  # of a value between the ends of a range
RANGE_HINTS = {
    "p": "it is a range of required probabilities, as in 0.5:0.99",
    "vary": "it is a name in the formula and its range, as in n=0:5",
}


@dataclass(frozen=True)
class ParetoSpec:
    """The plan of a front: each point is a task of the study, with one run per seed."""

    plan: StudyPlan
    parameter: str  # of the formula; empty: the required probability varies
    values: tuple[float, ...]  # of the parameter or the probability, one per point, ascending
    required: tuple[float, ...]  # probability of each point
    formulas: tuple[str, ...]  # of each point
    confidence: float  # in all certificates together
    confidence_each: float  # in a single certificate

    @property
    def axis(self) -> str:
        """Name of the varied quantity."""
        return self.parameter or "required probability"

    @property
    def joint_guarantee(self) -> str:
        """What all certificates guarantee together, in words."""
        m, joint = len(self.plan.cells), Number(self.confidence)
        return (
            f"Each of the {m} certificates was issued at confidence {Number(self.confidence_each)} = "
            f"1 - (1 - {joint})/{m}, so that all certified probabilities, and every SATISFIED, hold together with "
            f"confidence {joint}. Returns are estimates and no part of that"
        )


@dataclass(frozen=True, repr=False)
class ParetoFront:
    """A front: a study, seen point by point."""

    spec: ParetoSpec
    study: Study
    # (probability or parameter value, largest return of any controller)
    exact: tuple[tuple[float, float], ...] = ()
    exact_error: str = ""  # why a finite domain has no exact front

    def __repr__(self) -> str:
        return f"<ParetoFront {self.folder}: {len(self.spec.values)} points, {self.study!r}>"

    def _repr_html_(self) -> str:
        """Return the points and the joint guarantee for notebooks."""
        return to_html(f"{self!r}. {self.joint_guarantee}", self.points)

    @property
    def folder(self) -> Path:
        """Folder of the study."""
        return self.study.folder

    @property
    def page(self) -> Path:
        """Path of the HTML page."""
        return self.folder / PAGE

    @property
    def joint_guarantee(self) -> str:
        """What all certificates guarantee together, in words."""
        return self.spec.joint_guarantee

    @property
    def notes(self) -> list[str]:
        """Remarks on the runs and on a missing exact front."""
        missing = [f"there is no exact front: {self.exact_error}"] if self.exact_error else []
        return [*self.study.notes, *missing]

    @cached_property
    def points(self) -> list[Row]:
        """One row per point, in the order of the varied quantity."""
        rows = [self._point(k) for k in range(len(self.spec.values))]
        if not self.spec.parameter:  # otherwise every point certifies a different formula
            _mark_dominated(rows)
        return rows

    def runs_of(self, point: int) -> list[CellOutcome]:
        """Return the runs of a point, one per seed."""
        task = self.spec.plan.tasks[point]
        return [outcome for outcome in self.study.outcomes if outcome.cell.task == task]

    def _point(self, k: int) -> Row:
        runs = self.runs_of(k)
        ended = [outcome for outcome in runs if outcome.ended]
        bounds = [certified_probability(outcome) for outcome in ended]
        certified = statistics.share_estimate(statistics.iqm_estimate([np.array(bounds)]))
        returned = statistics.iqm_estimate([np.array([outcome.score for outcome in ended])])
        row: Row = {
            **({self.spec.parameter: self.spec.values[k]} if self.spec.parameter else {}),
            "required": self.spec.required[k],
            "runs": len(runs),
            "ended": len(ended),
            "finished": sum(outcome.finished for outcome in ended),
            "satisfied": sum(outcome.certified for outcome in ended),
            "certified": certified.value,
            "certified_lower": certified.lower,
            "certified_upper": certified.upper,
            "certified_min": min(bounds, default=math.nan),
            "return": returned.value,
            "return_lower": returned.lower,
            "return_upper": returned.upper,
            "dominated": None,
            "knee": None,
        }
        if self.exact:
            row["exact_return"] = self.exact_return(self.spec.values[k] if self.spec.parameter else certified.value)
            if not self.spec.parameter:
                row["exact_probability"] = self.exact_probability(returned.value)
        return row

    def exact_return(self, at: float) -> float:
        """Return the largest return of any controller at a probability or parameter value; NaN if infeasible."""
        x, y = np.array(self.exact).T
        if self.spec.parameter:
            at_value = y[np.isclose(x, at)]
            return float(at_value[0]) if len(at_value) else math.nan
        return float(np.interp(at, x, y, right=math.nan)) if math.isfinite(at) else math.nan

    def exact_probability(self, returned: float) -> float:
        """Return the largest probability of any controller with that return; NaN if infeasible."""
        if math.isnan(returned):
            return math.nan
        x, y = np.array(self.exact).T  # y decreases in x
        return float(np.interp(returned, y[::-1], x[::-1], right=math.nan))

    def to_pandas(self) -> Any:
        """Return the points as a `pandas.DataFrame`."""
        return to_pandas(self.points)

    def to_json(self) -> str:
        """Return points, runs and the exact front as JSON."""
        content = {
            "folder": str(self.folder),
            "axis": self.spec.axis,
            "formula": list(dict.fromkeys(self.spec.formulas)),
            "confidence": self.spec.confidence,
            "confidence_each": self.spec.confidence_each,
            "joint_guarantee": self.joint_guarantee,
            "complete": self.study.complete,
            "failed": self.study.failed,
            "notes": self.notes,
            "points": to_json_rows(self.points),
            "exact": [list(pair) for pair in self.exact],
            "runs": to_json_rows(self.study.tables.cells),
            "page": str(self.page),
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"


def run_pareto(
    spec: ParetoSpec,
    folder: Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    trust: Collection[str] = TRUST_NOTHING,
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
) -> ParetoFront:
    """Run the study of a front as `run_study` does, and write the table and the page of the front.

    Args:
        spec: of the front.
        folder: of the study.
        workers: number of processes; default: one per core.
        ray: address of a Ray cluster to use instead, or "local".
        trust: code that the domain may import.
        on_progress: called after every change, and about twice a second.
    """
    domain = make_from_description(spec.plan.cells[0].config.description, trust)
    if spec.parameter in signal_table(domain):
        raise RunError(
            f"vary: {spec.parameter!r} is a signal of {domain.name}; choose another name for the parameter, as in n"
        )
    study = run_study(spec.plan, folder, workers=workers, ray=ray, trust=trust, on_progress=on_progress)
    try:
        front = ParetoFront(spec, study, exact_front(spec, domain))
    except PsycoError as error:
        # The domain has too many states, or the formula has no optimum; the learned points are shown without it.
        front = ParetoFront(spec, study, exact_error=str(error).partition("\n")[0].rstrip(":"))
    files.write(folder / TABLE, to_csv(front.points).encode())
    if front.exact:
        rows = [{spec.parameter or "probability": x, "return": y} for x, y in front.exact]
        files.write(folder / EXACT_TABLE, to_csv(rows).encode())
    else:
        (folder / EXACT_TABLE).unlink(missing_ok=True)  # of an earlier front in this folder
    from psyco._src.studies.pareto_page import pareto_page

    files.write(front.page, pareto_page(front).encode())
    return front


def default_pareto_folder(spec: ParetoSpec) -> Path:
    """Return the folder of a front, named by its domain and a hash of its plan."""
    words = spec.plan.cells[0].name.rpartition("-seed")[0]
    return PARENT / f"pareto-{words}-{files.digest(spec.plan.to_toml().encode())[:8]}"


# ---- points ------------------------------------------------------------------------------------------------------


def exact_front(spec: ParetoSpec, domain: Domain) -> tuple[tuple[float, float], ...]:
    """Return the largest return of any controller over the varied quantity; empty if the domain is not finite."""
    if not is_finite_domain(domain):
        return ()
    if not spec.parameter:
        return tuple(exact_pareto_front(domain, parse_formula(spec.formulas[0])))
    optima = [
        (value, constrained_optimum(domain, f"P>={required} [ {formula} ]"))
        for value, required, formula in zip(spec.values, spec.required, spec.formulas, strict=True)
    ]
    return tuple((value, best.expected_return) for value, best in optima if best is not None)


def certified_probability(outcome: CellOutcome) -> float:
    """Return the lower bound on the probability that a run's certificate guarantees, whatever its verdict.

    Without a certificate, as for a failed run, it is 0. Otherwise it is the lower bound of the certificate or, if that
    is SATISFIED, the required probability, whichever is larger: the interval of a certificate is two-sided with half of
    the verdict's error on each side, so its lower end may lie below. Both bounds are read off one e-process, which
    decreases in the probability: where one of them is too high, the e-process of the true probability has reached 1/δ,
    which has probability at most δ.
    """
    certificate = outcome.certificate
    if certificate is None or not certificate.findings:
        return 0.0
    lower = float(certificate.findings[0].lower)
    (constraint,) = outcome.requirement.constraints
    return max(lower, constraint.lower) if outcome.certified else lower


def _mark_dominated(rows: Sequence[Row]) -> None:
    """Enter which points are dominated, and which of the others is the knee."""
    known = [row for row in rows if math.isfinite(row["certified"]) and math.isfinite(row["return"])]
    for row in known:
        row["dominated"] = int(any(_dominates(other, row) for other in known))
        row["knee"] = 0
    front = sorted((row for row in known if not row["dominated"]), key=lambda row: float(row["certified"]))
    bend = knee([(row["certified"], row["return"]) for row in front])
    if bend is not None:
        front[bend]["knee"] = 1


def _dominates(one: Row, other: Row) -> bool:
    """Return whether a point is as good as another in both coordinates, and better in one."""
    a, b = ((row["certified"], row["return"]) for row in (one, other))
    return a[0] >= b[0] and a[1] >= b[1] and a != b


def knee(points: Sequence[tuple[float, float]]) -> int | None:
    """Return the index of the knee: the point farthest above the line between the ends, both axes scaled to [0, 1].

    Beyond it, safety costs more. None if there are fewer than three points, or none lies above that line.
    """
    if len(points) < 3:
        return None
    array = np.array(points, dtype=np.float64)
    span = np.ptp(array, axis=0)
    if not span.all():
        return None
    x, y = ((array - array.min(axis=0)) / span).T
    above = x + y - 1.0  # the ends lie at (0, 1) and (1, 0)
    best = int(np.argmax(above))
    return best if above[best] > 1e-9 else None


# ---- the plan ----------------------------------------------------------------------------------------------------


def make_pareto_spec(
    domain: str,
    formula: str,
    *,
    p: str | float | Sequence[float] | None = None,
    points: int | None = None,
    vary: str | None = None,
    seeds: int = 5,
    seed: int = 0,
    confidence: float = 0.95,
    parameters: Mapping[str, Any] | None = None,
    learner: str | None = None,
    learner_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ParetoSpec:
    """Return the plan of a front; the arguments are those of `psyco.pareto_front`. No domain is made."""
    if not isinstance(domain, str):
        raise RunError(f"a front takes the name of a domain, as in 'particle-dance', got {domain!r}")
    if not isinstance(formula, str):
        raise RunError(f"the formula is text, as in 'G (distance >= 0.1)', got {formula!r}")
    if vary is None:
        parse_formula(formula)
        parameter, values = "", _probabilities(DEFAULT_PROBABILITIES if p is None else p, points)
        required, formulas = values, (formula,) * len(values)
    else:
        parameter, values = _parameter_values(vary, points)
        if isinstance(p, str) and ":" in p:
            raise RunError(f"p = {p!r} is not allowed: where {parameter} varies it is a single one, as in 0.9")
        required = (_check_probability("p", DEFAULT_PROBABILITY if p is None else p),) * len(values)
        formulas = tuple(_substitute(formula, parameter, value) for value in values)
    runs = len(values) * check_count("seeds", seeds, 1)
    if runs > MAX_CELLS:
        raise RunError(f"{len(values)} points with {seeds:,} seeds are {runs:,} runs; at most {MAX_CELLS:,}")
    confidence = _check_probability("confidence", confidence)
    # Rounded up to nine digits: all certificates together may not exceed the permitted error.
    each = math.ceil((1.0 - (1.0 - confidence) / runs) * 1e9 - 1e-6) / 1e9
    if each >= 1.0:
        raise RunError(f"confidence {confidence} in {runs:,} certificates together is too close to 1")
    names = [f"{parameter or 'p'} {Number(value)}" for value in values]
    content = {
        "title": f"The price of safety on {domain}",
        "seeds": list(range(check_seed(seed), seed + seeds)),
        "domain": {**(parameters or {}), "name": domain},
        "learner": {**(learner_options or {}), **({} if learner is None else {"name": learner})},
        "settings": _check_settings(settings or {}),
        "grid": {
            "requirement": [
                {"name": name, "text": f"P>={Number(probability)} [ {text.strip()} ] & C>={Number(each)}"}
                for name, probability, text in zip(names, required, formulas, strict=True)
            ]
        },
    }
    plan = make_plan({key: value for key, value in content.items() if value}, source="the front")
    return ParetoSpec(plan, parameter, values, required, formulas, confidence, each)


def _check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    if settings.get("method", DEFAULT_METHOD) != DEFAULT_METHOD:
        raise RunError(
            f"method = {settings['method']!r} is not allowed: the joint confidence of a front needs bounds that hold "
            f"at every stopping time; its certificates are issued by {DEFAULT_METHOD}"
        )
    if "seed" in settings:
        raise RunError("settings.seed = ... is not allowed: a front has seeds=5 of them, from seed=0 on")
    return dict(settings)


def _check_probability(name: str, given: Any) -> float:
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 < value < 1.0:
        raise RunError(f"{name} must lie between 0 and 1, both excluded, got {given!r}")
    return value


def _probabilities(given: Any, points: int | None) -> tuple[float, ...]:
    if isinstance(given, str):
        values = _spaced("p", given, *_range_ends("p", given), DEFAULT_POINTS if points is None else points)
    elif isinstance(given, Sequence) and points is None:
        values = tuple(sorted({_check_probability("p", value) for value in given}))
    else:
        raise RunError(f"p = {given!r} is not allowed: {RANGE_HINTS['p']}, or a list without points")
    if len(values) < 2:
        raise RunError(f"p = {given!r} is not allowed: a front has at least 2 points; {RANGE_HINTS['p']}")
    return tuple(_check_probability("p", value) for value in values)


def _parameter_values(given: Any, points: int | None) -> tuple[str, tuple[float, ...]]:
    """Return the name and the values of a parameter: all whole numbers between whole ends, unless `points` is given."""
    name, equals, text = str(given).partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise RunError(f"vary = {given!r} is not allowed: {RANGE_HINTS['vary']}")
    low, high = _range_ends("vary", text)
    if points is None:
        whole = low.is_integer() and high.is_integer()
        points = int(high - low) + 1 if whole else DEFAULT_POINTS
    return name, _spaced("vary", given, low, high, points)


def _range_ends(name: str, text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        raise RunError(f"{name} = {text!r} is not allowed: {RANGE_HINTS[name]}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise RunError(f"{name} = {text!r} is not allowed: the smaller end comes first; {RANGE_HINTS[name]}")
    return low, high


def _spaced(name: str, given: Any, low: float, high: float, points: int) -> tuple[float, ...]:
    """Return evenly spaced values from low to high."""
    if (count := check_count("points", points, 2)) > MAX_POINTS:
        raise RunError(f"{name} = {given!r} gives {count:,} points; a front has 2 to {MAX_POINTS}")
    values = tuple(dict.fromkeys(round(float(value), DIGITS) for value in np.linspace(low, high, count)))
    if len(values) < count:
        raise RunError(f"{name} = {given!r} is too narrow for {count} points that differ in {DIGITS} digits")
    return values


def _substitute(formula: str, parameter: str, value: float) -> str:
    """Return the formula with a number for the parameter, which is a separate word in it."""
    number = str(Number(value)) if value >= 0 else f"({Number(value)})"
    text, count = re.subn(rf"(?<![\w.\"]){parameter}(?![\w.\"])", number, formula)
    if not count:
        raise RunError(
            f"vary: there is no {parameter!r} in the formula {formula!r}; name a parameter of the formula, "
            "as in --vary n=0:5 with collisions <= n"
        )
    try:
        parse_formula(text)
    except PsycoError as error:
        raise RunError(f"with {parameter} = {Number(value)}: {error}") from None
    return text
