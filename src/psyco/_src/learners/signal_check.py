"""Warn when a constraint gives no learning signal: all episodes violate it with equal cost for 20 generations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psyco._src.learners.base import Generation

PATIENCE = 20  # successive generations
ADVICE = (
    "To help: use --severity, which learns from the distance to satisfaction; state the formula about return, "
    "count(...) or sum(...), whose distance is always known; or start from a policy that satisfies it sometimes, "
    "by --from"
)


class SignalCheck:
    """A monitor of the generations of a run, which warns once.

    Args:
        constraints: the formulas of the probability constraints, as text.
        graded: whether the learner uses grades where episodes have them.
    """

    def __init__(self, constraints: Sequence[str], *, graded: bool) -> None:
        self.constraints, self.graded = constraints, graded
        self.streak = np.zeros(len(constraints), int)  # successive generations without signal, of each constraint
        self.warned = False

    def warning(self, generations: Generation) -> str | None:
        """Return the warning that is due after further generations, stacked `[G]`, or None."""
        episodes, lam = generations.episodes, np.asarray(generations.info.lam)
        costs = np.asarray(
            episodes.shaping_cost if self.graded and episodes.shaping_cost is not None else episodes.cost
        )  # [G, B, K]
        failing = ~np.asarray(episodes.satisfied).any(axis=1)  # [G, K] in all episodes
        no_signal = failing & (np.ptp(costs, axis=1) == 0)
        for weight, now in zip(lam, no_signal, strict=True):
            self.streak = np.where(now, self.streak + 1, 0)
            if not self.warned and self.streak.max(initial=0) >= PATIENCE:
                self.warned = True
                return self._text(self.constraints[int(self.streak.argmax())], float(weight))
        return None

    def _text(self, constraint: str, weight: float) -> str:
        effect = (
            "learning follows the return alone"
            if weight > 0
            else "there is nothing to learn from; other learners than snes would follow the return alone"
        )
        return (
            f"{constraint} gives no learning signal: in {PATIENCE} generations all episodes violated it with equal "
            f"cost, so {effect} (λ is {weight:.2g}). {ADVICE}"
        )
