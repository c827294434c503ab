"""Does the policy see what it saw when it was certified? A warning, not a verdict.

A run keeps the mean and spread of every input over the sample episodes of its final policy (`episodes.json`). In the
field an input has left that range if its mean has moved by more than a spread, or if more than 1 in 16 values lie
farther than four spreads away: with the same mean and spread there can't be as many, whatever the distribution
(Chebyshev).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import from_json, read_bytes

MOVED = 1.0  # spreads
FAR, TOO_MANY = 4.0, 1.0 / 16.0
KEPT = 0.99  # of the weight of earlier episodes, with each further one: the last hundred or so count
ENOUGH = 30  # episodes


class Reference(NamedTuple):
    """What the policy saw in the simulator."""

    episodes: int
    mean: NDArray[np.float64]  # [inputs]
    spread: NDArray[np.float64]


class Drift(NamedTuple):
    """What it has seen in the field; earlier episodes weigh less."""

    episodes: int = 0
    states: float = 0.0
    total: tuple[float, ...] = ()  # of each input
    far: tuple[float, ...] = ()  # in how many states it was far away

    def updated(self, reference: Reference, seen: NDArray[np.float64]) -> Drift:
        """After an episode with observations `[n+1, inputs]`."""
        far = np.abs(seen - reference.mean) > FAR * reference.spread + 1e-9 * (1.0 + np.abs(reference.mean))
        return Drift(
            self.episodes + 1,
            KEPT * self.states + len(seen),
            tuple(KEPT * np.array(self.total or 0.0) + seen.sum(axis=0)),
            tuple(KEPT * np.array(self.far or 0.0) + far.sum(axis=0)),
        )

    def departed(self, reference: Reference) -> dict[int, str]:
        """The inputs that have left their range, each with a sentence."""
        if self.episodes < ENOUGH:
            return {}
        mean, far = np.array(self.total) / self.states, np.array(self.far) / self.states
        moved = np.abs(mean - reference.mean) > MOVED * reference.spread + 1e-9 * (
            1.0 + np.abs(reference.mean)
        )
        return {
            int(i): f"obs[{i}] has left what the policy was certified on: mean {mean[i]:.4g} in the field, "
            f"{reference.mean[i]:.4g} ± {reference.spread[i]:.4g} in {reference.episodes} simulated episodes; "
            f"{far[i]:.0%} of its values are more than {FAR:g} spreads away"
            for i in np.flatnonzero(moved | (far > TOO_MANY))
        }


def find_reference(certificate: Path, policy: str | None) -> Reference | None:
    """What the run has kept beside its certificate about this policy; None if there is nothing."""
    path = certificate.parent / "episodes.json"
    try:
        content = from_json(read_bytes(path, "sample episodes", inside=certificate.parent), str(path))
    except RunError:
        return None
    found = content.get("observations") if isinstance(content, Mapping) else None
    if not isinstance(found, Mapping) or found.get("policy") != policy:
        return None
    try:
        reference = Reference(
            int(found["episodes"]), np.array(found["mean"], np.float64), np.array(found["spread"], np.float64)
        )
    except (KeyError, TypeError, ValueError):
        raise RunError(f"{path} is damaged: its observations are no numbers") from None
    if reference.mean.ndim != 1 or reference.mean.shape != reference.spread.shape:
        raise RunError(f"{path} is damaged: its observations do not fit each other")
    return reference
