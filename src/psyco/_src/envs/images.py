"""Image observations: which spaces are images, and where their channels are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

MIN_SIDE, MAX_SIDE = 16, 96  # pixels of an image that convolutions read
MAX_CHANNELS = 12  # four frames in colour; below `MIN_SIDE`, so that no axis can be both


class Image(NamedTuple):
    """An image observation."""

    shape: tuple[int, ...]  # [H, W], [H, W, C] or [C, H, W]
    highest: float  # value of a pixel, 255 or 1; the lowest is 0

    def __str__(self) -> str:
        return f"images of shape {self.shape} with values from 0 to {self.highest:g}"

    @property
    def sides(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        if len(self.shape) == 2:
            return (*self.shape, 1)
        rows, columns, channels = (self.shape[axis] for axis in self.axes)
        return rows, columns, channels

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of an observation in the order height, width, channels; of a grey image height and width."""
        if len(self.shape) == 2:
            return 0, 1
        return (1, 2, 0) if self.shape[0] <= MAX_CHANNELS else (0, 1, 2)


def image_of(space: Any) -> Image | None:
    """Return the image that an observation space holds; None if it holds anything else."""
    return Image(tuple(space.shape), float(np.max(space.high))) if image_problem(space) is None else None


def image_problem(space: Any) -> str | None:
    """Return why observations in a space are no images that convolutions read, and the remedy; None if they are."""
    shape = getattr(space, "shape", None)
    if not hasattr(space, "high") or shape is None or len(shape) not in (2, 3, 4):
        return "an image is a Box of shape [H, W], [H, W, C] or [C, H, W]"
    if len(shape) == 4:
        return (
            f"its shape {shape} has four axes: make frames grey (gymnasium.wrappers.GrayscaleObservation) before they "
            "are stacked (FrameStackObservation), which gives [frames, H, W]"
        )
    sides = [side for side in shape if side > MAX_CHANNELS]
    if max(sides, default=0) > MAX_SIDE:
        return (
            f"its shape {shape} has more than {MAX_SIDE} pixels on a side: make it smaller "
            "(gymnasium.wrappers.ResizeObservation(env, (64, 64)))"
        )
    if len(sides) != 2 or min(sides) < MIN_SIDE or (len(shape) == 3 and shape[1] <= MAX_CHANNELS):
        return (
            f"its shape {shape} has not two sides of {MIN_SIDE} to {MAX_SIDE} pixels, and at most {MAX_CHANNELS} "
            "channels as the first or last axis: resize, transpose (gymnasium.wrappers.TransformObservation), or stack "
            "fewer frames"
        )
    low, high = float(np.min(space.low)), float(np.max(space.high))
    if (low, high) not in ((0.0, 255.0), (0.0, 1.0)) or (space.low != low).any() or (space.high != high).any():
        return (
            "its values are not from 0 to 255 or from 0 to 1: state that range in its Box, and scale them to it "
            "(gymnasium.wrappers.TransformObservation)"
        )
    return None
