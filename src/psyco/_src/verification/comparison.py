"""Compare two policies on paired episodes: show that the new one is at least as good, or that it is worse.

Episode i of both policies has one seed. Each pair gives a difference d in [-1, 1] per measure. For the formula of a
constraint d is 1, -1 or 0, and its mean p_new - p_old. For a bounded quantity d is the difference of the values as a
fraction of their range, so its mean is that of the expected values. A return needs no range: d says which policy has
the larger one, and its mean is the share of pairs won minus the share lost. The mean is tested by betting (`betting`),
which is sound for any dependence within a pair and whenever one stops. So episodes that share their random numbers need
no other test; they only tie more often.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, NamedTuple
from uuid import uuid4

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.checks import check_count, check_seed
from psyco._src.core.errors import RequirementError, RunError
from psyco._src.core.provenance import package_versions
from psyco._src.envs.base import Domain
from psyco._src.envs.registry import describe
from psyco._src.logic.ast import Constraint, Expectation, Requirement
from psyco._src.policies.external import AnyPolicy
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.episodes import (
    Episodes,
    Stream,
    check_value_ranges,
    concatenate_episodes,
    episode_keys,
    stream_key,
)
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.gym_sampler import GymSampler
from psyco._src.rollout.repeatability import pack_policy
from psyco._src.rollout.sampler import make_sampler
from psyco._src.verification.base import ACCEPT, CONTINUE, REJECT, MeanTask, Verdict
from psyco._src.verification.betting import Betting, ValueStats, Wealth, add_values, confidence_sequence
from psyco._src.verification.certificate import now
from psyco._src.verification.episode_stream import EpisodeStream, check_info_keys, episode_columns, is_rate
from psyco._src.verification.ledger import Ledger, LookTarget, single_look
from psyco._src.verification.rounding import percent, rounded_down, rounded_up
from psyco._src.verification.verifier import check_determinism, check_replays, decidable_ranges

FORMAT = "psyco-comparison-1"
DEFAULT_MARGIN = 0.05
COMPILED_BATCH, HOST_BATCH = 250, 32  # pairs
NEVER = 1e-300  # an error rate that no evidence reaches
RETURN = "pairs won by return"


class ComparisonVerdict(Enum):
    """The result of a comparison."""

    BETTER = "the new policy is better in a measure, and not worse in any"
    NOT_WORSE = "the new policy is at most the margin worse, in every measure"
    WORSE = "the new policy is worse than the margin allows, in some measure"
    UNDECIDED = "the episodes were spent before the evidence sufficed"


@dataclass(frozen=True)
class MeasureComparison:
    """The comparison of one measure, over the pairs of the whole comparison."""

    measure: str
    verdict: ComparisonVerdict
    wins: int
    losses: int
    ties: int
    new_mean: float  # of the episodes' values: a share, a mean, the mean return
    old_mean: float
    difference: float  # the observed mean of d
    lower: float  # bounds on the mean of d
    upper: float


@dataclass(frozen=True, repr=False)
class PolicyComparison:
    """The result of `psyco.compare_policies`. `print` gives a short block, `to_json` everything."""

    verdict: ComparisonVerdict
    measures: tuple[MeasureComparison, ...]
    pairs: int
    margin: float
    confidence: float
    share: float  # fraction of the permitted error for this look
    requirement: str
    domain: str
    parameters: dict[str, Any]
    new: str  # SHA-256 of the policies
    old: str
    seed: int
    seed_block: int
    max_episodes: int
    notes: tuple[str, ...]  # caveats, in sentences
    issued: str
    versions: dict[str, str]

    def to_json(self) -> str:
        """Return everything as JSON."""
        plain = asdict(self)
        plain["verdict"] = self.verdict.name
        for row, found in zip(plain["measures"], self.measures, strict=True):
            row["verdict"] = found.verdict.name
        return json.dumps({"format": FORMAT, **plain}, indent=2, default=str) + "\n"

    def __str__(self) -> str:
        verdict = self.verdict.name.replace("_", " ")
        lines = [f"{verdict}: {self.verdict.value} (margin {self.margin:g})"]
        for found in self.measures:
            lines.append(
                f"  {found.verdict.name.replace('_', ' ')}  {found.measure}: {found.new_mean:.4g} against "
                f"{found.old_mean:.4g}; {found.wins} won, {found.losses} lost, {found.ties} tied; difference "
                f"{found.difference:+.4f} ({rounded_down(found.lower)} to {rounded_up(found.upper)})"
            )
        error = (1.0 - self.confidence) * self.share
        lines += [
            f"  {self.pairs:,} pairs of episodes with common seeds in {self.domain}, seed {self.seed}, "
            f"block {self.seed_block}; new sha256:{self.new[:16]}, old sha256:{self.old[:16]}",
            f"  Each verdict, and each end of an interval, is wrong with probability at most {percent(error)}, however "
            "many pairs are looked at and whenever one stops.",
            "  Pairs won by return say nothing about the mean return: few large losses may outweigh many small wins.",
            *(f"  note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    __repr__ = __str__


class _Measure(NamedTuple):
    """The two tests of a measure and what they have said so far."""

    gate: Betting  # accepts: not worse; rejects: worse
    better: Betting
    gate_state: Wealth
    better_state: Wealth
    gate_said: int = CONTINUE
    better_said: int = CONTINUE


def compare_policies(
    new: AnyPolicy,
    old: AnyPolicy,
    domain: Domain,
    requirement: Requirement,
    *,
    margin: float = DEFAULT_MARGIN,
    confidence: float,
    max_episodes: int,
    seed: int = 0,
    execution: Execution = IN_PROCESS,
    ledger: Ledger | None = None,
    issued: str | None = None,
) -> PolicyComparison:
    """Compare a new policy with an old one on paired fresh episodes.

    With a margin above 0 the comparison ends when every measure is shown to be not worse, or one to be worse; with
    margin 0, when every measure is shown to be better, or one to be worse.

    Args:
        new: the policy that should replace the old one.
        old: the policy to compare it with.
        domain: the domain in which both act.
        requirement: its constraints, without their bounds, and the return are the measures.
        margin: how much worse the new policy may be: in probability, in part of a quantity's range, in share of pairs.
        confidence: 1 minus the permitted error of each verdict.
        max_episodes: maximum number of episodes of each policy, after which the verdict is UNDECIDED.
        seed: seed of the episodes.
        execution: where the episodes are made.
        ledger: earlier looks, and the share of the permitted error for this one; by default it is the only look.
        issued: time of issue; None: now.
    """
    if not isinstance(margin, int | float) or not 0.0 <= margin < 1.0:
        raise RunError(f"a margin is at least 0 and below 1, as in 0.05; got {margin!r}")
    if not isinstance(confidence, int | float) or not 0.0 < confidence < 1.0:
        raise RunError(f"a confidence lies between 0 and 1, as in 0.95; got {confidence!r}")
    seed, max_episodes = check_seed(seed), check_count("max_episodes", max_episodes)
    names = _measure_names(requirement)
    ranges = decidable_ranges(requirement, domain)
    policies = (new, old)
    for policy in policies:
        policy.check(domain)
        if not isinstance(policy, Policy):
            check_determinism(policy, domain, stream_key(seed, Stream.RECORD), execution)
    samplers = [make_sampler(domain, policy.network, requirement, execution=execution) for policy in policies]
    name = uuid4().hex  # both play in the same environments
    samplers = [replace(each, look=name) if isinstance(each, GymSampler) else each for each in samplers]
    packed = [pack_policy(policy) for policy in policies]
    where, ledger = describe(domain), ledger or single_look()
    # Bounds, margin and confidence don't matter: to ask again with others is another try.
    claim = json.dumps(["at least as good as", old.digest, names, *where], sort_keys=True, default=str)
    look = ledger.begin(LookTarget(claim, json.dumps(["compare", {}])), new.digest, seed)[-1]
    key = stream_key(seed, ledger.stream, look.seed_block or 0)
    streams = [
        EpisodeStream(sampler, jnp.asarray(policy.theta), key, domain, requirement)
        for sampler, policy in zip(samplers, policies, strict=True)
    ]
    spans = [span.hi - span.lo for span in ranges]
    gates = _make_measures(len(names), margin, (1.0 - confidence) * look.share)
    measures, played = _test(streams, gates, spans, max_episodes)
    ours, theirs = (_values(requirement, episodes) for episodes in played)
    differences = _differences(requirement, ours, theirs, spans)
    found = tuple(_results(names, measures, ours, theirs, differences))
    verdict = _overall([each.verdict for each in found])
    notes: list[str] = []
    for stream, policy, copy, episodes in zip(streams, policies, packed, played, strict=True):
        notes += policy.notes
        notes += check_info_keys(requirement, domain, episodes.missing_info)
        notes += check_replays(stream, policy, copy, execution, (), stream.keys_at, episodes)
    pairs = len(played[0].returns)
    code = {ComparisonVerdict.WORSE: Verdict.VIOLATED, ComparisonVerdict.UNDECIDED: Verdict.UNDECIDED}
    ended = replace(look, verdict=code.get(verdict, Verdict.SATISFIED), episodes=pairs, max_episodes=max_episodes)
    ledger.end(ended)
    return PolicyComparison(
        verdict, found, pairs, margin, confidence, look.share,
        str(requirement), where.name, dict(where.parameters), new.digest, old.digest, seed, look.seed_block or 0,
        max_episodes, tuple(dict.fromkeys(notes)), issued or now(), package_versions(),
    )  # fmt: skip


def _measure_names(requirement: Requirement) -> list[str]:
    """Return the measures; raise for an interval, in which neither more nor less is better, for rates and questions."""
    if requirement.questions:
        raise RequirementError(f"{requirement.questions[0]} is a question, which a comparison does not answer")
    names = []
    for constraint in requirement.constraints:
        if constraint.comparison == "in":
            raise RequirementError(
                f"{constraint} bounds both sides, so a policy with more of it is neither better nor worse; "
                "compare policies by a bound from one side"
            )
        if isinstance(constraint, Constraint):
            names.append(f"P [ {constraint.formula} ]")
        else:
            if is_rate(constraint):
                raise RequirementError(f"{constraint} bounds a rate; compare policies by totals or probabilities")
            if constraint.subject.cvar is not None:
                raise RequirementError(f"{constraint} bounds a CVaR; compare policies by means or probabilities")
            names.append(constraint.subject.text("=?"))
    return [*names, RETURN]


def _make_measures(count: int, margin: float, error: float) -> list[_Measure]:
    """Return the tests of all measures.

    A wrong NOT WORSE needs the gate of a measure that is worse to accept, so every gate has the whole error. A wrong
    WORSE or BETTER can come from any measure, so these claims share it.
    """
    shared = error / count
    gate = Betting(MeanTask(-1.0, 1.0, -margin, false_accept=error if margin else shared, false_reject=shared))
    better = Betting(MeanTask(-1.0, 1.0, 0.0, false_accept=shared, false_reject=NEVER))
    return [_Measure(gate, better, gate.init(), better.init()) for _ in range(count)]


def _test(
    streams: Sequence[EpisodeStream], measures: list[_Measure], spans: Sequence[float], max_episodes: int
) -> tuple[list[_Measure], list[Episodes]]:
    """Run the tests of all measures; return them, and the episodes of both policies that they consumed."""
    played: list[list[Episodes]] = []
    requirement = streams[0].requirement
    for pairs in _pairs(streams, max_episodes):
        new, old = (_values(requirement, episodes) for episodes in pairs)
        differences = _differences(requirement, new, old, spans)
        fed = [_feed_gate(each, column) for each, column in zip(measures, differences.T, strict=True)]
        worse = [used for each, used in fed if each.gate_said == REJECT]
        if worse:
            used = min(worse)
        elif all(each.gate_said == ACCEPT for each, _ in fed):
            used = max(used for _, used in fed)
        else:
            used = len(differences)
        # A gate that has decided after this pair did not see the end of the comparison.
        measures = [
            _feed_better(each if seen <= used else before, column[:used])
            for (each, seen), before, column in zip(fed, measures, differences.T, strict=True)
        ]
        played.append([jax.tree.map(lambda column, used=used: column[:used], episodes) for episodes in pairs])
        if worse or all(each.gate_said == ACCEPT for each in measures):
            break
    return measures, [concatenate_episodes(list(arm)) for arm in zip(*played, strict=True)]


def _feed_gate(measure: _Measure, values: NDArray[np.float64]) -> tuple[_Measure, int]:
    """Return the measure after its gate has seen the values, and the pair at which the gate decided, from 1; or 0."""
    if measure.gate_said != CONTINUE:
        return measure, 0
    state, used, said = measure.gate.feed(measure.gate_state, values)
    return measure._replace(gate_state=state, gate_said=said), used if said != CONTINUE else 0


def _feed_better(measure: _Measure, values: NDArray[np.float64]) -> _Measure:
    if measure.better_said != CONTINUE:
        return measure
    state, _, said = measure.better.feed(measure.better_state, values)
    return measure._replace(better_state=state, better_said=said)


def _pairs(streams: Sequence[EpisodeStream], max_episodes: int) -> Iterator[list[Episodes]]:
    """Yield batches of episodes of both policies, with common seeds."""
    size = COMPILED_BATCH if all(stream.sampler.compiled for stream in streams) else HOST_BATCH
    for first in range(0, max_episodes, size):
        count = min(size, max_episodes - first)
        pairs = [jax.device_get(concatenate_episodes(list(stream.sample(count, first=first)))) for stream in streams]
        for stream, episodes in zip(streams, pairs, strict=True):
            keys = episode_keys(stream.key, first, count)
            check_value_ranges(episodes, stream.requirement, stream.domain, keys)
        yield pairs


def _values(requirement: Requirement, episodes: Episodes) -> NDArray[np.float64]:
    """Return the value of each episode in each measure, `[B, measures]`."""
    columns = episode_columns(requirement, episodes)[: len(requirement.constraints)]
    return np.stack([np.asarray(column, np.float64) for column in (*columns, episodes.returns)], axis=1)


def _differences(
    requirement: Requirement, new: NDArray[np.float64], old: NDArray[np.float64], spans: Sequence[float]
) -> NDArray[np.float64]:
    """Return d of each pair and measure, `[B, measures]`; above 0 the new policy is better.

    Args:
        requirement: has the constraints.
        new: values of the new policy `[B, measures]`.
        old: values of the old policy.
        spans: widths of the ranges of the quantities, in their order.
    """
    wide = iter(spans)
    columns = []
    for constraint, difference in zip(requirement.constraints, (new - old).T, strict=False):
        if isinstance(constraint, Expectation):
            difference = difference / next(wide)
        columns.append(-difference if constraint.comparison in ("<=", "<") else difference)
    won = np.sign(new[:, -1] - old[:, -1])
    columns.append(won if requirement.goal.maximize else -won)
    return np.clip(np.stack(columns, axis=1), -1.0, 1.0)  # rounding may lead out by a little


def _results(
    names: Sequence[str],
    measures: Sequence[_Measure],
    new: NDArray[np.float64],
    old: NDArray[np.float64],
    differences: NDArray[np.float64],
) -> Iterator[MeasureComparison]:
    for k, (name, measure) in enumerate(zip(names, measures, strict=True)):
        d, task = differences[:, k], measure.gate.task
        if measure.gate_said == REJECT:
            verdict = ComparisonVerdict.WORSE
        elif measure.better_said == ACCEPT:
            verdict = ComparisonVerdict.BETTER
        elif measure.gate_said == ACCEPT:
            verdict = ComparisonVerdict.NOT_WORSE
        else:
            verdict = ComparisonVerdict.UNDECIDED
        yield MeasureComparison(
            name, verdict, int((d > 0).sum()), int((d < 0).sum()), int((d == 0).sum()),
            float(new[:, k].mean()), float(old[:, k].mean()), float(d.mean()),
            *confidence_sequence(task, add_values(task, ValueStats(), d), task.false_accept),
        )  # fmt: skip


def _overall(verdicts: Sequence[ComparisonVerdict]) -> ComparisonVerdict:
    if ComparisonVerdict.WORSE in verdicts:
        return ComparisonVerdict.WORSE
    if ComparisonVerdict.UNDECIDED in verdicts:
        return ComparisonVerdict.UNDECIDED
    return ComparisonVerdict.BETTER if ComparisonVerdict.BETTER in verdicts else ComparisonVerdict.NOT_WORSE
