"""The tests of a mean: how many episodes they need, how often they are wrong at the limit, how fast they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.clock import one_core, side_by_side
from psyco._src.logic.parser import parse
from psyco._src.verification.base import MeanTask, Verdict
from psyco._src.verification.methods import make_mean_test, make_test
from psyco._src.verification.operating_characteristics import operating_characteristics
from psyco._src.verification.tally import MeanTally, run_tests

STREAMS = 400
LIMIT = 1.15  # of the episodes of the prototype


class Case(NamedTuple):
    """Values whose mean meets the bounds."""

    label: str
    draw: Callable[[np.random.Generator, int], NDArray[np.float64]]
    task: MeanTask
    prototype: float  # median episodes of a mixture of 128 bets with density 1/(2 sqrt u)


COST = MeanTask(0, 1000, upper=25, false_accept=0.05, false_reject=0.05)
CASES = [
    Case("Poisson(10), at most 25", lambda rng, n: rng.poisson(10, n), COST, 340),
    Case("Poisson(20), at most 25", lambda rng, n: rng.poisson(20, n), COST, 1020),
    Case("Poisson(24), at most 25", lambda rng, n: rng.poisson(24, n), COST, 5000),
    Case("0 or 100 (.9/.1), at most 25", lambda rng, n: 100.0 * (rng.random(n) < 0.1), COST, 340),
    Case(
        "0 or 1 (.05/.95), at least .85",
        lambda rng, n: 1.0 * (rng.random(n) < 0.95),
        MeanTask(0, 1, lower=0.85, false_accept=0.02, false_reject=0.02),
        96,
    ),
]


def main() -> None:
    print(f"  median episodes until shown, {STREAMS} streams{'':15}bayes  anytime  prototype")
    for case in CASES:
        shown = {method: _median(method, case) for method in ("bayes", "anytime")}
        kept = "kept" if shown["anytime"] <= LIMIT * case.prototype else "MISSED"
        print(
            f"  {case.label:42}{shown['bayes']:14,.0f}{shown['anytime']:9,.0f}{case.prototype:11,.0f}"
            f"  (limit {LIMIT} times: {kept})"
        )
    _fixed()
    _wrong()
    _speed()


def _run(method: str, task: MeanTask, values: NDArray[np.float64]) -> MeanTally:
    def batches() -> Iterator[NDArray[np.float64]]:
        for start in range(0, len(values), 1000):
            yield values[start : start + 1000, None]

    return run_tests([make_mean_test(method, task)], batches(), max_episodes=len(values))[0]  # type: ignore[return-value]


def _median(method: str, case: Case) -> float:
    rng = np.random.default_rng(0)
    ends = [_run(method, case.task, case.draw(rng, 4 * int(case.prototype))) for _ in range(STREAMS)]
    return float(np.median([e.episodes if e.verdict is Verdict.SATISFIED else np.inf for e in ends]))


def _fixed() -> None:
    """The fewest episodes, in steps of 2%, at which `fixed` shows it more often than not."""
    print("  fixed: the number of episodes with which half of the streams show it")
    for case in CASES:
        n = 10.0
        while True:
            rng = np.random.default_rng(0)
            task = MeanTask(
                case.task.lo, case.task.hi, case.task.lower, case.task.upper, max_episodes=int(n),
                false_accept=case.task.false_accept, false_reject=case.task.false_reject,
            )  # fmt: skip
            ends = [_run("fixed", task, case.draw(rng, int(n))).verdict for _ in range(STREAMS // 4)]
            if 2 * ends.count(Verdict.SATISFIED) >= len(ends):
                break
            n *= 1.02
        print(f"  {case.label:42}{int(n):14,}")


def _wrong() -> None:
    """The hardest case for a bound on a mean: all of it from rare values at the end of the range."""
    rng = np.random.default_rng(0)
    ends = [_run("anytime", COST, 1000.0 * (rng.random(5000) < 0.025)).verdict for _ in range(STREAMS)]
    print(f"  0 or 1000 with mean 25, {STREAMS} streams of 5,000: ", end="")
    print(f"satisfied {ends.count(Verdict.SATISFIED) / STREAMS:.3f}, ", end="")
    print(f"violated {ends.count(Verdict.VIOLATED) / STREAMS:.3f} (each at most 0.05)")
    # For two values it is the test of a probability, which has exact characteristics.
    same = make_test("anytime", parse("P<=0.025 [ F true ] & C>=0.95").constraints[0])
    exact = operating_characteristics(same, 0.025, 5000)
    print(f"  the same exactly: satisfied {exact.satisfied[0]:.3f}, violated {exact.violated[0]:.3f}")


def _speed() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(0, 50, 1_000_000)
    interval = MeanTask(0, 1000, lower=25, upper=30, false_accept=0.05, false_reject=0.05)
    with one_core():
        seconds = side_by_side(
            {
                "anytime, one bound": lambda: _run("anytime", COST, values),
                "anytime, an interval": lambda: _run("anytime", interval, values),
                "bayes": lambda: _run("bayes", COST, values),
            },
            rounds=3,
        )
    for name, time in seconds.items():
        print(f"  a million values, {name:24} {time:5.2f}s")


if __name__ == "__main__":
    main()
