"""Counterexamples as HTML: timelines of subformulas above the signals in them; self-contained, in light and dark."""

from __future__ import annotations

import math
from base64 import b64encode
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.templates import template_environment
from psyco._src.logic.explanation import Explanation, SubformulaRow, TermCurve
from psyco._src.verification.counterexamples import Counterexample, Counterexamples
from psyco._src.verification.theme import CSS

WIDTH, LEFT, RIGHT, TOP = 560, 60, 12, 4  # of the picture and its margins
ROW, CURVE, AXIS = 31, 92, 26  # heights
MAX_ROWS, MAX_CURVES = 12, 4
MAX_LABEL = 50  # letters


def counterexamples_html(found: Counterexamples) -> str:
    """Return one `<section>` with its own style; every text in it is escaped."""
    template = template_environment("psyco._src.verification").get_template("counterexamples.html")
    constraints = zip(found.by_constraint, found.summaries, strict=True)
    return template.render(
        colours=CSS,
        remarks=found.remarks,
        constraints=[
            (str(stated), summary, [(each, _facts(each), _timeline(each), _film(each)) for each in own])
            for (stated, own), summary in constraints
        ],
    )


def _facts(each: Counterexample) -> dict[str, str]:
    facts = {} if each.seed is None else {"seed": str(each.seed)}
    facts |= {name: f"{value:.6g}" for name, value in (each.environment or {}).items()}
    if each.decided is not None:
        facts["decided at step"] = f"{each.decided:,} of {each.steps:,}"
    else:
        facts["steps"] = f"{each.steps:,}"
    if "return" in each.signals:
        facts["return"] = f"{float(each.signals['return'][-1]):.4g}"
    if each.cost is not None and each.violates:
        facts["distance from satisfying"] = f"{each.cost:.4g}"
    if each.margin is not None and math.isfinite(each.margin):
        percent = 100 * abs(each.margin)
        distance = f"{percent:.3g}%" if percent >= 0.1 else "less than 0.1%"
        facts["beyond its bound by" if each.margin > 0 else "within its bound by"] = distance
    return facts


def _film(each: Counterexample) -> str:
    return "" if each.film is None else f"data:{each.film_type};base64,{b64encode(each.film).decode()}"


class _TimelineBar(NamedTuple):
    """Consecutive states with the same value."""

    x: str
    width: str
    kind: str  # CSS class


class _Strip(NamedTuple):
    """A subformula over time."""

    y: int
    label: str
    full: str
    indent: int
    bars: list[_TimelineBar]


class _Plot(NamedTuple):
    """A term over time, with the constants that it is compared with."""

    y: int
    label: str
    path: str
    limits: list[str]  # y of each
    low: str
    high: str


class _Timeline(NamedTuple):
    """The picture of an explanation."""

    width: int
    height: int
    left: int
    strips: list[_Strip]
    plots: list[_Plot]
    decided: str  # x of the step
    ticks: list[tuple[str, str]]
    omitted: int  # subformulas


def _timeline(each: Counterexample) -> _Timeline | None:
    why = each.explanation
    if why is None:
        return None
    states = each.steps + 1
    rows = _shown_rows(why)
    strips = [_strip(row, TOP + ROW * i, states) for i, row in enumerate(rows)]
    below = TOP + ROW * len(rows) + 6
    finite = [curve for curve in why.curves if np.isfinite(curve.values).any()][:MAX_CURVES]
    plots = [_plot(curve, below + CURVE * i, states) for i, curve in enumerate(finite)]
    height = below + CURVE * len(finite) + AXIS
    marks = {0, states - 1} if each.decided is None else {0, each.decided, states - 1}
    # Labels that would touch another one are left out; the step of the decision stays.
    ticks = [step for step in sorted(marks) if step == each.decided or abs(step - (each.decided or 0)) > states / 12]
    return _Timeline(
        WIDTH, height, LEFT, strips, plots, _x((each.decided or 0) + 0.5, states),
        [(_x(step + 0.5, states), f"{step:,}") for step in ticks], len(why.rows) - len(rows),
    )  # fmt: skip


def _shown_rows(why: Explanation) -> list[SubformulaRow]:
    """Return the formula, the deciding subformulas, and as many others as fit, in the order of the text."""
    first = sorted(range(len(why.rows)), key=lambda i: (i > 0, not why.rows[i].deciding.any(), i))
    return [why.rows[i] for i in sorted(first[:MAX_ROWS])]


def _strip(row: SubformulaRow, y: int, states: int) -> _Strip:
    text = str(row.formula)
    cells = zip(row.holds.tolist(), row.deciding.tolist(), strict=True)
    kinds = [("true" if holds else "false") + " decides" * decides for holds, decides in cells]
    starts = [0, *(t for t in range(1, states) if kinds[t] != kinds[t - 1]), states]
    bars = [_TimelineBar(_x(a, states), _width(b - a, states), kinds[a]) for a, b in pairwise(starts)]
    indent = 12 * min(row.depth, 6)
    room = MAX_LABEL - 2 * min(row.depth, 6)
    return _Strip(y, text if len(text) <= room else f"{text[: room - 1]}…", text, indent, bars)


def _plot(curve: TermCurve, y: int, states: int) -> _Plot:
    values, limits = curve.values, [limit for limit in curve.limits if math.isfinite(limit)]
    finite = [*values[np.isfinite(values)].tolist(), *limits]
    low, high = min(finite), max(finite)
    room = 0.08 * (high - low) or 0.5
    top, bottom = y + 20, y + CURVE - 12

    def place(value: float) -> str:
        return f"{bottom - (value - low + room) / (high - low + 2 * room) * (bottom - top):.1f}"

    path = "L".join(
        f"{_x(t + 0.5, states)} {place(values[t])}" for t in _thinned(values).tolist() if math.isfinite(values[t])
    )
    compared = f", compared with {', '.join(f'{limit:g}' for limit in limits)}" if limits else ""
    return _Plot(y, f"{curve.term}{compared}", f"M{path}", list(map(place, limits)), f"{low:.3g}", f"{high:.3g}")


def _thinned(values: NDArray[np.float64], largest: int = 1000) -> NDArray[np.intp]:
    """Return the indices of at most about `largest` points, with the extremes of every piece."""
    if len(values) <= largest:
        return np.arange(len(values))
    pieces = np.array_split(np.arange(len(values)), largest // 2)
    return np.unique([piece[extreme(values[piece])] for piece in pieces for extreme in (np.argmin, np.argmax)])


def _x(state: float, states: int) -> str:
    return f"{LEFT + state / states * (WIDTH - LEFT - RIGHT):.1f}"


def _width(count: int, states: int) -> str:
    return f"{max(count / states * (WIDTH - LEFT - RIGHT), 1.5):.1f}"
