"""Compare the observations in the field with those at certification. Drift is a warning, not a verdict.

A run keeps the mean and the spread (standard deviation) of every input over the sample episodes of its final policy
(`episodes.json`). In the field an input has drifted if its mean has moved by more than a spread, or if more than 1 in
16 values lie farther than four spreads from the mean: with an unchanged mean and spread no distribution has that many
(Chebyshev).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.core.files import from_json, read_bytes

MAX_MEAN_SHIFT = 1.0  # spreads
FAR = 4.0  # spreads; a value is far if it lies farther from the mean
MAX_FAR_SHARE = 1.0 / 16.0  # of the values; with more an input has drifted
DECAY = 0.99  # of the weight of earlier episodes, per episode: about the last hundred count
MIN_EPISODES = 30


class Reference(NamedTuple):
    """Observations of the policy in the simulator."""

    episodes: int
    mean: NDArray[np.float64]  # [inputs]
    spread: NDArray[np.float64]


class ObservationSums(NamedTuple):
    """Sums over the observations in the field, with exponentially decaying weights."""

    episodes: int = 0
    states: float = 0.0  # number of states, decayed
    total: tuple[float, ...] = ()  # per input, the sum of its values
    far: tuple[float, ...] = ()  # per input, the number of its far values

    def update(self, reference: Reference, observations: NDArray[np.float64]) -> ObservationSums:
        """Return the sums after an episode with observations `[n+1, inputs]`."""
        far = np.abs(observations - reference.mean) > _allowance(reference, FAR)
        return ObservationSums(
            self.episodes + 1,
            DECAY * self.states + len(observations),
            tuple(DECAY * np.array(self.total or 0.0) + observations.sum(axis=0)),
            tuple(DECAY * np.array(self.far or 0.0) + far.sum(axis=0)),
        )

    def drifted(self, reference: Reference) -> dict[int, str]:
        """Return the inputs that have drifted, each with a sentence."""
        if self.episodes < MIN_EPISODES:
            return {}
        mean, far = np.array(self.total) / self.states, np.array(self.far) / self.states
        moved = np.abs(mean - reference.mean) > _allowance(reference, MAX_MEAN_SHIFT)
        return {
            int(i): f"obs[{i}] has drifted since certification: mean {mean[i]:.4g} in the field, "
            f"{reference.mean[i]:.4g} ± {reference.spread[i]:.4g} in {reference.episodes} simulated episodes; "
            f"{far[i]:.0%} of its values are more than {FAR:g} spreads away"
            for i in np.flatnonzero(moved | (far > MAX_FAR_SHARE))
        }


def _allowance(reference: Reference, spreads: float) -> NDArray[np.float64]:
    """Return the permitted distance from the mean, with a margin for rounding where an input is constant."""
    return spreads * reference.spread + 1e-9 * (1.0 + np.abs(reference.mean))


def find_reference(certificate: Path, policy: str | None) -> Reference | None:
    """Return the observations that a run has kept for this policy beside its certificate; None without any."""
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
        raise RunError(f"{path} is damaged: its observations are not numbers") from None
    if reference.mean.ndim != 1 or reference.mean.shape != reference.spread.shape:
        raise RunError(f"{path} is damaged: mean and spread of its observations differ in size")
    return reference
