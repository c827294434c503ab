"""A picture of one episode, like the paper's first figure: time as a colour gradient; and an animation of it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, cycle
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray
from PIL import Image

from psyco._src.core import atomic_io
from psyco._src.envs.base import Domain, scene_of
from psyco._src.runs.sample_trajectories import COMPONENTS

Signals = Mapping[str, NDArray[Any]]
COLOURS = (
    "Blues",
    "Reds",
    "Greens",
    "Purples",
    "Oranges",
    "Greys",
)  # one map per body, light to dark over time
WIDTH, HEIGHT = 4.2, 4.6  # of one episode, in inches
STRIP = 6  # frames of a film above the signals
STEPS_PER_SECOND = 12


def draw_trajectory(
    domain: Domain,
    episodes: Sequence[Signals],
    path: Path,
    frames: Sequence[Image.Image] = (),
    outcomes: Sequence[str] = (),
) -> None:
    """Write a picture of some episodes, side by side.

    Args:
        domain: where they were played; its `scene` says how to draw them.
        episodes: the signals of each, `[n+1, ...]`.
        path: of the picture.
        frames: a film of the first episode, one per state; some of them stand above the signals.
        outcomes: what each episode came to, if that is known; it stands in the title.
    """
    figure = Figure(figsize=(WIDTH * len(episodes), HEIGHT), layout="constrained")
    below: Figure | SubFigure = figure
    if len(frames):
        height = 0.4 + WIDTH * len(episodes) / STRIP * frames[0].height / frames[0].width
        figure.set_figheight(height + HEIGHT)
        strip, below = figure.subfigures(2, 1, height_ratios=(height, HEIGHT), squeeze=False)[:, 0]
        _draw_strip(strip, frames)
    axes = below.subplots(1, len(episodes), squeeze=False)[0]
    for axis, signals, outcome in zip(axes, episodes, outcomes or [""] * len(episodes), strict=True):
        _picture(domain, axis, signals).show(len(signals["step"]))
        title = f"return {signals['return'][-1]:.2f}, {int(signals['step'][-1])} steps"
        axis.set_title(f"{title}\n{outcome}" if outcome else title, fontsize=10)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=130, format="png")
    atomic_io.write(path, drawn.getvalue())


def animate_trajectory(domain: Domain, signals: Signals, path: Path) -> None:
    """Write an animated GIF of one episode, a frame per state."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axis = figure.subplots()
    title = axis.set_title(" ", fontsize=10)
    moving, show = _picture(domain, axis, signals)

    def show_all(count: int) -> None:
        show(count)
        title.set_text(caption(signals, count - 1))

    save_gif(_frames(figure, [*moving, title], show_all, len(signals["step"])), path, STEPS_PER_SECOND)


def caption(signals: Signals, step: int) -> str:
    """What stands beside a frame."""
    return f"step {step}, return {signals['return'][step]:.2f}"


def save_gif(frames: Iterator[Image.Image], path: Path, per_second: float) -> None:
    """Write an animation that goes on for ever."""
    first, *rest = map(few_colours, frames)
    drawn = io.BytesIO()
    first.save(drawn, "gif", save_all=True, append_images=rest, duration=1000 / per_second, loop=0)
    atomic_io.write(path, drawn.getvalue())


def few_colours(frame: Image.Image) -> Image.Image:
    """The 256 colours that a GIF has; Pillow's own way to choose them takes longer than all of the drawing."""
    return frame.quantize(method=Image.Quantize.FASTOCTREE)


def _frames(
    figure: Figure, moving: Sequence[Artist], show: Callable[[int], None], count: int
) -> Iterator[Image.Image]:
    """What stands still is drawn once; for each frame only what moves is drawn over it."""
    canvas = FigureCanvasAgg(figure)
    for artist in moving:
        artist.set_animated(True)
    canvas.draw()
    still = canvas.copy_from_bbox(figure.bbox)
    for now in range(1, count + 1):
        canvas.restore_region(still)
        show(now)
        for artist in moving:
            figure.draw_artist(artist)
        yield Image.fromarray(np.array(canvas.buffer_rgba())).convert("RGB")


# ---- one episode ----------------------------------------------------------------------------------------------


class _Picture(NamedTuple):
    """An episode on its axes."""

    moving: list[Artist]  # in the order in which they are drawn
    show: Callable[[int], None]  # lets them show so many states, from the first one on


