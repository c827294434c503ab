"""The claims of the paper about its results, and the statistic that decides each of them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from psyco._src.envs.registry import make
from psyco._src.logic.parser import parse
from psyco._src.paper import experiments
from psyco._src.paper.curves import KINDS, Results
from psyco._src.paper.experiments import CALIBRATION, OBSTACLE_RUN, PARTICLE_DANCE, POPULATION
from psyco._src.rollout.episodes import Stream, stream_key
from psyco._src.rollout.sampler import make_sampler
from psyco._src.verification.episode_stream import sample_episodes

# The outcome of a claim, from estimates with intervals.
#
# A claim consists of comparisons of an estimate with limits. It holds if every interval lies within its limits, it
# fails if an interval lies outside of them, and otherwise it cannot be decided.


LEVEL = 0.95  # of every interval


class ClaimOutcome(Enum):
    """Outcome of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "cannot be decided"


class ClaimEstimate(NamedTuple):
    """A mean over repetitions and its interval at LEVEL."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    """An estimate and the open interval in which the claim places it."""

    what: str  # name of the estimate
    estimate: ClaimEstimate
    above: float = -math.inf
    below: float = math.inf
    digits: int = 2

    @property
    def outcome(self) -> ClaimOutcome:
        """HOLDS if the whole interval of the estimate is in the range, FAILS if it is outside, else OPEN."""
        _, low, high = self.estimate
        if self.above < low and high < self.below:
            return ClaimOutcome.HOLDS
        return ClaimOutcome.FAILS if high <= self.above or self.below <= low else ClaimOutcome.OPEN

    @property
    def measured(self) -> str:
        """Estimate with its interval, as in `-24.75 [-26.10, -23.40]`."""
        value, low, high = (_number(x, self.digits) for x in self.estimate)
        return f"{value} [{low}, {high}]"

    @property
    def wanted(self) -> str:
        """Claimed range, as in `> 0`, `< 1` or `0.85 to 0.86`."""
        if math.isinf(self.below):
            return f"> {self.above:g}"
        return f"< {self.below:g}" if math.isinf(self.above) else f"{self.above:g} to {self.below:g}"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and the comparisons that decide it."""

    name: str
    where: str  # section and figure of the paper
    text: str  # the claim in one sentence
    statistic: str  # the quantity that is compared
    comparisons: tuple[Comparison, ...]
    seen: str  # our numbers in a sentence

    @property
    def outcome(self) -> ClaimOutcome:
        """HOLDS if every comparison holds, FAILS if one fails, else OPEN."""
        outcomes = {comparison.outcome for comparison in self.comparisons}
        if ClaimOutcome.FAILS in outcomes:
            return ClaimOutcome.FAILS
        return ClaimOutcome.OPEN if ClaimOutcome.OPEN in outcomes else ClaimOutcome.HOLDS


def mean_of(values: ArrayLike, *, share: bool = False) -> ClaimEstimate:
    """Return the mean of runs with Student's t interval, which is also the credible interval under a flat prior.

    With five repetitions a bootstrap interval would be much too narrow. NaN values are ignored. The interval of a
    `share` is cut to [0, 1].
    """
    x = np.asarray(values, np.float64)
    x = x[np.isfinite(x)]
    if len(x) < 2:
        return ClaimEstimate(float(x.sum()) if len(x) else math.nan, -math.inf, math.inf)
    half = special.stdtrit(len(x) - 1, (1 + LEVEL) / 2) * x.std(ddof=1) / math.sqrt(len(x))
    low, high = x.mean() - half, x.mean() + half
    return ClaimEstimate(
        float(x.mean()), float(max(0.0, low) if share else low), float(min(1.0, high) if share else high)
    )


def posterior_of(satisfied: int, episodes: int) -> ClaimEstimate:
    """Return the share of satisfying episodes and the central credible interval under a uniform prior."""
    tail = (1 - LEVEL) / 2
    low, high = special.betaincinv(satisfied + 1, episodes - satisfied + 1, (tail, 1 - tail))
    return ClaimEstimate(satisfied / episodes, float(low), float(high))


