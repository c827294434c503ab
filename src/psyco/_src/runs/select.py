"""V(m, φ, θ): rank the candidates from late in learning, and certify the best of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import EpisodeError, RangeError
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.episodes import Episodes, Stream, stream_key
from psyco._src.runs.baselines import NO_REFERENCES, UNIMPROVED, Baselines, compare_with_baselines
from psyco._src.runs.problem import Problem
from psyco._src.runs.settings import Settings
from psyco._src.runs.train import Callback, TrainingState, initial_candidate, progress_reporter
from psyco._src.verification.base import Verdict
from psyco._src.verification.bayes import belief
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.episode_stream import EpisodeStream
from psyco._src.verification.estimation import run_fixed_sample
from psyco._src.verification.findings import AnyFinding, Finding
from psyco._src.verification.ledger import Ledger
from psyco._src.verification.tally import observed_value
from psyco._src.verification.verifier import certify_candidates, empty_rows, episode_rows, evaluate_rows

# If episodes cost time, a test ends once the probability that it will still accept is smaller than this.
MIN_ACCEPT_PROBABILITY = 0.01
START_GENERATION = 0  # of the policy that learning started from


class Candidate(NamedTuple):
    """A policy from late in learning, and its results in the episodes of the selection."""

    generation: int  # `START_GENERATION`: learning started from it
    policy: Policy
    episodes: int  # episodes of the selection; 0: it was the only candidate
    observed: tuple[float, ...]  # per constraint: share of episodes that satisfied its formula, or the mean
    mean_return: float
    confidence: float  # posterior confidence in the constraint with the lowest one
    sufficient: bool  # the confidence in every constraint is at least the required one


class CertifiedPolicy(NamedTuple):
    """The outcome of a run."""

    policy: Policy
    certificate: Certificate
    candidate: Candidate
    baselines: Baselines | None


def certify_best(
    problem: Problem,
    at: TrainingState,
    callbacks: Sequence[Callback] = (),
    *,
    issued: str | None = None,
    ledger: Ledger | None = None,
    references: Mapping[str, Policy] = NO_REFERENCES,
) -> CertifiedPolicy:
    """Certify the best candidate on fresh episodes; if it fails, try the next. They share the permitted error.

    If all of them fail, return the candidate that came closest, with a certificate that says how close.

    Args:
        problem: the problem.
        at: state of training at its end.
        callbacks: receive progress, and the error if an episode fails.
        issued: time of the certificate; default: now.
        ledger: earlier looks at this run; default: none. Each look leaves a part of the error for a later one.
        references: other policies to compare the certified one with, by name.
    """
    settings = problem.settings

    def report_batch(first: int, episodes: Episodes) -> None:
        for callback in callbacks:
            callback.on_look(first, episodes)

    try:
        candidates = rank_candidates(problem, at, callbacks)[: settings.attempts]
        chosen, certificate, episodes = certify_candidates(
            [candidate.policy for candidate in candidates],
            problem.domain,
            problem.requirement,
            method=settings.method,
            max_episodes=settings.max_episodes,
            seed=settings.seed,
            issued=issued,
            execution=problem.execution,
            ledger=ledger or Ledger(stream=Stream.CERTIFY),
            progress=progress_reporter(callbacks, "certifying", settings.max_episodes * len(candidates)),
            min_accept_probability=0.0 if problem.sampler.compiled else MIN_ACCEPT_PROBABILITY,
            value_ranges=problem.value_ranges,
            sampler=problem.verification_sampler,
            on_batch=report_batch,
        )
    except EpisodeError:
        for callback in callbacks:
            callback.on_error(problem, at)
        raise
    unimproved = problem.initial_policy is not None and candidates[chosen].generation == START_GENERATION
    # Episodes may be much shorter than the horizon, by which a budget in steps is counted before.
    training = at.generation * problem.learner.episodes_per_generation if settings.steps else None
    baselines = compare_with_baselines(
        problem, episodes, references, training=training, unimproved=unimproved, callbacks=callbacks
    )
    if baselines is not None:
        certificate = dataclasses.replace(certificate, notes=(baselines.note, *certificate.notes))
    return CertifiedPolicy(candidates[chosen].policy, certificate, candidates[chosen], baselines)


# ---- selection ----------------------------------------------------------------------------------------------


class RacingCandidate(NamedTuple):
    """A candidate and its stream of episodes."""

    generation: int
    policy: Policy
    source: EpisodeStream


def rank_candidates(problem: Problem, at: TrainingState, callbacks: Sequence[Callback] = ()) -> list[Candidate]:
    """Return the candidates in the order in which they should be certified.

    All play the same episodes, of a stream that nothing else uses. Candidates with sufficient confidence come first,
    ordered by return; the others follow, ordered by confidence. If episodes cost time, the candidates race.
    """
    settings, requirement = problem.settings, problem.requirement
    kept = problem.wrapped_learner.kept(at.state)
    if problem.initial_policy is not None:  # learning may have made it worse
        kept.append((START_GENERATION, initial_candidate(problem).theta))
    if len(kept) == 1:
        [(generation, theta)] = kept
        return [Candidate(generation, problem.policy(theta), 0, (), 0.0, 0.0, True)]
    key = stream_key(settings.seed, Stream.SELECT)
    progress = progress_reporter(callbacks, "selecting", len(kept) * settings.selection_episodes)
    racing = [
        RacingCandidate(
            generation,
            problem.policy(theta),
            EpisodeStream(
                problem.verification_sampler,
                jnp.asarray(theta),
                key,
                problem.domain,
                requirement,
                progress,
                problem.value_ranges,
            ),
        )
        for generation, theta in kept
    ]
    sign = 1.0 if requirement.goal.maximize else -1.0
    if not problem.sampler.compiled:
        return _race(racing, settings, sign)
    candidates = [_evaluate(candidate, settings.selection_episodes) for candidate in racing]
    return sorted(
        candidates,
        key=lambda c: (c.sufficient, sign * c.mean_return if c.sufficient else c.confidence),
        reverse=True,
    )


def _race(racing: Sequence[RacingCandidate], settings: Settings, sign: float) -> list[Candidate]:
    """Rank candidates by successive halving.

    All play a quarter of the episodes, the better half of them plays half, and the best of these play all. As many stay
    as may be certified, and the race ends as soon as their order is clear.
    """
    most = settings.selection_episodes
    rows = [empty_rows(candidate.source.requirement) for candidate in racing]
    remaining, dropped, results = list(range(len(racing))), list[int](), dict[int, Candidate]()
    for size in sorted({-(-most // 4), -(-most // 2), most}):
        for i in remaining:
            rows[i] = _extend_rows(racing[i], rows[i], size)
            results[i] = _evaluate_rows(racing[i], rows[i][:size])
        remaining.sort(key=lambda i: _sort_key(results[i], sign), reverse=True)
        stay = max(settings.attempts, -(-len(remaining) // 2))
        if size < most:
            remaining, dropped = remaining[:stay], [*remaining[stay:], *dropped]
        pairs = itertools.pairwise(remaining)
        if all(_is_order_clear(results[i], results[j], sign * (rows[i] - rows[j])[:size, 0]) for i, j in pairs):
            break
    return [results[i] for i in (*remaining, *dropped)]


def _sort_key(candidate: Candidate, sign: float) -> tuple[bool, float, float]:
    score = sign * candidate.mean_return
    return candidate.sufficient, score if candidate.sufficient else candidate.confidence, score


def _is_order_clear(first: Candidate, second: Candidate, lead: NDArray[np.float64]) -> bool:
    """Whether more episodes would hardly change the order; `lead` is the difference of returns, `[n]`."""
    if first.sufficient and second.sufficient:
        return bool(lead.mean() > 3.0 * lead.std() / np.sqrt(len(lead)))
    return second.confidence < (0.5 if first.sufficient else 0.05)


def _extend_rows(candidate: RacingCandidate, rows: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return the rows of at least `size` episodes of a candidate: `rows`, and further episodes if needed."""
    if len(rows) < size:
        source = candidate.source
        for episodes in source.sample(size - len(rows), first=len(rows)):
            further = episode_rows(source.requirement, episodes)
            try:
                evaluate_rows(source.requirement, source.value_ranges, further)
            except RangeError as error:
                source.raise_range_error(error, episodes, first=len(rows))
                raise
            rows = np.concatenate([rows, further])
    return rows