def _picture(domain: Domain, axis: Axes, signals: Signals) -> _Picture:
    scene = scene_of(domain)
    if scene is None:
        return _signals_picture(axis, signals)
    axis.set(xlim=(scene.low[0], scene.high[0]), ylim=(scene.low[1], scene.high[1]), xlabel="x", ylabel="y")
    axis.set_aspect("equal")
    tracks = {body: np.asarray(signals[body], float) for body in scene.bodies}
    return _scene_picture(axis, tracks, scene.contact)


def _scene_picture(axis: Axes, tracks: Mapping[str, NDArray[np.float64]], contact: float) -> _Picture:
    """Bodies with their tracks `[n+1, 2]`, and where they touch."""
    trails, dots, bodies, shades = [], [], [], []
    for (body, track), colours in zip(tracks.items(), cycle(COLOURS), strict=False):
        shade = matplotlib.colormaps[colours](np.linspace(0.25, 1.0, len(track)))
        trails.append(LineCollection([], colors=shade, linewidths=1.5, capstyle="round"))
        axis.add_collection(trails[-1])
        x, y = track.T
        dots.append(axis.scatter(x, y, color=shade, s=8, zorder=2))
        bodies.append(
            axis.scatter(x[-1], y[-1], color=shade[-1:], s=60, zorder=3, edgecolor="white", label=body)
        )
        shades.append(shade)
    when, where = _contacts(list(tracks.values()), contact)
    crosses = axis.scatter(where[:, 0], where[:, 1], marker="x", color="black", s=40, zorder=4)
    if len(when):
        crosses.set_label("contact")
    axis.legend(loc="upper left", fontsize=8, framealpha=0.8)

    def show(count: int) -> None:
        for track, shade, trail, dot, body in zip(tracks.values(), shades, trails, dots, bodies, strict=True):
            trail.set_segments([*np.stack([track[: count - 1], track[1:count]], axis=1)])
            dot.set_offsets(track[:count])
            body.set_offsets(track[count - 1])
            body.set_facecolor(shade[count - 1])
        crosses.set_offsets(where[when < count])

    return _Picture([*trails, *dots, *bodies, crosses], show)


def _contacts(
    tracks: Sequence[NDArray[np.float64]], contact: float
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """When `[m]` and where `[m, 2]` two bodies touch: at the place of the later one in the scene."""
    when, where = [np.zeros(0, np.intp)], [np.zeros((0, 2))]
    for first, second in combinations(tracks, 2):
        touching = np.flatnonzero(np.linalg.norm(first - second, axis=1) < contact)
        when.append(touching)
        where.append(second[touching])
    return np.concatenate(when), np.concatenate(where)


def _signals_picture(axis: Axes, signals: Signals) -> _Picture:
    """Domains without a scene: every number over time, and the first few of every vector."""
    step, series = signals["step"], dict(_series(signals))
    lines = [axis.plot(step, values, label=name)[0] for name, values in series.items()]
    axis.set(xlabel="step", xlim=(0, max(1, len(step) - 1)))
    if lines:
        axis.legend(loc="upper left", fontsize=8, framealpha=0.8)

    def show(count: int) -> None:
        for line, values in zip(lines, series.values(), strict=True):
            line.set_data(step[:count], values[:count])

    return _Picture([*lines], show)


def _series(signals: Signals) -> Iterator[tuple[str, NDArray[np.float64]]]:
    for name, values in sorted(signals.items()):  # so that a signal has the same colour everywhere
        numbers = np.asarray(values, float)
        if numbers.ndim == 2:
            yield from ((f"{name}[{k}]", column) for k, column in enumerate(numbers.T[:COMPONENTS]))
        elif name not in ("step", "return"):
            yield name, numbers


def _draw_strip(figure: SubFigure, frames: Sequence[Image.Image]) -> None:
    """A few frames of a film, from the first to the last."""
    steps = np.unique(np.linspace(0, len(frames) - 1, STRIP).astype(int))
    for axis, step in zip(figure.subplots(1, len(steps), squeeze=False)[0], steps, strict=True):
        axis.imshow(frames[step].convert("RGB"))
        axis.set_title(f"step {step}", fontsize=8)
        axis.set_axis_off()
