"""V(m, φ, θ): which of the policies from late in learning is certified."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from psyco._src.verification.certificate import Certificate
from psyco._src.verification.findings import Finding, MeanFinding
from psyco._src.verification.estimation import play
from psyco._src.verification.ledger import Ledger
from psyco._src.verification.episode_stream import EpisodeStream
from psyco._src.verification.verifier import certify_candidates, no_checks, rows_of, shown_by
from psyco._src.core.errors import EpisodeError, RangeError
from psyco._src.policies.serialization import Policy, policy_for
from psyco._src.rollout.episodes import Stream, stream_key
from psyco._src.verification.base import Verdict, observed
from psyco._src.verification.bayes import belief
from psyco._src.runs.train import TrainingState, Callback, teller
from psyco._src.runs.problem import Problem
from psyco._src.runs.settings import Settings

HOPELESS = 0.01  # a test with a smaller chance to end well is ended, where episodes cost time


class Candidate(NamedTuple):
    """A policy from late in learning, and how it did on the episodes of the selection."""

    generation: int
    policy: Policy
    episodes: int  # that it played; 0: there was nothing to select from
    found: tuple[float, ...]  # of each constraint: the share of them in which its formula held, or the mean
    mean_return: float
    confidence: float  # that the constraint which is believed in the least holds
    enough: bool  # every constraint is believed in as much as is required


class CertifiedPolicy(NamedTuple):
    """The outcome of a run."""

    policy: Policy
    certificate: Certificate
    candidate: Candidate  # how this policy did in the selection


def certified(
    problem: Problem,
    at: TrainingState,
    sinks: Sequence[Callback] = (),
    *,
    issued: str | None = None,
    ledger: Ledger | None = None,
) -> CertifiedPolicy:
    """Certify the best candidate on fresh episodes, and if it fails the next; the error is shared.

    Without a certificate the policy is the candidate that came closest, and the certificate says how close.

    Args:
        problem: the run.
        at: where learning ended.
        sinks: who is told if an episode fails.
        issued: the certificate's time, if not now.
        ledger: of the looks at this run; by default there were none. Each look leaves something for a later one.
    """
    try:
        return _certified(problem, at, issued, ledger or Ledger(stream=Stream.CERTIFY), sinks)
    except EpisodeError:
        for sink in sinks:
            sink.stopped(problem, at)
        raise


def _certified(
    problem: Problem,
    at: TrainingState,
    issued: str | None,
    ledger: Ledger,
    sinks: Sequence[Callback],
) -> CertifiedPolicy:
    settings = problem.settings
    candidates = ranked(problem, at, sinks)[: settings.attempts]
    told = teller(sinks, "certifying", settings.max_episodes * len(candidates))
    chosen, certificate = certify_candidates(
        [candidate.policy for candidate in candidates], problem.domain, problem.requirement,
        method=settings.method, max_episodes=settings.max_episodes, seed=settings.seed, issued=issued,
        execution=problem.execution, ledger=ledger, told=told,
        give_up=0.0 if problem.sampler.compiled else HOPELESS,
    )  # fmt: skip
    return CertifiedPolicy(candidates[chosen].policy, certificate, candidates[chosen])


class RacingCandidate(NamedTuple):
    """A candidate in the race."""

    generation: int
    policy: Policy
    source: EpisodeStream


def ranked(problem: Problem, at: TrainingState, sinks: Sequence[Callback] = ()) -> list[Candidate]:
    """The candidates in the order in which they should be certified.

    All play the same episodes, of a stream that nothing else uses. Those whose satisfaction looks sufficient come
    first, the best by return before the others; the rest follow by how much they are believed in. Where episodes cost
    time it is a race.
    """
    settings, requirement = problem.settings, problem.requirement
    kept = problem.keeper.kept(at.state)
    sign = 1.0 if requirement.goal.maximize else -1.0
    key = stream_key(settings.seed, Stream.SELECT)
    told = teller(sinks, "selecting", len(kept) * settings.selection_episodes)
    runners = []
    for generation, theta in kept:
        policy = policy_for(problem.domain, problem.network, theta)
        if len(kept) == 1:
            return [Candidate(generation, policy, 0, (), 0.0, 0.0, True)]
        source = EpisodeStream(problem.sampler, jnp.asarray(theta), key, problem.domain, requirement, told)
        runners.append(RacingCandidate(generation, policy, source))
    if not problem.sampler.compiled:
        return _raced(runners, settings, sign)
    candidates = [_tried(runner, settings.selection_episodes) for runner in runners]
    return sorted(
        candidates, key=lambda c: (c.enough, sign * c.mean_return if c.enough else c.confidence), reverse=True
    )


def _raced(runners: Sequence[RacingCandidate], settings: Settings, sign: float) -> list[Candidate]:
    """Halving: all play a quarter of the episodes, the better half of them half, and the best of these all of them.

    As many stay as may be certified, and the race is over as soon as their order is clear.
    """
    most = settings.selection_episodes
    rows = [no_checks(runner.source.requirement) for runner in runners]
    alive, left, tried = list(range(len(runners))), list[int](), dict[int, Candidate]()
    for size in sorted({-(-most // 4), -(-most // 2), most}):
        for i in alive:
            rows[i] = _played(runners[i], rows[i], size)
            tried[i] = _seen_in(runners[i], rows[i][:size])
        alive.sort(key=lambda i: _rank(tried[i], sign), reverse=True)
        stay = max(settings.attempts, -(-len(alive) // 2))
        if size < most:
            alive, left = alive[:stay], [*alive[stay:], *left]
        pairs = itertools.pairwise(alive)
        if all(_is_clear(tried[i], tried[j], sign * (rows[i] - rows[j])[:size, 0]) for i, j in pairs):
            break
    return [tried[i] for i in (*alive, *left)]


def _rank(candidate: Candidate, sign: float) -> tuple[bool, float, float]:
    better = sign * candidate.mean_return
    return candidate.enough, better if candidate.enough else candidate.confidence, better


def _is_clear(first: Candidate, second: Candidate, ahead: NDArray[np.float64]) -> bool:
    """Whether more episodes would hardly change that the first comes before the second."""
    if first.enough and second.enough:
        return bool(ahead.mean() > 3.0 * ahead.std() / np.sqrt(len(ahead)))
    return second.confidence < (0.5 if first.enough else 0.05)


def _played(runner: RacingCandidate, rows: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The rows of at least so many episodes of a candidate, those that there are and further ones."""
    if len(rows) < size:
        source = runner.source
        for episodes in source.sample(size - len(rows), first=len(rows)):
            further = rows_of(source.requirement, episodes)
            try:
                shown_by(source.requirement, source.spans, further)
            except RangeError as error:
                source.refuse(error, episodes, first=len(rows))
                raise
            rows = np.concatenate([rows, further])
    return rows


