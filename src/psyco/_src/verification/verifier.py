"""V(m, φ, θ): sample fresh episodes of a policy, test each constraint, write down what was shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.checks import check_count, check_seed
from psyco._src.core.errors import RangeError, RequirementError, RunError
from psyco._src.envs.base import Domain
from psyco._src.envs.code_hash import code_digest
from psyco._src.envs.registry import describe
from psyco._src.envs.value_bounds import ValueRange
from psyco._src.logic.ast import Constraint, Expectation, Requirement
from psyco._src.policies.determinism_check import DeterminismProbe
from psyco._src.policies.external import AnyPolicy, ExternalPolicy
from psyco._src.policies.guard import Guard
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.env_checker import seed_doubts
from psyco._src.rollout.episodes import Episodes, Stream, episode_keys, episode_seeds, joined, stream_key
from psyco._src.rollout.execution import HERE, Execution
from psyco._src.rollout.gym_sampler import GymSampler
from psyco._src.rollout.sampler import make_sampler
from psyco._src.verification.base import (
    ACCEPT,
    Counts,
    MeanTally,
    MeanTest,
    Tally,
    Task,
    Test,
    Verdict,
    overall,
    run_tests,
)  # fmt: skip
from psyco._src.verification.bayes import belief
from psyco._src.verification.certificate import Certificate, EpisodeOrigin, certify, now
from psyco._src.verification.episode_stream import EpisodeStream, columns_of, is_rate
from psyco._src.verification.estimation import (
    QuestionAnswers,
    answer_questions,
    check_width,
    estimate_further,
)
from psyco._src.verification.info_keys import check_keys
from psyco._src.verification.ledger import Ledger, look_share, make_claim, single
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD, METHODS, make_tests
from psyco._src.verification.operating_characteristics import chance_left

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})  # of a method
ASKED = 32  # episodes after which a test is asked whether it has a chance
DOUBTED = 8  # episodes in which a policy of others is asked everything twice


class Verification(NamedTuple):
    """How the tests of all constraints ended."""

    verdict: Verdict
    progress: list[Tally | MeanTally]  # one per constraint
    tests: list[Test | MeanTest]  # one per constraint
    sampled: Episodes  # a few more than those that were looked at
    episodes: int  # that the longest test needed

    @property
    def seen(self) -> Episodes:
        """The episodes that were looked at."""
        seen: Episodes = jax.tree.map(lambda each: each[: self.episodes], self.sampled)
        return seen

    @property
    def returns(self) -> NDArray[np.float32]:
        """Of the episodes that were looked at, `[episodes]`."""
        return np.asarray(self.sampled.ret)[: self.episodes]

    @property
    def confidence(self) -> float:
        """c_sat of the constraint that is believed in the least."""
        return min(map(belief, self.tests, self.progress))


def verify(
    policy: AnyPolicy,
    domain: Domain,
    requirement: Requirement,
    *,
    method: str = DEFAULT_METHOD,
    options: Mapping[str, Any] = NO_OPTIONS,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    execution: Execution = HERE,
    ledger: Ledger | None = None,
    issued: str | None = None,
    estimate: int | None = None,
    width: float | None = None,
    notes: Sequence[str] = (),
) -> Certificate:
    """Verify a policy on fresh episodes and say exactly what was shown.

    Args:
        policy: what is to be verified.
        domain: where it acts.
        requirement: what must hold.
        method: how the constraints are tested, a name in `METHODS`.
        options: parameters of the method.
        max_episodes: give up undecided after so many episodes.
        seed: the episodes are a function of it.
        execution: where the episodes are made; the result does not depend on it.
        ledger: the looks so far, and the share of the permitted error for this one; by default it is the only look.
        issued: the time that the certificate shows; now, if it is not given.
        estimate: so many further episodes for an estimate of shares and return, after the decision and no part of it.
        width: questions are answered until their intervals are as narrow as that; None: with `max_episodes`.
        notes: sentences that the certificate has to carry.
    """
    look = _look(
        policy, domain, requirement, method=method, options=options, max_episodes=max_episodes, seed=seed,
        execution=execution, ledger=single() if ledger is None else ledger, issued=issued, estimate=estimate,
        width=width, notes=notes,
    )  # fmt: skip
    return look.answered


class _Look(NamedTuple):
    """A look that was made; the questions are answered only if it is this one that counts."""

    certificate: Certificate  # without answers
    answer: Callable[[], QuestionAnswers]

    @property
    def answered(self) -> Certificate:
        answers, notes = self.answer()
        return dataclasses.replace(self.certificate, answers=answers, notes=(*self.certificate.notes, *notes))


def _look(
    policy: AnyPolicy,
    domain: Domain,
    requirement: Requirement,
    *,
    method: str,
    options: Mapping[str, Any],
    max_episodes: int,
    seed: int,
    execution: Execution,
    ledger: Ledger,
    issued: str | None,
    estimate: int | None,
    width: float | None,
    notes: Sequence[str],
    give_up: float = 0.0,
    told: Callable[[int], None] | None = None,
) -> _Look:
    check_decidable(requirement)
    seed = check_seed(seed)
    policy.check(domain)
    where = describe(domain)
    # What is wrong with the question is found before anything is spent on the answer.
    max_episodes = check_count("max_episodes", max_episodes)
    estimate = None if estimate is None else check_count("estimate", estimate)
    check_width(width)
    sampler = make_sampler(domain, policy.network, requirement, execution=execution)
    source = EpisodeStream(
        sampler, jnp.asarray(policy.theta), stream_key(seed, ledger.stream), domain, requirement, told
    )
    check_decidable(requirement, source.spans)
    make_tests(method, requirement, spans=source.spans, max_episodes=max_episodes, **options)
    if not isinstance(policy, Policy):
        _ask_twice(policy, domain, stream_key(seed, Stream.SHOW), execution)
    *earlier, look = ledger.begin(make_claim(requirement, where, method, options), policy.digest, seed)
    source = source._replace(key=stream_key(seed, ledger.stream, look.block or 0))
    done = verify_parameters(
        source, method=method, max_episodes=max_episodes, share=look.share, options=options, give_up=give_up
    )
    # Answers look at more episodes, and say themselves which keys they missed.
    missing = [] if requirement.questions else check_keys(requirement, domain, done.seen.absent)
    subject = EpisodeOrigin(
        *where, policy.digest, seed, ledger.stream.name.lower(), look.block,
        horizon=domain.horizon, code=code_digest(domain), policy_kind=policy.kind, policy_version=policy.version,
    )  # fmt: skip
    certificate = certify(
        requirement, subject, done.tests, done.progress, returns=done.returns, reached=done.seen.reached,
        method=method, options=options, max_episodes=max_episodes, share=look.share, earlier=tuple(earlier),
        issued=issued,
        notes=[*notes, *policy.notes, *_handed_over(done.seen), *missing, *_doubts(source, policy, done)],
        estimate=None if estimate is None else estimate_further(source, done.episodes, estimate),
    )  # fmt: skip
    ledger.end(certificate)
    return _Look(
        certificate,
        partial(
            answer_questions, source, done.sampled, share=look.share, width=width, max_episodes=max_episodes
        ),
    )


def _handed_over(episodes: Episodes) -> list[str]:
    """How often the fallback of a guard acted, if there is one."""
    if episodes.handed is None:
        return []
    handed, steps = np.asarray(episodes.handed), np.asarray(episodes.length)
    return [
        f"The fallback acted in {np.count_nonzero(handed):,} of {len(handed):,} episodes, and in "
        f"{handed.sum() / max(steps.sum(), 1):.1%} of their steps."
    ]


def _doubts(source: EpisodeStream, policy: AnyPolicy, done: Verification) -> list[str]:
    """What the first episodes of a Gymnasium environment put in doubt; in a compiled domain all chance is the key's."""
    if not isinstance(source.sampler, GymSampler):
        return []
    seeds = episode_seeds(episode_keys(source.key, 0, 2))
    return seed_doubts(source.sampler.job, policy.theta, seeds, float(done.returns[0]))


