"""Pictures and animations of episodes, with time as a colour gradient, like the paper's first figure."""

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
from psyco._src.runs.sample_trajectories import MAX_COMPONENTS

Signals = Mapping[str, NDArray[Any]]
# One colour map per body, light to dark over time.
BODY_COLORMAPS = ("Blues", "Reds", "Greens", "Purples", "Oranges", "Greys")
EPISODE_WIDTH, EPISODE_HEIGHT = 4.2, 4.6  # inches
STRIP_FRAMES = 6  # of a video, above the signals
STEPS_PER_SECOND = 12


def draw_trajectory(
    domain: Domain,
    episodes: Sequence[Signals],
    path: Path,
    frames: Sequence[Image.Image] = (),
    outcomes: Sequence[str] = (),
) -> None:
    """Write a picture of episodes, side by side.

    Args:
        domain: the domain of the episodes; its `scene` determines the drawing.
        episodes: the signals of each episode, `[n+1, ...]`.
        path: file of the picture.
        frames: a video of the first episode, one frame per state; some of them are drawn above the signals.
        outcomes: the outcome of each episode, if known, for its title.
    """
    figure = Figure(figsize=(EPISODE_WIDTH * len(episodes), EPISODE_HEIGHT), layout="constrained")
    below: Figure | SubFigure = figure
    if len(frames):
        height = 0.4 + EPISODE_WIDTH * len(episodes) / STRIP_FRAMES * frames[0].height / frames[0].width
        figure.set_figheight(height + EPISODE_HEIGHT)
        strip, below = figure.subfigures(2, 1, height_ratios=(height, EPISODE_HEIGHT), squeeze=False)[:, 0]
        _draw_strip(strip, frames)
    axes = below.subplots(1, len(episodes), squeeze=False)[0]
    for axis, signals, outcome in zip(axes, episodes, outcomes or [""] * len(episodes), strict=True):
        _draw_episode(domain, axis, signals).show(len(signals["step"]))
        title = f"return {signals['return'][-1]:.2f}, {int(signals['step'][-1])} steps"
        axis.set_title(f"{title}\n{outcome}" if outcome else title, fontsize=10)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=130, format="png")
    atomic_io.write(path, drawn.getvalue())


def animate_trajectory(domain: Domain, signals: Signals, path: Path) -> None:
    """Write an animated GIF of one episode, with one frame per state."""
    figure = Figure(figsize=(EPISODE_WIDTH, EPISODE_HEIGHT), layout="constrained")
    axis = figure.subplots()
    title = axis.set_title(" ", fontsize=10)
    moving, show = _draw_episode(domain, axis, signals)

    def show_all(count: int) -> None:
        show(count)
        title.set_text(caption(signals, count - 1))

    save_gif(_frames(figure, [*moving, title], show_all, len(signals["step"])), path, STEPS_PER_SECOND)


def caption(signals: Signals, step: int) -> str:
    """Return the caption of a frame."""
    return f"step {step}, return {signals['return'][step]:.2f}"


def save_gif(frames: Iterator[Image.Image], path: Path, per_second: float) -> None:
    """Write an animated GIF that repeats forever."""
    first, *rest = map(quantized, frames)
    drawn = io.BytesIO()
    first.save(drawn, "gif", save_all=True, append_images=rest, duration=1000 / per_second, loop=0)
    atomic_io.write(path, drawn.getvalue())


def quantized(frame: Image.Image) -> Image.Image:
    """Reduce a frame to the 256 colours of a GIF; Pillow's default method takes longer than the drawing."""
    return frame.quantize(method=Image.Quantize.FASTOCTREE)


def _frames(figure: Figure, moving: Sequence[Artist], show: Callable[[int], None], count: int) -> Iterator[Image.Image]:
    """Yield the frames: the static artists are drawn once, the moving ones over them in each frame."""
    canvas = FigureCanvasAgg(figure)
    for artist in moving:
        artist.set_animated(True)
    canvas.draw()
    background = canvas.copy_from_bbox(figure.bbox)
    for now in range(1, count + 1):
        canvas.restore_region(background)
        show(now)
        for artist in moving:
            figure.draw_artist(artist)
        yield Image.fromarray(np.array(canvas.buffer_rgba())).convert("RGB")


