"""The worst environment that a search finds in a family, and a sound statement about that one.

SciPy's differential evolution searches the parameters. Candidates race: one whose probability is clearly above that of
the worst so far plays no further episodes. A candidate is a member of the family, the nearest of many that are drawn
beforehand, so all samplers can play it. The statement is tested on fresh episodes, after the member is fixed.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.checks import check_count, check_seed
from psyco._src.core.codec import encode
from psyco._src.core.errors import RequirementError
from psyco._src.core.wording import plural
from psyco._src.envs.base import Domain
from psyco._src.envs.family import (
    check_member,
    member_parameters,
    values_of_members,
    vary_parameters,
)
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.registry import DomainDescription, describe
from psyco._src.envs.variants import describe_family, is_family
from psyco._src.logic.ast import Constraint, Requirement
from psyco._src.logic.validate import refuse_intervals
from psyco._src.policies.external import AnyPolicy
from psyco._src.rollout.episodes import Episodes, Stream, stream_key
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.sampler import make_sampler
from psyco._src.verification.anytime import confidence_sequence, lower_bound
from psyco._src.verification.base import Counts, Verdict
from psyco._src.verification.episode_stream import EpisodeStream
from psyco._src.verification.findings import AnyFinding, joint_guarantee, make_findings
from psyco._src.verification.ledger import Ledger, make_target, single_look
from psyco._src.verification.member_stream import MemberStream, draw_members
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD
from psyco._src.verification.rounding import confidence_percent, rounded_down, rounded_up
from psyco._src.verification.verifier import decidable_ranges, verify_parameters

DEFAULT_SEARCH_EPISODES = 20_000
POOL, HOST_POOL = 16_384, 4_096  # members that candidates are taken from
POPULATION = 32  # candidates of a generation of the search
MAX_CORNERS = 16  # corners of the box that the search starts from, beside a Latin hypercube
MAX_ROUNDS = 4  # batches of episodes of one candidate in one generation
RACE_ERROR = 0.05  # of the bounds by which candidates are dropped; it only guides the search
FINALISTS = 12  # candidates that play further episodes at the end of the search; one after the other drops out
FINAL_SHARE = 0.25  # of the episodes of the search
CLAIM = (
    "It is the worst that the search found. Environments that it did not try may be worse: nothing is said about them."
)
ONE_SEARCH = (
    "The error counts this one search only: to repeat the search until it ends in SATISFIED is not covered. A run "
    "keeps an account of its searches: give its folder instead of a policy."
)
SEARCH = "the worst environment that a search finds"  # in the statement of a look


@dataclass(frozen=True)
class TriedEnvironment:
    """A member of the family, and its episodes in the search."""

    member: int
    parameters: dict[str, float]
    satisfied: int
    violated: int

    @property
    def share(self) -> float:
        """Share of satisfying episodes; after a search for the lowest it is too low on average."""
        return self.satisfied / (self.satisfied + self.violated)

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds on its probability at 95%, of this environment alone."""
        return confidence_sequence(Counts(self.satisfied, self.violated), 0.025)