def _ask_twice(policy: ExternalPolicy | Guard, domain: Domain, key: Array, execution: Execution) -> None:
    """Refuse a policy of others whose actions are no function of its own episode; see `Doubting`."""
    sampler = make_sampler(domain, DeterminismProbe(policy), Requirement(), execution=execution)
    sampler(jnp.zeros((DOUBTED, 0)), episode_keys(key, 0, DOUBTED))


class Selection(NamedTuple):
    """How the certification of several candidates ended."""

    chosen: int  # index of the candidate that the certificate is about
    certificate: Certificate  # SATISFIED, or that of the candidate that came closest; it lists all looks


def certify_candidates(
    candidates: Sequence[AnyPolicy],
    domain: Domain,
    requirement: Requirement,
    *,
    method: str = DEFAULT_METHOD,
    options: Mapping[str, Any] = NO_OPTIONS,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    execution: Execution = HERE,
    ledger: Ledger | None = None,
    issued: str | None = None,
    width: float | None = None,
    give_up: float = 0.0,
    told: Callable[[int], None] | None = None,
) -> Selection:
    """Certify the first candidate that passes, each on its own fresh block of the certificates' stream.

    The candidates come in the order of preference, and are fixed before the first episode of any of them is sampled.
    The permitted error is shared among all of them, by default so that nothing is left for later looks; so the chance
    that a candidate which does not meet the requirement gets a certificate stays what the requirement permits. All else
    is as in `verify`.

    With `give_up`, a number from 0 to 1, a test ends undecided once the chance that it will still accept is below that;
    `told` is called with how many episodes were made, batch by batch.
    """
    if not candidates:
        raise RunError("there is no candidate to certify")
    issued = issued or now()
    ledger = Ledger(share=partial(look_share, of=len(candidates))) if ledger is None else ledger
    looks: list[_Look] = []
    for policy in candidates:
        looks.append(
            _look(
                policy, domain, requirement, method=method, options=options, max_episodes=max_episodes, seed=seed,
                execution=execution, ledger=ledger, issued=issued, estimate=None, width=width, notes=(),
                give_up=give_up, told=told,
            )
        )  # fmt: skip
        if looks[-1].certificate.verdict in (Verdict.SATISFIED, Verdict.ANSWERED):
            return Selection(len(looks) - 1, looks[-1].answered)
    best = max(range(len(looks)), key=lambda i: _closeness(looks[i].certificate))
    return Selection(best, looks[best].answered.with_looks(looks[-1].certificate.looks))


