"""A simulator that is slow: 20 steps per second, whatever is below it."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

SECONDS = 0.05


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Every step takes as long as a step of a slow simulator does, mostly waiting."""

    def step(self, action: Any) -> Any:
        time.sleep(SECONDS)
        return self.env.step(action)
