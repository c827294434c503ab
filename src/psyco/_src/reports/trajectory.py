"""Pictures and animations of episodes, with time as a colour gradient, like the paper's first figure."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations, cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from psyco._src.core import files
from psyco._src.core.errors import DomainError
from psyco._src.core.wording import plural
from psyco._src.envs.base import Domain, scene_of
from psyco._src.envs.gym_env import Env, GymDomain
from psyco._src.envs.sandbox import close_envs
from psyco._src.logic.array_eval import SignalArrays
from psyco._src.logic.ast import (
    Aggregate,
    Compare,
    Formula,
    Label,
    Node,
    Requirement,
    Signal,
    Term,
    children,
    roots,
    walk,
)
from psyco._src.logic.lint import normalized
from psyco._src.logic.validate import subjects
from psyco._src.policies.external import AnyPolicy
from psyco._src.reports.film import AUTO, Film, make_film, quantized
from psyco._src.rollout.record import record_episodes
from psyco._src.runs.sample_trajectories import MAX_COMPONENTS

Signals = Mapping[str, NDArray[Any]]
# One colour map per body, light to dark over time.
BODY_COLORMAPS = ("Blues", "Reds", "Greens", "Purples", "Oranges", "Greys")
EPISODE_WIDTH, EPISODE_HEIGHT, PANEL_HEIGHT = 4.2, 4.6, 1.3  # inches
MAX_PANELS = 6  # of terms of the requirement
STRIP_FRAMES = 6  # of a video, above the signals
STEPS_PER_SECOND = 12


def draw_trajectory(
    domain: Domain,
    episodes: Sequence[Signals],
    path: Path,
    frames: Sequence[Image.Image] = (),
    outcomes: Sequence[str] = (),
    requirement: Requirement | None = None,
) -> None:
    """Write a picture of episodes, side by side.

    Args:
        domain: the domain of the episodes; its `scene` determines the drawing.
        episodes: the signals of each episode, `[n+1, ...]`.
        path: file of the picture.
        frames: a video of the first episode, one frame per state; some of them are drawn above the signals.
        outcomes: the outcome of each episode, if known, for its title.
        requirement: its terms are drawn with their bounds, below the scene or the signals.
    """
    terms = bounded_terms(requirement, episodes[0])
    heights = [EPISODE_HEIGHT, *[PANEL_HEIGHT] * len(terms)]
    figure = Figure(figsize=(EPISODE_WIDTH * len(episodes), sum(heights)), layout="constrained")
    below: Figure | SubFigure = figure
    if len(frames):
        height = 0.4 + EPISODE_WIDTH * len(episodes) / STRIP_FRAMES * frames[0].height / frames[0].width
        figure.set_figheight(height + sum(heights))
        strip, below = figure.subfigures(2, 1, height_ratios=(height, sum(heights)), squeeze=False)[:, 0]
        _draw_strip(strip, frames)
    columns = below.subplots(len(heights), len(episodes), squeeze=False, height_ratios=heights).T.tolist()
    for axes, signals, outcome in zip(columns, episodes, outcomes or [""] * len(episodes), strict=True):
        _draw_episode(domain, axes, signals, terms).show(len(signals["step"]))
        title = f"return {signals['return'][-1]:.2f}, {plural(int(signals['step'][-1]), 'step')}"
        axes[0].set_title(f"{title}\n{outcome}" if outcome else title, fontsize=10)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=130, format="png")
    files.write(path, drawn.getvalue())


def animate_trajectory(domain: Domain, signals: Signals, path: Path, requirement: Requirement | None = None) -> None:
    """Write a film of one episode, with one frame per state; the name of its file ends with the format."""
    files.write(path, trajectory_film(domain, signals, requirement, format=path.suffix[1:]).content)


def trajectory_film(
    domain: Domain, signals: Signals, requirement: Requirement | None = None, every: int = 1, format: str = AUTO
) -> Film:
    """Return a film of one episode, with a frame of every state, or of every k-th one.

    For `requirement` see `draw_trajectory`, for `format` see `make_film`.
    """
    terms = bounded_terms(requirement, signals)
    heights = [EPISODE_HEIGHT, *[PANEL_HEIGHT] * len(terms)]
    figure = Figure(figsize=(EPISODE_WIDTH, sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0].tolist()
    title = axes[0].set_title(" ", fontsize=10)
    moving, show = _draw_episode(domain, axes, signals, terms)

    def show_all(count: int) -> None:
        show(count)
        title.set_text(caption(signals, count - 1))

    frames = _frames(figure, [*moving, title], show_all, len(signals["step"]), every)
    return make_film(frames, STEPS_PER_SECOND, format)


def caption(signals: Signals, step: int) -> str:
    """Return the caption of a frame."""
    return f"step {step}, return {signals['return'][step]:.2f}"


def _frames(
    figure: Figure, moving: Sequence[Artist], show: Callable[[int], None], count: int, every: int
) -> Iterator[Image.Image]:
    """Yield the frames: the static artists are drawn once, the moving ones over them in each frame."""
    canvas = FigureCanvasAgg(figure)
    for artist in moving:
        artist.set_animated(True)
    canvas.draw()
    background = canvas.copy_from_bbox(figure.bbox)
    for now in range(1, count + 1, every):
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


def bounded_terms(requirement: Requirement | None, signals: Signals) -> dict[Term | Formula, list[float]]:
    """Return the terms that a requirement compares with numbers, and these; of Boolean signals none.

    Terms with signals that an episode lacks are left out: it may be drawn in another domain than its own.
    """
    found: dict[Term | Formula, list[float]] = {}
    for subject in subjects(requirement) if requirement is not None else ():
        for term, limits in (pair for root in roots(subject) for pair in _bounded_parts(root)):
            names = {node.name for node in walk(term) if isinstance(node, Signal | Label)}
            if names and names <= signals.keys():
                known = found.setdefault(term, [])
                known += [limit for limit in limits if limit not in known]
    return dict(list(found.items())[:MAX_PANELS])


def _bounded_parts(node: Node) -> Iterator[tuple[Term | Formula, list[float]]]:
    match node:
        case Compare():
            term, _, limit = normalized(node)
            yield term, [limit]
            for part in walk(term):
                if isinstance(part, Aggregate):
                    yield from _bounded_parts(part.body)
        case Signal() | Label():
            yield node, []
        case _:
            for part in children(node):
                yield from _bounded_parts(part)


def _draw_episode(
    domain: Domain, axes: Sequence[Axes], signals: Signals, terms: Mapping[Term | Formula, Sequence[float]]
) -> _EpisodeDrawing:
    """Draw the scene or all signals, and below it each term of the requirement."""
    drawings = [_draw_whole(domain, axes[0], signals)]
    drawings += [_draw_term(axis, signals, *term) for axis, term in zip(axes[1:], terms.items(), strict=True)]
    for axis in axes[1:-1]:
        axis.tick_params(labelbottom=False)
    if terms:
        axes[-1].set_xlabel("step")

    def show(count: int) -> None:
        for drawing in drawings:
            drawing.show(count)

    return _EpisodeDrawing([artist for drawing in drawings for artist in drawing.moving], show)


def _draw_term(axis: Axes, signals: Signals, term: Term | Formula, limits: Sequence[float]) -> _EpisodeDrawing:
    """Draw a term over time, with the numbers that it is compared with as dashed lines."""
    step = np.asarray(signals["step"])
    arrays = {name: np.asarray(values) for name, values in signals.items()}
    values = SignalArrays(np, arrays, step == step[-1], step.shape).reward(term)
    (line,) = axis.plot(step, values, label=str(term))
    for limit in limits:
        axis.axhline(limit, color="firebrick", linestyle="--", linewidth=1)
        axis.annotate(f"{limit:g}", (1, limit), xycoords=("axes fraction", "data"), color="firebrick", fontsize=7)
    if not limits and np.isin(values, (0, 1)).all():
        axis.set(ylim=(-0.3, 1.3), yticks=(0, 1), yticklabels=("false", "true"))
    axis.set(xlim=(0, max(1, len(step) - 1)))
    axis.legend(loc="upper left", fontsize=8, framealpha=0.8)

    def show(count: int) -> None:
        line.set_data(step[:count], values[:count])

    return _EpisodeDrawing([line], show)


def _draw_whole(domain: Domain, axis: Axes, signals: Signals) -> _EpisodeDrawing:
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
        name = body.removesuffix(".position")
        bodies.append(axis.scatter(x[-1], y[-1], color=shade[-1:], s=60, zorder=3, edgecolor="white", label=name))
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


# Videos of episodes, from the frames that a Gymnasium environment renders.


RENDER_MODE = "rgb_array"  # Gymnasium's name for frames as arrays
MAX_FRAMES_PER_SECOND = 50  # that browsers play of a GIF
FRAME_WIDTH, CAPTION_HEIGHT, FONT_SIZE = 420, 24, 13  # pixels


class Video(NamedTuple):
    """An episode and its frames."""

    signals: Signals  # [n+1, ...] each
    frames: list[Image.Image]  # one per state
    frames_per_second: float


def record_video(domain: GymDomain, policy: AnyPolicy, **episode: Any) -> Video:
    """Play one episode and record its frames; DomainError where the environment renders none.

    Args:
        domain: where to act.
        policy: the policy that acts.
        episode: its seed, index and stream, as for `record_episodes`.
    """
    env = domain.make_env()
    close_envs(env)
    frames: list[Image.Image] = []
    recorded = dataclasses.replace(
        domain,
        arguments={**domain.arguments, **_render_arguments(env, domain.name)},
        wrappers=(*domain.wrappers, partial(_Camera, frames=frames, name=domain.name)),
    )
    with _without_devices():
        signals = record_episodes(recorded, policy, count=1, **episode)[0]
    return Video(signals, frames, min(MAX_FRAMES_PER_SECOND, env.metadata.get("render_fps") or STEPS_PER_SECOND))


# What pygame and SDL, by which many environments render, should not print or open for frames as arrays.
WITHOUT_DEVICES = {"PYGAME_HIDE_SUPPORT_PROMPT": "1", "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}


@contextmanager
def _without_devices() -> Iterator[None]:
    """Let pygame use neither display nor sound, whose lack it reports on standard error."""
    missing = WITHOUT_DEVICES.keys() - os.environ.keys()
    os.environ.update({name: WITHOUT_DEVICES[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


def animate_video(video: Video, path: Path) -> None:
    """Write a video as a film; the name of its file ends with the format."""
    files.write(path, video_film(video, format=path.suffix[1:]).content)


def video_film(video: Video, every: int = 1, format: str = AUTO) -> Film:
    """Return a video as a film, with every k-th of its frames, and step and return above each."""
    return make_film(islice(_captioned(video), 0, None, every), video.frames_per_second, format)


def _render_arguments(env: Env, name: str) -> dict[str, str]:
    """Return the arguments with which the environment must be made to render frames."""
    if env.render_mode == RENDER_MODE:
        return {}
    modes = env.metadata.get("render_modes") or ()
    if RENDER_MODE not in modes:
        offered = ", ".join(map(str, modes)) or "none"
        raise DomainError(f"{name} renders no frames: {RENDER_MODE} is not among its render modes ({offered})")
    return {"render_mode": RENDER_MODE}


class _Camera(gymnasium.Wrapper):  # type: ignore[type-arg]
    """The outermost wrapper, which records a frame of every state."""

    def __init__(self, env: Any, frames: list[Image.Image], name: str) -> None:
        super().__init__(env)
        self.frames, self.name = frames, name

    def reset(self, **arguments: Any) -> Any:
        result = self.env.reset(**arguments)
        self._record_frame()
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self._record_frame()
        return result

    def _record_frame(self) -> None:
        try:
            frame = np.asarray(self.env.render())
        except Exception as error:  # of any kind; often a package is missing
            raise DomainError(f"{self.name} renders no frames: {error}") from error
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise DomainError(
                f"{self.name} renders no frames: its render() returns {frame.dtype} of shape {frame.shape}, "
                "not bytes of shape (height, width, 3)"
            )
        picture = Image.fromarray(frame)
        height = max(1, round(FRAME_WIDTH * picture.height / picture.width))
        # Small and with few colours, so that the frames of a long episode fit into memory.
        self.frames.append(quantized(picture.resize((FRAME_WIDTH, height))))


def _captioned(video: Video) -> Iterator[Image.Image]:
    font = ImageFont.load_default(FONT_SIZE)
    for step, frame in enumerate(video.frames):
        page = Image.new("RGB", (frame.width, CAPTION_HEIGHT + frame.height), "white")
        page.paste(frame.convert("RGB"), (0, CAPTION_HEIGHT))
        middle = FRAME_WIDTH / 2, CAPTION_HEIGHT / 2
        ImageDraw.Draw(page).text(middle, caption(video.signals, step), "black", font, "mm")
        yield page
