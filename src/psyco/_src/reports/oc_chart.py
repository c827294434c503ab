"""Charts of operating characteristics: the probability of each verdict and the expected episodes of a test."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from psyco._src.core import atomic_io
from psyco._src.core.errors import RunError
from psyco._src.logic.ast import Constraint, Requirement
from psyco._src.verification.base import MeanTest, Test
from psyco._src.verification.operating_characteristics import Characteristics, operating_characteristics

# Colour-blind safe (Okabe and Ito); a method has the same colour in every chart.
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
    atomic_io.write(path, image.getvalue())


def _wrong_verdict(constraint: Constraint, c: Characteristics) -> np.ndarray:
    return np.where((c.p >= constraint.lower) & (c.p <= constraint.upper), c.violated, c.satisfied)


def _grid(constraint: Constraint) -> np.ndarray:
    """Return probabilities around the bounds, which are among them."""
    bounds = [b for b in (constraint.lower, constraint.upper) if 0.0 < b < 1.0] or [0.5]
    room = max(min(b, 1.0 - b) for b in bounds)
    low, high = max(min(bounds) - 1.5 * room, 0.0), min(max(bounds) + room, 1.0)
    just_below = [b - 1e-9 for b in bounds]
    return np.unique([*np.linspace(low, high, GRID_POINTS), *bounds, *just_below])
