"""V(m, φ, θ): sample fresh episodes of a policy, test each constraint, and issue a certificate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.checks import check_count, check_seed
from psyco._src.core.errors import RangeError, RequirementError, RunError
from psyco._src.core.provenance import code_digest
from psyco._src.core.wording import plural
from psyco._src.envs.agents import agents_of
from psyco._src.envs.base import Domain, for_requirement
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.registry import DomainDescription, describe
from psyco._src.envs.shield import Shielded
from psyco._src.envs.value_bounds import ValueRange, requirement_warnings
from psyco._src.envs.value_bounds import value_ranges as compute_value_ranges
from psyco._src.envs.variants import adversary_of, describe_adversary
from psyco._src.logic.ast import Constraint, Expectation, Requirement
from psyco._src.logic.lint import early_end_note
from psyco._src.policies.external import AnyPolicy, DeterminismProbe, HostPolicy
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.episodes import (
    Episodes,
    Sampler,
    Stream,
    concatenate_episodes,
    episode_keys,
    stream_key,
)
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.external_sampler import ExternalSampler
from psyco._src.rollout.gym_sampler import GymSampler
from psyco._src.rollout.repeatability import MAX_REPLAYS, ReplayCheck, choose_replays, pack_policy
from psyco._src.rollout.sampler import make_sampler
from psyco._src.verification.base import ACCEPT, Counts, MeanTest, Task, Test, Verdict
from psyco._src.verification.bayes import belief
from psyco._src.verification.certificate import ENDED_PROCESS_NOTE, Certificate, EpisodeOrigin, certify, now
from psyco._src.verification.environments import check_environments
from psyco._src.verification.episode_notes import EpisodeNotes, note_episodes
from psyco._src.verification.episode_stream import EpisodeStream, check_info_keys, episode_columns, is_rate
from psyco._src.verification.estimation import (
    QuestionAnswers,
    Width,
    answer_questions,
    estimate_after_decision,
    question_widths,
)
from psyco._src.verification.ledger import Ledger, look_share, make_target, single_look
from psyco._src.verification.member_stream import EnvironmentsResult, MemberStream, verify_environments
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD, METHODS, make_tests
from psyco._src.verification.operating_characteristics import acceptance_probability
from psyco._src.verification.tally import MeanTally, Tally, overall_verdict, run_tests

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})  # of a method
FUTILITY_CHECK_EVERY = 32  # episodes between two checks whether a test may still accept
DETERMINISM_EPISODES = 8  # episodes in which an external policy is asked for every action twice


class Verification(NamedTuple):
    """The tests of all constraints, and the episodes that they consumed."""

    verdict: Verdict
    tallies: list[Tally | MeanTally]  # one per constraint
    tests: list[Test | MeanTest]  # one per constraint
    sampled: Episodes  # the last batch may hold more than were consumed
    episodes: int  # consumed by the longest test

    @property
    def consumed(self) -> Episodes:
        """The episodes that the tests consumed."""
        return _first(self.sampled, self.episodes)

    @property
    def returns(self) -> NDArray[np.float32]:
        """Returns of the episodes consumed, `[episodes]`."""
        return np.asarray(self.sampled.returns)[: self.episodes]

    @property
    def confidence(self) -> float:
        """The smallest c_sat of all constraints."""
        return min(map(belief, self.tests, self.tallies))


def verify(
    policy: AnyPolicy,
    domain: Domain,
    requirement: Requirement,
    *,
    method: str = DEFAULT_METHOD,
    options: Mapping[str, Any] = NO_OPTIONS,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    execution: Execution = IN_PROCESS,
    ledger: Ledger | None = None,
    issued: str | None = None,
    estimate: int | None = None,
    width: Width = None,
    notes: Sequence[str] = (),
    test_episodes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Certificate:
    """Verify a policy on fresh episodes and return the certificate.

    Args:
        policy: the policy to verify.
        domain: the domain in which it acts.
        requirement: constraints to test and questions to answer.
        method: name of the verification method, one of `METHODS`.
        options: options of the method.
        max_episodes: maximum number of episodes, after which the verdict is UNDECIDED.
        seed: seed of the episodes.
        execution: where the episodes are made; the result does not depend on it.
        ledger: earlier looks, and the share of the permitted error for this one; by default it is the only look.
        issued: time of issue; None: now.
        estimate: number of further episodes for estimates without stopping bias, after the decision.
        width: width of the intervals at which answers stop, as in `question_widths`; None: use `max_episodes`.
        notes: caveats for the certificate.
        test_episodes: maximum number of episodes of the tests, if another than that of the answers: a replay ends a
            test where it was ended for futility; None: `max_episodes`.
        progress: called with the number of episodes of each batch.
    """
    verifier = _Verifier(
        domain, requirement, method, options, max_episodes, seed, execution, ledger or single_look(), issued,
        estimate=estimate, width=width, notes=notes, test_episodes=test_episodes,
        progress=progress,
    )  # fmt: skip
    return verifier.look(policy).answered()


class Selection(NamedTuple):
    """The result of certifying several candidates."""

    chosen: int  # index of the candidate that the certificate is about
    certificate: Certificate  # SATISFIED, or that of the candidate that came closest; it lists all looks
    episodes: Episodes  # the counted episodes of its look


def certify_candidates(
    candidates: Sequence[AnyPolicy],
    domain: Domain,
    requirement: Requirement,
    *,
    method: str = DEFAULT_METHOD,
    options: Mapping[str, Any] = NO_OPTIONS,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    execution: Execution = IN_PROCESS,
    ledger: Ledger | None = None,
    issued: str | None = None,
    width: Width = None,
    min_accept_probability: float = 0.0,
    progress: Callable[[int], None] | None = None,
    value_ranges: tuple[ValueRange, ...] | None = None,
    sampler: Sampler | None = None,
    on_batch: Callable[[int, Episodes], None] | None = None,
) -> Selection:
    """Certify the first candidate that passes, each on its own fresh block of the certificates' stream.

    The candidates come in the order of preference, and are fixed before the first episode of any of them is sampled.
    They share the permitted error, by default without a rest for later looks. So the probability that a candidate which
    does not meet the requirement gets a certificate stays within the permitted error.

    The arguments are those of `verify`, and: a test stops as UNDECIDED once the predictive probability that it accepts
    is below `min_accept_probability`; `progress` is called with the number of episodes of each batch; `value_ranges`
    are those of the measured values, if `check_decidable` has accepted them already; `sampler` is that of the common
    network of all candidates, if there is one already; `on_batch` is called with each batch of a look
    and the index of its first episode.
    """
    if not candidates:
        raise RunError("there is no candidate to certify")
    verifier = _Verifier(
        domain, requirement, method, options, max_episodes, seed, execution,
        ledger or Ledger(share=partial(look_share, of=len(candidates))), issued or now(),
        width=width, min_accept_probability=min_accept_probability, progress=progress, known_ranges=value_ranges,
        known_sampler=sampler, on_batch=on_batch,
    )  # fmt: skip
    looks: list[_Look] = []
    for policy in candidates:
        looks.append(verifier.look(policy))
        if looks[-1].certificate.verdict in (Verdict.SATISFIED, Verdict.ANSWERED):
            return Selection(len(looks) - 1, looks[-1].answered(), looks[-1].counted)
    best = max(range(len(looks)), key=lambda i: _min_confidence(looks[i].certificate))
    certificate = looks[best].answered().with_looks(looks[-1].certificate.looks)
    return Selection(best, certificate, looks[best].counted)


def _min_confidence(certificate: Certificate) -> float:
    return min((f.confidence for f in certificate.findings), default=1.0)


class _Look(NamedTuple):
    """A finished look; only the chosen one of several answers the questions."""

    certificate: Certificate  # without answers
    counted: Episodes  # by the tests
    answer: Callable[[], QuestionAnswers]
    check_replays: Callable[[Episodes], list[str]]  # returns notes

    def answered(self) -> Certificate:
        answers, notes, played = self.answer()
        certificate = dataclasses.replace(self.certificate, answers=answers, notes=(*self.certificate.notes, *notes))
        if played is None:
            return certificate
        checked = self.check_replays(_first(played, certificate.episodes_seen))
        return dataclasses.replace(certificate, notes=(*certificate.notes, *checked))


@dataclass(frozen=True)
class _Verifier:
    """The arguments of `verify` and `certify_candidates`, checked once for all policies."""

    domain: Domain
    requirement: Requirement
    method: str
    options: Mapping[str, Any]
    max_episodes: int
    seed: int
    execution: Execution
    ledger: Ledger
    issued: str | None
    _: KW_ONLY
    estimate: int | None = None
    width: Width = None
    notes: Sequence[str] = ()
    test_episodes: int | None = None
    min_accept_probability: float = 0.0
    progress: Callable[[int], None] | None = None
    known_ranges: tuple[ValueRange, ...] | None = None
    known_sampler: Sampler | None = None
    on_batch: Callable[[int, Episodes], None] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))
        object.__setattr__(self, "max_episodes", check_count("max_episodes", self.max_episodes))
        if self.estimate is not None:
            object.__setattr__(self, "estimate", check_count("estimate", self.estimate))
        question_widths(self.requirement, self.width)
        object.__setattr__(self, "domain", for_requirement(self.domain, self.requirement))

    @cached_property
    def value_ranges(self) -> tuple[ValueRange, ...]:
        """Ranges of the measured values; raises `RequirementError` for what episodes cannot decide."""
        if self.known_ranges is not None:
            return self.known_ranges
        return decidable_ranges(self.requirement, self.domain)

    @cached_property
    def description(self) -> DomainDescription:
        """The domain as plain data."""
        return describe(self.domain)

    def look(self, policy: AnyPolicy) -> _Look:
        """Test the constraints on the next block of fresh episodes."""
        requirement, method, options, ledger = self.requirement, self.method, self.options, self.ledger
        policy.check(self.domain)
        where = self.description
        # Errors in the question are found before the look is spent.
        sampler = self.known_sampler
        if sampler is None:
            sampler = make_sampler(self.domain, policy.network, requirement, execution=self.execution)
        if isinstance(sampler, GymSampler):
            sampler = dataclasses.replace(sampler, look=uuid4().hex)
        packed = pack_policy(policy)
        ranges, most = self.value_ranges, self.max_episodes
        make_tests(method, requirement, value_ranges=ranges, max_episodes=most, **options)
        about_environments = check_environments(requirement, self.domain, method)
        if about_environments and self.estimate is not None:
            raise RunError("a share of environments has no estimate after its test; leave out estimate (--estimate)")
        if not isinstance(policy, Policy):
            check_determinism(policy, self.domain, stream_key(self.seed, Stream.RECORD), self.execution)
        target = make_target(requirement, where, method, options)
        *earlier, look = ledger.begin(target, policy.digest, self.seed, seeded=_is_seeded(self.domain))
        theta, key = jnp.asarray(policy.theta), stream_key(self.seed, ledger.stream, look.seed_block or 0)
        source = EpisodeStream(sampler, theta, key, self.domain, requirement, self.progress, ranges, self.on_batch)
        done: Verification | EnvironmentsResult
        if about_environments:
            members = MemberStream(sampler, theta, key, self.domain, self.progress)
            done = verify_environments(members, requirement, max_episodes=self.test_episodes or most, share=look.share)
            keys_at: Callable[[NDArray[np.intp]], Array] = done.keys_at
            noted = (EpisodeNotes("", ""),) * len(done.tests)
        else:
            done = verify_parameters(
                source, method=method, max_episodes=self.test_episodes or most, share=look.share, options=options,
                min_accept_probability=self.min_accept_probability,
            )  # fmt: skip
            columns = episode_columns(requirement, done.consumed)
            keys_at, noted = source.keys_at, note_episodes(requirement, columns, done.tallies, done.consumed)
        consumed = done.consumed
        estimate, further = None, []
        if self.estimate is not None:
            estimate, episodes = estimate_after_decision(source, done.episodes, self.estimate)
            further = [(done.episodes, episodes)]
        replayed = partial(check_replays, source, policy, packed, self.execution, further, keys_at)
        # Answers use more episodes, and have their own notes on missing keys and replays.
        missing = None if requirement.questions or not done.episodes else consumed.missing_info
        certificate = certify(
            requirement,
            EpisodeOrigin(
                *where, horizon=self.domain.horizon, code=code_digest(self.domain),
                policy=policy.digest, policy_kind=policy.kind, policy_version=policy.version,
                seed=self.seed, stream=ledger.stream.name.lower(), seed_block=look.seed_block,
            ),
            done.tests, done.tallies, returns=done.returns, reached=consumed.reached,
            method=method, options=options, max_episodes=most, share=look.share,
            earlier=tuple(earlier), issued=self.issued,
            notes=[
                *self.notes, *requirement_warnings(requirement, self.domain), *getattr(self.domain, "return_notes", ()),
                *policy.notes, *_team_notes(self.domain, adversary_of(where.parameters)),
                *_fallback_notes(self.domain, consumed),
                *_early_end_notes(requirement, self.domain.horizon, consumed),
                *check_info_keys(requirement, self.domain, missing),
                *([] if requirement.questions else replayed(consumed)),
            ],
            episode_notes=noted,
            estimate=estimate,
        )  # fmt: skip
        ledger.end(certificate.looks[-1])
        answer = partial(answer_questions, share=look.share, width=self.width, max_episodes=most)
        return _Look(certificate, consumed, partial(answer, source, done.sampled), replayed)


def check_replays(
    source: EpisodeStream,
    policy: AnyPolicy,
    packed: bytes | None,
    execution: Execution,
    further: Sequence[tuple[int, Episodes]],
    keys_at: Callable[[NDArray[np.intp]], Array],
    counted: Episodes,
) -> list[str]:
    """Play some of the counted episodes again; return notes, or raise RunError if one is not the same.

    Args:
        source: the stream of the episodes.
        policy: has acted in them.
        packed: a copy of it from before the first episode, as in `ReplayCheck`.
        execution: where they were made.
        further: further episodes that count, with the index of the first of them.
        keys_at: returns the keys of counted episodes by their index.
        counted: the first episodes of the stream.
    """
    sampler, domain = source.sampler, source.domain
    if not isinstance(sampler, GymSampler | ExternalSampler) or not len(counted.returns):
        return []  # a function of the key, or nothing to replay
    if not _is_seeded(domain):
        return [
            f"{domain.name} does not repeat an episode under its seed (seeded=False): that its episodes are "
            "independent was assumed, not checked, and this certificate cannot be repeated."
        ]
    parts = [(0, counted), *further]
    episodes = concatenate_episodes([part for _, part in parts])
    index = np.concatenate([first + np.arange(len(part.returns)) for first, part in parts])
    digests = np.asarray(episodes.digests)
    replays = choose_replays(np.asarray(episodes.satisfied), episodes.process)
    rows = replays.rows
    keys = keys_at(index[rows])
    ReplayCheck(sampler, policy, packed, execution)(replays, index[rows].tolist(), keys, digests[rows])
    notes = []
    if isinstance(sampler, GymSampler) and (crashes := sum(sampler.crashes)):
        notes.append(
            f"{ENDED_PROCESS_NOTE}{plural(crashes, 'time')} while it played counted episodes "
            f"of {domain.name}; they were played again by their seeds. If what ended it depends on their outcome, "
            "outcomes were left out."
        )
    if len(digests) > 1 and (digests == digests[0]).all():
        notes.append(
            f"All {len(digests):,} episodes of {domain.name} are the same: it ignores its seed, or has no chance "
            "events. If these are drawn once per process, all episodes share them, and are not independent."
        )
    if policy.kind == "name":
        notes.append(
            f"The policy is Python code: that it keeps no memory between episodes was checked on at most {MAX_REPLAYS} "
            "replayed episodes only."
        )
    return notes


def _is_seeded(domain: Domain) -> bool:
    """Whether episodes are declared to repeat under their seeds."""
    return not isinstance(domain, GymDomain) or domain.seeded


def _team_notes(domain: Domain, adversary: Mapping[str, Any] | None) -> list[str]:
    """Return a note on which agents follow the policy, where there are several."""
    if not (agents := agents_of(domain)):
        return []
    if adversary is None:
        return ["The statement is about all agents together, each with this policy."]
    others = ", ".join(each for each in agents if each != adversary["agent"])
    return [
        f"The statement is about {others} with this policy, together with {describe_adversary(adversary)}. All of "
        "these policies are fixed."
    ]


def _fallback_notes(domain: Domain, episodes: Episodes) -> list[str]:
    """Return a note on how often the fallback of a guard acted, or a shield changed a choice, if there is one."""
    shield = f"A shield of level {domain.level:g} is part of the policy" if isinstance(domain, Shielded) else ""
    if episodes.fallback_steps is None:
        return [f"{shield}."] if shield else []
    handed, steps = np.asarray(episodes.fallback_steps), np.asarray(episodes.length)
    what = f"{shield}: it changed a choice" if shield else "The fallback acted"
    return [
        f"{what} in {np.count_nonzero(handed):,} of {len(handed):,} episodes, and in "
        f"{handed.sum() / max(steps.sum(), 1):.1%} of their steps."
    ]


def _early_end_notes(requirement: Requirement, horizon: int, episodes: Episodes) -> list[str]:
    """Return a note if most of the episodes that satisfied the requirement ended at once."""
    lengths = np.asarray(episodes.length)[np.asarray(episodes.satisfied).all(axis=1)]
    note = early_end_note(requirement, horizon, lengths.tolist())
    return [note] if note else []


def _first(episodes: Episodes, count: int) -> Episodes:
    first: Episodes = jax.tree.map(lambda column: column[:count], episodes)
    return first


def check_determinism(policy: HostPolicy, domain: Domain, key: Array, execution: Execution) -> None:
    """Raise for an external policy whose actions depend on anything but its own episode; see `DeterminismProbe`."""
    sampler = make_sampler(domain, DeterminismProbe(policy), Requirement(), execution=execution)
    sampler(jnp.zeros((DETERMINISM_EPISODES, 0)), episode_keys(key, 0, DETERMINISM_EPISODES))


# ---- parameters, while learning -------------------------------------------------------------------------------------


def verify_parameters(
    source: EpisodeStream,
    *,
    method: str,
    max_episodes: int,
    share: float = 1.0,
    options: Mapping[str, Any] = NO_OPTIONS,
    min_accept_probability: float = 0.0,
) -> Verification:
    """Test the constraints on a stream of episodes, without a certificate and without answers.

    Args:
        source: the stream of episodes.
        method: name of the verification method.
        max_episodes: maximum number of episodes.
        share: fraction of the permitted error.
        options: options of the method.
        min_accept_probability: as in `certify_candidates`.
    """
    requirement, max_episodes = source.requirement, check_count("max_episodes", max_episodes)
    ranges = source.value_ranges
    tests = make_tests(method, requirement, value_ranges=ranges, max_episodes=max_episodes, share=share, **options)
    parts: list[Episodes] = []

    def sampled_columns() -> Iterator[list[NDArray[Any]]]:
        for episodes in source.sample(max_episodes):
            parts.append(episodes)
            yield episode_columns(requirement, episodes)[: len(tests)]

    batches: Iterable[list[NDArray[Any]]] = sampled_columns()
    # Only open-ended tests are stopped for futility: the guarantee of the others counts on their maximum.
    if min_accept_probability and tests and METHODS[method].open_ended:
        batches = _until_futile(tests, batches, max_episodes, min_accept_probability)
    try:
        tallies = run_tests(tests, batches, max_episodes=max_episodes)
    except RangeError as error:
        source.raise_range_error(error, concatenate_episodes(parts))
        raise
    sampled = concatenate_episodes(parts)
    used = max((tally.episodes for tally in tallies), default=min(max_episodes, len(sampled.returns)))
    return Verification(overall_verdict(tallies), tallies, tests, sampled, used)


def _until_futile(
    tests: Sequence[Test | MeanTest],
    batches: Iterable[list[NDArray[Any]]],
    max_episodes: int,
    min_accept_probability: float,
) -> Iterator[list[NDArray[Any]]]:
    """Yield the batches as long as every test of a probability may still accept."""
    counts, accepted, done = [Counts()] * len(tests), [False] * len(tests), 0
    for columns in batches:
        at, size = 0, len(columns[0])
        while at < size:
            step = min(size - at, FUTILITY_CHECK_EVERY - done % FUTILITY_CHECK_EVERY)
            piece = [column[at : at + step] for column in columns]
            yield piece
            at, done = at + step, done + step
            for k, test in enumerate(tests):
                if not isinstance(test.task, Task):
                    continue
                held = int(np.count_nonzero(piece[k]))
                counts[k] = Counts(counts[k].satisfied + held, counts[k].violated + step - held)
                accepted[k] = accepted[k] or bool(test.decide(counts[k]) == ACCEPT)
                due = done % FUTILITY_CHECK_EVERY == 0 and done < max_episodes and not accepted[k]
                if due and acceptance_probability(test, counts[k], max_episodes) < min_accept_probability:
                    return


def empty_rows(requirement: Requirement) -> NDArray[np.float64]:
    """Return the `episode_rows` of no episodes."""
    return np.zeros((0, 1 + sum(map(_width, requirement.constraints))))


def episode_rows(requirement: Requirement, episodes: Episodes) -> NDArray[np.float64]:
    """Return rows for a later `evaluate_rows`, `[B, 1 + C]`: the return, then the columns of each constraint."""
    columns = episode_columns(requirement, episodes)[: len(requirement.constraints)]
    return np.column_stack([np.asarray(episodes.returns, np.float64), *columns])


def evaluate_rows(
    requirement: Requirement, value_ranges: Sequence[ValueRange], rows: NDArray[np.float64]
) -> Verification:
    """Test the constraints on episodes already played, from their `episode_rows`, by the method `fixed`."""
    at, columns = 1, []
    for stated in requirement.constraints:
        column = rows[:, at : at + 2] if _width(stated) == 2 else rows[:, at]
        columns.append(column.astype(bool) if isinstance(stated, Constraint) else column)
        at += _width(stated)
    tests = make_tests("fixed", requirement, value_ranges=value_ranges, max_episodes=len(rows))
    tallies = run_tests(tests, [columns], max_episodes=len(rows))
    none: Any = np.zeros((len(rows), 0))
    returns: Any = rows[:, 0].astype(np.float32)
    sampled = Episodes(returns, none, none.astype(bool), none.sum(axis=1).astype(np.int32))
    return Verification(overall_verdict(tallies), tallies, tests, sampled, len(rows))


def _width(stated: Constraint | Expectation) -> int:
    """Return the number of columns of a constraint in a row: 2 for a rate, its total and its steps."""
    return 2 if not isinstance(stated, Constraint) and is_rate(stated) else 1


# ---- decidability ---------------------------------------------------------------------------------------------------


def decidable_ranges(requirement: Requirement, domain: Domain) -> tuple[ValueRange, ...]:
    """Return the ranges of the measured values; raise for what no finite number of episodes can decide."""
    _check_confidence(requirement)
    check_environments(requirement, domain)
    ranges = compute_value_ranges(requirement, domain)
    _check_bounds(requirement, ranges)
    return ranges


def check_decidable(requirement: Requirement, value_ranges: Sequence[ValueRange] = ()) -> None:
    """Raise for what no finite number of episodes can show, and for questions that they cannot answer.

    Args:
        requirement: the requirement to verify.
        value_ranges: ranges of its measured values, if known.
    """
    _check_confidence(requirement)
    _check_bounds(requirement, value_ranges)


def _check_confidence(requirement: Requirement) -> None:
    for stated in (*requirement.constraints, *requirement.questions):
        if stated.confidence >= 1.0:
            raise RequirementError(
                f"no finite number of episodes gives the certainty that {stated} asks for; "
                "ask for less than C>=1, for example C>=0.999"
            )
    for question in requirement.questions:
        if question.best is not None:
            raise RequirementError(
                f"{question} asks for the best of all controllers, which the episodes of one policy do not show",
                advice="on finite domains psyco exact answers it (psyco.exact); leave it out here",
            )


def _check_bounds(requirement: Requirement, value_ranges: Sequence[ValueRange]) -> None:
    """Raise for a bound that only an exactly known mean or probability could meet."""
    ranges = iter(value_ranges)
    for constraint in requirement.constraints:
        if isinstance(constraint, Constraint):
            least, largest = 0.0, 1.0
            exactly, open_ = "P>=0.999 or P<=0.001", "P>=0.001 or P<=0.999"
        else:
            least, largest, _ = next(ranges, ValueRange(-np.inf, np.inf))
            known = "its range" if np.isinf(least) else f"[{least:g}, {largest:g}]"
            exactly = open_ = f"a bound a little inside of {known}, where the value of an episode lies"
        if max(constraint.lower, least) == min(constraint.upper, largest):
            raise RequirementError(
                f"no finite number of episodes can show that the {constraint.estimand} is exactly "
                f"{max(constraint.lower, least):g}, as {constraint} asks; leave it some room, for example {exactly}"
            )
        if (constraint.comparison == ">" and constraint.lower <= least) or (
            constraint.comparison == "<" and constraint.upper >= largest
        ):
            raise RequirementError(
                f"no finite number of episodes can show what {constraint} asks; leave it some room, for example {open_}"
            )
