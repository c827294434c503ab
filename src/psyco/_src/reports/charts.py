"""Charts as inline SVG: lines with bands, estimates with intervals, scatter plots.

The style sheet of the page (`page.css`) gives them their colours and line styles.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np
from markupsafe import Markup

from psyco._src.core import files
from psyco._src.core.errors import RunError
from psyco._src.logic.ast import Constraint, Requirement
from psyco._src.verification.base import MeanTest, Test
from psyco._src.verification.operating_characteristics import Characteristics, operating_characteristics

WIDTH, HEIGHT = 520, 270
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 10, 48  # margins around the plotting area
ROW_HEIGHT, ROW_MARGIN = 34, 12  # of an interval chart
SERIES_COLOURS = 6  # CSS classes s0 to s5

Range: TypeAlias = tuple[float, float]
Estimate: TypeAlias = tuple[float, float, float]  # value, lower end, upper end


def element(name: str, *content: str, **attributes: object) -> Markup:
    """Return an HTML or SVG element; texts and attribute values are escaped, floats are rounded to one decimal.

    `class_` stands for `class`, and any other underscore for a hyphen.
    """
    written = (
        Markup(' {}="{}"').format(
            key.rstrip("_").replace("_", "-"), f"{value:.1f}" if isinstance(value, float) else value
        )
        for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, Markup("").join(written), Markup("").join(content))


def series_class(colour: int) -> str:
    """Return the CSS class of a series' colour."""
    return f"s{colour % SERIES_COLOURS}"


def colour_key(name: str, kind: str) -> Markup:
    """Return a legend entry whose sample has the CSS class `kind`."""
    return element("span", element("span", class_=f"key {kind}"), name)


def figure(
    title: str,
    label: str,
    *drawn: Markup,
    keys: Iterable[Markup] = (),
    height: int = HEIGHT,
    alone: bool = False,
) -> Markup:
    """Return a chart with its caption and legend.

    Args:
        title: above the chart.
        label: description for screen readers.
        drawn: SVG elements, the rearmost first.
        keys: entries of the legend.
        height: of the view box.
        alone: the chart stands by itself instead of in a grid of charts.
    """
    legend = Markup("").join(keys)
    caption = element("figcaption", element("span", title), element("span", legend, class_="legend") if legend else "")
    picture = element("svg", *drawn, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=label)
    return element("figure", caption, picture, class_="chart still alone" if alone else "chart still")


@dataclass(frozen=True)
class Axes:
    """A coordinate system with grid lines, tick labels and axis titles; values outside of it are clipped."""

    x: Range
    y: Range
    x_title: str
    y_title: str
    x_ticks: Sequence[float] | None = None  # default: a few round numbers

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixel of a point."""
        return _pixel(x, self.x, LEFT, WIDTH - RIGHT), _pixel(y, self.y, HEIGHT - BOTTOM, TOP)

    def line(self, xs: Sequence[float], ys: Sequence[float], kind: str = "line") -> Markup:
        """Return a line through points; those that are not finite are left out."""
        points = self._points(xs, ys)
        return element("path", class_=kind, d=f"M{'L'.join(points)}") if points else Markup("")

    def band(self, xs: Sequence[float], lower: Sequence[float], upper: Sequence[float], kind: str = "band") -> Markup:
        """Return the area between two lines; without a finite point there is none."""
        outline = [*self._points(xs, upper), *reversed(self._points(xs, lower))]
        return element("path", class_=kind, d=f"M{'L'.join(outline)}Z") if outline else Markup("")

    def horizontal(self, y: float, kind: str = "limit") -> Markup:
        """Return a line across the chart."""
        _, at = self.place(self.x[0], y)
        return element("line", class_=kind, x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at)

    def vertical(self, x: float, kind: str) -> Markup:
        """Return a line from the bottom to the top of the chart."""
        at, _ = self.place(x, self.y[0])
        return element("line", class_=kind, x1=at, x2=at, y1=TOP, y2=HEIGHT - BOTTOM)

    def draw(self) -> Markup:
        """Return grid lines, tick labels and titles."""
        middle = (HEIGHT + TOP - BOTTOM) / 2
        parts = []
        for value in ticks(*self.y):
            _, at = self.place(self.x[0], value)
            parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at))
            parts.append(element("text", tick_label(value), x=LEFT - 7, y=at + 4, text_anchor="end"))
        for value in ticks(*self.x) if self.x_ticks is None else self.x_ticks:
            at, _ = self.place(value, self.y[0])
            parts.append(_x_label(value, at, HEIGHT))
        parts.append(_x_title(self.x_title, (WIDTH + LEFT - RIGHT) / 2, HEIGHT))
        turned = f"rotate(-90 12 {middle})"
        parts.append(
            element("text", self.y_title, class_="title", x=12, y=middle, transform=turned, text_anchor="middle")
        )
        return element("g", *parts, class_="axis")

    def _points(self, xs: Sequence[float], ys: Sequence[float]) -> list[str]:
        places = (self.place(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y))
        return [f"{x:.1f} {y:.1f}" for x, y in places]


# ---- kinds of charts -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart, with an optional band around it and an optional second, dashed line."""

    name: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]
    lower: Sequence[float] = ()
    upper: Sequence[float] = ()
    dashed: Sequence[float] = ()


