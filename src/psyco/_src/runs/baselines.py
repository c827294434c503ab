"""Baselines beside a certificate: random actions, doing nothing, the untrained network, and other policies on request.

A certificate says that a policy meets the constraints, not that its return is any good. So a few episodes of each
baseline are played, of a random stream that serves nothing else, and a test compares their returns with the policy's.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import PsycoError, RunError
from psyco._src.core.wording import plural
from psyco._src.envs.actions import Actions, Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.policies.joint_network import JointNetwork
from psyco._src.policies.network import Network
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.episodes import Episodes, Stream, episode_keys, stream_key
from psyco._src.rollout.jax_sampler import JaxSampler, record_batch
from psyco._src.rollout.sampler import make_sampler
from psyco._src.runs.budget import expected_episodes
from psyco._src.runs.problem import Problem
from psyco._src.runs.sample_trajectories import SAMPLED_EPISODES
from psyco._src.runs.train import Callback, initial_candidate, progress_reporter
from psyco._src.verification.base import Verdict
from psyco._src.verification.certificate import BASELINE_NOTE, Certificate
from psyco._src.verification.findings import standard_error
from psyco._src.verification.tally import observed_value
from psyco._src.verification.verifier import episode_rows, evaluate_rows

logger = logging.getLogger(__name__)

BUDGET_SHARE = 0.02  # of the training episodes, for all baselines together
MAX_EPISODES = 20  # of a baseline in a Gymnasium environment; in a compiled domain `SAMPLED_EPISODES`
MAX_DISCRETE_ACTIONS = 4  # of which each is a baseline
UNIFORM_STD = 0.85  # of normal scores whose tanh is uniform in [-1, 1], but for 0.01 of its distribution function
SATURATED = 20.0  # a score whose tanh is 1
LEVEL = 0.05  # of the test that the policy's return is better than that of a baseline
UNCONSTRAINED = "unconstrained"  # instead of a policy to compare with
POLICY_NAME, INITIAL_NAME = "this policy", "policy of --from"
# Names of policies that are compared on request.
GIVEN_NAME, UNCONSTRAINED_NAME = "policy of --baseline", "without constraints"
PHASE = "comparing with baselines"  # of the progress
NO_REFERENCES: Mapping[str, Policy] = MappingProxyType({})
REMEDY = "To help: more steps or episodes (psyco resume), another learner (--learner)"
UNIMPROVED_REMEDY = (
    "To help: more steps or episodes (psyco resume), a smaller learning rate (--option learning_rate=...) or another "
    "learner (--learner)"
)
UNIMPROVED = (
    "Learning did not improve the policy that it started from (--from): in the selection that policy came before "
    "everything that was learned, and it is the policy of this run. "
    f"{UNIMPROVED_REMEDY}."
)
MARGIN_REMEDY = ", a weaker margin (--option margin=0.1)"
WARM_REMEDY = (
    ", or a warm start from a policy that was learned without the constraints (--baseline unconstrained, then --from)"
)


@dataclass(frozen=True)
class Performance:
    """Means over episodes of a policy."""

    name: str
    episodes: int
    mean_return: float
    return_standard_error: float
    satisfied: float | None  # share of the episodes that satisfy every formula; None: there is no formula
    length: float
    within_bounds: bool  # the observed share or mean of every constraint lies within its bounds
    # Of the test that the certified policy has a better return than this one; None: not tested, or too few episodes.
    p_value: float | None = None


@dataclass(frozen=True)
class Baselines:
    """The certified policy, in the episodes of its certificate, and the baselines, in a few other ones."""

    policy: Performance
    others: tuple[Performance, ...]
    unimproved: bool = False  # the certified policy is the one that learning started from
    has_margin: bool = True  # the learner has the option `margin`

    @property
    def table(self) -> list[tuple[str, ...]]:
        """A heading and a row for each policy, as texts."""
        constrained = self.policy.satisfied is not None
        rows = [("", "return", *["satisfied"] * constrained, "length", "episodes")]
        for each in (self.policy, *self.others):
            share = [f"{each.satisfied:.3f}"] if each.satisfied is not None else []
            rows.append((each.name, f"{each.mean_return:.2f}", *share, f"{each.length:.1f}", f"{each.episodes:,}"))
        return rows

    @property
    def text(self) -> str:
        """The table in lines of aligned columns."""
        widths = [max(map(len, column)) for column in zip(*self.table, strict=True)]
        return "\n".join(
            "   ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]) for name, *cells in self.table
        )

    @property
    def note(self) -> str:
        """The baselines in a sentence, for the certificate."""
        parts = []
        for each in self.others:
            share = "" if each.satisfied is None else f", satisfied {each.satisfied:.3f}"
            parts.append(f"{each.name} {each.mean_return:.2f} ({plural(each.episodes, 'episode')}{share})")
        return f"{BASELINE_NOTE}{'; '.join(parts)}."

    def remark(self, certificate: Certificate) -> str:
        """Return that a certified policy is no better than a baseline, and what would help; empty if it is better.

        It has to be better, at `LEVEL`, than every trivial baseline that meets the constraints itself: a baseline that
        misses them is no measure for a policy that meets them.
        """
        if certificate.verdict is not Verdict.SATISFIED:
            return ""
        rivals = [(each.p_value, each) for each in self.others if each.p_value is not None and each.within_bounds]
        trivial = [rival for rival in rivals if rival[1].name != INITIAL_NAME]
        p_value, best = max(trivial, key=lambda rival: rival[0], default=(0.0, self.policy))
        certified, remedy = "Learned", REMEDY
        if certificate.findings:
            certified, remedy = "Certified", REMEDY + MARGIN_REMEDY * self.has_margin + WARM_REMEDY
        lines = [UNIMPROVED] * self.unimproved
        if p_value > LEVEL:
            better = "no better" if p_value >= 0.5 else "not shown to be better"
            lines.append(f"{certified}, but {better} than {self._comparison(p_value, best)}. {remedy}.")
        for p_value, start in rivals if not self.unimproved else ():
            if start.name == INITIAL_NAME and p_value >= 1.0 - LEVEL:
                lines.append(
                    f"{certified}, but worse than the {self._comparison(1.0 - p_value, start)}, which also met the "
                    f"constraints in its {plural(start.episodes, 'episode')}: keep that one, or learn on. "
                    f"{UNIMPROVED_REMEDY}."
                )
        return "\n".join(lines)

    def _comparison(self, p_value: float, other: Performance) -> str:
        """Return name and return of another policy beside that of this one, with the p-value of the test."""
        return (
            f"{other.name} (p = {p_value:.2g}): return {self.policy.mean_return:.2f} against {other.mean_return:.2f} "
            f"(one-sided Mann-Whitney test, level {LEVEL:g})"
        )


def compare_with_baselines(
    problem: Problem,
    certified: Episodes,
    references: Mapping[str, Policy] = NO_REFERENCES,
    *,
    training: int | None = None,
    unimproved: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Baselines | None:
    """Play the baselines and compare them with the certified policy; None if the budget has no room for any.

    A baseline with a failing episode is left out, with a warning: it must not cost the certificate.

    Args:
        problem: the problem.
        certified: the episodes of the certificate.
        references: other policies to play, by name; like the one that learning started from, they are not counted in
            `BUDGET_SHARE`.
        training: number of training episodes; None: that of the budget, in steps that of episodes of full length.
        unimproved: the certified policy is the one that learning started from.
        callbacks: receive progress.
    """
    trivial = _trivial_plays(problem, training)
    most = max([MAX_EPISODES, *(play.episodes for play in trivial)])

    def given(name: str, policy: Policy) -> _Play:
        return _Play(name, policy.network, policy.theta, 0.0, most)

    start = [] if problem.initial_policy is None else [given(INITIAL_NAME, initial_candidate(problem))]
    plays = [*start, *trivial, *(given(name, policy) for name, policy in references.items())]
    report = progress_reporter(callbacks, PHASE, sum(play.episodes for play in plays))
    sign = 1.0 if problem.requirement.goal.maximize else -1.0
    returns, others = sign * np.asarray(certified.returns, np.float64), []
    for play in plays:
        try:
            episodes = _run(problem, play)
            found = _performance(problem, play.name, episodes)
        except PsycoError as error:
            logger.warning("%s cannot be played as a baseline: %s", play.name, error)
            continue
        finally:
            report(play.episodes)
        enough = _smallest_p_value(len(returns), play.episodes) <= LEVEL
        if enough and play.name not in references:  # these need not be worse
            found = dataclasses.replace(found, p_value=mann_whitney(returns, sign * np.asarray(episodes.returns)))
        others.append(found)
    policy = _performance(problem, POLICY_NAME, certified)
    return Baselines(policy, tuple(others), unimproved, hasattr(problem.learner, "margin")) if others else None


class _Play(NamedTuple):
    """A policy to play."""

    name: str
    network: Network
    theta: NDArray[np.float32]  # [D]
    std: float  # of the noise on its scores
    episodes: int

    def rows(self, count: int) -> Any:
        """Return its parameters once for each episode, `[count, D]`; NumPy's, which compiles nothing."""
        return np.tile(self.theta, (count, 1))


