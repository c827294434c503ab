"""How few episodes: answers of a wanted width, for probabilities and means; verdicts by other mixtures; CVaR.

PyDSMC (0.3.9 was run beside this) takes a number of episodes that does not depend on what it sees: for a probability
that of Clopper and Pearson at p = 0.5, for a mean that of Hoeffding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from psyco._src.verification.anytime import log_evidence
from psyco._src.verification.base import Counts, MeanTask, decisions
from psyco._src.verification.betting import Betting
from psyco._src.verification.cvar import BettingCVaR, excess
from psyco._src.verification.estimation import MeanInterval
from psyco._src.verification.fixed_sample import clopper_pearson
from psyco._src.verification.fixed_width import WidthMean, width_rule
from psyco._src.verification.operating_characteristics import operating_characteristics
from psyco._src.verification.tally import run_tests

DELTA, WIDTH = 0.05, 0.05
STREAMS = 20


def main() -> None:
    _probabilities()
    _means()
    _verdicts()
    _cvar()


# ---- answers --------------------------------------------------------------------------------------------------------


def _probabilities() -> None:
    p = np.array([0.5, 0.9, 0.95, 0.99, 1.0])
    narrow_by = width_rule(DELTA, WIDTH, 100_000).narrow_by(p)
    fixed = next(
        n for n in range(100, 10**6, 2) if np.diff(clopper_pearson(Counts(n // 2, n // 2), DELTA / 2)) <= WIDTH
    )
    print(f"  P=? until the interval has the width {WIDTH:g}, at {1 - DELTA:g}; episodes, on average")
    print(f"  {'true p':44}" + "".join(f"{each:9g}" for each in p))
    print(f"  {'fixed number (PyDSMC)':44}" + f"{fixed:9,}" * len(p))
    uniform = np.random.default_rng(0).random((STREAMS, 10_000))
    sequence = [np.mean([_sequence_episodes((row < each) * 1.0) for row in uniform]) for each in p]
    print(f"  {f'confidence sequence, {STREAMS} streams':44}" + "".join(f"{n:9,.0f}" for n in sequence))
    print(f"  {'rule for the width, exactly':44}" + "".join(f"{n:9,.0f}" for n in (1 - narrow_by)[:-1].sum(axis=0)))
    for width in (0.2, 0.02, 0.01):
        rule = width_rule(DELTA, width, 100_000)
        episodes = (1 - rule.narrow_by(p))[:-1].sum(axis=0)
        print(f"  {f'rule for the width {width:g}':44}" + "".join(f"{n:9,.0f}" for n in episodes))


def _sequence_episodes(values: NDArray[Any]) -> int:
    """Return the number of values after which the confidence sequence is narrow, to 1%."""
    unit = MeanTask(0, 1, false_accept=DELTA, false_reject=DELTA)
    low, high = 1, len(values)
    while high > 1.01 * low:
        middle = (low + high) // 2
        lower, upper = MeanInterval(unit).feed(values[:middle])[0].bounds
        low, high = (low, middle) if upper - lower <= WIDTH else (middle, high)
    return high


class Values(NamedTuple):
    """Values in [0, 1]."""

    label: str
    draw: Callable[[np.random.Generator, int], NDArray[Any]]


VALUES = [
    Values("0 or 1 (.5/.5)", lambda rng, n: 1.0 * (rng.random(n) < 0.5)),
    Values("0 or 1 (.95/.05)", lambda rng, n: 1.0 * (rng.random(n) < 0.05)),
    Values("uniform", lambda rng, n: rng.random(n)),
    Values("Beta(2, 18)", lambda rng, n: rng.beta(2, 18, n)),
]


def _means() -> None:
    print(
        f"\n  R=? of values in [0, 1] until the interval has the width {WIDTH:g}; episodes, mean of {STREAMS} streams"
    )
    print(f"  {'values':24}{'Hoeffding (PyDSMC)':>20}{'EBStop':>10}{'sequence':>10}{'bets':>10}{'normal':>10}")
    unit = MeanTask(0, 1, false_accept=DELTA, false_reject=DELTA)
    hoeffding = math.ceil(math.log(2 / DELTA) / (2 * (WIDTH / 2) ** 2))
    for case in VALUES:
        ends = []
        for stream in range(STREAMS):
            values = case.draw(np.random.default_rng(stream), 20_000)
            found, _ = WidthMean(unit, WIDTH).feed(values)
            sequence = _sequence_episodes(values)
            normal = stats.norm.isf(DELTA / 2) ** 2 * values.var() / (WIDTH / 2) ** 2
            ends.append([_ebstop(values), sequence, found.episodes, normal])
        print(f"  {case.label:24}{hoeffding:20,}" + "".join(f"{n:10,.0f}" for n in np.mean(ends, axis=0)))


def _ebstop(values: NDArray[Any], growth: float = 1.1) -> int:
    """Stop by empirical Bernstein bounds at growing numbers (Mnih, Szepesvari and Audibert), for values in [0, 1]."""
    n, k, lower, upper = 2, 0, -np.inf, np.inf
    while upper - lower > WIDTH:
        k += 1
        later = max(n + 1, math.ceil(growth * n))
        log_term = -later / n * math.log(DELTA * 0.1 / 1.1 / k**1.1 / 3)
        radius = math.sqrt(2 * values[:n].var() * log_term / n) + 3 * log_term / n
        lower, upper = max(lower, values[:n].mean() - radius), min(upper, values[:n].mean() + radius)
        n = later
    return n


# ---- verdicts -------------------------------------------------------------------------------------------------------

Evidence = Callable[[Counts], Any]  # log evidence that p is above the bound


class Mixture(NamedTuple):
    """A test that accepts by a mixture, and rejects as `anytime` does."""

    p_req: float
    delta: float
    parts: tuple[tuple[float, Evidence], ...]  # weights and evidences

    def decide(self, counts: Counts) -> NDArray[np.int8]:
        """Return the decisions."""
        counts = Counts(*(np.asarray(each, np.float64) for each in counts))
        log_parts = [math.log(weight) + evidence(counts) for weight, evidence in self.parts]
        enough = -math.log(self.delta)
        accept = np.logaddexp.reduce(log_parts, axis=0) >= enough
        return decisions(accept, log_evidence(counts.swapped, 1 - self.p_req) >= enough)


def _uniform(p_req: float, counts: Counts) -> Any:
    return log_evidence(counts, p_req)


def _atom(p_req: float, counts: Counts) -> Any:
    return np.where(counts.violated == 0, -counts.satisfied * math.log(p_req), -np.inf)


def _beta(p_req: float, a: float, b: float, counts: Counts) -> Any:
    """A prior Beta(a, b), restricted to the p above the bound."""
    s, v = counts
    with np.errstate(divide="ignore"):
        log_mass = special.betaln(s + a, v + b) + np.log(special.betainc(v + b, s + a, 1 - p_req))
    prior = special.betaln(a, b) + math.log(special.betainc(b, a, 1 - p_req))
    return log_mass - prior - s * math.log(p_req) - v * math.log1p(-p_req)


def mixtures(p_req: float, delta: float) -> dict[str, Mixture]:
    """Return the mixtures that know nothing of the policy."""
    uniform, atom = partial(_uniform, p_req), partial(_atom, p_req)
    return {
        "uniform (anytime)": Mixture(p_req, delta, ((1.0, uniform),)),
        "with an atom of 0.12 at 1": Mixture(p_req, delta, ((0.88, uniform), (0.12, atom))),
        "with an atom of 0.5 at 1": Mixture(p_req, delta, ((0.5, uniform), (0.5, atom))),
        "half of it Beta(1, 1/2)": Mixture(p_req, delta, ((0.5, uniform), (0.5, partial(_beta, p_req, 1.0, 0.5)))),
    }


def informed(p_req: float, delta: float, satisfied: int, violated: int) -> Mixture:
    """Return half a uniform mixture, half the belief after the episodes of a selection."""
    belief = partial(_beta, p_req, satisfied + 1.0, violated + 0.5)
    return Mixture(p_req, delta, ((0.5, partial(_uniform, p_req)), (0.5, belief)))


SELECTION = 60  # episodes of a selection


def _informed_episodes(p_req: float, delta: float, p: float, cap: int) -> float:
    """Return the expected episodes, over the results of a selection with the same p; results below 1% are left out."""
    satisfied = np.arange(SELECTION + 1)
    chance = stats.binom.pmf(satisfied, SELECTION, p)
    kept = chance >= 0.01
    expected = [
        operating_characteristics(informed(p_req, delta, s, SELECTION - s), p, cap).episodes[0] for s in satisfied[kept]
    ]
    return float(np.average(expected, weights=chance[kept]))


def _all_satisfied(test: Mixture) -> int:
    return next(n for n in range(1, 10**4) if test.decide(Counts(np.array([n]), np.array([0])))[0] > 0)


# Counts of the certificates of docs/real.md, and how many had them; δ is that of a first look.
REAL = [
    (0.025, 51, 51, 27), (0.025, 158, 164, 1), (0.025, 93, 95, 1), (0.025, 269, 283, 1),
    (0.01, 85, 86, 1), (0.01, 62, 62, 1), (0.01, 140, 144, 1),
]  # fmt: skip


def _verdicts() -> None:
    for p_req, delta, truths in ((0.85, 0.02, (0.9, 0.95, 0.99)), (0.9, 0.025, (0.95, 0.97, 0.99))):
        cap = 3000
        print(f"\n  P>={p_req:g}, wrong with at most {delta:g}: expected episodes, exactly")
        print(f"  {'mixture':44}{'wrong':>9}" + "".join(f"{p:9g}" for p in truths) + f"{'all':>9}")
        wald = [
            math.log(1 / delta) / (p * math.log(p / p_req) + (1 - p) * math.log((1 - p) / (1 - p_req))) for p in truths
        ]
        print(f"  {'no test needs less (Wald)':44}{'':9}" + "".join(f"{n:9.0f}" for n in wald))
        for name, test in mixtures(p_req, delta).items():
            found = operating_characteristics(test, [p_req, *truths], cap)
            episodes = "".join(f"{n:9.0f}" for n in found.episodes[1:])
            print(f"  {name:44}{found.satisfied[0]:9.4f}{episodes}{_all_satisfied(test):9}")
        best = informed(p_req, delta, SELECTION, 0)
        wrong = operating_characteristics(best, p_req, cap).satisfied[0]
        episodes = "".join(f"{_informed_episodes(p_req, delta, p, cap):9.0f}" for p in truths)
        print(f"  {f'informed by {SELECTION} episodes of selection':44}{wrong:9.4f}{episodes}{_all_satisfied(best):9}")
    print("\n  the 33 certificates of docs/real.md, expected at their shares")
    totals: dict[str, float] = {}
    for delta, satisfied, played, times in REAL:
        p = satisfied / played
        for name, test in mixtures(0.9, delta).items():
            n = _all_satisfied(test) if p == 1 else operating_characteristics(test, p, 3000).episodes[0]
            totals[name] = totals.get(name, 0.0) + times * n
        n = _all_satisfied(informed(0.9, delta, SELECTION, 0)) if p == 1 else _informed_episodes(0.9, delta, p, 3000)
        totals["informed"] = totals.get("informed", 0.0) + times * n
    for name, n in totals.items():
        print(f"  {name:44}{n:9,.0f}")


if __name__ == "__main__":
    main()


# ---- CVaR -----------------------------------------------------------------------------------------------------------

CVAR_BOUND, CVAR_RANGE, TAIL, CVAR_CAP = 25.0, 100.0, 0.05, 20_000


def _cvar() -> None:
    """Print the median number of episodes until CVaR{x}(0.95)<=25 is shown, or its contrary, for values in [0, 100]."""
    poisson = {f"Poisson({mean})": partial(_poisson, mean) for mean in (5, 10, 14, 20)}
    rare = {f"0 or 100, {1 - p:g}/{p:g}": partial(_rare, p) for p in (0.005, 0.02)}
    task = MeanTask(0.0, CVAR_RANGE, upper=CVAR_BOUND, cvar=1.0 - TAIL, false_accept=DELTA, false_reject=DELTA)
    test = BettingCVaR(task)
    print(
        f"\n  CVaR{{x}}({1 - TAIL:g})<={CVAR_BOUND:g}, values in [0, {CVAR_RANGE:g}], error {DELTA:g}: episodes, median"
    )
    heads = ("true CVaR", "this test", "c known before", "DKW, fixed number")
    print(f"  {'values':24}" + "".join(f"{head:>18}" for head in heads))
    for name, draw in (poisson | rare).items():
        values = draw(np.random.default_rng(0), (STREAMS, CVAR_CAP))
        many = np.sort(values.ravel())[::-1]
        true, c = many[: int(TAIL * many.size)].mean(), float(np.quantile(values, 1.0 - TAIL))
        own = [run_tests([test], [[row]], max_episodes=CVAR_CAP)[0].episodes for row in values]
        known = "-"
        if true < CVAR_BOUND:
            most = float(excess(np.array([CVAR_RANGE]), c, TAIL)[0])
            mean = Betting(MeanTask(c, most, upper=CVAR_BOUND, false_accept=DELTA, false_reject=DELTA))
            rows = [[excess(row, c, TAIL)] for row in values]
            known = f"{np.median([run_tests([mean], [row], max_episodes=CVAR_CAP)[0].episodes for row in rows]):,.0f}"
        print(f"  {name:24}{true:18.1f}{np.median(own):18,.0f}{known:>18}{_dkw_episodes(many, true):18,.0f}")


def _poisson(mean: float, rng: np.random.Generator, size: tuple[int, int]) -> NDArray[Any]:
    return rng.poisson(mean, size).astype(np.float64)


def _rare(p: float, rng: np.random.Generator, size: tuple[int, int]) -> NDArray[Any]:
    return CVAR_RANGE * (rng.random(size) < p)


def _dkw_episodes(values: NDArray[Any], true: float) -> float:
    """Return the number that suffices by the inequality of Dvoretzky, Kiefer and Wolfowitz; values from the top.

    The distribution function is known up to ε = sqrt(log(1/δ) / 2n): at worst, a part ε of the episodes has the largest
    value, or for VIOLATED is missing at the top.
    """

    def cvar(epsilon: float) -> float:
        skipped = 0.0 if true < CVAR_BOUND else epsilon
        part = TAIL - epsilon if true < CVAR_BOUND else TAIL
        first, last = (round(share * values.size) for share in (skipped, skipped + max(part, 0.0)))
        return float(values[first:last].sum() / values.size + (TAIL - part) * CVAR_RANGE) / TAIL

    grid = np.geomspace(1e-5, TAIL, 2000)
    enough = [e for e in grid if (cvar(e) <= CVAR_BOUND) == (true < CVAR_BOUND)]
    return math.log(1.0 / DELTA) / (2.0 * max(enough) ** 2)
