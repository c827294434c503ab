"""A picture of one episode, like the paper's first figure: time as a colour gradient; and an animation of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from psyco._src.domain.base import Domain, Scene

Signals = Mapping[str, NDArray[Any]]
COLOURS = ("Blues", "Reds", "Greens", "Purples")  # one colour map per body, light to dark over time


def draw_trajectory(domain: Domain, episodes: Sequence[Signals], path: Path) -> None:
    """Write a picture of some episodes, side by side."""
    figure, axes = plt.subplots(1, len(episodes), figsize=(4.2 * len(episodes), 4.6), squeeze=False)
    for axis, signals in zip(axes[0], episodes, strict=True):
        _draw(domain, axis, signals, len(signals["step"]))
        axis.set_title(f"return {signals['return'][-1]:.2f}, {int(signals['step'][-1])} steps", fontsize=10)
    _save(figure, path)


def animate_trajectory(domain: Domain, signals: Signals, path: Path) -> None:
    """Write an animated GIF of one episode."""
    figure, axis = plt.subplots(figsize=(4.2, 4.6))

    def frame(count: int) -> list[Any]:
        axis.clear()
        _draw(domain, axis, signals, count + 1)
        axis.set_title(f"step {count}, return {signals['return'][count]:.2f}", fontsize=10)
        return []

    FuncAnimation(figure, frame, frames=len(signals["step"]), blit=False).save(path, PillowWriter(fps=12))
    plt.close(figure)


def _draw(domain: Domain, axis: Axes, signals: Signals, count: int) -> None:
    scene = getattr(domain, "scene", None)
    if isinstance(scene, Scene):
        _draw_scene(scene, axis, signals, count)
    else:
        _draw_signals(axis, signals, count)


def _draw_scene(scene: Scene, axis: Axes, signals: Signals, count: int) -> None:
    total = len(signals["step"])
    for body, colours in zip(scene.bodies, COLOURS, strict=False):
        x = np.asarray(signals[body], float)[:count]
        shade = plt.get_cmap(colours)(np.linspace(0.25, 1.0, total))[:count]
        for start in range(count - 1):
            axis.plot(*x[start : start + 2].T, color=shade[start], linewidth=1.5, solid_capstyle="round")
        axis.scatter(x[:, 0], x[:, 1], color=shade, s=8, zorder=2)
        axis.scatter(x[-1:, 0], x[-1:, 1], color=shade[-1:], s=60, zorder=3, label=body, edgecolor="white")
    first, second = (np.asarray(signals[body], float)[:count] for body in scene.bodies[:2])
    touching = np.linalg.norm(first - second, axis=1) < scene.contact
    if touching.any():
        axis.scatter(
            second[touching, 0],
            second[touching, 1],
            marker="x",
            color="black",
            s=40,
            zorder=4,
            label="contact",
        )
    axis.set(xlim=(scene.low[0], scene.high[0]), ylim=(scene.low[1], scene.high[1]), xlabel="x", ylabel="y")
    axis.set_aspect("equal")
    axis.legend(loc="upper left", fontsize=8, framealpha=0.8)


def _draw_signals(axis: Axes, signals: Signals, count: int) -> None:
    """Domains without a scene: every number over time."""
    for name, values in signals.items():
        if values.ndim == 1 and name not in ("step", "return"):
            axis.plot(signals["step"][:count], np.asarray(values, float)[:count], label=name)
    axis.set(xlabel="step", xlim=(0, max(1, len(signals["step"]) - 1)))
    axis.legend(loc="upper left", fontsize=8, framealpha=0.8)


def _save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