def line_chart(title: str, series: Sequence[ChartLine], *, x: str, y: str, share: bool = False) -> Markup:
    """Return a chart of lines over a common axis.

    Args:
        title: above the chart.
        series: the lines.
        x: title of the horizontal axis.
        y: title of the vertical axis.
        share: the vertical axis goes from 0 to 1.
    """
    values = chain.from_iterable((*line.y, *line.lower, *line.upper) for line in series)
    across = _padded_range([value for line in series for value in line.x], padding=0.0)
    axes = Axes(across, (0.0, 1.0) if share else _padded_range(list(values)), x, y)
    drawn = []
    for line in series:
        parts = [axes.band(line.x, line.lower, line.upper)] if line.upper else []
        parts.append(axes.line(line.x, line.y))
        parts += [axes.line(line.x, line.dashed, "line dashed")] if line.dashed else []
        drawn.append(element("g", *parts, class_=series_class(line.colour)))
    keys = [colour_key(line.name, series_class(line.colour)) for line in series]
    return figure(title, f"{y} over {x}", axes.draw(), *drawn, keys=keys)


@dataclass(frozen=True)
class ChartDot:
    """An estimate of an interval chart, with its interval."""

    name: str
    colour: int
    estimate: Estimate


def interval_chart(title: str, series: Sequence[ChartDot], *, x: str, share: bool = False) -> Markup:
    """Return a chart with one row for each estimate.

    Args:
        title: above the chart.
        series: the estimates, from top to bottom.
        x: title of the horizontal axis.
        share: the horizontal axis goes from 0 to 1.
    """
    bottom = TOP + ROW_HEIGHT * len(series)
    height = bottom + BOTTOM
    across = (0.0, 1.0) if share else _padded_range([value for dot in series for value in dot.estimate])

    def place(value: float) -> float:
        return _pixel(value, across, ROW_MARGIN, WIDTH - ROW_MARGIN)

    axis = []
    for tick in ticks(*across):
        axis.append(element("line", x1=place(tick), x2=place(tick), y1=TOP, y2=bottom))
        axis.append(_x_label(tick, place(tick), height))
    axis.append(_x_title(x, WIDTH / 2, height))
    drawn = []
    for row, dot in enumerate(series):
        top = TOP + ROW_HEIGHT * row
        drawn.append(element("text", dot.name, class_="name", x=ROW_MARGIN, y=top + 12))
        if all(map(math.isfinite, dot.estimate)):
            value, lower, upper = map(place, dot.estimate)
            at = top + 23
            whisker = element("line", class_="whisker", x1=lower, x2=upper, y1=at, y2=at)
            marker = element("circle", class_="marker", cx=value, cy=at, r=5)
            drawn.append(element("g", whisker, marker, class_=series_class(dot.colour)))
    return figure(title, x, element("g", *axis, class_="axis"), *drawn, height=height)


@dataclass(frozen=True)
class ChartMark:
    """A point of a scatter plot, with an interval in each direction."""

    x: Estimate
    y: Estimate
    hollow: bool = False
    label: str = ""  # beside the point
    colour: int = 0


def scatter_chart(
    title: str,
    marks: Sequence[ChartMark],
    *,
    x: str,
    y: str,
    points: Sequence[tuple[float, float]] = (),
    line: Sequence[tuple[float, float]] = (),
    keys: Sequence[tuple[str, int]] = (),
) -> Markup:
    """Return a scatter plot.

    Args:
        title: above the chart.
        marks: points with intervals.
        x: title of the horizontal axis.
        y: title of the vertical axis.
        points: further points, drawn as small dots of colour 0, faint beside marks.
        line: for comparison, of colour 1.
        keys: names and colours of the legend.
    """
    plain = [*points, *line]
    across = _padded_range([value for mark in marks for value in mark.x] + [a for a, _ in plain])
    up = _padded_range([value for mark in marks for value in mark.y] + [b for _, b in plain])
    axes = Axes(across, up, x, y)
    drawn = []
    if line:
        path = axes.line([a for a, _ in line], [b for _, b in line])
        drawn.append(element("g", path, class_=series_class(1)))
    for point in points:
        cx, cy = axes.place(*point)
        dot = element("circle", class_="marker faint" if marks else "marker", cx=cx, cy=cy, r=3 if marks else 4)
        drawn.append(element("g", dot, class_=series_class(0)))
    drawn += [_mark(mark, axes) for mark in marks if all(map(math.isfinite, (*mark.x, *mark.y)))]
    legend = [colour_key(name, series_class(colour)) for name, colour in keys]
    return figure(title, f"{y} over {x}", axes.draw(), *drawn, keys=legend, alone=True)


