"""The e-detector: how soon a change is found, and how rarely there is a false alarm, against tuned CUSUM tests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_matrix, identity
from scipy.sparse.linalg import spsolve

from psyco._src.verification.change_detection import Detector

STREAMS = 4000
QUIET = 500  # episodes before the change; streams with an alarm in them are left out
CELLS = 4000  # of the lattice on which a CUSUM test moves
DELAY, RATIO = (
    95,
    1.4,
)  # at most so many episodes for .90 -> .70, and so many times the delay of the tuned CUSUM


class Change(NamedTuple):
    p_req: float
    before: float
    after: float
    every: int  # episodes between false alarms


CHANGES = [Change(0.85, 0.90, after, 10_000) for after in (0.80, 0.75, 0.70, 0.60, 0.30)]
CHANGES += [Change(0.99, 0.995, 0.97, 100_000), Change(0.999, 0.9995, 0.99, 100_000)]


def main() -> None:
    print(f"  delay in episodes, {STREAMS} streams          e-detector           CUSUM, tuned for it")
    print("  p_req   change         false alarm    mean  median    mean  median    ratio of means, medians")
    for change in CHANGES:
        found, tuned = detector_delays(change), cusum_delays(change)
        mean, median = found.mean(), float(np.median(found))
        ratios = mean / tuned.mean, median / tuned.median
        kept = "kept" if max(ratios) <= RATIO and (change.after != 0.70 or median <= DELAY) else "MISSED"
        print(
            f"  {change.p_req:<7} {change.before:<6} -> {change.after:<5} every {change.every:>7,}  "
            f"{mean:6.1f}  {median:6.0f}  {tuned.mean:6.1f}  {tuned.median:6.0f}    "
            f"{ratios[0]:.2f}, {ratios[1]:.2f}  ({kept})"
        )
    print(f"  mean time to a false alarm with p = p_req, {STREAMS // 8} streams; at least N is promised")
    for p_req, every in ((0.85, 1000), (0.85, 10_000), (0.99, 10_000)):
        ends = alarms(Detector(0.0, 1.0, p_req, True, every), p_req, p_req, STREAMS // 8, quiet=0)
        print(f"  p_req {p_req}, N = {every:,}: {ends.mean():,.0f} ± {ends.std() / len(ends) ** 0.5:,.0f}")


def detector_delays(change: Change) -> NDArray[np.int64]:
    detector = Detector(0.0, 1.0, change.p_req, True, change.every)
    return alarms(detector, change.before, change.after, STREAMS, quiet=QUIET)


def alarms(detector: Detector, before: float, after: float, streams: int, *, quiet: int) -> NDArray[np.int64]:
    """Episodes from the change to the alarm."""
    rng = np.random.default_rng(0)
    sums, delays, episode = np.zeros((streams, len(detector.bets))), [], 0
    while len(sums):
        episode += 1
        sums = detector.update_sums(sums, rng.random(len(sums)) < (before if episode <= quiet else after))
        alarm = sums.sum(axis=1) >= detector.average_run_length
        delays += [episode - quiet] * (int(alarm.sum()) if episode > quiet else 0)
        sums = sums[~alarm]
    return np.array(delays)


# ---- CUSUM, exactly: S <- max(0, S + log L_q(x)) as a Markov chain ---------------------------------------------------


class Delays(NamedTuple):
    mean: float
    median: int


def cusum_delays(change: Change) -> Delays:
    """Of the test for exactly this change, with a threshold such that false alarms are as frequent as `every` says."""
    low, high = 1.0, 20.0
    for _ in range(30):
        middle = (low + high) / 2.0
        if _times(_chain(change, middle, change.p_req))[0] < change.every:
            low = middle
        else:
            high = middle
    quiet, changed = _chain(change, high, change.before), _chain(change, high, change.after)
    place = np.zeros(CELLS)
    place[0] = 1.0
    for _ in range(QUIET):
        place = quiet.T @ place
    place /= place.sum()  # no alarm so far
    mean, median = float(place @ _times(changed)), 0
    while place.sum() > 0.5:
        place, median = changed.T @ place, median + 1
    return Delays(mean, median)


def _chain(change: Change, threshold: float, p: float) -> csc_matrix:
    """From which cell to which below the threshold, with outcomes that are good with probability p."""
    ratio = np.log([(1.0 - change.after) / (1.0 - change.p_req), change.after / change.p_req])  # bad, good
    width, cell = threshold / CELLS, np.arange(CELLS)
    bad, good = (np.maximum(np.rint(cell + step / width).astype(int), 0) for step in ratio)
    stays = bad < CELLS
    chances = np.r_[np.full(stays.sum(), 1.0 - p), np.full(CELLS, p)]
    return csc_matrix((chances, (np.r_[cell[stays], cell], np.r_[bad[stays], good])), (CELLS, CELLS))


def _times(chain: csc_matrix) -> NDArray[np.float64]:
    """Expected episodes to the alarm from every cell."""
    return np.asarray(spsolve((identity(CELLS) - chain).tocsc(), np.ones(CELLS)))


if __name__ == "__main__":
    main()
