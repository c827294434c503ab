"""V(m, φ, θ): which of the policies from late in learning is certified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from psyco._src.certify.certificate import Certificate
from psyco._src.certify.ledger import Ledger
from psyco._src.certify.verify import certify_candidates, constraint_outcomes, sample
from psyco._src.errors import EpisodeError
from psyco._src.policy.file import Policy, policy_for
from psyco._src.rollout.episodes import Stream, stream_key
from psyco._src.smc.base import Counts, Verdict
from psyco._src.smc.bayes import posterior_mass
from psyco._src.synthesis.loop import Position, Sink
from psyco._src.synthesis.problem import Problem


class Candidate(NamedTuple):
    """A policy from late in learning, and how it did on the episodes of the selection."""

    generation: int
    policy: Policy
    episodes: int  # that it played; 0: there was nothing to select from
    satisfied: tuple[int, ...]  # in how many of them each constraint's formula held
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
        parts = list(sample(problem.sampler, jnp.asarray(theta), key, settings.selection_episodes))
        n = settings.selection_episodes
        returns = np.concatenate([part.ret for part in parts])[:n].astype(np.float64)
        satisfied = np.concatenate([part.satisfied for part in parts])[:n]
        hits = tuple(map(int, constraint_outcomes(requirement, satisfied).sum(axis=0)))
        belief = [
            float(posterior_mass(Counts(s, n - s), c.lower, c.upper))
            for s, c in zip(hits, requirement.constraints, strict=True)
        ]
        enough = all(b >= c.confidence for b, c in zip(belief, requirement.constraints, strict=True))
        mean = float(returns.mean())
        candidates.append(Candidate(generation, policy, n, hits, mean, min(belief, default=1.0), enough))
    return sorted(
        candidates, key=lambda c: (c.enough, sign * c.mean_return if c.enough else c.confidence), reverse=True
    )


def remark(certificate: Certificate, candidate: Candidate | None = None) -> str:
    """What stood in the way of a certificate and what would help; empty if there is one.

    Args:
        certificate: of the policy that came closest.
        candidate: how that policy did in the selection, which may have played many more episodes.
    """
    if certificate.verdict is Verdict.SATISFIED:
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
        held = f"it held in {finding.satisfied:,} of {finding.episodes:,} episodes of the test"
        if candidate is not None and candidate.episodes:
            share = candidate.satisfied[k] / candidate.episodes
            held += f", and in {candidate.satisfied[k]:,} of {candidate.episodes:,} of the selection ({share:.4f})"
        lines.append(f"{finding.constraint}: {held}; the probability lies {finding.interval}.")
        close = close and finding.verdict is Verdict.UNDECIDED
    lines.append(
        f"It may be good enough; {certificate.advice}. More training episodes would make it better."
        if close
        else "More training episodes may help. If they don't, the requirement may be out of reach in this domain: "
        "ask for a lower probability, or weaken the formula."
    )
    return "\n".join(lines)
