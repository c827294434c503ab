"""The experiments of the paper: variants, budgets, repetitions and seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from psyco._src.core.errors import check_has

POPULATION = 20  # N of both experiments; α = .01 and σ = .1 are stated with it below


class Variant(NamedTuple):
    """A variant of an experiment."""

    n_max: int  # collisions that the formula allows
    calibration: str  # rule that computes λ from the belief

    @property
    def method(self) -> str:
        """Name of the method in the study."""
        return {"soft": "SNES", "naive": "maximum likelihood", "none": "unconstrained"}[self.calibration]


ONE = Variant(1, "soft")
FOUR = Variant(4, "soft")
NONE = Variant(1, "none")  # λ = 1: n_max = 1 is monitored, but not learned
MLE = Variant(1, "naive")


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper: every variant, `repetitions` times, from the seeds 0, 1, 2, ..."""

    name: str
    title: str
    section: str
    domain: str
    formula: str  # φ, with the placeholder n_max
    p_req: float
    c_req: float
    variants: Mapping[str, Variant]  # by their name in legends
    episodes: int  # of learning
    final: int  # number of last episodes that are called the end of learning
    repetitions: int
    verify_episodes: int = 1000  # maximum for each verification during learning

    @property
    def seeds(self) -> range:
        """One seed per repetition."""
        return range(self.repetitions)

    @property
    def verify_every(self) -> int:
        """Training episodes between verifications: the paper's 1000, or fewer so that there are 10 verifications."""
        return _generations(min(1000, self.episodes // 10))

    @property
    def window(self) -> int:
        """Number of consecutive episodes per point of a figure: a hundredth of all."""
        return _generations(self.episodes // 100)

    def requirement(self, variant: Variant) -> str:
        """Return the constraint of a variant; the goal is to maximise the return."""
        return f"P>={self.p_req} [ {self.formula.format(n_max=variant.n_max)} ] & C>={self.c_req}"

    def cell(self, variant: Variant) -> dict[str, Any]:
        """Return a variant as an entry of `[[cells]]`, with all values that the paper states."""
        return {
            "label": variant.method,
            "seeds": self.repetitions,
            "domain": self.domain,
            "requirement": {"name": f"n_max = {variant.n_max}", "text": self.requirement(variant)},
            "learner": {
                "name": "snes",
                "population": POPULATION,
                "learning_rate": 0.01,
                "sigma": 0.1,
                "calibration": variant.calibration,
            },
            "episodes": self.episodes,
            "hidden": 32,
            "bias": "one",
            "normalization": "none",
            "candidates": 1,  # only the last policy
            "verify_every": self.verify_every,
            "verify_episodes": self.verify_episodes,
            "method": "bayes",
        }

    def resized(self, *, episodes: int | None = None, repetitions: int | None = None) -> Experiment:
        """Return the experiment with another number of episodes or repetitions; `final` is scaled too."""
        size = self.episodes if episodes is None else _generations(episodes)
        return dataclasses.replace(
            self,
            episodes=size,
            final=_generations(self.final * size // self.episodes),
            repetitions=self.repetitions if repetitions is None else repetitions,
        )


PARTICLE_DANCE = Experiment(
    name="particle-dance",
    title="Particle Dance",
    section="4.1",
    domain="particle-dance",
    formula="G (distance >= 0.1 | collisions <= {n_max})",
    p_req=0.85,
    c_req=0.98,
    variants={"unconstrained": NONE, "n_max = 4": FOUR, "n_max = 1": ONE},
    episodes=60_000,
    final=10_000,
    repetitions=5,
)

CALIBRATION = dataclasses.replace(
    PARTICLE_DANCE,
    name="calibration",
    title="SNES against maximum likelihood",
    variants={"SNES": ONE, "MLE": MLE},
    repetitions=12,
)

OBSTACLE_RUN = Experiment(
    name="obstacle-run",
    title="Obstacle Run",
    section="4.2",
    domain="obstacle-run",
    formula="G (!caught | collisions <= {n_max})",
    p_req=0.9,
    c_req=0.98,
    variants={"unconstrained": NONE, "n_max = 4": FOUR, "n_max = 1": ONE},
    episodes=20_000,
    final=5_000,
    repetitions=5,
)

EXPERIMENTS = {e.name: e for e in (PARTICLE_DANCE, CALIBRATION, OBSTACLE_RUN)}
BELIEF = "belief"  # the bandit of section 2.4, which involves no learning
NAMES = (BELIEF, *EXPERIMENTS)


def check_names(names: list[str]) -> list[str]:
    """Return the chosen parts of the reproduction in the order of the paper; all if none is chosen."""
    check_has("the paper", "experiment", names, NAMES)
    return [name for name in NAMES if not names or name in names]


def _generations(episodes: int) -> int:
    """Return the episodes rounded down to whole generations, at least one."""
    return max(1, episodes // POPULATION) * POPULATION


# The Bernoulli bandit of section 2.4: the posterior of its probability μ after a growing number of pulls.


MU = 0.6
PULLS = (0, 1, 10, 50, 200, 1000)


def rewards(seed: int) -> NDArray[np.int64]:
    """Return the number of rewards among the first pulls, for each number in PULLS: `[len(PULLS)]`."""
    successes = np.random.default_rng(seed).random(max(PULLS)) < MU
    return np.concatenate([[0], np.cumsum(successes)])[list(PULLS)]


def density(count: int, pulls: int, mu: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the density of Beta(s + 1, v + 1), the posterior after s rewards and v failures, at `mu` (Eq. beta)."""
    return np.asarray(stats.beta.pdf(mu, count + 1, pulls - count + 1))


def confidence(count: int, pulls: int, mu: float) -> float:
    """Return the posterior mass above `mu` (Eq. c_sat)."""
    return float(stats.beta.sf(mu, count + 1, pulls - count + 1))


def deviations(seed: int) -> NDArray[np.float64]:
    """Return the standard deviation of the posterior after each of PULLS, `[len(PULLS)]`."""
    counts, pulls = rewards(seed), np.array(PULLS)
    return np.asarray(stats.beta.std(counts + 1, pulls - counts + 1))