@dataclass(frozen=True)
class StressResult:
    """The worst environment that was found, and what fresh episodes show about it."""

    verdict: Verdict  # of the requirement in that environment
    found: TriedEnvironment
    findings: tuple[AnyFinding, ...]  # from fresh episodes in that environment
    statement: str
    tried: tuple[TriedEnvironment, ...]  # the worst first
    search_episodes: int
    requirement: str
    domain: str
    parameters: dict[str, Any]
    policy: str  # SHA-256
    seed: int

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value:.6g}" for name, value in self.found.parameters.items())
        lines = [f"{self.verdict.name} in the worst environment that was found: {values} (member {self.found.member})"]
        for f in self.findings:
            lines += [
                f"  {f.constraint}",
                f"    {f.verdict.name} after {plural(f.episodes, 'fresh episode')}: {f.observed}",
                f"    {f.estimand} {f.interval}",
            ]
        low, high = self.found.interval
        lines += [
            f"  the search: {plural(len(self.tried), 'environment')}, {plural(self.search_episodes, 'episode')}; in "
            f"this one {self.found.satisfied:,} of {self.found.satisfied + self.found.violated:,} satisfied",
            f"    by itself between {rounded_down(low)} and {rounded_up(high)} (95%), but too low on average, since "
            "the search chose the lowest",
            f"  {self.statement}",
        ]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the result as JSON."""
        return json.dumps(encode(self), indent=2, allow_nan=False) + "\n"


def stress(
    policy: AnyPolicy,
    domain: Domain,
    requirement: Requirement,
    *,
    search_episodes: int = DEFAULT_SEARCH_EPISODES,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    ledger: Ledger | None = None,
    execution: Execution = IN_PROCESS,
    progress: Callable[[int], None] | None = None,
) -> StressResult:
    """Search a family for the environment with the lowest probability, and test the requirement in it.

    Args:
        policy: the policy.
        domain: the family.
        requirement: its constraints on probabilities are searched for the lowest probability that all of them hold.
        search_episodes: number of episodes of the search, roughly.
        max_episodes: maximum number of fresh episodes of the statement.
        seed: of search and episodes.
        ledger: earlier searches at this run, which share one permitted error; None: this is the only one.
        execution: where episodes are made.
        progress: called with the number of episodes of each batch.
    """
    seed, search_episodes = check_seed(seed), check_count("search_episodes", search_episodes)
    if not is_family(domain):
        raise RequirementError(
            f"{domain.name} is a single environment; say which parameters vary, and how",
            advice="psyco.vary(domain, max_speed=(0.08, 0.12)), or --vary max_speed=0.08..0.12",
        )
    plain = tuple(
        dataclasses.replace(each, environments=None) if isinstance(each, Constraint) else each
        for each in requirement.constraints
    )
    requirement = Requirement(requirement.goal, plain)
    if not requirement.probability_constraints:
        raise RequirementError("a search for the worst environment needs a constraint on a probability, P>=p [ ... ]")
    refuse_intervals(requirement, "a search for the worst environment needs to know which side is the worse one")
    ranges = decidable_ranges(requirement, domain)
    policy.check(domain)
    sampler = make_sampler(domain, policy.network, requirement, execution=execution)
    theta = jnp.asarray(policy.theta)
    members = MemberStream(sampler, theta, stream_key(seed, Stream.SELECT), domain, progress)
    search = _Search(members, domain, search_episodes, seed)
    found = search.run()
    check_member(domain, found.member)
    name, parameters = describe(domain)
    looks = ledger or single_look()
    target = make_target(requirement, DomainDescription(name, {**parameters, "search": SEARCH}), DEFAULT_METHOD, {})
    *earlier, look = looks.begin(target, policy.digest, seed, seeded=getattr(domain, "seeded", True))
    key = stream_key(seed, looks.stream, look.seed_block or 0)
    fresh = OneMember(sampler, theta, key, domain, requirement, progress, ranges, member=found.member)
    done = verify_parameters(fresh, method=DEFAULT_METHOD, max_episodes=max_episodes, share=look.share)
    looks.end(dataclasses.replace(look, verdict=done.verdict, episodes=done.episodes, max_episodes=max_episodes))
    findings = make_findings(requirement, done.tests, done.tallies, done.consumed.reached, domain.horizon)
    guarantee = joint_guarantee(findings, answered=False, looks=1 + len(earlier), share=look.share)
    level = confidence_percent(1.0 - (guarantee.false_accept or 0.0))
    family = describe_family(vary_parameters(domain.distributions))  # type: ignore[attr-defined]
    return StressResult(
        done.verdict,
        found,
        findings,
        f"This is about one environment of the family {family}, at {level} confidence: it was fixed before its fresh "
        f"episodes were sampled. {guarantee.statement} {CLAIM}"
        f"{'' if ledger else f' {ONE_SEARCH}'}",
        tuple(sorted(search.tried(), key=lambda each: (each.share, -each.violated))),
        search.played,
        str(requirement),
        name,
        dict(parameters),
        policy.digest,
        seed,
    )


@dataclass(frozen=True, eq=False)
class OneMember(EpisodeStream):
    """Fresh episodes in one member of a family."""

    member: int = 0

    def sample(self, count: int, *, first: int = 0) -> Iterator[Episodes]:
        """Yield the episodes `first` to `first + count - 1` in batches."""
        members = MemberStream(self.sampler, self.theta, self.key, self.domain, self.progress)
        size = math.prod(members.lanes)
        for start in range(first, first + count, size):
            index = np.arange(start, start + size)
            episodes = members.play(np.full(size, self.member), index)
            yield jax.tree.map(lambda column, start=start: column[: first + count - start], episodes)

    def keys_at(self, index: NDArray[np.intp]) -> Array:
        """Return the keys of episodes by their index."""
        members = MemberStream(self.sampler, self.theta, self.key, self.domain)
        return members.keys(np.full(len(index), self.member), index)


class _Search:
    """Differential evolution over members of a family, with racing candidates."""

    def __init__(self, members: MemberStream, domain: Domain, budget: int, seed: int) -> None:
        self.members, self.domain, self.budget, self.seed = members, domain, budget, seed
        self.played = 0
        self.counts: dict[int, tuple[int, int]] = {}  # member -> satisfied, violated
        size = HOST_POOL if isinstance(domain, GymDomain) else POOL
        self.numbers = np.array(list(itertools.islice(draw_members(members.key), size)))
        values = values_of_members(domain, self.numbers)
        # Ranks: the search sees every parameter as uniform, whatever its distribution.
        self.unit = np.stack([np.searchsorted(np.sort(x), x) / (size - 1) for x in values.T], axis=1)

    def run(self) -> TriedEnvironment:
        """Return the member with the lowest probability."""
        from scipy.optimize import differential_evolution
        from scipy.stats import qmc

        width = self.unit.shape[1]
        corners = np.array(list(itertools.islice(itertools.product((0.0, 1.0), repeat=width), MAX_CORNERS)))
        spread = qmc.LatinHypercube(width, rng=np.random.default_rng(self.seed)).random(POPULATION)
        start = np.concatenate([corners, spread])[:POPULATION]
        main = (1.0 - FINAL_SHARE) * self.budget
        differential_evolution(
            lambda x: np.array(self._evaluate(x.T)),
            [(0.0, 1.0)] * width,
            init=start,
            rng=np.random.default_rng(self.seed),
            vectorized=True,
            updating="deferred",
            polish=False,
            tol=0.0,
            maxiter=10_000,
            callback=lambda *_, **__: self.played >= main,
        )
        return self._final()

    def tried(self) -> list[TriedEnvironment]:
        """Return all members that have played."""
        return [TriedEnvironment(n, member_parameters(self.domain, n), *counts) for n, counts in self.counts.items()]

    def _evaluate(self, points: NDArray[np.float64]) -> list[float]:
        """Return the estimated probability at points `[B, m]` of the unit cube, after a race."""
        chosen = [int(self.numbers[np.argmin(((self.unit - point) ** 2).sum(axis=1))]) for point in points]
        racing = list(dict.fromkeys(chosen))
        for _ in range(MAX_ROUNDS):
            if not racing or (self.played >= self.budget and all(number in self.counts for number in racing)):
                break
            self._play(racing)
            worst = self.counts[min(self.counts, key=self._estimate)]
            highest = 1.0 - lower_bound(Counts(*worst).swapped, RACE_ERROR)
            racing = [n for n in racing if lower_bound(Counts(*self.counts[n]), RACE_ERROR) < highest]
        return [self._estimate(number) for number in chosen]

    def _final(self) -> TriedEnvironment:
        """Return the lowest of the best candidates, after further episodes of these."""
        finalists = sorted(self.counts, key=self._estimate)[:FINALISTS]
        while self.played < self.budget:
            self._play(finalists)
            finalists = sorted(finalists, key=self._estimate)[: max(2, len(finalists) - 1)]
        lowest = min(finalists, key=self._estimate)
        return TriedEnvironment(lowest, member_parameters(self.domain, lowest), *self.counts[lowest])

    def _estimate(self, number: int) -> float:
        satisfied, violated = self.counts[number]
        return (satisfied + 1.0) / (satisfied + violated + 2.0)

    def _play(self, numbers: list[int]) -> None:
        """Play a round of episodes of each member."""
        lanes, size = self.members.lanes
        for first in range(0, len(numbers), lanes):
            # Always full batches, so that one program is compiled: few members play more episodes each.
            group = [
                number for number, _ in zip(itertools.cycle(numbers[first : first + lanes]), range(lanes), strict=False)
            ]
            before = {number: sum(self.counts.get(number, (0, 0))) for number in group}
            index, seen = [], dict.fromkeys(group, 0)
            for number in group:
                index.append(before[number] + seen[number] * size + np.arange(size))
                seen[number] += 1
            episodes = self.members.play(np.repeat(group, size), np.concatenate(index))
            held = np.asarray(episodes.satisfied).all(axis=1).reshape(lanes, size).sum(axis=1)
            for number, satisfied in zip(group, held.tolist(), strict=True):
                old = self.counts.get(number, (0, 0))
                self.counts[number] = old[0] + satisfied, old[1] + size - satisfied
            self.played += lanes * size