def _trivial_plays(problem: Problem, training: int | None = None) -> list[_Play]:
    """Return the baselines that every run has; the first of them, where the budget has no room for all."""
    network, actions = problem.network, problem.domain.actions
    none, where = np.zeros(actions.outputs, np.float32), " where it is offered" * network.masked
    found = [
        ("random actions", constant_parameters(network, none), UNIFORM_STD),
        *((name + where, constant_parameters(network, s), 0.0) for name, s in _constant_scores(actions)),
    ]
    if problem.initial_policy is None:
        found.append(("untrained network", initial_candidate(problem).theta, 0.0))
    room = int(BUDGET_SHARE * (training or expected_episodes(problem.settings, problem.domain)))
    largest = SAMPLED_EPISODES if problem.sampler.compiled else MAX_EPISODES
    episodes = max(1, min(largest, room // len(found)))
    return [_Play(name, network, theta, std, episodes) for name, theta, std in found[:room]]


def _constant_scores(actions: Actions) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield names and scores `[outputs]` of policies that always take one action."""
    scores = np.zeros(actions.outputs, np.float32)
    match actions:
        case Discrete(n):
            for action in range(min(n, MAX_DISCRETE_ACTIONS)):
                yield f"always action {action}", np.eye(n, dtype=np.float32)[action]
            return
        case Continuous(low, high):
            # The action nearest to 0, as the tanh of a score.
            least, most = np.asarray(low), np.asarray(high)
            y = 2.0 * (np.clip(0.0, least, most) - least) / (most - least) - 1.0
            with np.errstate(divide="ignore"):
                scores = np.clip(np.arctanh(y), -SATURATED, SATURATED).astype(np.float32)
        case MultiDiscrete(n):
            scores[np.cumsum([0, *n[:-1]])] = 1.0
        case MultiBinary():
            scores -= 1.0
    yield "doing nothing", scores


def constant_parameters(network: Network, scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return parameters `[D]` with which a network has these scores `[outputs]` for every observation."""
    if isinstance(network, JointNetwork):
        places = [network.output_places[network.members.index(members[0])] for members in network.sharers]
        own = [constant_parameters(part, scores[at]) for part, at in zip(network.policies, places, strict=True)]
        return np.concatenate(own)
    parts = [np.zeros(shape, np.float32) for shape in network.shapes]
    if network.bias == "learned":
        parts[-1] += scores
    else:  # every unit of the last hidden layer is relu(1), and 1 is added to the scores
        parts[-1] += (scores[:, None] - 1.0) / network.layers[-1]
    return np.concatenate([part.ravel() for part in parts])


def _run(problem: Problem, play: _Play) -> Episodes:
    """Play the episodes of a policy, the same ones for all of them."""
    sampler, key = problem.verification_sampler, stream_key(problem.settings.seed, Stream.BASELINE)
    if isinstance(sampler, JaxSampler):
        return _record(sampler, play, key)
    if play.network != problem.network:
        sampler = make_sampler(problem.domain, play.network, problem.requirement, execution=problem.execution)
    theta, keys = play.rows(play.episodes), episode_keys(key, 0, play.episodes)
    if not play.std:
        return sampler(theta, keys)
    std: Any = np.full((play.episodes, play.network.outputs), play.std, np.float32)
    return sampler.explore(theta, std, keys)._replace(trace=None)


def _record(sampler: JaxSampler, play: _Play, key: Array) -> Episodes:
    """Play by the program that records episodes for the page of a run: compiling another takes longer than playing."""
    domain, monitor, size = sampler.domain, sampler.monitor, SAMPLED_EPISODES
    theta, keys = play.rows(size), episode_keys(key, 0, size)
    recorded, lengths = record_batch(domain, play.network, None, theta, keys, play.std)
    signals = {name: values[: play.episodes] for name, values in recorded.items()}
    if not all(np.isfinite(values).all() for values in signals.values()):
        raise RunError(f"an episode in {domain.name} has a number that is not finite")
    length: Any = lengths[: play.episodes]
    returns: Any = signals["return"][:, -1]
    end: Any = np.arange(domain.horizon + 1) >= length[:, None]
    satisfied, cost = monitor(signals, end=end)
    return Episodes(returns, cost, satisfied, length, **monitor.measure(signals, end=end)._asdict())


def _performance(problem: Problem, name: str, episodes: Episodes) -> Performance:
    requirement, returns = problem.requirement, np.asarray(episodes.returns, np.float64)
    found = evaluate_rows(requirement, problem.value_ranges, episode_rows(requirement, episodes))
    observed = map(observed_value, found.tests, found.tallies)
    satisfied = np.asarray(episodes.satisfied)
    return Performance(
        name,
        len(returns),
        float(returns.mean()),
        standard_error(returns),
        float(satisfied.all(axis=1).mean()) if satisfied.shape[1] else None,
        float(np.mean(episodes.length)),
        all(c.lower <= value <= c.upper for c, value in zip(requirement.constraints, observed, strict=True)),
    )


def mann_whitney(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    """Return the one-sided p-value that ours are not larger, by the normal approximation with corrections for ties.

    SciPy has the same test in a package that takes longer to import than the test takes.
    """
    n, m = len(ours), len(theirs)
    ordered = np.sort(theirs)
    won = (np.searchsorted(ordered, ours, "left").sum() + np.searchsorted(ordered, ours, "right").sum()) / 2.0
    ties = np.unique(np.concatenate([ours, theirs]), return_counts=True)[1].astype(float)
    total = n + m
    variance = n * m / 12.0 * (total + 1 - (ties**3 - ties).sum() / (total * (total - 1)))
    if variance <= 0.0:  # all are equal
        return 1.0
    return 0.5 * math.erfc((won - n * m / 2.0 - 0.5) / math.sqrt(2.0 * variance))


def _smallest_p_value(ours: int, theirs: int) -> float:
    """Return the p-value if every one of our values is larger than every one of theirs."""
    return mann_whitney(np.arange(theirs, theirs + ours, dtype=float), np.arange(theirs, dtype=float))