def _seen_in(runner: RacingCandidate, rows: NDArray[np.float64]) -> Candidate:
    """How a candidate did in these episodes."""
    source = runner.source
    shown = shown_by(source.requirement, source.spans, rows)
    return _candidate(runner, len(rows), shown.tests, shown.progress, rows[:, 0])


def _tried(runner: RacingCandidate, count: int) -> Candidate:
    """How a candidate does in so many episodes."""
    return _candidate(runner, count, *play(runner.source, count))


def _candidate(
    runner: RacingCandidate, count: int, tests: list[Any], progress: list[Any], returns: NDArray[np.float64]
) -> Candidate:
    beliefs = list(map(belief, tests, progress))
    found = tuple(map(observed, tests, progress))
    constraints = runner.source.requirement.constraints
    enough = all(b >= c.confidence for b, c in zip(beliefs, constraints, strict=True))
    return Candidate(
        runner.generation,
        runner.policy,
        count,
        found,
        float(returns.mean()),
        min(beliefs, default=1.0),
        enough,
    )


def remark(certificate: Certificate, candidate: Candidate | None = None) -> str:
    """What stood in the way of a certificate and what would help; empty if there is one.

    Args:
        certificate: of the policy that came closest.
        candidate: how that policy did in the selection, which may have played many more episodes.
    """
    if certificate.verdict in (Verdict.SATISFIED, Verdict.ANSWERED):
        return ""
    tried = len(certificate.looks)
    lines = [
        f"No policy was certified: {tried} {'candidate was' if tried == 1 else 'candidates were'} tried, "
        "and the one that came closest is returned."
    ]
    close = True
    for k, finding in enumerate(certificate.findings):
        if finding.verdict is Verdict.SATISFIED:
            continue
        lines.append(
            f"{finding.constraint}: {_seen(finding, k, candidate)}; the {finding.about} lies {finding.interval}."
        )
        close = close and finding.verdict is Verdict.UNDECIDED
    lines.append(
        f"It may be good enough; {certificate.advice}. More training episodes would make it better."
        if close
        else "More training episodes may help. If they don't, the requirement may be out of reach in this domain: "
        "ask for a lower probability, or weaken the formula."
    )
    return "\n".join(lines)


def _seen(finding: Finding | MeanFinding, k: int, candidate: Candidate | None) -> str:
    """How a constraint did in the test and in the selection."""
    if isinstance(finding, Finding):
        test = f"it held in {finding.satisfied:,} of {finding.episodes:,} episodes of the test"
    else:
        test = f"the mean of {finding.episodes:,} episodes of the test is {finding.mean:.4g}"
    if candidate is None or not candidate.episodes:
        return test
    n, found = candidate.episodes, candidate.found[k]
    if isinstance(finding, Finding):
        return f"{test}, and in {round(found * n):,} of {n:,} of the selection ({found:.4f})"
    return f"{test}, that of {n:,} of the selection {found:.4g}"
