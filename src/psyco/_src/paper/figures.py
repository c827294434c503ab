"""The figures of the paper, each with its data as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from psyco._src.envs.particle_dance import ParticleDance
from psyco._src.paper import experiments
from psyco._src.paper.curves import KINDS, Curve, Results
from psyco._src.paper.experiments import (
    BELIEF,
    CALIBRATION,
    FOUR,
    MLE,
    NONE,
    OBSTACLE_RUN,
    ONE,
    PARTICLE_DANCE,
    Variant,
)
from psyco._src.rollout.record import record_episodes

# One colour per variant in all figures, from the colour-blind safe palette of Okabe and Ito.
COLOURS: dict[Variant, str] = {NONE: "#4d4d4d", FOUR: "#e69f00", ONE: "#0072b2", MLE: "#cc79a7"}
STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlesize": 10,
    "grid.color": "#e8e8e8",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "figure.constrained_layout.use": True,
}
REQUIREMENT: dict[str, Any] = {"color": "black", "linestyle": (0, (5, 3)), "linewidth": 1.1, "zorder": 1}
PANEL = (5.6, 3.5)  # inches


@dataclass(frozen=True)
class Drawing:
    """A finished figure."""

    name: str  # of its files
    number: int  # in the paper
    title: str
    caption: str
    figure: Figure
    table: str  # CSV


def save(drawing: Drawing, folder: Path, *, dpi: int = 150) -> None:
    """Write NAME.png, NAME.svg and NAME.csv; SVG and CSV are deterministic."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": drawing.name}):
        drawing.figure.savefig(folder / f"{drawing.name}.png", dpi=dpi)
        drawing.figure.set_layout_engine("none")  # the layout is done; computing it again takes as long
        drawing.figure.savefig(folder / f"{drawing.name}.svg", metadata={"Date": None})
    (folder / f"{drawing.name}.csv").write_text(drawing.table, encoding="utf-8")


def draw_belief() -> Drawing:
    """Draw figure 1, of section 2.4."""
    with matplotlib.rc_context(STYLE):
        return _belief(number=1)


def draw_all(results: Results) -> list[Drawing]:
    """Draw all figures of an experiment."""
    with matplotlib.rc_context(STYLE):
        return [draw(results) for draw in FIGURES[results.experiment.name]]


def _belief(*, number: int) -> Drawing:
    mu = np.linspace(0.0, 1.0, 501)
    counts = experiments.rewards(seed=0).tolist()
    figure = _figure(6.4, 8.0)
    axes = figure.subplots(len(experiments.PULLS), 1, sharex=True)
    rows = []
    for axis, pulls, count in zip(axes, experiments.PULLS, counts, strict=True):
        density = experiments.density(count, pulls, mu)
        axis.plot(mu, density, color=COLOURS[ONE])
        axis.fill_between(mu, density, where=mu >= experiments.MU, color=COLOURS[ONE], alpha=0.35, linewidth=0)
        axis.axvline(experiments.MU, **REQUIREMENT)
        mass = experiments.confidence(count, pulls, experiments.MU)
        title = f"{_count(pulls, 'pull')}, {_count(count, 'reward')}: confidence in μ > {experiments.MU} is {mass:.2f}"
        axis.set_title(title, loc="left", fontsize=9)
        axis.set(xlim=(0, 1), ylim=(0, 1.15 * density.max()))
        rows += [(pulls, count, x, d) for x, d in zip(mu, density, strict=True)]
    axes[-1].set_xlabel(f"μ, the probability of a reward (dashed: the true {experiments.MU})")
    figure.supylabel("posterior density", fontsize=9.5)
    return Drawing(
        BELIEF,
        number,
        "The belief sharpens with the evidence",
        f"A Bernoulli bandit with μ = {experiments.MU}: the Beta posterior after a growing number of pulls, from the "
        "uniform prior at the top. The shaded area is the confidence that μ exceeds 0.6; since that is exactly the "
        "true value, it does not settle at 0 or 1.",
        figure,
        _csv(("pulls", "rewards", "mu", "density"), rows),
    )


