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
# Observed shares, N and error of the recorded evaluations in the repository of STEP, and after how many pairs its tests
# expect a decision of STEP for that N, of Lai's test for the same N, and of SAVI.
RECORDED = [
    (0.92, 0.56, 50, 0.05, "19, 17, 19 or 20"),
    (0.80, 0.28, 50, 0.05, "8, 8, unknown"),
    (0.386, 0.084, 500, 0.01, "36, 36, 32 or 33"),
    (0.564, 0.40, 500, 0.01, "131, 125, 191 or 192"),
    (0.03, 0.0, 500, 0.01, "225, 417, 328 or 329"),
]
CASES = [(0.9, 0.9), (0.5, 0.5), (0.95, 0.85), (0.9, 0.7), (0.75, 0.5), (0.6, 0.4)]


def stops(pairs: int, error: float) -> NDArray[np.bool_]:
    """Whether the evidence suffices after a wins and b losses, `[a, b]`."""
    wins, losses = np.log1p(BETS), np.log1p(-BETS)
    count = np.arange(pairs + 1)
    grown = count[:, None, None] * wins + count[None, :, None] * losses + np.log(WEIGHTS)
    return np.logaddexp.reduce(grown, axis=2) >= -np.log(error)


def behaviour(pairs: int, win: float, loss: float, accept: NDArray[np.bool_]) -> tuple[float, NDArray[np.float64]]:
    """The chance of BETTER within that number of pairs, and that each pair is played; WORSE stops it too."""
    alive = np.zeros((pairs + 1, pairs + 1))
    alive[0, 0] = 1.0
    better, played = 0.0, np.zeros(pairs)
    for i in range(pairs):
        played[i] = alive.sum()
        now = alive * (1.0 - win - loss)
        now[1:] += alive[:-1] * win
        now[:, 1:] += alive[:, :-1] * loss
        better += now[accept].sum()
        now[accept | accept.T] = 0.0
        alive = now
    return better, played


def main() -> None:
    print("| p_new | p_old | N | shown better | expected pairs | sign test of N: shown better | oracle |")
    print("|---|---|---|---|---|---|---|")
    for new, old in CASES:
        win, loss = new * (1 - old), old * (1 - new)
        for size in SIZES:
            better, played = behaviour(size, win, loss, stops(size, ALPHA))
            oracle = "" if new == old else f"{_wald(win, loss):.0f}"
            power = _sign_test(size, win, loss)
            print(f"| {new} | {old} | {size} | {better:.3f} | {played.sum():.0f} | {power:.3f} | {oracle} |")
    print("\n| p_new | p_old | N | error | shown better | expected pairs | half of all | one run of STEP, Lai, SAVI |")
    print("|---|---|---|---|---|---|---|---|")
    for new, old, size, error, others in RECORDED:
        better, played = behaviour(size, new * (1 - old), old * (1 - new), stops(size, error))
        low, high = ((played > share).sum() for share in (0.75, 0.25))
        print(f"| {new} | {old} | {size} | {error} | {better:.3f} | {played.sum():.0f} | {low} to {high} | {others} |")


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
