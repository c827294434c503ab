"""Episodes of a certificate about a share of environments, on an Obstacle Run whose truth is known exactly.

`python -m benchmarks families`. The obstacle moves with a probability that differs between environments. The exact
probability of every environment comes from backward induction, and the tests are simulated on these probabilities.
Beside it stands the nested union bound: as many environments as must all be good, each tested at its part of the error.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy import special

import psyco
from psyco._src.envs.obstacle_run import MOVES, ObstacleRun
from psyco._src.exact.solver import evaluate
from psyco._src.exact.unfold import policy_actions, unfold
from psyco._src.policies.external import as_policy
from psyco._src.verification.base import CONTINUE, Counts, Verdict
from psyco._src.verification.environments import LOG_WEIGHTS, EnvironmentsTest, make_environment_tests
from psyco._src.verification.methods import make_test
from psyco._src.verification.tally import Tally

SHARE, CONFIDENCE = 0.95, 0.98
REPETITIONS = 1000
FORMULA = "G (!caught | collisions <= 1)"
# Of the obstacle, one per environment: 37 slow ones and 2 fast ones.
SPEEDS = (*(0.1, 0.2, 0.3, 0.4, 0.5, 0.6) * 6, 0.6, 0.85, 0.9)


@dataclass(frozen=True)
class RestlessRun(ObstacleRun):
    """Obstacle Run with an obstacle that moves with probability `speed`, in a random direction."""

    speed: float = 0.8
    name: ClassVar[str] = "restless-run"

    def draw(self, key: Array) -> Array:
        """Return the obstacle's random moves `[horizon]`."""
        moves, direction = jax.random.split(key)
        moved = jax.random.uniform(moves, (self.horizon,)) < self.speed
        return jnp.where(moved, jax.random.randint(direction, (self.horizon,), 1, len(MOVES)), 0)

    def draw_probabilities(self) -> NDArray[np.float64]:
        """Return the probabilities of the obstacle's moves."""
        others = len(MOVES) - 1
        return np.array([1.0 - self.speed, *[self.speed / others] * others])


@dataclass(frozen=True)
class ScoreDistribution:
    """The exact distribution of the result of one environment with a known probability."""

    weight: NDArray[np.float64]  # [N]
    accept: NDArray[np.float64]  # [N] scores
    reject: NDArray[np.float64]
    episodes: NDArray[np.int64]

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.intp]:
        """Return positions of random results, `[count]`."""
        return rng.choice(len(self.weight), size=count, p=self.weight / self.weight.sum())


@cache
def score_distribution(test: EnvironmentsTest, p: float) -> ScoreDistribution:
    """Return the exact distribution of an environment's scores and episodes, by dynamic programming over counts."""
    alive, first, parts = np.ones(1), 0, []  # probabilities of first, first + 1, ... satisfying episodes
    for n in range(1, test.largest + 1):
        alive = np.append(alive * (1.0 - p), 0.0) + np.append(0.0, alive * p)
        s = first + np.arange(len(alive))
        ended = test.inner.decide(Counts(s, n - s)) != CONTINUE if n < test.largest else np.ones(len(s), bool)
        parts.append(np.stack([alive, s, np.full(len(s), n)])[:, ended & (alive > 0.0)])
        alive = np.where(ended, 0.0, alive)
        kept = np.flatnonzero(alive > 1e-9)
        if not len(kept):
            break
        alive, first = alive[kept[0] : kept[-1] + 1], first + int(kept[0])
    weight, s, episodes = np.concatenate(parts, axis=1)
    return ScoreDistribution(weight, *test.scores(Counts(s, episodes - s)), episodes.astype(np.int64))


@dataclass(frozen=True)
class Behaviour:
    """What a test did in all repetitions."""

    accepted: float
    rejected: float
    environments: float  # mean
    episodes: float  # mean


