"""Pairs of episodes until a new policy is shown to be better, by exact computation. `python -m benchmarks pairs`.

The chance of a wrong BETTER is that at equal probabilities. The fixed test is a sign test of all N pairs with the same
error. `oracle` is Wald's test that knows both probabilities, which no test without that knowledge can beat by much.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from psyco._src.verification.betting import BETS, WEIGHTS

ALPHA = 0.05
SIZES = (50, 100, 200, 500)
CASES = [(0.9, 0.9), (0.5, 0.5), (0.95, 0.85), (0.9, 0.7), (0.75, 0.5), (0.6, 0.4)]


def stops(pairs: int, error: float) -> NDArray[np.bool_]:
    """Whether the evidence suffices after a wins and b losses, `[a, b]`."""
    wins, losses = np.log1p(BETS), np.log1p(-BETS)
    count = np.arange(pairs + 1)
    grown = count[:, None, None] * wins + count[None, :, None] * losses + np.log(WEIGHTS)
    return np.logaddexp.reduce(grown, axis=2) >= -np.log(error)


def behaviour(pairs: int, win: float, loss: float, accept: NDArray[np.bool_]) -> tuple[float, float]:
    """The chance of BETTER within that number of pairs, and the expected number of pairs; WORSE stops it too."""
    alive = np.zeros((pairs + 1, pairs + 1))
    alive[0, 0] = 1.0
    better, expected = 0.0, 0.0
    for _ in range(pairs):
        expected += alive.sum()
        now = alive * (1.0 - win - loss)
        now[1:] += alive[:-1] * win
        now[:, 1:] += alive[:, :-1] * loss
        better += now[accept].sum()
        now[accept | accept.T] = 0.0
        alive = now
    return better, expected


def main() -> None:
    print("| p_new | p_old | N | shown better | expected pairs | sign test of N: shown better | oracle |")
    print("|---|---|---|---|---|---|---|")
    for new, old in CASES:
        win, loss = new * (1 - old), old * (1 - new)
        for size in SIZES:
            better, expected = behaviour(size, win, loss, stops(size, ALPHA))
            oracle = "" if new == old else f"{_wald(win, loss):.0f}"
            power = _sign_test(size, win, loss)
            print(f"| {new} | {old} | {size} | {better:.3f} | {expected:.0f} | {power:.3f} | {oracle} |")


def _sign_test(pairs: int, win: float, loss: float) -> float:
    """The power of the exact sign test of all pairs."""
    power = 0.0
    for decided in range(pairs + 1):
        limit = int(stats.binom.isf(ALPHA, decided, 0.5)) + 1
        chance = stats.binom.pmf(decided, pairs, win + loss)
        power += chance * stats.binom.sf(limit - 1, decided, win / (win + loss))
    return float(power)


def _wald(win: float, loss: float) -> float:
    """Expected pairs of a test that knows the share of wins among decided pairs, and errs with ALPHA only."""
    share = win / (win + loss)
    drift = share * np.log(2 * share) + (1 - share) * np.log(2 * (1 - share))
    return float(np.log(1 / ALPHA) / drift / (win + loss))


if __name__ == "__main__":
    main()