def _evaluate_rows(candidate: RacingCandidate, rows: NDArray[np.float64]) -> Candidate:
    source = candidate.source
    outcome = evaluate_rows(source.requirement, source.value_ranges, rows)
    return _result(candidate, len(rows), outcome.tests, outcome.tallies, rows[:, 0])


def _evaluate(candidate: RacingCandidate, episodes: int) -> Candidate:
    made = run_fixed_sample(candidate.source, episodes)
    return _result(candidate, episodes, made.tests, made.tallies, made.returns)


def _result(
    candidate: RacingCandidate, episodes: int, tests: list[Any], tallies: list[Any], returns: NDArray[Any]
) -> Candidate:
    beliefs = list(map(belief, tests, tallies))
    constraints = candidate.source.requirement.constraints
    return Candidate(
        candidate.generation,
        candidate.policy,
        episodes,
        observed=tuple(map(observed_value, tests, tallies)),
        mean_return=float(returns.mean()),
        confidence=min(beliefs, default=1.0),
        sufficient=all(b >= c.confidence for b, c in zip(beliefs, constraints, strict=True)),
    )


# ---- the remark on a run without a certificate --------------------------------------------------------------


def remark(certificate: Certificate, candidate: Candidate | None = None, baselines: Baselines | None = None) -> str:
    """Return why there is no certificate, and what would help; empty if there is one.

    Args:
        certificate: certificate of the policy that came closest.
        candidate: results of that policy in the selection, which may have played many more episodes.
        baselines: of the same run; constraints that one of them meets are not called out of reach.
    """
    if certificate.verdict in (Verdict.SATISFIED, Verdict.ANSWERED):
        return ""
    tried = len(certificate.looks)
    lines = [
        "No policy was certified: 1 candidate was tried, and it is returned."
        if tried == 1
        else f"No policy was certified: {tried} candidates were tried, and the one that came closest is returned."
    ]
    if candidate is not None and candidate.generation == START_GENERATION:
        lines.append(UNIMPROVED)
    undecided, others = True, baselines.others if baselines else ()
    met = [each.name for each in others if each.within_bounds]
    for k, finding in enumerate(certificate.findings):
        if finding.verdict is Verdict.SATISFIED:
            continue
        lines.append(
            f"{finding.constraint}: {_describe_finding(finding, k, candidate)}; "
            f"the {finding.estimand} lies {finding.interval}."
        )
        undecided = undecided and finding.verdict is Verdict.UNDECIDED
    lines.append(
        f"It may be good enough; {certificate.advice}. More training episodes would make it better."
        if undecided
        else f"More training episodes may help: the episodes of {' and '.join(met)} met the constraints."
        if met
        else "More training episodes may help. If they don't, the requirement may be out of reach in this domain: "
        "ask for a lower probability, or weaken the formula."
    )
    return "\n".join(lines)


def _describe_finding(finding: AnyFinding, k: int, candidate: Candidate | None) -> str:
    """Return the results for constraint k in the test and in the selection, in words."""
    if isinstance(finding, Finding):
        test = f"it held in {finding.satisfied:,} of {finding.episodes:,} episodes of the test"
    else:
        test = f"the {finding.statistic} of {finding.episodes:,} episodes of the test is {finding.mean:.4g}"
    if candidate is None or not candidate.episodes:
        return test
    n, observed = candidate.episodes, candidate.observed[k]
    if isinstance(finding, Finding):
        return f"{test}, and in {round(observed * n):,} of {n:,} of the selection ({observed:.4f})"
    return f"{test}, that of {n:,} of the selection {observed:.4g}"
