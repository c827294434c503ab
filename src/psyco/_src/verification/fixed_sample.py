"""A fixed number of episodes, judged once: Clopper and Pearson's exact interval, and a bound by betting for means."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from psyco._src.core.errors import RunError
from psyco._src.verification.base import CONTINUE, Counts, Guarantee, MeanTask, Task, decisions, percent
from psyco._src.verification.betting import SMALLEST, lowest


def clopper_pearson(counts: Counts, delta: float) -> tuple[float, float]:
    """Exact bounds for a number of episodes that was fixed in advance, each wrong with a chance of at most δ."""
    s, v = counts.satisfied, counts.violated
    low = float(special.betaincinv(s, v + 1.0, delta)) if s else 0.0
    high = float(special.betainccinv(s + 1.0, v, delta)) if v else 1.0
    return low, high


@dataclass(frozen=True)
class Fixed:
    """Wait for all episodes; then accept if the lower bound meets the requirement, reject if the upper one fails.

    Args:
        task: what is to be settled; its maximum is the number of episodes, fixed in advance.
    """

    task: Task
    error_rate: ClassVar[bool] = True
    sequential: ClassVar[bool] = False
    open_ended: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_number(self.task)

    def decide(self, counts: Counts) -> NDArray[np.int8]:
        """Nothing until the last episode; then whether the outcome is too rare under the other hypothesis."""
        s, v = np.broadcast_arrays(*counts)
        accept, reject = np.ones(s.shape, bool), np.zeros(s.shape, bool)
        last = s + v >= self.task.max_episodes
        sides = self.task.sides
        for side in sides:
            own = side.counts(Counts(s, v))
            accept &= _tail(own, side.p_req) <= self.task.false_accept
            reject |= _tail(
                Counts(own.violated, own.satisfied), 1.0 - side.p_req
            ) <= self.task.false_reject / len(sides)
        return decisions(accept & last, reject & last)

    def bounds(self, counts: Counts, delta: float) -> tuple[float, float]:
        """Clopper and Pearson's."""
        return clopper_pearson(counts, delta)

    @property
    def guarantee(self) -> Guarantee:
        """An error rate for exactly this number of episodes."""
        return _guarantee(self.task)


def _guarantee(task: Task | MeanTask) -> Guarantee:
    accept, reject = task.false_accept, task.false_reject
    condition = f"with exactly {task.max_episodes:,} episodes, a number fixed in advance"
    if isinstance(task, MeanTask):
        condition += f", provided that {task.condition}"
    return Guarantee(
        "fixed",
        f"If the constraint does not hold, the chance that this test calls it satisfied is at most "
        f"{percent(accept)}; if it holds, the chance that it calls it violated is at most {percent(reject)}. "
        f"This is so {condition}; it is void if the number was chosen by looking.",
        accept,
        reject,
        condition,
    )


def _tail(counts: Counts, p: float) -> NDArray[np.float64]:
    """The chance of at least so many satisfied episodes at probability p."""
    s = np.asarray(counts.satisfied, np.float64)
    return np.where(s > 0, special.betainc(np.maximum(s, 1.0), counts.violated + 1.0, p), 1.0)


def _check_number(task: Task | MeanTask) -> None:
    if task.max_episodes is None:
        raise RunError("the method 'fixed' needs a number of episodes; give max_episodes")


# ---- means ----------------------------------------------------------------------------------------------------------

_BOLDEST = 0.9  # part of the largest bet that cannot ruin; 0.5 is slow where values have little spread


def log_capital(position: NDArray[np.float64], weight: NDArray[np.float64], q: float, delta: float) -> float:
    """The largest log-wealth, on the way, of those who bet on a mean above q; positions and weights `[N]` in [0, 1].

    Waudby-Smith and Ramdas' bets for a known N, from the variance so far: sqrt(2 log(1/δ) / (N var)). Bets know the
    past only, so wealth reaches 1/δ with a chance of at most δ if the mean is at most q. It falls in q, and nothing
    counts as won against the mean of the values themselves.
    """
    if not len(position) or position.sum() <= q * weight.sum():
        return 0.0
    n = np.arange(1, len(position) + 1)
    mean = (0.5 + np.cumsum(position)) / (1.0 + np.cumsum(weight))
    variance = (0.25 + np.cumsum((position - mean * weight) ** 2)) / (n + 1)
    before = np.append(0.25, variance[:-1])
    bets = np.minimum(np.sqrt(2.0 * np.log(1.0 / delta) / (len(position) * before)), _BOLDEST / q)
    return float(np.cumsum(np.log1p(bets * (position - q * weight))).max(initial=0.0))


@dataclass(frozen=True)
class FixedMean:
    """Wait for all episodes; then judge their mean by betting on them in their order.

    Chosen because it adapts to the spread of the values: Maurer and Pontil's bound does so too, but needs more than
    twice as many episodes where the values use a small part of their range.

    Args:
        task: what is to be settled; its maximum is the number of episodes, fixed in advance.
    """

    task: MeanTask
    error_rate: ClassVar[bool] = True
    sequential: ClassVar[bool] = False
    open_ended: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_number(self.task)

    def init(self) -> tuple[NDArray[np.float64], ...]:
        """The values, batch by batch."""
        return ()

    def feed(
        self, state: tuple[NDArray[np.float64], ...], values: NDArray[np.float64]
    ) -> tuple[tuple[NDArray[np.float64], ...], int, int]:
        """Nothing until the last episode."""
        missing = (self.task.max_episodes or 0) - sum(map(len, state))
        taken = values[:missing].copy()  # whoever made the batch may use it again
        state = (*state, taken)
        if len(taken) < missing or not missing:
            return state, len(taken), CONTINUE
        return state, len(taken), int(self._judge(np.concatenate(state)))

    def _judge(self, values: NDArray[np.float64]) -> NDArray[np.int8]:
        task, sides = self.task, self.task.sides
        accept = all(self._shown(values, side.bound, side.at_least, task.false_accept) for side in sides)
        reject = any(
            self._shown(values, side.bound, not side.at_least, task.false_reject / len(sides))
            for side in sides
        )
        return decisions(accept, reject)

    def _shown(self, values: NDArray[np.float64], bound: float, above: bool, delta: float) -> bool:
        """Do the values show that their mean is above, or below, the bound?"""
        distance = bound - self.task.lo if above else self.task.hi - bound
        q = max(distance / (self.task.hi - self.task.lo), SMALLEST)
        return log_capital(*self._seen_from(values, below=above), q, delta) >= np.log(1.0 / delta)

    def _seen_from(
        self, values: NDArray[np.float64], below: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Positions and weights, counted from the lower or the upper end of the range."""
        position, weight = self.task.positions(values)
        return position if below else np.maximum(weight - position, 0.0), weight

    def bounds(self, state: tuple[NDArray[np.float64], ...], delta: float) -> tuple[float, float]:
        """Where the capital is 1/δ."""
        if not state:
            return self.task.lo, self.task.hi
        values = np.concatenate(state)
        above, below = (
            lowest(partial(log_capital, *self._seen_from(values, below), delta=delta), delta)
            for below in (True, False)
        )
        width = self.task.hi - self.task.lo
        return self.task.lo + width * above, self.task.hi - width * below

    @property
    def guarantee(self) -> Guarantee:
        """An error rate for exactly this number of episodes."""
        return _guarantee(self.task)