def _mark(mark: ChartMark, axes: Axes) -> Markup:
    (x, left, right), (y, low, high) = mark.x, mark.y
    cx, cy = axes.place(x, y)
    (x1, y1), (x2, y2) = axes.place(left, low), axes.place(right, high)
    marker = "marker hollow" if mark.hollow else "marker"
    drawn = element(
        "g",
        element("line", class_="whisker thin", x1=x1, x2=x2, y1=cy, y2=cy),
        element("line", class_="whisker thin", x1=cx, x2=cx, y1=y1, y2=y2),
        element("circle", class_=marker, cx=cx, cy=cy, r=5),
        class_=series_class(mark.colour),
    )
    if not mark.label:
        return drawn
    return drawn + element("text", mark.label, class_="name", x=cx - 8, y=cy + 18, text_anchor="end")


# ---- axes ------------------------------------------------------------------------------------------------------


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers between two numbers."""
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(k * power for k in (1, 2, 2.5, 5, 10) if k * power >= (high - low) / 4)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def tick_label(value: float) -> str:
    """Return a number as the label of a tick."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def _x_label(value: float, at: float, height: int) -> Markup:
    # A label near the edge must stay inside of the picture.
    anchor = "end" if at > WIDTH - 40 else "start" if at < 30 else "middle"
    return element("text", tick_label(value), x=at, y=height - 25, text_anchor=anchor)


def _x_title(title: str, at: float, height: int) -> Markup:
    return element("text", title, class_="title", x=at, y=height - 6, text_anchor="middle")


def _padded_range(values: Sequence[float], padding: float = 0.05) -> Range:
    """Return the range of the finite values, with padding at both ends; it is never empty."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    room = padding * (high - low) or (abs(high) * 0.05 or 0.5) * (high == low)
    return low - room, high + room


def _pixel(value: float, values: Range, start: float, end: float) -> float:
    low, high = values
    return start + (min(max(value, low), high) - low) / (high - low) * (end - start)


# Charts of operating characteristics: the probability of each verdict and the expected episodes of a test.


# Colour-blind safe (Okabe and Ito); a method has the same colour in every chart. One that is not listed here gets the
# next colour of Matplotlib.
METHOD_COLOURS = {
    "anytime": "#0072B2",
    "calibrated": "#009E73",
    "bayes": "#D55E00",
    "sprt": "#CC79A7",
    "fixed": "#666666",
}
GRID_POINTS = 121


def draw_characteristics(
    requirement: Requirement, tests: Mapping[str, Sequence[Test | MeanTest]], max_episodes: int, path: Path
) -> None:
    """Draw a row of charts for each probability constraint: P(SATISFIED), P(wrong verdict), expected episodes."""
    drawn = [(k, c) for k, c in enumerate(requirement.constraints) if isinstance(c, Constraint)]
    rows = len(drawn)
    if not drawn:
        raise RunError("only plans of probability constraints can be drawn; leave out --out")
    from matplotlib.figure import Figure  # takes long; pages need no pictures

    figure = Figure(figsize=(13, 3.6 * rows), layout="constrained")
    axes = figure.subplots(rows, 3, squeeze=False)
    for row, (k, constraint) in zip(axes, drawn, strict=True):
        grid = _grid(constraint)
        for name, methods in tests.items():
            c = operating_characteristics(methods[k], grid, max_episodes)
            curves = (c.satisfied, np.maximum(_wrong_verdict(constraint, c), 1e-12), c.episodes)
            for panel, curve in zip(row, curves, strict=True):
                panel.plot(grid, curve, color=METHOD_COLOURS.get(name), label=name, linewidth=1.6)
        delta = 1.0 - constraint.confidence
        titles = ("probability of SATISFIED", "probability of a wrong verdict", "expected episodes")
        for panel, title in zip(row, titles, strict=True):
            panel.set(title=title, xlabel="true probability p", xlim=(grid[0], grid[-1]))
            for bound in (constraint.lower, constraint.upper):
                if 0.0 < bound < 1.0:
                    panel.axvline(bound, color="black", linestyle="--", linewidth=0.8)
        row[1].axhline(delta, color="black", linestyle=":", linewidth=1.0)
        row[1].annotate(f"permitted: {delta:.3g}", (grid[0], delta), va="bottom", fontsize=8)
        row[1].set(yscale="log", ylim=(1e-5, 1.0))
        row[2].set_ylim(bottom=0)
        row[0].legend(frameon=False)
    image = io.BytesIO()
    try:
        figure.savefig(image, dpi=120, format=path.suffix[1:] or "png")
    except ValueError as error:
        raise RunError(f"cannot draw into {path}: {error}") from None
    files.write(path, image.getvalue())


def _wrong_verdict(constraint: Constraint, c: Characteristics) -> np.ndarray:
    return np.where((c.p >= constraint.lower) & (c.p <= constraint.upper), c.violated, c.satisfied)


def _grid(constraint: Constraint) -> np.ndarray:
    """Return probabilities around the bounds, which are among them."""
    bounds = [b for b in (constraint.lower, constraint.upper) if 0.0 < b < 1.0] or [0.5]
    room = max(min(b, 1.0 - b) for b in bounds)
    low, high = max(min(bounds) - 1.5 * room, 0.0), min(max(bounds) + room, 1.0)
    just_below = [b - 1e-9 for b in bounds]
    return np.unique([*np.linspace(low, high, GRID_POINTS), *bounds, *just_below])