def _closeness(certificate: Certificate) -> float:
    return min((f.confidence for f in certificate.findings), default=1.0)


def verify_parameters(
    source: EpisodeStream,
    *,
    method: str,
    max_episodes: int,
    share: float = 1.0,
    options: Mapping[str, Any] = NO_OPTIONS,
    give_up: float = 0.0,
) -> Verification:
    """The same for bare parameters, without a certificate and without answers: what learning uses."""
    max_episodes = check_count("max_episodes", max_episodes)
    tests = make_tests(
        method, source.requirement, spans=source.spans, max_episodes=max_episodes, share=share, **options
    )
    parts: list[Episodes] = []

    def batches() -> Iterator[list[NDArray[Any]]]:
        for episodes in source.sample(max_episodes):
            parts.append(episodes)
            yield columns_of(source.requirement, episodes)[: len(tests)]

    # Only tests that may end at any time are ended: the others count on their cap.
    patient = not give_up or not tests or not METHODS[method].open_ended
    try:
        progress = run_tests(
            tests, batches() if patient else _while_likely(tests, batches(), max_episodes, give_up),
            max_episodes=max_episodes,
        )  # fmt: skip
    except RangeError as error:
        source.refuse(error, joined(parts))
        raise
    sampled = joined(parts)
    used = max((p.episodes for p in progress), default=min(max_episodes, len(sampled.ret)))
    return Verification(overall(progress), progress, tests, sampled, used)


