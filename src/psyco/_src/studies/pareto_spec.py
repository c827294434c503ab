"""What the price of safety is asked of: required probabilities, or a parameter of a formula, become a study's plan.

Many certificates are many looks. If each of m certificates were wrong with a chance of 1 - C, one of them would be
wrong far more often; so each is issued at the confidence 1 - (1 - C)/m (Bonferroni), and all of them hold together with
confidence C, whatever they have in common. One may therefore look at all of them and take the one that one likes best.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psyco._src.core.checks import check_count, check_seed
from psyco._src.core.errors import PsycoError, RunError
from psyco._src.logic.ast import Number
from psyco._src.logic.parser import parse_formula
from psyco._src.studies.study_plan import MOST_CELLS, StudyPlan, make_plan
from psyco._src.verification.methods import DEFAULT_METHOD

POINTS = 8
RANGE = "0.5:0.99"  # of required probabilities
REQUIRED = 0.9  # where a parameter of the formula varies instead
MOST_POINTS = 200
DIGITS = 6  # of a value between the ends of a range
WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class ParetoSpec:
    """A front before it runs: a point is a value, with what it requires; each has a run for every seed."""

    plan: StudyPlan
    parameter: str  # of the formula; empty: the required probability varies
    values: tuple[float, ...]  # one per point, from small to large
    required: tuple[float, ...]  # probability of each point
    formulas: tuple[str, ...]  # of each point
    confidence: float  # that all certificates hold together
    each: float  # confidence of a single one

    @property
    def tasks(self) -> list[str]:
        """What the points are called, in their order."""
        return self.plan.tasks

    @property
    def axis(self) -> str:
        """What varies."""
        return self.parameter or "required probability"

    @property
    def accounting(self) -> str:
        """What all certificates together are worth, in words."""
        m, together = len(self.plan.cells), Number(self.confidence)
        return (
            f"Each of the {m} certificates was issued at confidence {Number(self.each)} = 1 - (1 - {together})/{m}, so "
            f"that all certified probabilities, and every SATISFIED, hold together with confidence {together}. Returns "
            "are estimates and no part of that"
        )


def ask(
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
    """The plan of a front; its arguments are those of `psyco.front`. Nothing is made or run for it."""
    if not isinstance(domain, str):
        raise RunError(f"a front takes the name of a domain, as in 'particle-dance', got {domain!r}")
    if not isinstance(formula, str):
        raise RunError(f"the formula is text, as in 'G (distance >= 0.1)', got {formula!r}")
    if vary is None:
        parse_formula(formula)
        parameter, values = "", _probabilities(RANGE if p is None else p, points)
        required, formulas = values, (formula,) * len(values)
    else:
        parameter, values = _varied(vary, points)
        if isinstance(p, str) and ":" in p:
            raise RunError(
                f"p = {p!r} is not allowed: where {parameter} varies it is a single one, as in 0.9"
            )
        required = (_probability(REQUIRED if p is None else p),) * len(values)
        formulas = tuple(_put(formula, parameter, value) for value in values)
    runs = len(values) * check_count("seeds", seeds, 1)
    if runs > MOST_CELLS:
        raise RunError(f"{len(values)} points with {seeds:,} seeds are {runs:,} runs; at most {MOST_CELLS:,}")
    each = _each(confidence, runs)
    words = [f"{parameter or 'p'} {Number(value)}" for value in values]
    content = {
        "title": f"The price of safety on {domain}",
        "seeds": list(range(check_seed(seed), seed + seeds)),
        "domain": {**(parameters or {}), "name": domain},
        "learner": {**(learner_options or {}), **({} if learner is None else {"name": learner})},
        "settings": _settings(settings or {}),
        "grid": {
            "requirement": [
                {"name": word, "text": f"P>={Number(wanted)} [ {text.strip()} ] & C>={Number(each)}"}
                for word, wanted, text in zip(words, required, formulas, strict=True)
            ]
        },
    }
    plan = make_plan({key: value for key, value in content.items() if value}, source="the front")
    return ParetoSpec(plan, parameter, values, required, formulas, float(confidence), each)


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    if settings.get("method", DEFAULT_METHOD) != DEFAULT_METHOD:
        raise RunError(
            f"method = {settings['method']!r} is not allowed: the certificates of a front are counted together, "
            f"which takes bounds that hold whenever one stops; they are issued by {DEFAULT_METHOD}"
        )
    if "seed" in settings:
        raise RunError("settings.seed = ... is not allowed: a front has seeds=5 of them, from seed=0 on")
    return dict(settings)


def _each(confidence: Any, runs: int) -> float:
    """Of each of so many certificates, so that all hold together; rounded to the side that is safe."""
    try:
        value = float(confidence)
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 < value < 1.0:
        raise RunError(f"confidence must lie between 0 and 1, as in 0.95, got {confidence!r}")
    each = math.ceil((1.0 - (1.0 - value) / runs) * 1e9 - 1e-6) / 1e9
    if each >= 1.0:
        raise RunError(f"confidence {value} for {runs:,} certificates together is more than can be computed")
    return each


# ---- what varies -------------------------------------------------------------------------------------------------


def _probabilities(given: Any, points: int | None) -> tuple[float, ...]:
    hint = "it is a range of required probabilities, as in 0.5:0.99"
    if isinstance(given, str):
        low, high = _ends("p", given, hint)
        values = _between("p", given, low, high, POINTS if points is None else points)
    elif isinstance(given, Sequence) and points is None:
        values = tuple(sorted({_probability(each) for each in given}))
    else:
        raise RunError(f"p = {given!r} is not allowed: {hint}, or a list without points")
    if len(values) < 2:
        raise RunError(f"p = {given!r} is not allowed: a front has at least 2 points; {hint}")
    return tuple(_probability(value) for value in values)


def _probability(given: Any) -> float:
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 < value < 1.0:
        raise RunError(f"p = {given!r} is not allowed: it must lie between 0 and 1, without these")
    return value


def _varied(given: Any, points: int | None) -> tuple[str, tuple[float, ...]]:
    """The parameter and its values: all whole numbers between whole ends, unless so many points are asked for."""
    hint = "it is a name in the formula and its range, as in n=0:5"
    name, equals, text = str(given).partition("=")
    if not equals or not WORD.fullmatch(name):
        raise RunError(f"vary = {given!r} is not allowed: {hint}")
    low, high = _ends("vary", text, hint)
    whole = low.is_integer() and high.is_integer()
    count = int(high - low) + 1 if whole and points is None else POINTS if points is None else points
    return name, _between("vary", given, low, high, count)


def _ends(name: str, given: str, hint: str) -> tuple[float, float]:
    try:
        low, high = map(float, given.split(":"))
    except ValueError:
        raise RunError(f"{name} = {given!r} is not allowed: {hint}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise RunError(f"{name} = {given!r} is not allowed: the smaller end stands first; {hint}")
    return low, high


def _between(name: str, given: Any, low: float, high: float, points: int) -> tuple[float, ...]:
    if not 2 <= (count := check_count("points", points, 2)) <= MOST_POINTS:
        raise RunError(f"{name} = {given!r} gives {count:,} points; a front has 2 to {MOST_POINTS}")
    values = tuple(dict.fromkeys(round(float(value), DIGITS) for value in np.linspace(low, high, count)))
    if len(values) < count:
        raise RunError(f"{name} = {given!r} is too narrow for {count} points that differ in {DIGITS} digits")
    return values


def _put(formula: str, parameter: str, value: float) -> str:
    """The formula with a number for its parameter, which stands in it as a word of its own."""
    number = str(Number(value)) if value >= 0 else f"({Number(value)})"
    text, found = re.subn(rf"(?<![\w.\"]){parameter}(?![\w.\"])", number, formula)
    if not found:
        raise RunError(
            f"vary: there is no {parameter!r} in the formula {formula!r}; name what should vary, "
            "as in --vary n=0:5 with collisions <= n"
        )
    try:
        parse_formula(text)
    except PsycoError as error:
        raise RunError(f"with {parameter} = {Number(value)}: {error}") from None
    return text
