"""Cross-play: agents of one joint policy with partners from others, a matrix of verdicts under one permitted error.

Policies that were learned together may rely on each other: what a certificate says of the team need not hold with
partners from another seed (Hu et al. 2020). Each pairing is a test of its own, on a number of episodes that is fixed
beforehand, so that all bounds are comparable, and gets an equal part of the permitted error (Bonferroni). All pairings
have the same seeds: their differences are those of the policies, and the guarantee needs no independence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from psyco._src.core.checks import check_count, check_seed
from psyco._src.core.codec import encode
from psyco._src.core.errors import RequirementError, RunError, suggest
from psyco._src.core.wording import plural
from psyco._src.envs.agents import agents_of, groups_of
from psyco._src.envs.base import Domain
from psyco._src.envs.registry import describe
from psyco._src.logic.ast import Requirement
from psyco._src.policies.external import AnyPolicy
from psyco._src.policies.mixed import mix
from psyco._src.rollout.episodes import Stream
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.verification.base import Verdict
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.findings import AnyFinding, Finding, MeanFinding, format_bounds, format_mean
from psyco._src.verification.ledger import Ledger
from psyco._src.verification.rounding import confidence_percent, percent, rounded_down, rounded_up
from psyco._src.verification.verifier import verify

DEFAULT_EPISODES = 2000  # of each pairing
ONE_MATRIX = (
    "The error counts this one matrix: to repeat it until a pairing is SATISFIED is not covered, and no pairing takes "
    "the place of a run's certificate."
)


@dataclass(frozen=True)
class CrossPlay:
    """The matrix: the agents of each row's policy with the partners of each column's."""

    names: tuple[str, ...]  # of the policies
    policies: tuple[str, ...]  # SHA-256
    agents: tuple[str, ...]  # those that follow the row's policy
    partners: tuple[str, ...]  # those that follow the column's
    pairings: tuple[tuple[Certificate, ...], ...]  # by row and column; on the diagonal a policy with itself
    episodes: int  # of each pairing
    requirement: str
    domain: str
    parameters: dict[str, Any]
    seed: int

    @property
    def verdict(self) -> Verdict:
        """SATISFIED if all pairings are, VIOLATED if any is."""
        found = {pairing.verdict for row in self.pairings for pairing in row}
        return next(each for each in (Verdict.VIOLATED, Verdict.UNDECIDED, Verdict.SATISFIED) if each in found)

    @property
    def constraints(self) -> list[str]:
        """The constraints, one matrix for each."""
        return [found.constraint for found in self.pairings[0][0].findings]

    @cached_property
    def summary(self) -> str:
        """Whether verdicts survive partners that a policy was not learned with, in words."""
        count = len(self.names)
        places = [(i, j) for i in range(count) for j in range(count)]
        parts = {
            "with partners of its own policy": [self.pairings[i][j] for i, j in places if i == j],
            "with partners of another": [self.pairings[i][j] for i, j in places if i != j],
        }
        return "; ".join(
            f"{what}: {_counts([pairing.verdict for pairing in pairings])}" for what, pairings in parts.items()
        )

    @property
    def statement(self) -> str:
        """What the verdicts are worth."""
        guarantee = self.pairings[0][0].guarantee
        misses = [1.0 - found.interval_level for row in self.pairings for each in row for found in each.findings]
        count = plural(len(self.names) ** 2, "pairing")
        return (
            f"All {count} share one permitted error: the chance that any of them is called SATISFIED although a "
            f"constraint fails there is at most {percent(guarantee.false_accept or 0.0)}, and that any is called "
            f"VIOLATED although all hold at most {percent(guarantee.false_reject or 0.0)}. Each has {self.episodes:,} "
            f"episodes, a number fixed in advance, with the same seeds in all pairings. All bounds hold "
            f"together with a confidence of {confidence_percent(max(0.0, 1.0 - sum(misses)))}. {ONE_MATRIX}"
        )

    def __str__(self) -> str:
        lines = [
            f"{self.verdict.name}: {self.summary}",
            f"  rows: {', '.join(self.agents)} of a policy; columns: {', '.join(self.partners)} of a policy; "
            f"{self.domain}, {self.episodes:,} episodes in each pairing, seed {self.seed}",
        ]
        for k, constraint in enumerate(self.constraints):
            texts = [[f"{found.verdict.name} {pairing_text(found)}" for found in row] for row in self.findings(k)]
            lines += [f"  {constraint}", *self._aligned(texts)]
        lines += ["  return (mean ± standard error)", *self._aligned(self.returns)]
        return "\n".join([*lines, f"  {self.statement}"])

    @property
    def returns(self) -> list[list[str]]:
        """Mean return and its standard error, by row and column."""
        return [[f"{each.mean_return:.2f} ± {each.return_standard_error:.2f}" for each in row] for row in self.pairings]

    def findings(self, constraint: int) -> list[list[AnyFinding]]:
        """Return the findings of all pairings about one constraint, by row and column."""
        return [[pairing.findings[constraint] for pairing in row] for row in self.pairings]

    def _aligned(self, texts: list[list[str]]) -> list[str]:
        rows = [["", *self.names], *([name, *row] for name, row in zip(self.names, texts, strict=True))]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return ["    " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]

    def to_json(self) -> str:
        """Return everything as JSON; each pairing is a certificate."""
        answer = {"verdict": self.verdict.name, "summary": self.summary, "statement": self.statement}
        return json.dumps(answer | encode(self), indent=2, allow_nan=False) + "\n"


def pairing_text(found: AnyFinding) -> str:
    """Return the observed share or mean of a pairing, and bounds on the true value."""
    if isinstance(found, MeanFinding):
        return f"{format_mean(found)}, {format_bounds(found)}"
    return f"{observed_mean(found):.4f}, between {rounded_down(found.lower)} and {rounded_up(found.upper)}"


def observed_mean(found: AnyFinding) -> float:
    """Return the observed share of a probability, or the observed mean."""
    return found.share if isinstance(found, Finding) else found.mean


def _counts(verdicts: Sequence[Verdict]) -> str:
    counts = {each: verdicts.count(each) for each in Verdict}
    return ", ".join(f"{count} of {len(verdicts)} {each.name}" for each, count in counts.items() if count)


def crossplay(
    policies: Sequence[AnyPolicy],
    names: Sequence[str],
    domain: Domain,
    requirement: Requirement,
    *,
    agents: Sequence[str] = (),
    episodes: int = DEFAULT_EPISODES,
    seed: int = 0,
    execution: Execution = IN_PROCESS,
    progress: Callable[[int], None] | None = None,
) -> CrossPlay:
    """Test the agents of each policy with the partners of each.

    Args:
        policies: joint policies, at least two.
        names: of the policies.
        domain: where they act.
        requirement: its constraints are tested in each pairing.
        agents: names of agents or groups that follow the row's policy; default: the first agent.
        episodes: of each pairing.
        seed: of the episodes.
        execution: where they are made.
        progress: called with the number of episodes of each batch.
    """
    seed, episodes = check_seed(seed), check_count("episodes", episodes)
    if len(policies) < 2:
        raise RunError("cross-play needs two policies or more: with a single one there is no other partner")
    if not requirement.constraints:
        raise RequirementError("cross-play needs a constraint to test, such as P>=0.9 [ ... ]")
    own = _chosen_agents(agents, domain)
    digests = [policy.digest for policy in policies]
    for i, digest in enumerate(digests):
        if (first := digests.index(digest)) < i:
            raise RunError(f"{names[first]} and {names[i]} are the same policy; give different ones")
    for policy in policies:
        policy.check(domain)

    def play(i: int, j: int) -> Certificate:
        mixed = policies[i] if i == j else mix(policies[i], own, policies[j], domain)
        share = 1.0 / len(policies) ** 2
        return verify(
            mixed, domain, requirement, method="fixed", max_episodes=episodes, seed=seed, execution=execution,
            ledger=Ledger(share=lambda look: share, stream=Stream.CROSSPLAY), progress=progress,
        )  # fmt: skip

    numbers = range(len(policies))
    where = describe(domain)
    return CrossPlay(
        tuple(names),
        tuple(digests),
        own,
        tuple(each for each in agents_of(domain) if each not in own),
        tuple(tuple(play(i, j) for j in numbers) for i in numbers),
        episodes,
        str(requirement),
        where.name,
        dict(where.parameters),
        seed,
    )


def _chosen_agents(given: Sequence[str], domain: Domain) -> tuple[str, ...]:
    """Return the agents with these names or in these groups, in the order of the domain."""
    known, groups = agents_of(domain), groups_of(domain)
    if not known:
        raise RunError(f"{domain.name} has one agent; cross-play needs several, which are each other's partners")
    wanted: set[str] = set()
    for name in given or known[:1]:
        if name not in known and name not in groups:
            offered = [*known, *(group for group in groups if group not in known)]
            raise RunError(
                f"{domain.name} has no agent or group {name!r}{suggest(name, offered)}; it has: {', '.join(offered)}"
            )
        wanted |= {name} if name in known else set(groups[name])
    if len(wanted) == len(known):
        raise RunError(f"{', '.join(given)} are all agents of {domain.name}, which leaves no partner; name fewer")
    return tuple(name for name in known if name in wanted)
