"""A film of one episode in a Gymnasium environment: what the environment itself draws of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from psyco._src.core.errors import DomainError
from psyco._src.envs.gym_env import Env, GymDomain
from psyco._src.envs.sandbox import close
from psyco._src.policies.external import AnyPolicy
from psyco._src.reports.trajectory import STEPS_PER_SECOND, Signals, caption, few_colours, save_gif
from psyco._src.rollout.record import record_many

MODE = "rgb_array"  # Gymnasium's name for pictures as arrays
FASTEST = 50  # frames per second that browsers play of a GIF
WIDTH, LINE, FONT = 420, 24, 13  # of a frame, of the line above it, and of the letters there, in pixels


class Video(NamedTuple):
    """An episode and its pictures."""

    signals: Signals  # [n+1, ...] each
    frames: list[Image.Image]  # one per state
    per_second: float


def film(domain: GymDomain, policy: AnyPolicy, *, seed: int = 0) -> Video:
    """Play the first episode of this seed and film it; DomainError says why an environment gives no pictures."""
    env = domain.make_env()
    close(env)
    frames: list[Image.Image] = []
    filmed = dataclasses.replace(
        domain,
        arguments={**domain.arguments, **_for_pictures(env, domain.name)},
        wrappers=(*domain.wrappers, partial(_Camera, frames=frames, name=domain.name)),
    )
    signals = record_many(filmed, policy, seed=seed, count=1)[0]
    return Video(signals, frames, min(FASTEST, env.metadata.get("render_fps") or STEPS_PER_SECOND))


def animate_film(shown: Video, path: Path) -> None:
    """Write a film as an animated GIF, with step and return above each frame."""
    save_gif(_captioned(shown), path, shown.per_second)


def _for_pictures(env: Env, name: str) -> dict[str, str]:
    """With what the environment must be made to give pictures."""
    if env.render_mode == MODE:
        return {}
    modes = env.metadata.get("render_modes") or ()
    if MODE not in modes:
        offered = ", ".join(map(str, modes)) or "none"
        raise DomainError(f"{name} gives no pictures: {MODE} is not among its render modes ({offered})")
    return {"render_mode": MODE}


class _Camera(gymnasium.Wrapper):  # type: ignore[type-arg]
    """The outermost wrapper: it takes a picture of every state."""

    def __init__(self, env: Any, frames: list[Image.Image], name: str) -> None:
        super().__init__(env)
        self.frames, self.name = frames, name

    def reset(self, **arguments: Any) -> Any:
        begun = self.env.reset(**arguments)
        self._take()
        return begun

    def step(self, action: Any) -> Any:
        outcome = self.env.step(action)
        self._take()
        return outcome

    def _take(self) -> None:
        try:
            frame = np.asarray(self.env.render())
        except Exception as error:  # whatever a stranger's code does; often a package is missing
            raise DomainError(f"{self.name} gives no pictures: {error}") from error
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise DomainError(
                f"{self.name} gives no pictures: its render() returns {frame.dtype} of shape {frame.shape}, "
                "not bytes of shape (height, width, 3)"
            )
        picture = Image.fromarray(frame)
        height = max(1, round(WIDTH * picture.height / picture.width))
        # Small and of few colours at once, so that memory holds long episodes.
        self.frames.append(few_colours(picture.resize((WIDTH, height))))


def _captioned(shown: Video) -> Iterator[Image.Image]:
    font = ImageFont.load_default(FONT)
    for step, frame in enumerate(shown.frames):
        page = Image.new("RGB", (frame.width, LINE + frame.height), "white")
        page.paste(frame.convert("RGB"), (0, LINE))
        ImageDraw.Draw(page).text((WIDTH / 2, LINE / 2), caption(shown.signals, step), "black", font, "mm")
        yield page