def _trajectories(r: Results, *, number: int) -> Drawing:
    domain, shown, count = ParticleDance(), ("unconstrained", "n_max = 1"), 3
    figure = _figure(9.2, 6.5)
    axes = figure.subplots(len(shown), count)
    rows: list[tuple[Any, ...]] = []
    for line, variant in zip(axes, shown, strict=True):
        paths = record_episodes(domain, r.runs[variant][0].policy, seed=0, count=count)
        for column, (axis, path) in enumerate(zip(line, paths, strict=True)):
            for body, colours in (("particle", "Blues"), ("agent", "Reds")):
                _gradient(axis, np.asarray(path[body], np.float64), colours, body)
            touching = np.diff(path["collisions"], prepend=0) > 0  # the start does not count
            x, y = path["agent"][touching].T
            axis.scatter(x, y, marker="x", color="black", s=26, linewidths=1.0, zorder=4, label="collision")
            collisions = _count(int(path["collisions"][-1]), "collision")
            axis.set(title=f"return {path['return'][-1]:.1f}, {collisions}", xlabel="x", ylabel="y")
            axis.set_aspect("equal", adjustable="datalim")
            rows += [
                (variant, column, step, *(float(x) for body in ("particle", "agent") for x in path[body][step]),
                 float(path["distance"][step]), int(path["collisions"][step]))
                for step in range(len(path["step"]))
            ]  # fmt: skip
        line[0].set_ylabel(f"{_label(variant)}\ny")
    _legend(figure, axes[0][0])
    return Drawing(
        f"{r.experiment.name}-trajectories",
        number,
        "Following the particle",
        "The same three episodes with two policies learned from seed 0: without a constraint (above) and with "
        "n_max = 1 (below). Light to dark is time, blue the particle, red the agent; crosses are steps closer than "
        f"{domain.d_min:g}. The constrained agent has to keep its distance.",
        figure,
        _csv(
            (
                "variant",
                "episode",
                "step",
                "particle x",
                "particle y",
                "agent x",
                "agent y",
                "distance",
                "collisions",
            ),
            rows,
        ),
    )


def _return(r: Results, *, number: int) -> Drawing:
    panels = {"": {v: r.curve(v, "return") for v in r.runs}}
    figure, axes = _panels(panels, r, ylabel="return per episode", within=(-np.inf, 0), each=True)
    _legend(figure, axes[0])
    return Drawing(
        f"{r.experiment.name}-return",
        number,
        f"{r.experiment.title}: return under no, a weak and a strong constraint",
        f"Mean return while learning. {_reading(r)} Thin: each repetition.",
        figure,
        _table(panels),
    )


def _share(r: Results, *, number: int) -> Drawing:
    window = r.experiment.window
    panels = {
        f"in windows of {window:,} episodes": {v: r.curve(v, "satisfied") for v in r.runs},
        "among all episodes so far": {v: r.share_so_far(v) for v in r.runs},
    }
    figure, axes = _panels(panels, r, ylabel="share of satisfying episodes", within=(0, 1))
    for axis in axes:
        _require(axis, r.experiment.p_req, r"$p_\mathrm{req}$")
    if "MLE" in r.runs:
        for axis in axes:
            axis.set_ylim(0.6, 1.0)
    _legend(figure, axes[0])
    watched = " The unconstrained agent is judged by n_max = 1." if "unconstrained" in r.runs else ""
    return Drawing(
        f"{r.experiment.name}-share",
        number,
        f"{r.experiment.title}: share of satisfying episodes",
        "Share of episodes that satisfy the constraint while learning: in each window (left), and since the beginning "
        f"(right), which is what the belief of SNES rests on. Dashed: p_req.{watched} {_reading(r)}",
        figure,
        _table(panels),
    )


def _confidence(r: Results, *, number: int) -> Drawing:
    panels = {"": {v: r.curve(v, "c_sat") for v in _constrained(r)}}
    figure, axes = _panels(panels, r, ylabel=r"confidence $c_\mathrm{sat}$ while learning", within=(0, 1), each=True)
    _require(axes[0], r.experiment.c_req, r"$c_\mathrm{req}$")
    axes[0].set_ylim(top=1.01)
    _legend(figure, axes[0])
    return Drawing(
        f"{r.experiment.name}-confidence",
        number,
        f"{r.experiment.title}: confidence while learning",
        "Posterior probability that the requirement holds, from all episodes that the learner has seen. Dashed: c_req. "
        f"{_reading(r)} Thin: each repetition.",
        figure,
        _table(panels),
    )