def summary(claims: list[Claim]) -> dict[ClaimOutcome, int]:
    """Return the number of claims with each outcome."""
    return {outcome: sum(claim.outcome is outcome for claim in claims) for outcome in ClaimOutcome}


def to_csv(claims: list[Claim]) -> str:
    """Return a table with one row per comparison."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ("claim", "outcome", "where", "text", "statistic", "comparison", "value", "low", "high", "above", "below",
         "comparison outcome", "seen")
    )  # fmt: skip
    for claim in claims:
        for c in claim.comparisons:
            numbers = [f"{x:.6g}" for x in (*c.estimate, c.above, c.below)]
            writer.writerow(
                (claim.name, claim.outcome.value, claim.where, claim.text, claim.statistic, c.what, *numbers,
                 c.outcome.value, claim.seen)
            )  # fmt: skip
    return out.getvalue()


def to_markdown(claims: list[Claim]) -> str:
    """Return a table with one row per claim."""
    rows = [
        f"| {claim.outcome.value} | {claim.text} | "
        f"{'; '.join(f'{c.what}: {c.measured}' for c in claim.comparisons)} | {claim.where} |"
        for claim in claims
    ]
    return "\n".join(["| outcome | claim | measured | section |", "|---|---|---|---|", *rows]) + "\n"


def _number(x: float, digits: int) -> str:
    if math.isinf(x):
        return "-∞" if x < 0 else "∞"
    return f"{x:.{digits}f}" if x == x else "none"


START = 100  # first episodes, which show an untrained policy; the paper smooths over as many
CLOSE = 0.01  # largest distance that counts as "closely above" a probability
FAR = 0.03  # smallest distance that counts as "far above"
RARE = 0.001  # smallest share of episodes that counts as possible
ABOUT = 2.0  # tolerance of a return of "ca." -15
CONSTRAINED = ("n_max = 1", "n_max = 4")


def belief_claims() -> list[Claim]:
    """Return the claim of section 2.4."""
    spread = np.array([experiments.deviations(seed) for seed in range(100)])
    ratio = spread[:, 1:] / spread[:, :-1]
    steps = zip(experiments.PULLS[1:], experiments.PULLS[:-1], ratio.T, strict=True)
    return [
        Claim(
            "belief-sharpens",
            "2.4, Fig. 1",
            "The more often the bandit is pulled, the sharper the belief about its probability.",
            "posterior standard deviation, as a multiple of the one before; 100 bandits with μ = 0.6",
            tuple(
                Comparison(f"{fewer:,} to {more:,} pulls", mean_of(x), below=1, digits=3) for more, fewer, x in steps
            ),
            f"It falls from {spread[:, 0].mean():.3f} before the first pull to {spread[:, -1].mean():.3f} after "
            f"{experiments.PULLS[-1]:,}.",
        )
    ]


# Claims about both domains.


def _start(r: Results, *, satisfying: bool) -> Claim:
    share = {v: r.over(v, "satisfied", first=START) for v in CONSTRAINED}
    p_req = r.experiment.p_req
    above, below = (p_req, math.inf) if satisfying else (-math.inf, p_req)
    return Claim(
        f"{r.experiment.name}-start",
        f"4 and {r.experiment.section}",
        f"Untrained policies are likely to {'satisfy' if satisfying else 'violate'} the constraint.",
        f"share of satisfying episodes among the first {START}, against p_req",
        tuple(Comparison(v, mean_of(share[v], share=True), above, below, digits=3) for v in CONSTRAINED),
        f"Of the first {START} episodes {_percent(share['n_max = 1'])} satisfy n_max = 1 and "
        f"{_percent(share['n_max = 4'])} satisfy n_max = 4.",
    )


def _ordering(r: Results, *, figure: int) -> Claim:
    final = {v: r.final(v, "return") for v in r.runs}
    pairs = (("unconstrained", "n_max = 4"), ("n_max = 4", "n_max = 1"))
    return Claim(
        f"{r.experiment.name}-ordering",
        f"{r.experiment.section}, Fig. {figure}",
        "The stronger the constraint, the lower the return: unconstrained > n_max = 4 > n_max = 1.",
        f"difference of mean returns over the last {r.experiment.final:,} episodes, paired by seed",
        tuple(Comparison(f"{a} − {b}", mean_of(final[a] - final[b]), above=0) for a, b in pairs),
        "Returns by seed: " + "; ".join(f"{v}: {_each(x)}" for v, x in final.items()) + ".",
    )


def _mostly_confident(r: Results, *, figure: int) -> Claim:
    c_req = r.experiment.c_req
    share = {v: np.array([np.mean(run.metrics["c_sat"] >= c_req) for run in r.runs[v]]) for v in CONSTRAINED}
    return Claim(
        f"{r.experiment.name}-confidence",
        f"{r.experiment.section}, Fig. {figure}",
        "While learning, the confidence c_sat is mostly kept above c_req.",
        "share of generations with c_sat ≥ c_req",
        tuple(Comparison(v, mean_of(share[v], share=True), above=0.5, digits=3) for v in CONSTRAINED),
        f"c_sat is at least {c_req} in {_percent(share['n_max = 1'])} (n_max = 1) and "
        f"{_percent(share['n_max = 4'])} (n_max = 4) of the generations.",
    )


def _violating_return_more(r: Results, *, figure: int) -> Claim:
    split = {v: [r.final_split(v, "return", kind) for kind in KINDS] for v in CONSTRAINED}
    comparisons = tuple(Comparison(v, mean_of(bad - good), above=0) for v, (good, bad) in split.items())
    reversed_ = all(c.estimate.value < 0 for c in comparisons)
    return Claim(
        f"{r.experiment.name}-split-return",
        f"{r.experiment.section}, Fig. {figure}",
        "Episodes that violate the constraint return more than those that satisfy it.",
        f"return of violating minus return of satisfying episodes, last {r.experiment.final:,} episodes",
        comparisons,
        "; ".join(f"{v}: violating {_mean(b):.1f}, satisfying {_mean(g):.1f}" for v, (g, b) in split.items())
        + (". The opposite holds: an agent that is on its way for longer is caught more often." if reversed_ else "."),
    )


def _collisions_below(r: Results, *, figure: int, remark: str = "") -> Claim:
    cost = {v: r.final_split(v, "cost", "violating") for v in CONSTRAINED}
    overall = {v: _mean(r.final(v, "cost")) for v in CONSTRAINED}
    return Claim(
        f"{r.experiment.name}-split-cost",
        f"{r.experiment.section}, Fig. {figure}",
        "Violating episodes keep their collisions (the cost) well below what the constraint allows.",
        f"mean cost of violating episodes, last {r.experiment.final:,} episodes, against n_max",
        tuple(Comparison(v, mean_of(cost[v]), below=r.experiment.variants[v].n_max) for v in CONSTRAINED),
        "A violating episode costs at least 1 by definition: the cost counts collisions beyond n_max. We see "
        + " and ".join(f"{_mean(cost[v]):.1f} for {v}" for v in CONSTRAINED)
        + ", and as a mean over all episodes, which the paper may show, "
        + " and ".join(f"{overall[v]:.2f}" for v in CONSTRAINED)
        + f".{remark}",
    )


# Particle Dance


def _follows(r: Results) -> Claim:
    first, final = r.over("unconstrained", "return", first=START), r.final("unconstrained", "return")
    return Claim(
        "particle-dance-follows",
        f"{r.experiment.section}, Fig. 2",
        "The agent learns to follow the particle; unconstrained it reaches a return of about -15.",
        f"mean return of the last {r.experiment.final:,} unconstrained episodes, and its gain over the first {START}",
        (
            Comparison("return", mean_of(final), -15 - ABOUT, -15 + ABOUT),
            Comparison("gain", mean_of(final - first), above=0),
        ),
        f"The return rises from {_mean(first):.1f} to {_mean(final):.1f}.",
    )


def _without_collision(r: Results) -> Claim:
    """Sample the learned policies and count episodes with that return and without a collision."""
    requirement = parse(f'P>=0.5 [ F ("end" & collisions <= 0 & return >= {-15 - ABOUT}) ]')
    satisfied = episodes = 0
    for seed, run in zip(r.experiment.seeds, r.runs["unconstrained"], strict=True):
        sampler = make_sampler(make(r.experiment.domain), run.policy.network, requirement)
        key = stream_key(seed, Stream.RECORD, 1)
        for batch in sample_episodes(sampler, jnp.asarray(run.policy.theta), key, 1000):
            satisfied, episodes = satisfied + int(np.sum(batch.satisfied)), episodes + len(batch.satisfied)
    return Claim(
        "particle-dance-sample",
        f"{r.experiment.section}, Fig. 2",
        "An unconstrained agent can reach that return without a single collision.",
        f"share of {episodes:,} fresh episodes of the unconstrained policies with a return of at least {-15 - ABOUT:g} "
        f"and no collision: more than {RARE:g}",
        (Comparison("share", posterior_of(satisfied, episodes), above=RARE, digits=4),),
        f"{satisfied} of {episodes:,} episodes are like that.",
    )


def _close(r: Results) -> Claim:
    share = {v: r.over(v, "satisfied") for v in CONSTRAINED}
    p_req = r.experiment.p_req
    return Claim(
        "particle-dance-share",
        f"{r.experiment.section}, Fig. 4",
        "The share of satisfying episodes is closely above p_req.",
        f"share of satisfying episodes over the whole of learning, at most {CLOSE:g} above p_req = {p_req:g}",
        tuple(Comparison(v, mean_of(share[v], share=True), p_req, p_req + CLOSE, digits=4) for v in CONSTRAINED),
        "; ".join(f"{v}: {_mean(x):.4f}" for v, x in share.items()) + ".",
    )


def _verification_rises(r: Results) -> Claim:
    curves = {v: r.verified(v) for v in CONSTRAINED}
    rises, texts = [], []
    for v, curve in curves.items():
        half = curve.values.shape[1] // 2
        rises.append(Comparison(v, mean_of(curve.values[:, half:].mean(1) - curve.values[:, :half].mean(1)), above=0))
        low = int(np.argmin(curve.mean))
        texts.append(
            f"{v}: {curve.mean[0]:.2f} at the first verification, {curve.mean[low]:.2f} after "
            f"{curve.episodes[low]:,} episodes, {_mean(curve.values[:, half:]):.2f} in the second half"
        )
    return Claim(
        "particle-dance-verification",
        f"{r.experiment.section}, Fig. 6",
        "The confidence from verifying the current policy increases over the course of learning.",
        "mean verification confidence of the second half of learning minus that of the first half",
        tuple(rises),
        "; ".join(texts) + ".",
    )


def _may_violate(r: Results) -> Claim:
    late = r.experiment.final // r.experiment.verify_every
    share = {}
    for v in CONSTRAINED:
        verdicts = [run.metrics["verdict"][run.metrics["verdict"] != ""][-late:] for run in r.runs[v]]
        share[v] = np.array([np.mean(x == "VIOLATED") for x in verdicts])
    return Claim(
        "particle-dance-may-violate",
        f"{r.experiment.section}, Fig. 6",
        "SNES may still end with policies that violate the requirement.",
        f"share of verifications in the last {r.experiment.final:,} episodes that end with VIOLATED",
        tuple(Comparison(v, mean_of(share[v], share=True), above=0) for v in CONSTRAINED),
        f"{_percent(share['n_max = 1'])} of the late policies are rejected for n_max = 1 and "
        f"{_percent(share['n_max = 4'])} for n_max = 4.",
    )


def _less_constrained_returns_more(r: Results) -> Claim:
    final = {k: [r.final_split(v, "return", k) for v in CONSTRAINED] for k in KINDS}
    return Claim(
        "particle-dance-zoom",
        f"{r.experiment.section}, Fig. 8",
        "The less constrained policy returns more, in satisfying and in violating episodes alike.",
        f"return with n_max = 4 minus return with n_max = 1, last {r.experiment.final:,} episodes, paired by seed",
        tuple(Comparison(k, mean_of(four - one), above=0) for k, (one, four) in final.items()),
        "; ".join(
            f"{k}: {_mean(four):.1f} with n_max = 4, {_mean(one):.1f} with n_max = 1"
            for k, (one, four) in final.items()
        )
        + ".",
    )


# SNES against maximum likelihood


def _mle_over_satisfies(r: Results) -> Claim:
    snes, mle = (r.over(v, "satisfied") for v in ("SNES", "MLE"))
    return Claim(
        "calibration-over-satisfies",
        f"{r.experiment.section}, Fig. 12",
        "Maximum likelihood over-satisfies the constraint.",
        f"share of satisfying episodes over the whole of learning: more than {FAR:g} above p_req, and above SNES",
        (
            Comparison("MLE", mean_of(mle, share=True), above=r.experiment.p_req + FAR, digits=3),
            Comparison("MLE − SNES", mean_of(mle - snes), above=0, digits=3),
        ),
        f"MLE {_percent(mle)}, SNES {_percent(snes)}, required {r.experiment.p_req:.0%}.",
    )


def _snes_is_close(r: Results) -> Claim:
    share, p_req = r.over("SNES", "satisfied"), r.experiment.p_req
    return Claim(
        "calibration-snes-share",
        f"{r.experiment.section}, Fig. 12",
        "SNES stays at the constraint and so uses the room that it leaves.",
        f"share of satisfying episodes over the whole of learning, at most {CLOSE:g} above p_req = {p_req:g}",
        (Comparison("SNES", mean_of(share, share=True), p_req, p_req + CLOSE, digits=4),),
        f"Between {share.min():.4f} and {share.max():.4f} in the {len(share)} repetitions.",
    )


def _mle_returns_less(r: Results) -> Claim:
    snes, mle = (r.final(v, "return") for v in ("SNES", "MLE"))
    return Claim(
        "calibration-return",
        f"{r.experiment.section}, Fig. 10",
        "Maximum likelihood consequently does not return as much as SNES.",
        f"mean return of SNES minus that of MLE, last {r.experiment.final:,} episodes, paired by seed",
        (Comparison("SNES − MLE", mean_of(snes - mle), above=0),),
        f"SNES {_mean(snes):.1f} (from {snes.min():.1f} to {snes.max():.1f}), MLE {_mean(mle):.1f} (from "
        f"{mle.min():.1f} to {mle.max():.1f}).",
    )


def _mle_returns_less_in_each_kind(r: Results) -> Claim:
    final = {k: [r.final_split(v, "return", k) for v in ("SNES", "MLE")] for k in KINDS}
    return Claim(
        "calibration-split-return",
        f"{r.experiment.section}, Figs. 10, 11",
        "SNES returns more than maximum likelihood in satisfying and in violating episodes alike.",
        f"return of SNES minus that of MLE, last {r.experiment.final:,} episodes, paired by seed",
        tuple(Comparison(k, mean_of(snes - mle), above=0) for k, (snes, mle) in final.items()),
        "; ".join(f"{k}: SNES {_mean(snes):.1f}, MLE {_mean(mle):.1f}" for k, (snes, mle) in final.items()) + ".",
    )


# Obstacle Run


def _far_above(r: Results) -> Claim:
    share = {v: r.final(v, "satisfied") for v in CONSTRAINED}
    return Claim(
        "obstacle-run-share",
        f"{r.experiment.section}, Fig. 14",
        "The share of satisfying episodes ends far above p_req.",
        f"share of satisfying episodes among the last {r.experiment.final:,}, more than {FAR:g} above p_req",
        tuple(
            Comparison(v, mean_of(share[v], share=True), above=r.experiment.p_req + FAR, digits=3) for v in CONSTRAINED
        ),
        "Shares by seed: " + "; ".join(f"{v}: {_each(x, 3)}" for v, x in share.items()) + ".",
    )


def _fast_is_safe(r: Results) -> Claim:
    share, length = r.final("unconstrained", "satisfied"), r.final("unconstrained", "length")
    return Claim(
        "obstacle-run-fast-is-safe",
        f"{r.experiment.section}, Fig. 14",
        "Reaching the target as fast as possible is what satisfies the constraint.",
        f"share of the last {r.experiment.final:,} episodes of agents that only maximise return that satisfy n_max = 1",
        (Comparison("unconstrained", mean_of(share, share=True), above=r.experiment.p_req, digits=3),),
        f"Unconstrained agents need {_mean(length):.2f} steps (the shortest paths take 4.04) and satisfy n_max = 1 in "
        f"{_percent(share)} of the episodes.",
    )


def _stable(r: Results) -> Claim:
    late, c_req = r.experiment.final // POPULATION, r.experiment.c_req
    comparisons, texts = [], []
    for v in CONSTRAINED:
        rows = [run.metrics.tail(late) for run in r.runs[v]]
        confident = np.array([np.mean(m["c_sat"] >= c_req) for m in rows])
        gain = r.final(v, "return") - r.over(v, "return", first=START)
        comparisons += [
            Comparison(f"{v}, confident", mean_of(confident, share=True), above=0.9),
            Comparison(f"{v}, gain", mean_of(gain), above=0, digits=1),
        ]
        both = int(np.sum((confident > 0.9) & (gain > 0)))
        texts.append(f"{v}: {both} of {len(rows)} runs do both")
    return Claim(
        "obstacle-run-stable",
        f"{r.experiment.section}, Fig. 15",
        "The agent learns to optimise return and to satisfy the constraint in a stable way.",
        f"last {r.experiment.final:,} episodes: share of generations with c_sat ≥ c_req, above 0.9; gain in return "
        f"over the first {START}",
        tuple(comparisons),
        "; ".join(texts) + ".",
    )


def _underestimates(r: Results) -> Claim:
    comparisons, texts = [], []
    for v in CONSTRAINED:
        offline = r.verified(v)
        early = max(1, len(offline.episodes) // 4)
        rows = offline.episodes[:early] // POPULATION - 1
        online = np.array([run.metrics["c_sat"][rows].mean() for run in r.runs[v]])
        verified = offline.values[:, :early].mean(axis=1)
        comparisons.append(Comparison(v, mean_of(online - verified), below=0))
        texts.append(f"{v}: {_mean(online):.2f} while learning, {_mean(verified):.2f} when verified")
    return Claim(
        "obstacle-run-underestimates",
        f"{r.experiment.section}, Figs. 15, 16",
        "At first the agent underestimates its ability to satisfy the constraint.",
        "c_sat while learning minus the confidence from verification at the same points, first quarter of learning",
        tuple(comparisons),
        "; ".join(texts) + ".",
    )


CLAIMS: dict[str, tuple[Callable[[Results], Claim], ...]] = {
    PARTICLE_DANCE.name: (
        partial(_start, satisfying=True),
        _follows,
        _without_collision,
        partial(_ordering, figure=3),
        _close,
        partial(_mostly_confident, figure=5),
        _verification_rises,
        _may_violate,
        partial(_violating_return_more, figure=7),
        _less_constrained_returns_more,
        partial(_collisions_below, figure=9),
    ),
    CALIBRATION.name: (
        _mle_over_satisfies,
        _snes_is_close,
        _mle_returns_less,
        _mle_returns_less_in_each_kind,
    ),
    OBSTACLE_RUN.name: (
        partial(_start, satisfying=False),
        partial(_ordering, figure=13),
        _far_above,
        _fast_is_safe,
        _stable,
        _underestimates,
        partial(_violating_return_more, figure=17),
        partial(
            _collisions_below,
            figure=18,
            remark=" An episode that ends caught stays so up to the horizon, and each of these steps counts.",
        ),
    ),
}


def claims_of(results: Results) -> list[Claim]:
    """Return all claims of the paper about an experiment."""
    return [claim(results) for claim in CLAIMS[results.experiment.name]]


def _mean(values: ArrayLike) -> float:
    """Return the mean over repetitions with a value; NaN if there are none."""
    return mean_of(np.ravel(values)).value


def _percent(values: ArrayLike) -> str:
    return f"{_mean(values):.1%}"


def _each(values: ArrayLike, digits: int = 1) -> str:
    return ", ".join(f"{x:.{digits}f}" for x in np.ravel(values))
