"""Charts as SVG: lines with bands, estimates and points with intervals. The page's style gives them their colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from psyco._src.reports.field_page import ticks
from psyco._src.studies.statistics import IntervalEstimate

WIDTH, HEIGHT = 520, 270
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 10, 48
COLOURS = 6  # classes s0 to s5


@dataclass(frozen=True)
class ChartLine:
    """A curve of a chart, with a band around it and a second, dashed one."""

    name: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]
    lower: Sequence[float] = ()
    upper: Sequence[float] = ()
    dashed: Sequence[float] = ()


def lines(title: str, series: Sequence[ChartLine], *, x: str, y: str, share: bool = False) -> str:
    """A chart of curves over the same axis.

    Args:
        title: above it.
        series: the curves.
        x: what the axis below is.
        y: what the axis at the left is.
        share: the axis at the left goes from 0 to 1.
    """
    across = _span([value for line in series for value in line.x], pad=0.0)
    values = [v for line in series for part in (line.y, line.lower, line.upper) for v in part]
    up = (0.0, 1.0) if share else _span(values)
    to_x = _scale(across, LEFT, WIDTH - RIGHT)
    to_y = _scale(up, HEIGHT - BOTTOM, TOP)
    drawn = "".join(_line(line, to_x, to_y) for line in series)
    keys = "".join(
        f'<span><span class="key s{line.colour % COLOURS}"></span>{escape(line.name)}</span>'
        for line in series
    )
    return _figure(
        title, keys, HEIGHT, _grid(across, up, to_x, to_y, HEIGHT) + drawn + _titles(x, y), f"{y} over {x}"
    )


def _line(line: ChartLine, to_x: Callable[[float], float], to_y: Callable[[float], float]) -> str:
    def points(values: Sequence[float]) -> list[str]:
        return [
            f"{to_x(a):.1f} {to_y(b):.1f}"
            for a, b in zip(line.x, values, strict=True)
            if math.isfinite(a) and math.isfinite(b)
        ]

    band = [*points(line.upper), *reversed(points(line.lower))] if line.upper else []
    parts = [
        f'<path class="band" d="M{"L".join(band)}Z"/>' if band else "",
        f'<path class="line" d="M{"L".join(points(line.y))}"/>',
        f'<path class="line dashed" d="M{"L".join(points(line.dashed))}"/>' if line.dashed else "",
    ]
    return f'<g class="s{line.colour % COLOURS}">{"".join(parts)}</g>'


@dataclass(frozen=True)
class ChartDot:
    """An estimate of a chart, with its interval."""

    name: str
    colour: int
    estimate: IntervalEstimate


def dots(
    title: str, series: Sequence[ChartDot], *, x: str, share: bool = False, limit: float | None = None
) -> str:
    """A chart with a row for each estimate.

    Args:
        title: above it.
        series: the estimates, from top to bottom.
        x: what the axis below is.
        share: it goes from 0 to 1.
        limit: where a dashed line stands.
    """
    row = 34
    height = TOP + row * len(series) + BOTTOM
    across = (0.0, 1.0) if share else _span([v for dot in series for v in dot.estimate])
    to_x = _scale(across, 12, WIDTH - 12)
    marks = []
    for k, dot in enumerate(series):
        y = TOP + row * k
        value, lower, upper = dot.estimate
        marks.append(f'<text class="name" x="12" y="{y + 12}">{escape(dot.name)}</text>')
        if all(map(math.isfinite, dot.estimate)):
            ends = f'x1="{to_x(lower):.1f}" x2="{to_x(upper):.1f}" y1="{y + 23}" y2="{y + 23}"'
            marks.append(
                f'<g class="s{dot.colour % COLOURS}"><line class="whisker" {ends}/>'
                f'<circle class="marker" cx="{to_x(value):.1f}" cy="{y + 23}" r="5"/></g>'
            )
    bottom = height - BOTTOM
    across_ticks = "".join(
        f'<line x1="{to_x(v):.1f}" x2="{to_x(v):.1f}" y1="{TOP}" y2="{bottom}"/>'
        f'<text x="{to_x(v):.1f}" y="{height - 25}" text-anchor="{_anchor(to_x(v))}">{_number(v)}</text>'
        for v in ticks(*across)
    )
    dashed = "" if limit is None else (
        f'<line class="limit" x1="{to_x(limit):.1f}" x2="{to_x(limit):.1f}" y1="{TOP}" y2="{bottom}"/>'
    )  # fmt: skip
    below = f'<text class="title" x="{WIDTH / 2}" y="{height - 6}" text-anchor="middle">{escape(x)}</text>'
    return _figure(title, "", height, f'<g class="axis">{across_ticks}{below}</g>{dashed}{"".join(marks)}', x)


@dataclass(frozen=True)
class ChartMark:
    """A point of a chart, with an interval both ways."""

    x: IntervalEstimate
    y: IntervalEstimate
    hollow: bool = False
    word: str = ""  # that stands beside it
    colour: int = 0


def scatter(
    title: str,
    marks: Sequence[ChartMark],
    *,
    x: str,
    y: str,
    single: Sequence[tuple[float, float]] = (),
    line: Sequence[tuple[float, float]] = (),
    keys: Sequence[tuple[str, int]] = (),
) -> str:
    """A chart of points with intervals, over what they were made of, beside a line.

    Args:
        title: above it.
        marks: the points.
        x: what the axis below is.
        y: what the axis at the left is.
        single: small dots.
        line: what the points are compared with.
        keys: names and colours for the legend; dots have colour 0, the line 1.
    """
    across = _span([v for mark in marks for v in mark.x] + [a for a, _ in (*single, *line)])
    up = _span([v for mark in marks for v in mark.y] + [b for _, b in (*single, *line)])
    to_x = _scale(across, LEFT, WIDTH - RIGHT)
    to_y = _scale(up, HEIGHT - BOTTOM, TOP)
    drawn = []
    if line:
        path = "L".join(f"{to_x(a):.1f} {to_y(b):.1f}" for a, b in line)
        drawn.append(f'<g class="s1"><path class="line" d="M{path}"/></g>')
    drawn += [
        f'<g class="s0"><circle class="marker faint" cx="{to_x(a):.1f}" cy="{to_y(b):.1f}" r="3"/></g>'
        for a, b in single
    ]
    for mark in marks:
        if all(map(math.isfinite, (*mark.x, *mark.y))):
            drawn.append(_mark(mark, to_x, to_y))
    legend = "".join(
        f'<span><span class="key s{colour % COLOURS}"></span>{escape(name)}</span>' for name, colour in keys
    )
    inside = _grid(across, up, to_x, to_y, HEIGHT) + "".join(drawn) + _titles(x, y)
    return _figure(title, legend, HEIGHT, inside, f"{y} over {x}", alone=True)


def _mark(mark: ChartMark, to_x: Callable[[float], float], to_y: Callable[[float], float]) -> str:
    a, b = to_x(mark.x.value), to_y(mark.y.value)
    word = (
        f'<text class="name" x="{a - 8:.1f}" y="{b + 18:.1f}" text-anchor="end">{escape(mark.word)}</text>'
        if mark.word
        else ""
    )
    return (
        f'<g class="s{mark.colour % COLOURS}">'
        f'<line class="whisker thin" x1="{to_x(mark.x.lower):.1f}" x2="{to_x(mark.x.upper):.1f}" '
        f'y1="{b:.1f}" y2="{b:.1f}"/><line class="whisker thin" x1="{a:.1f}" x2="{a:.1f}" '
        f'y1="{to_y(mark.y.lower):.1f}" y2="{to_y(mark.y.upper):.1f}"/>'
        f'<circle class="marker{" hollow" * mark.hollow}" cx="{a:.1f}" cy="{b:.1f}" r="5"/></g>{word}'
    )


def _figure(title: str, keys: str, height: int, inside: str, label: str, *, alone: bool = False) -> str:
    legend = f'<span class="legend">{keys}</span>' if keys else ""
    return (
        f'<figure class="chart still{" alone" * alone}"><figcaption><span>{escape(title)}</span>{legend}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{inside}</svg></figure>'
    )


def _grid(
    across: tuple[float, float],
    up: tuple[float, float],
    to_x: Callable[[float], float],
    to_y: Callable[[float], float],
    height: int,
) -> str:
    rows = "".join(
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{to_y(v):.1f}" y2="{to_y(v):.1f}"/>'
        f'<text x="{LEFT - 7}" y="{to_y(v) + 4:.1f}" text-anchor="end">{_number(v)}</text>'
        for v in ticks(*up)
    )
    columns = "".join(
        f'<text x="{to_x(v):.1f}" y="{height - 25}" text-anchor="{_anchor(to_x(v))}">{_number(v)}</text>'
        for v in ticks(*across)
    )
    return f'<g class="axis">{rows}{columns}</g>'


def _anchor(x: float) -> str:
    """A number near the edge stays inside."""
    return "end" if x > WIDTH - 40 else "start" if x < 30 else "middle"


def _titles(x: str, y: str) -> str:
    middle = (HEIGHT + TOP - BOTTOM) / 2
    return (
        f'<g class="axis"><text class="title" x="{(WIDTH + LEFT - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
        f'{escape(x)}</text><text class="title" x="12" y="{middle}" transform="rotate(-90 12 {middle})" '
        f'text-anchor="middle">{escape(y)}</text></g>'
    )


def _span(values: Sequence[float], pad: float = 0.05) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    room = pad * (high - low) or (abs(high) * 0.05 or 0.5) * (high == low)
    return low - room, high + room


def _scale(span: tuple[float, float], start: float, end: float) -> Callable[[float], float]:
    low, high = span

    def place(value: float) -> float:
        return start + (min(max(value, low), high) - low) / (high - low) * (end - start)

    return place


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
