"""CartPole from pixels: the policy sees two frames of 40 x 60 grey pixels, and `ppo` learns it by convolutions.

A frame shows positions, two show velocities. The drawing is smooth, so that movements of less than a pixel are visible.
Positions, which the requirement is about, are in `info`.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import FrameStackObservation

import psyco

HEIGHT, WIDTH = 40, 60
ROWS, COLUMNS = np.arange(HEIGHT)[:, None], np.arange(WIDTH)
TOP, FLOOR = 6, 34  # rows of the upright pole's end and of the cart
PIXELS = WIDTH / 5.0  # of a metre


class RenderedCartPole(gymnasium.Wrapper):
    """CartPole whose observations are pictures of its state, uint8 `[40, 60]`."""

    def __init__(self) -> None:
        super().__init__(CartPoleEnv())
        self.observation_space = gymnasium.spaces.Box(0, 255, (HEIGHT, WIDTH), np.uint8)

    def reset(self, **arguments: Any) -> Any:
        state, info = self.env.reset(**arguments)
        return frame(state), info | {"position": float(state[0])}

    def step(self, action: Any) -> Any:
        state, *outcome, info = self.env.step(action)
        return frame(state), *outcome, info | {"position": float(state[0])}


def frame(state: Any) -> np.ndarray:
    """Return a picture of cart and pole."""
    middle = WIDTH / 2 + PIXELS * state[0]
    cart = (ROWS >= FLOOR) * np.clip(5.0 - abs(COLUMNS - middle), 0.0, 1.0)
    pole_columns = middle + (FLOOR - ROWS) * np.tan(np.clip(state[2], -0.5, 0.5))
    pole = ((ROWS >= TOP) & (ROWS < FLOOR)) * np.clip(2.0 - abs(COLUMNS - pole_columns), 0.0, 1.0)
    return (255 * np.maximum(cart, pole)).astype(np.uint8)


def stacked() -> gymnasium.Env:
    """Return the environment whose observations are two successive frames, uint8 `[2, 40, 60]`."""
    return FrameStackObservation(RenderedCartPole(), 2)


if __name__ == "__main__":
    result = psyco.synthesize(
        psyco.make(stacked, horizon=200),
        "P>=0.9 [ G (abs(info.position) <= 1) ] & C>=0.95",
        steps=40_000,
    )
    print(result.certificate)
