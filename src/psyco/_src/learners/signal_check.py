"""Does a demand tell learning anything? While all episodes cost the same by it, it does not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psyco._src.learners.base import Generation

PATIENCE = 20  # generations in a row
HELP = (
    "What would help: --severity, which learns from how far a formula is from holding; a formula about return, "
    "count(...) or sum(...), of which learning is told how much is missing; or to begin with a policy that meets it "
    "now and then, by --from"
)


class SignalCheck:
    """Listens to the generations of a run, and says once if a demand has been silent for long.

    Args:
        demands: the formulas of the demands for probabilities, in words.
        graded: learning goes by grades where there are any.
    """

    def __init__(self, demands: Sequence[str], *, graded: bool) -> None:
        self.demands, self.graded = demands, graded
        self.lasting = np.zeros(len(demands), int)  # generations of silence, of each demand
        self.said = False

    def heard(self, generations: Generation) -> str | None:
        """What there is to say after further generations, stacked `[G]`."""
        episodes, lam = generations.episodes, np.asarray(generations.weighing.lam)
        costs = np.asarray(
            episodes.grade if self.graded and episodes.grade is not None else episodes.cost
        )  # [G, B, K]
        failing = ~np.asarray(episodes.satisfied).any(axis=1)  # [G, K] in all episodes
        silent = failing & (np.ptp(costs, axis=1) == 0)
        for weight, now in zip(lam, silent, strict=True):
            self.lasting = np.where(now, self.lasting + 1, 0)
            if not self.said and self.lasting.max(initial=0) >= PATIENCE:
                self.said = True
                return self._sentence(self.demands[int(self.lasting.argmax())], float(weight))
        return None

    def _sentence(self, demand: str, weight: float) -> str:
        left = (
            "learning follows the return alone"
            if weight > 0
            else "nothing is left to learn from; other learners than snes would follow the return alone"
        )
        return (
            f"λ is {weight:.2g} and no episode's cost differs: in {PATIENCE} generations every episode has violated "
            f"{demand} to the same extent, so {left}. {HELP}"
        )