def simulate(
    test: EnvironmentsTest, p: Sequence[float], *, repetitions: int = REPETITIONS, most: int = 600, seed: int = 0
) -> Behaviour:
    """Return the behaviour of the test on equally likely environments with these exact probabilities."""
    rng = np.random.default_rng(seed)
    known = [score_distribution(test, each) for each in p]
    growth = [test.growth(np.stack([each.accept, each.reject], 1), test.required) for each in known]
    wealth = np.tile(LOG_WEIGHTS, (repetitions, 2, 1))
    codes, counts, episodes = np.zeros(repetitions, int), np.zeros(repetitions, int), np.zeros(repetitions, int)
    for _ in range(most):
        running = np.flatnonzero(codes == 0)
        if not len(running):
            break
        drawn = rng.integers(len(p), size=len(running))
        for which in np.unique(drawn):
            rows = running[drawn == which]
            at = known[which].draw(rng, len(rows))
            wealth[rows] += growth[which][at]
            episodes[rows] += known[which].episodes[at]
        counts[running] += 1
        codes[running] = test.decide(special.logsumexp(wealth[running], axis=-1))
    shares = (float((codes == code).mean()) for code in (1, -1))
    return Behaviour(*shares, float(counts.mean()), float(episodes.mean()))


def union_bound(p: Sequence[float], required: float, *, repetitions: int = 50, seed: int = 0) -> Behaviour:
    """Return the behaviour of the nested union bound, whose inner tests are the same anytime tests.

    Half of the error is spent on the number of environments, the other half on the tests of all of them.
    """
    delta = 1.0 - CONFIDENCE
    count = math.ceil(math.log(delta / 2.0) / math.log(SHARE))
    constraint = psyco.parse(f"P>={required!r} [ {FORMULA} ] & C>={CONFIDENCE}").probability_constraints[0]
    test = make_test("anytime", constraint, false_accept=delta / 2.0 / count, false_reject=delta / 2.0 / count)
    rng, results = np.random.default_rng(seed), []
    for _ in range(repetitions):
        used, good = 0, True
        for which in rng.integers(len(p), size=count):
            tally = Tally(Counts(), Verdict.UNDECIDED)
            while tally.verdict is Verdict.UNDECIDED and tally.episodes < 20_000:
                tally = tally.update(test, rng.random(200) < p[which])
            used += tally.episodes
            good = good and tally.verdict is Verdict.SATISFIED
        results.append((good, used))
    goods, episodes = np.array(results, float).T
    return Behaviour(float(goods.mean()), 0.0, float(count), float(episodes.mean()))


def environments_test(required: float) -> EnvironmentsTest:
    """Return the test of a probability in 95% of environments."""
    text = f"P>={required!r} in {100 * SHARE:g}% of environments [ {FORMULA} ] & C>={CONFIDENCE}"
    (test,) = make_environment_tests(psyco.parse(text))
    return test


def hurry(observation: NDArray[np.float32]) -> int:
    """Go to the target, left and then down; step back where the obstacle is on the way."""
    x, y, obstacle_x, obstacle_y = observation.tolist()
    way = 3 if x > 0 else 4
    ahead = (x - 1, y) if way == 3 else (x, y - 1)
    return {3: 1, 4: 2}[way] if ahead == (obstacle_x, obstacle_y) else way


@cache
def exact_probability(speed: float) -> float:
    """Return the exact probability of the formula in one environment, by backward induction."""
    domain = dataclasses.replace(RestlessRun(), speed=speed)
    actions = policy_actions(as_policy(hurry), domain)
    return evaluate(unfold(domain, (psyco.parse_formula(FORMULA),), actions)).probabilities[0]


def main() -> None:
    truth = sorted(map(exact_probability, SPEEDS))
    print(f"{len(truth)} environments; exactly {', '.join(f'{p:.4f}' for p in dict.fromkeys(truth))}")
    between = round((truth[1] + truth[2]) / 2.0, 4)
    false = simulate(environments_test(between), truth, most=250)
    print(
        f"P>={between:g} in 95% of environments is false, it holds in 37 of 39: called satisfied in "
        f"{false.accepted:.1%} of {REPETITIONS:,} repetitions with at most 250 environments"
    )
    for margin in (0.02, 0.04):
        required = round(truth[0] - margin, 4)
        ours, nested = simulate(environments_test(required), truth), union_bound(truth, required, repetitions=20)
        print(
            f"P>={required:g}, which all meet: satisfied in {ours.accepted:.1%}, {ours.environments:.0f} environments, "
            f"{ours.episodes:,.0f} episodes; nested union bound: {nested.accepted:.0%}, {nested.environments:.0f} "
            f"environments, {nested.episodes:,.0f} episodes"
        )
