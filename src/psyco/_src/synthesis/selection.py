"""V(m, φ, θ): which of the policies from late in learning is certified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from psyco._src.certify.certificate import Certificate
from psyco._src.certify.findings import Finding, MeanFinding
from psyco._src.certify.further import play
from psyco._src.certify.ledger import Ledger
from psyco._src.certify.source import Source
from psyco._src.certify.verify import certify_candidates
from psyco._src.errors import EpisodeError
from psyco._src.policy.file import Policy, policy_for
from psyco._src.rollout.episodes import Stream, stream_key
from psyco._src.smc.base import Verdict, observed
from psyco._src.smc.bayes import belief
from psyco._src.synthesis.loop import Position, Sink
from psyco._src.synthesis.problem import Problem


class Candidate(NamedTuple):
    """A policy from late in learning, and how it did on the episodes of the selection."""

    generation: int
    policy: Policy
    episodes: int  # that it played; 0: there was nothing to select from
    found: tuple[float, ...]  # of each constraint: the share of them in which its formula held, or the mean
    mean_return: float
    confidence: float  # that the constraint which is believed in the least holds
    enough: bool  # every constraint is believed in as much as is required


class Certified(NamedTuple):
    """The outcome of a run."""

    policy: Policy
    certificate: Certificate
    candidate: Candidate  # how this policy did in the selection


def certified(
    problem: Problem,
    at: Position,
    sinks: Sequence[Sink] = (),
    *,
    issued: str | None = None,
    ledger: Ledger | None = None,
) -> Certified:
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
        return _certified(problem, at, issued, ledger or Ledger(stream=Stream.CERTIFY))
    except EpisodeError:
        for sink in sinks:
            sink.stopped(problem, at)
        raise


def _certified(problem: Problem, at: Position, issued: str | None, ledger: Ledger) -> Certified:
    settings = problem.settings
    candidates = ranked(problem, at)[: settings.attempts]
    chosen, certificate = certify_candidates(
        [candidate.policy for candidate in candidates], problem.domain, problem.requirement,
        method=settings.method, max_episodes=settings.max_episodes, seed=settings.seed, issued=issued,
        execution=problem.execution, ledger=ledger,
    )  # fmt: skip
    return Certified(candidates[chosen].policy, certificate, candidates[chosen])


def ranked(problem: Problem, at: Position) -> list[Candidate]:
    """The candidates in the order in which they should be certified.

    All play the same episodes, of a stream that nothing else uses. Those whose satisfaction looks sufficient come
    first, the best by return before the others; the rest follow by how much they are believed in.
    """
    settings, requirement = problem.settings, problem.requirement
    kept = problem.keeper.kept(at.state)
    sign = 1.0 if requirement.goal.maximize else -1.0
    key = stream_key(settings.seed, Stream.SELECT)
    candidates = []
    for generation, theta in kept:
        policy = policy_for(problem.domain, problem.network, theta)
        if len(kept) == 1:
            return [Candidate(generation, policy, 0, (), 0.0, 0.0, True)]
        source = Source(problem.sampler, jnp.asarray(theta), key, problem.domain, requirement)
        candidates.append(_tried(source, generation, policy, settings.selection_episodes))
    return sorted(
        candidates, key=lambda c: (c.enough, sign * c.mean_return if c.enough else c.confidence), reverse=True
    )


def _tried(source: Source, generation: int, policy: Policy, count: int) -> Candidate:
    """How a candidate does in so many episodes."""
    tests, progress, returns = play(source, count)
    beliefs = list(map(belief, tests, progress))
    found = tuple(map(observed, tests, progress))
    enough = all(b >= c.confidence for b, c in zip(beliefs, source.requirement.constraints, strict=True))
    return Candidate(
        generation, policy, count, found, float(returns.mean()), min(beliefs, default=1.0), enough
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