def _verification(r: Results, *, number: int) -> Drawing:
    curves = {v: r.verified(v) for v in _constrained(r)}
    # Confidences jump between 0 and 1 from one verification to the next, so the line shows a moving average.
    points = len(next(iter(curves.values())).episodes)
    width = max(1, points // 12)
    smooth = {v: _moving_average(curve, width) for v, curve in curves.items()}
    figure, axes = _panels({"": smooth}, r, ylabel="confidence from verification", within=(0, 1))
    for v, curve in curves.items():
        colour = COLOURS[r.experiment.variants[v]]
        axes[0].plot(curve.episodes / 1000, curve.mean, ".", color=colour, markersize=4, alpha=0.6)
    _require(axes[0], r.experiment.c_req, r"$c_\mathrm{req}$")
    axes[0].axhline(1 - r.experiment.c_req, **REQUIREMENT)
    axes[0].set(xlim=curve.episodes[[0, -1]] / 1000, ylim=(-0.02, 1.02))
    _legend(figure, axes[0])
    smoothed = f"; the line runs through means of {width} consecutive ones" if width > 1 else ""
    return Drawing(
        f"{r.experiment.name}-verification",
        number,
        f"{r.experiment.title}: verifying the current policy",
        f"Every {r.experiment.verify_every:,} learning episodes the policy of that moment is fixed and verified on "
        f"fresh episodes (Alg. BV, at most {r.experiment.verify_episodes:,}). A verification mostly ends near 0 or 1, "
        "so the mean is about the share of repetitions whose policy passes. Dots: mean over "
        f"{r.experiment.repetitions} repetitions{smoothed}. Band: standard deviation. Dashed: c_req and 1 - c_req.",
        figure,
        _table({"": curves}),
    )


def _split(r: Results, *, number: int, quantity: str, zoom: bool = False, remark: str = "") -> Drawing:
    variants = _constrained(r)
    panels = {f"{kind} episodes": {v: r.split_curve(v, quantity, kind) for v in variants} for kind in KINDS}
    if zoom:
        start = r.experiment.episodes - r.experiment.final
        panels = {p: {v: _after(curve, start) for v, curve in curves.items()} for p, curves in panels.items()}
    label = {"return": "return per episode", "cost": "cost per episode"}[quantity]
    within = {"return": (-np.inf, 0.0), "cost": (0.0, np.inf)}[quantity]
    figure, axes = _panels(panels, r, ylabel=label, within=within, share_y=not zoom)
    _legend(figure, axes[0])
    what = {"return": "Return", "cost": "Cost (collisions beyond n_max)"}[quantity]
    when = f", the last {r.experiment.final:,} episodes" if zoom else ""
    return Drawing(
        f"{r.experiment.name}-{quantity}-split{'-zoom' * zoom}",
        number,
        f"{r.experiment.title}: {quantity} of satisfying and violating episodes{' at the end' * zoom}",
        f"{what} of the episodes that satisfy (left) and that violate (right) the constraint{when}.{remark} "
        f"{_reading(r)}",
        figure,
        _table(panels),
    )


Draw = Callable[[Results], Drawing]
COST_REMARK = (
    " Satisfying episodes cost nothing by definition; a violating one costs 1 for each state with a collision after "
    "the n_max allowed ones."
)
RUN_COST_REMARK = (
    " An episode that ends at the target while caught stays caught up to the horizon, and each of these steps counts "
    "too."
)
FIGURES: dict[str, tuple[Draw, ...]] = {
    PARTICLE_DANCE.name: (
        partial(_trajectories, number=2),
        partial(_return, number=3),
        partial(_share, number=4),
        partial(_confidence, number=5),
        partial(_verification, number=6),
        partial(_split, number=7, quantity="return"),
        partial(_split, number=8, quantity="return", zoom=True),
        partial(_split, number=9, quantity="cost", remark=COST_REMARK),
    ),
    CALIBRATION.name: (
        partial(_split, number=10, quantity="return"),
        partial(_split, number=11, quantity="return", zoom=True),
        partial(_share, number=12),
    ),
    OBSTACLE_RUN.name: (
        partial(_return, number=13),
        partial(_share, number=14),
        partial(_confidence, number=15),
        partial(_verification, number=16),
        partial(_split, number=17, quantity="return"),
        partial(_split, number=18, quantity="cost", remark=COST_REMARK + RUN_COST_REMARK),
    ),
}


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def _panels(
    panels: Mapping[str, Mapping[str, Curve]],
    r: Results,
    *,
    ylabel: str,
    within: tuple[float, float] = (-np.inf, np.inf),
    each: bool = False,
    share_y: bool = True,
) -> tuple[Figure, list[Axes]]:
    """Draw panels side by side: the mean as a line, the standard deviation as a band, cut to the range `within`.

    With `each`, every repetition is a thin line.
    """
    width, height = PANEL
    figure = _figure(width if len(panels) == 1 else 1.6 * width, height)
    axes = figure.subplots(1, len(panels), sharey=share_y, squeeze=False)[0]
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        for variant, curve in curves.items():
            colour, x = COLOURS[r.experiment.variants[variant]], curve.episodes / 1000
            axis.plot(x, curve.mean, color=colour, label=_label(variant))
            if each:
                axis.plot(x, curve.values.T, color=colour, linewidth=0.6, alpha=0.45)
            low, high = (np.clip(curve.mean + s * curve.deviation, *within) for s in (-1, 1))
            axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set(title=title, xlabel="learning episodes (thousands)")
        axis.set_xlim(*(curve.episodes[[0, -1]] / 1000))
    axes[0].set_ylabel(ylabel)
    return figure, list(axes)


def _gradient(axis: Axes, path: NDArray[np.float64], colours: str, label: str) -> None:
    """Draw a path `[n+1, 2]` whose colour darkens with time."""
    shades = matplotlib.colormaps[colours](np.linspace(0.25, 0.9, len(path)))
    axis.add_collection(
        LineCollection(list(np.stack([path[:-1], path[1:]], axis=1)), colors=shades[:-1], linewidths=1.4)
    )
    axis.scatter(path[:, 0], path[:, 1], color=shades, s=7, zorder=2, linewidths=0)
    axis.scatter(path[-1:, 0], path[-1:, 1], color=shades[-1:], s=48, zorder=3, edgecolor="white", label=label)


def _require(axis: Axes, value: float, name: str) -> None:
    axis.axhline(value, label=f"{name} = {value:g}", **REQUIREMENT)


def _legend(figure: Figure, axis: Axes) -> None:
    """Draw the legend above the panels."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=5, fontsize=9)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'s' * (number != 1)}"


def _label(variant: str) -> str:
    return variant.replace("n_max", r"$n_\mathrm{max}$")


def _constrained(r: Results) -> list[str]:
    return [variant for variant in r.runs if variant != "unconstrained"]


def _after(curve: Curve, start: int) -> Curve:
    late = curve.episodes > start
    return Curve(curve.episodes[late], curve.values[:, late])


def _moving_average(curve: Curve, width: int) -> Curve:
    """Return means of `width` consecutive points, each at the position of the last."""
    values = np.lib.stride_tricks.sliding_window_view(curve.values, width, axis=1).mean(axis=-1)
    return Curve(curve.episodes[width - 1 :], values)


def _reading(r: Results) -> str:
    """Return the explanation of line and band."""
    return (
        f"Line and band: mean and standard deviation over {r.experiment.repetitions} repetitions, in windows of "
        f"{r.experiment.window:,} episodes."
    )


def _table(panels: Mapping[str, Mapping[str, Curve]]) -> str:
    """Return every point of every line, with the value of every repetition."""
    rows: list[tuple[Any, ...]] = []
    for panel, curves in panels.items():
        for variant, c in curves.items():
            columns = (c.episodes, c.mean, c.deviation, *c.values)
            rows += [(panel, variant, *row) for row in zip(*columns, strict=True)]
    seeds = (f"seed {seed}" for seed in range(len(rows[0]) - 5))
    return _csv(("panel", "variant", "episodes", "mean", "standard deviation", *seeds), rows)


def _csv(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.7g}"
    return str(value)
