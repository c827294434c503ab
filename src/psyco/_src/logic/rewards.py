"""What an episode makes of a quantity: one number, added up along its path."""

from __future__ import annotations

import math

import numpy as np

from psyco._src.logic.array_eval import Array, SignalArrays
from psyco._src.logic.ast import Instant, Quantity, Reaching, Total

ANYTHING = (-math.inf, math.inf)  # the range of what may be any number


def measure(
    path: SignalArrays, quantity: Quantity, within: tuple[float, float] = ANYTHING
) -> tuple[Array, Array, Array]:
    """What each state adds to the value `[..., T]`; whether that was reached up to which it runs, `[...]`; strays.

    A step is worth what x is in the state that it leads to. What runs to the end of an episode always reaches it. Of a
    rate, the sum is the total. A path strays at the first step that is added up although it is worth something outside
    of `within`, int `[...]`, 0 if there is none; its value is then what that step is worth.
    """
    xp, state = path.xp, np.arange(path.shape[-1])
    worth, reached = path.worth(quantity.x), xp.ones(path.shape[:-1], bool)
    steps = (state > 0) & (path.position == state)  # false where the last state only repeats
    match quantity.over:
        case Instant(step):
            steps, within = state == min(step, len(state) - 1), ANYTHING  # the value is looked at by itself
        case Total(int(most)):
            steps = steps & (state <= most)
        case Reaching(body):
            holds = xp.broadcast_to(path.holds(body), path.shape)
            reached = holds.any(axis=-1)
            first = xp.where(reached, xp.argmax(holds, axis=-1), len(state))
            steps = steps & (state <= first[..., None])
    outside = steps & (
        (worth < within[0]) | (worth > within[1])
    )  # NaN makes the total NaN, which nobody misses
    stray = xp.argmax(outside, axis=-1)  # 0 where nothing is outside, since steps begin at 1
    return xp.where(steps, worth, 0.0), reached, stray.astype(np.int32)