def _while_likely(
    tests: Sequence[Test | MeanTest], batches: Iterable[list[NDArray[Any]]], most: int, give_up: float
) -> Iterator[list[NDArray[Any]]]:
    """The batches as long as every test of a probability may still accept, asked after each `ASKED` episodes."""
    counts, accepted, done = [Counts(0, 0)] * len(tests), [False] * len(tests), 0
    for columns in batches:
        at, size = 0, len(columns[0])
        while at < size:
            step = min(size - at, ASKED - done % ASKED)
            piece = [column[at : at + step] for column in columns]
            yield piece
            at, done = at + step, done + step
            for k, test in enumerate(tests):
                if not isinstance(test.task, Task):
                    continue
                held = int(np.count_nonzero(piece[k]))
                counts[k] = Counts(counts[k].satisfied + held, counts[k].violated + step - held)
                accepted[k] = accepted[k] or bool(test.decide(counts[k]) == ACCEPT)
                asked = done % ASKED == 0 and done < most and not accepted[k]
                if asked and chance_left(test, counts[k], most) < give_up:
                    return


def no_checks(requirement: Requirement) -> NDArray[np.float64]:
    """`rows_of` no episodes."""
    columns = sum(2 if _pairs(each) else 1 for each in requirement.constraints)
    return np.zeros((0, 1 + columns))


def rows_of(requirement: Requirement, episodes: Episodes) -> NDArray[np.float64]:
    """What matters of episodes `[B]` for a later `shown_by`, `[B, 1 + C]`: the return, then a column per constraint."""
    columns = columns_of(requirement, episodes)[: len(requirement.constraints)]
    return np.column_stack([np.asarray(episodes.ret, np.float64), *columns])


def shown_by(
    requirement: Requirement, spans: Sequence[ValueRange], rows: NDArray[np.float64]
) -> Verification:
    """What episodes that were played anyway let one believe, from `rows_of` them; by the method `fixed`."""
    at, columns = 1, []
    for each in requirement.constraints:
        if isinstance(each, Constraint):
            columns.append(rows[:, at].astype(bool))
        else:
            columns.append(rows[:, at : at + 2] if _pairs(each) else rows[:, at])
        at += 2 if _pairs(each) else 1
    tests = make_tests("fixed", requirement, spans=spans, max_episodes=len(rows))
    progress = run_tests(tests, [columns], max_episodes=len(rows))
    none: Any = np.zeros((len(rows), 0))
    returns: Any = rows[:, 0].astype(np.float32)
    sampled = Episodes(returns, none, none.astype(bool), none.sum(axis=1).astype(np.int32))
    return Verification(overall(progress), progress, tests, sampled, len(rows))


def _pairs(stated: Constraint | Expectation) -> bool:
    return not isinstance(stated, Constraint) and is_rate(stated)


def check_decidable(requirement: Requirement, spans: Sequence[ValueRange] = ()) -> None:
    """Refuse what no finite number of episodes can show, and what they cannot answer.

    Args:
        requirement: what is to be shown.
        spans: where the values of its expectations lie, if that is known.
    """
    for stated in (*requirement.constraints, *requirement.questions):
        if stated.confidence >= 1.0:
            raise RequirementError(
                f"no finite number of episodes gives the certainty that {stated} asks for; "
                "ask for less than C>=1, for example C>=0.999"
            )
    left = iter(spans)
    for constraint in requirement.constraints:
        if isinstance(constraint, Constraint):
            least, largest, exactly, open_ = 0.0, 1.0, "P>=0.999 or P<=0.001", "P>=0.001 or P<=0.999"
        else:
            least, largest, _ = next(left, ValueRange(-np.inf, np.inf))
            known = "its range" if np.isinf(least) else f"[{least:g}, {largest:g}]"
            exactly = open_ = f"a bound a little inside of {known}, where the value of an episode lies"
        what = "probability" if isinstance(constraint, Constraint) else "expected value"
        if max(constraint.lower, least) == min(constraint.upper, largest):
            raise RequirementError(
                f"no finite number of episodes can show that the {what} is exactly "
                f"{max(constraint.lower, least):g}, as {constraint} asks; leave it some room, for example {exactly}"
            )
        if (constraint.comparison == ">" and constraint.lower <= least) or (
            constraint.comparison == "<" and constraint.upper >= largest
        ):
            raise RequirementError(
                f"no finite number of episodes can show what {constraint} asks; "
                f"leave it some room, for example {open_}"
            )
    for question in requirement.questions:
        if question.best is not None:
            raise RequirementError(
                f"{question} asks for the best of all controllers, which the episodes of one policy do not show",
                advice="on finite domains psyco exact answers it (psyco.exact); leave it out here",
            )
