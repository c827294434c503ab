"""Videos of episodes, from the frames that a Gymnasium environment renders."""

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
from psyco._src.envs.sandbox import close_envs
from psyco._src.policies.external import AnyPolicy
from psyco._src.reports.trajectory import STEPS_PER_SECOND, Signals, caption, quantized, save_gif
from psyco._src.rollout.record import record_episodes

RENDER_MODE = "rgb_array"  # Gymnasium's name for frames as arrays
MAX_FRAMES_PER_SECOND = 50  # that browsers play of a GIF
FRAME_WIDTH, CAPTION_HEIGHT, FONT_SIZE = 420, 24, 13  # pixels


class Video(NamedTuple):
    """An episode and its frames."""

    signals: Signals  # [n+1, ...] each
    frames: list[Image.Image]  # one per state
    frames_per_second: float


def record_video(domain: GymDomain, policy: AnyPolicy, *, seed: int = 0) -> Video:
    """Play the first episode of a seed and record its frames; DomainError where the environment renders none."""
    env = domain.make_env()
    close_envs(env)
    frames: list[Image.Image] = []
    recorded = dataclasses.replace(
        domain,
        arguments={**domain.arguments, **_render_arguments(env, domain.name)},
        wrappers=(*domain.wrappers, partial(_Camera, frames=frames, name=domain.name)),
    )
    signals = record_episodes(recorded, policy, seed=seed, count=1)[0]
    return Video(signals, frames, min(MAX_FRAMES_PER_SECOND, env.metadata.get("render_fps") or STEPS_PER_SECOND))


def animate_video(video: Video, path: Path) -> None:
    """Write a video as an animated GIF, with step and return above each frame."""
    save_gif(_captioned(video), path, video.frames_per_second)


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