# ---- one episode ----------------------------------------------------------------------------------------------


class _EpisodeDrawing(NamedTuple):
    """An episode on its axes."""

    moving: list[Artist]  # in drawing order
    show: Callable[[int], None]  # shows this many states, from the first one on


def _draw_episode(domain: Domain, axis: Axes, signals: Signals) -> _EpisodeDrawing:
    scene = scene_of(domain)
    if scene is None:
        return _draw_signals(axis, signals)
    axis.set(xlim=(scene.low[0], scene.high[0]), ylim=(scene.low[1], scene.high[1]), xlabel="x", ylabel="y")
    axis.set_aspect("equal")
    tracks = {body: np.asarray(signals[body], float) for body in scene.bodies}
    return _draw_scene(axis, tracks, scene.contact)


def _draw_scene(axis: Axes, tracks: Mapping[str, NDArray[np.float64]], contact: float) -> _EpisodeDrawing:
    """Draw bodies with their tracks `[n+1, 2]`, and crosses at contacts."""
    trails, dots, bodies, shades = [], [], [], []
    for (body, track), colours in zip(tracks.items(), cycle(BODY_COLORMAPS), strict=False):
        shade = matplotlib.colormaps[colours](np.linspace(0.25, 1.0, len(track)))
        trails.append(LineCollection([], colors=shade, linewidths=1.5, capstyle="round"))
        axis.add_collection(trails[-1])
        x, y = track.T
        dots.append(axis.scatter(x, y, color=shade, s=8, zorder=2))
        bodies.append(axis.scatter(x[-1], y[-1], color=shade[-1:], s=60, zorder=3, edgecolor="white", label=body))
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

    return _EpisodeDrawing([*trails, *dots, *bodies, crosses], show)


def _contacts(tracks: Sequence[NDArray[np.float64]], contact: float) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the steps `[m]` and positions `[m, 2]` of contacts, at the place of the later body in the scene."""
    when, where = [np.zeros(0, np.intp)], [np.zeros((0, 2))]
    for first, second in combinations(tracks, 2):
        touching = np.flatnonzero(np.linalg.norm(first - second, axis=1) < contact)
        when.append(touching)
        where.append(second[touching])
    return np.concatenate(when), np.concatenate(where)


def _draw_signals(axis: Axes, signals: Signals) -> _EpisodeDrawing:
    """Draw a domain without a scene: every number over time, and the first entries of every vector."""
    step, series = signals["step"], dict(_series(signals))
    lines = [axis.plot(step, values, label=name)[0] for name, values in series.items()]
    axis.set(xlabel="step", xlim=(0, max(1, len(step) - 1)))
    if lines:
        axis.legend(loc="upper left", fontsize=8, framealpha=0.8)

    def show(count: int) -> None:
        for line, values in zip(lines, series.values(), strict=True):
            line.set_data(step[:count], values[:count])

    return _EpisodeDrawing([*lines], show)


def _series(signals: Signals) -> Iterator[tuple[str, NDArray[np.float64]]]:
    for name, values in sorted(signals.items()):  # so that a signal has the same colour everywhere
        numbers = np.asarray(values, float)
        if numbers.ndim == 2:
            yield from ((f"{name}[{k}]", column) for k, column in enumerate(numbers.T[:MAX_COMPONENTS]))
        elif name not in ("step", "return"):
            yield name, numbers


def _draw_strip(figure: SubFigure, frames: Sequence[Image.Image]) -> None:
    """Draw some frames of a video, from the first to the last."""
    steps = np.unique(np.linspace(0, len(frames) - 1, STRIP_FRAMES).astype(int))
    for axis, step in zip(figure.subplots(1, len(steps), squeeze=False)[0], steps, strict=True):
        axis.imshow(frames[step].convert("RGB"))
        axis.set_title(f"step {step}", fontsize=8)
        axis.set_axis_off()
