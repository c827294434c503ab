"""Is this policy good enough? Fresh episodes, recorded outcomes, a certificate repeated, exact answers."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from psyco._src.api.argument_check import verb
from psyco._src.api.coerce import (
    AnyDomain,
    PolicyLike,
    VerificationInput,
    as_domain,
    as_subject,
    find_policy,
    known_looks,
)
from psyco._src.core.checks import check_count
from psyco._src.core.errors import RunError
from psyco._src.core.safe_io import read_bytes, read_text
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.registry import describe
from psyco._src.exact import solver
from psyco._src.exact.solver import ExactAnswer
from psyco._src.learners.learner_registry import AUTO_LEARNER
from psyco._src.logic.ast import Requirement
from psyco._src.logic.bare import outcome_requirement
from psyco._src.logic.parser import parse
from psyco._src.logic.requirement import AnyRequirement, as_requirement
from psyco._src.policies.external import with_version
from psyco._src.policies.network import network_for
from psyco._src.rollout.env_checker import CheckResult, check_environment
from psyco._src.rollout.episodes import Stream, stream_key
from psyco._src.rollout.execution import Execution
from psyco._src.rollout.sampler import make_sampler
from psyco._src.rollout.throughput import measure
from psyco._src.runs.budget import decided, expected_episodes, make_run_plan
from psyco._src.runs.learner_selection import choose
from psyco._src.runs.settings import Settings, check_one_budget
from psyco._src.verification import outcomes as recorded
from psyco._src.verification import recertify, recordings
from psyco._src.verification import verifier as verification
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.ledger import IGNORED, Ledger, entries_of, look_share, make_claim, single
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD
from psyco._src.verification.operating_characteristics import VerificationPlan, make_plan
from psyco._src.verification.recertify import Replay
from psyco._src.verification.verifier import Selection, check_decidable

DEFAULT = Settings()


@verb
def verify(
    policy: PolicyLike,
    domain: AnyDomain | None = None,
    requirement: AnyRequirement | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    version: str | None = None,
    method: str = DEFAULT_METHOD,
    method_options: Mapping[str, Any] | None = None,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    share: float | None = None,
    after: Certificate | str | Path | None = None,
    ignore_looks: bool = False,
    issued: str | None = None,
    estimate: int | None = None,
    width: float | None = None,
    trust: Collection[str] = (),
    devices: int = 1,
    workers: int = 1,
    ray: str | None = None,
    step_timeout: float | None = None,
) -> Certificate:
    """Verify a policy on fresh episodes and say exactly what was shown.

    Args:
        policy: what is to be verified: a policy, a file, a run or its folder, a policy of others, any function from
            observation to action, or an object with `reset()` and `act(observation)`: each episode gets its own.
        domain: where it acts; by default where it was learned.
        requirement: what must hold, and questions, as text, as the name of a file, or parsed; by default what its run
            was made for.
        parameters: of the domain, over its own.
        version: what you call this version of the policy. A function is known by its name only, so a certificate that
            is to tell it from its successor needs one.
        method: how the constraints are tested: "anytime", "bayes" or "fixed"; for probabilities "calibrated" and
            "sprt", too.
        method_options: parameters of the method.
        max_episodes: give up undecided after so many episodes.
        seed: the episodes are a function of it.
        share: the part of the permitted error that this look may use; all of it, unless it is one of several.
            `look_share(1)` leaves room for later looks.
        after: the certificate, or its file, of an earlier look at this or another policy that did not suffice. The new
            certificate lists its looks, and the error of all of them together keeps to what is permitted. What
            `synthesize` returned, and a run's folder, know their looks: verifying such a policy continues them.
        ignore_looks: do not count the looks at this run so far; the certificate says so.
        issued: the time that the certificate shows; now, if it is not given.
        estimate: so many further episodes for an estimate of shares and return that the stopping rule does not bias;
            they come after the decision and are no part of it.
        width: questions (`P=? [ ... ]`) are answered until their intervals are as narrow as that; by default with
            `max_episodes`. Their intervals hold at all times, so this voids nothing.
        trust: code (`module:name`) that files name and that may be imported, and files that may run code themselves:
            TorchScript (*.pt) and Stable-Baselines3 (`sb3:`) can.
        devices: over how many JAX devices a batch is split; the result does not depend on it.
        workers: how many processes step a Gymnasium environment; the result does not depend on it.
        ray: the address of a Ray cluster for that, or "local"; the result does not depend on it.
        step_timeout: seconds after which a step of a Gymnasium environment counts as hanging, an error.
    """
    found, where, wanted = as_subject(policy, domain, requirement, parameters, trust)
    subject = VerificationInput(with_version(found, version), where, wanted)
    known = known_looks(policy)
    if known is not None and (share is not None or after is not None) and not ignore_looks:
        raise RunError(
            f"{policy} keeps its own account of looks, so leave out share and after (--retryable, --after), "
            "or say ignore_looks=True (--ignore-looks)"
        )
    ledger = known if known is not None and not ignore_looks else _ledger(share, _earlier(after), subject)
    notes = [IGNORED] if known is not None and ignore_looks else []
    return verification.verify(
        *subject, method=method, options=method_options or {}, max_episodes=max_episodes, seed=seed,
        execution=Execution(devices, workers, ray, step_timeout), ledger=ledger, issued=issued, notes=notes,
        estimate=estimate, width=width,
    )  # fmt: skip


@verb
def certify_candidates(
    candidates: Sequence[PolicyLike],
    domain: AnyDomain,
    requirement: AnyRequirement,
    *,
    method: str = DEFAULT_METHOD,
    method_options: Mapping[str, Any] | None = None,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    issued: str | None = None,
    width: float | None = None,
    trust: Collection[str] = (),
    devices: int = 1,
    workers: int = 1,
    ray: str | None = None,
    step_timeout: float | None = None,
) -> Selection:
    """Certify the first candidate that passes, each on fresh episodes of its own, all with one permitted error.

    Args:
        candidates: policies in the order of preference, fixed before the first episode is sampled.
        domain: where they act.
        requirement: what must hold.
        method: how the constraints are tested, as in `verify`.
        method_options: parameters of the method.
        max_episodes: give each up undecided after so many episodes.
        seed: the episodes are a function of it.
        issued: the time that the certificate shows; now, if it is not given.
        width: of the intervals of answers, as in `verify`; questions are answered for the chosen candidate alone.
        trust: files that may run code, as in `verify`.
        devices: over how many JAX devices a batch is split.
        workers: how many processes step a Gymnasium environment.
        ray: the address of a Ray cluster for that, or "local".
        step_timeout: seconds after which a step of a Gymnasium environment counts as hanging, an error.

    Returns:
        The index of the candidate that the certificate is about, and the certificate, which lists all looks.
    """
    for candidate in candidates:
        if known_looks(candidate) is not None:
            raise RunError(
                f"{candidate!s} keeps account of the looks at it; use psyco.verify, or give its policy alone "
                "(run.policy), which has no account"
            )
    return verification.certify_candidates(
        [find_policy(candidate, trust)[0] for candidate in candidates], as_domain(domain), as_requirement(requirement),
        method=method, options=method_options or {}, max_episodes=max_episodes, seed=seed,
        execution=Execution(devices, workers, ray, step_timeout), issued=issued, width=width,
    )  # fmt: skip


@verb
def verify_outcomes(
    outcomes: ArrayLike | str | Path,
    requirement: AnyRequirement,
    *,
    traces: bool = False,
    method: str = DEFAULT_METHOD,
    method_options: Mapping[str, Any] | None = None,
    max_episodes: int | None = None,
    issued: str | None = None,
    width: float | None = None,
    horizon: int | None = None,
) -> Certificate:
    """Test outcomes that were recorded elsewhere, in their order and only as far as needed; and answer questions.

    Args:
        outcomes: did the formula hold? `[B]`, or `[B, N]` for N constraints and questions; Booleans or 0 and 1, of an
            expected value numbers. Or a file: one outcome or number per line, or CSV with a column per constraint and
            question; "-" is the standard input.
        requirement: what must hold, and questions; `P>=0.85 & C>=0.98` and `P=?` without a formula will do.
        traces: the file holds signals instead, CSV or JSON lines with one row per state and an `episode` column, which
            are judged by the requirement first.
        method: how the constraints are tested, as in `verify`.
        method_options: parameters of the method.
        max_episodes: look at no more than so many, a number chosen without looking; default: all there are.
        issued: the time that the certificate shows; now, if it is not given.
        width: questions are answered until their intervals are as narrow as that; by default with all outcomes.
        horizon: of traces, no episode can have more steps; rates and totals need to know.
    """
    wanted = as_requirement(requirement, parse if traces else outcome_requirement)
    if horizon is not None:
        if not traces:
            raise RunError(
                f"horizon is the longest episode of traces, in steps; got {horizon!r} without traces"
            )
        horizon = check_count("horizon", horizon)
    judged: Any = outcomes
    if isinstance(outcomes, str | Path):
        data, origin = _read(outcomes)
        if traces:
            judged = recordings.read_traces(data, wanted, origin=origin, horizon=horizon)
        else:
            judged = recordings.read_outcomes(data, wanted, origin=origin)
    elif traces:
        raise RunError("traces are read from a file: give its name, or judge them with psyco.check_path")
    return recorded.verify_outcomes(
        judged, wanted, method=method, options=method_options or {}, max_episodes=max_episodes, issued=issued,
        width=width,
    )  # fmt: skip


@verb
def replay(
    certificate: Certificate | str | Path,
    policy: PolicyLike,
    *,
    domain: AnyDomain | None = None,
    version: str | None = None,
    trust: Collection[str] = (),
    devices: int = 1,
    workers: int = 1,
    ray: str | None = None,
    step_timeout: float | None = None,
) -> Replay:
    """Repeat a certificate: every look at this policy again, and all in which the certificate differs from that.

    Args:
        certificate: the certificate, or its file.
        policy: what it is about, as in `verify`.
        domain: where the policy acts, for a domain that its name does not bring back.
        version: of the policy, as in `verify`.
        trust: code (`module:name`) that the certificate names, and files that may run code, as in `verify`.
        devices: over how many JAX devices a batch is split.
        workers: how many processes step a Gymnasium environment.
        ray: the address of a Ray cluster for that, or "local".
        step_timeout: seconds after which a step of a Gymnasium environment counts as hanging, an error.
    """
    given = isinstance(certificate, Certificate)
    text = (
        certificate.to_json()
        if isinstance(certificate, Certificate)
        else read_text(certificate, "certificate")
    )
    return recertify.replay(
        text,
        with_version(find_policy(policy, trust)[0], version),
        origin="the certificate" if given else str(certificate),
        domain=None if domain is None else as_domain(domain),
        execution=Execution(devices, workers, ray, step_timeout),
        trust=trust,
    )


@verb
def exact(
    policy: PolicyLike,
    domain: AnyDomain | None = None,
    requirement: AnyRequirement | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    trust: Collection[str] = (),
) -> ExactAnswer:
    """The exact probabilities and expected return of a policy on a finite domain, and the optimum.

    The optimum is over all controllers, also ones that see the counters, remember and randomise: nobody can do better.

    Args:
        policy: as in `verify`.
        domain: where it acts; by default where it was learned.
        requirement: what must hold; by default what its run was made for.
        parameters: of the domain, over its own.
        trust: code (`module:name`) that files name and that may be imported, and files that may run code themselves:
            TorchScript (*.pt) and Stable-Baselines3 (`sb3:`) can.
    """
    return solver.exact(*as_subject(policy, domain, requirement, parameters, trust))


@verb
def plan(
    requirement: AnyRequirement,
    *,
    method: str | None = None,
    method_options: Mapping[str, Any] | None = None,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    share: float = look_share(1),
    p: Sequence[float] | None = None,
    mean: Sequence[float] | None = None,
    spread: float | None = None,
    horizon: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> VerificationPlan:
    """How a verification will behave, before any episode is sampled.

    For probabilities by exact dynamic programming; for an expected value by simulation, since mean and spread do not
    make a distribution: values are drawn from a Beta distribution on their range, those of a rate in episodes of one
    length.

    The defaults are those of `synthesize`: its first look at a candidate, which leaves half of the error for others.

    Args:
        requirement: what must hold; `P>=0.85 & C>=0.98` without a formula will do.
        method: one method only; by default all, side by side.
        method_options: parameters of that method.
        max_episodes: at most so many episodes.
        share: the part of the permitted error that this look may use; 1 for a policy that is looked at once.
        p: true probabilities to look at; by default interesting ones.
        mean: true means to look at, of an expected value.
        spread: the standard deviation of its values.
        horizon: the longest episode; the range of totals and counts follows from it, where `within` does not say it.
        on_progress: called with the name of each method before it is computed.
    """
    wanted = as_requirement(requirement, outcome_requirement)
    verification.check_decidable(wanted)
    if not 0.0 < share <= 1.0:
        raise RunError(f"the share of the error is a number above 0 and at most 1, got {share}")
    return make_plan(
        wanted,
        method=method,
        options=method_options or {},
        max_episodes=max_episodes,
        share=share,
        p=p,
        mean=mean,
        spread=spread,
        horizon=horizon,
        on_progress=on_progress,
    )


@verb
def check(
    domain: AnyDomain,
    requirement: AnyRequirement | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    episodes: int | None = None,
    steps: int | None = None,
    learner: str = AUTO_LEARNER,
    workers: int = 1,
) -> Iterator[CheckResult]:
    """Is a Gymnasium environment fit for learning and verification? Each thing that was looked at, as it is found.

    Args:
        domain: the environment: a domain, or what `psyco.make` takes.
        requirement: a requirement whose signals should be there.
        parameters: of the domain, where it is given by name.
        seed: of policies and episodes.
        episodes: training episodes of the synthesis that is planned; by default 60,000.
        steps: the same in steps.
        learner: that of the synthesis that is planned.
        workers: processes that would step the environment.
    """
    made = as_domain(domain, parameters)
    if not isinstance(made, GymDomain):
        raise RunError(f"{made.name} is a compiled domain; this check is for Gymnasium environments")
    wanted = None if requirement is None else as_requirement(requirement)
    check_one_budget(**{n: v for n, v in {"episodes": episodes, "steps": steps}.items() if v is not None})
    settings = (
        Settings(steps=steps, learner=learner)
        if steps
        else Settings(episodes=DEFAULT.episodes if episodes is None else episodes, learner=learner)
    )
    return _checked(made, wanted, seed, settings, Execution(workers=workers))


def _checked(
    domain: GymDomain,
    requirement: Requirement | None,
    seed: int,
    settings: Settings,
    execution: Execution,
) -> Iterator[CheckResult]:
    """All checks, and if none failed the plan of a synthesis."""
    failed = False
    for each in check_environment(
        domain, requirement, seed=seed, episodes=expected_episodes(settings, domain)
    ):
        failed = failed or each.passed is False
        yield each
    if failed or requirement is None:
        return
    check_decidable(requirement)
    network = network_for(domain)
    sampler = make_sampler(domain, network, requirement, execution=execution)
    pace = measure(sampler, network, stream_key(seed, Stream.PACE), workers=execution.workers)
    name, reason = choose(settings, domain, lambda: pace)
    settings = decided(dataclasses.replace(settings, learner=name), domain, requirement)
    why = f"learner {name}: {reason}" if reason else ""
    plan = make_run_plan(settings, domain, requirement, pace=pace, learner=why)
    where = "in one process" if execution.workers == 1 else f"with {execution.workers} workers"
    yield CheckResult("plan", True, f"of a synthesis with {settings.budget}, {where}\n{plan}", plan.to_json())


def _ledger(share: float | None, after: Certificate | None, subject: VerificationInput) -> Ledger:
    """The ledger of a look that stands for itself, or that comes after those of a certificate."""
    if after is None:
        return single(1.0 if share is None else share)
    stream = Stream.CERTIFY if after.stream == "certify" else Stream.VERIFY
    earlier, where = entries_of(after), describe(subject.domain)
    if earlier[0].claim.statement != make_claim(subject.requirement, where, after.method, {}).statement:
        raise RunError(
            f"the earlier certificate is about another requirement or domain:\n{after.requirement}\non "
            f"{after.domain} {after.parameters} instead of:\n{subject.requirement}\non {where.name} {where.parameters}"
        )
    return Ledger(earlier, look_share if share is None else lambda look: share, stream)


def _earlier(after: Certificate | str | Path | None) -> Certificate | None:
    if after is None or isinstance(after, Certificate):
        return after
    return Certificate.from_json(read_text(after, "certificate"), origin=str(after))


def _read(file: str | Path) -> tuple[bytes, str]:
    """The content, and what to call it."""
    if str(file) == "-":
        return sys.stdin.buffer.read(), "the input"
    return read_bytes(file, "recording"), str(file)
