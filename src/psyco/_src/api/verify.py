"""Verify, certify, replay, plan, check and solve exactly."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from numpy.typing import ArrayLike

from psyco._src.api.coerce import (
    AnyDomain,
    PolicyLike,
    VerificationInput,
    as_adversary,
    as_certificate,
    as_domain,
    as_subject,
    chain_policy,
    find_policy,
    known_looks,
    verb,
)
from psyco._src.core.checks import check_count
from psyco._src.core.errors import DomainError, RunError
from psyco._src.core.files import read_bytes, read_text
from psyco._src.envs.base import Domain, counters_of, is_finite_domain, require_finite, written_for
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.model_file import ModelFile
from psyco._src.envs.program_file import ProgramFile
from psyco._src.envs.registry import (
    DomainDescription,
    describe,
    is_model_name,
    make_from_description,
    trusted_names,
)
from psyco._src.envs.variants import adversary_of, read_adversary
from psyco._src.exact import solver
from psyco._src.exact.model_consistency import check_consistency
from psyco._src.exact.model_properties import check_model
from psyco._src.exact.model_values import Optimum, model_optimum
from psyco._src.exact.solver import ExactAnswer
from psyco._src.learners.learner_registry import AUTO_LEARNER
from psyco._src.logic.ast import Requirement
from psyco._src.logic.parser import parse
from psyco._src.logic.quantifiers import is_quantified
from psyco._src.logic.requirement import AnyRequirement, as_requirement, outcome_requirement
from psyco._src.logic.runtime_monitor import Monitor
from psyco._src.policies.external import with_version
from psyco._src.policies.risk import Risk, fit_risk
from psyco._src.policies.serialization import Policy
from psyco._src.rollout.env_checker import CheckResult, check_compiled, check_environment
from psyco._src.rollout.episodes import Stream
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.record import record_episodes
from psyco._src.runs.attack import attacked_domain
from psyco._src.runs.problem import prepare
from psyco._src.runs.settings import (
    DEFAULT_EPISODES,
    Settings,
    check_one_budget,
)
from psyco._src.runs.store import keep_certificate
from psyco._src.runs.time_budget import learning_throughput, simulator_throughput
from psyco._src.verification import comparison, recertify, recorded_traces, recordings
from psyco._src.verification import outcomes as recorded
from psyco._src.verification import verifier as verification
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.comparison import DEFAULT_MARGIN, PolicyComparison
from psyco._src.verification.ledger import (
    IGNORED_LOOKS_NOTE,
    Ledger,
    certificate_entries,
    look_share,
    make_statement,
    single_look,
)
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD
from psyco._src.verification.operating_characteristics import VerificationPlan, make_plan
from psyco._src.verification.recertify import Replay
from psyco._src.verification.recorded_columns import Cut
from psyco._src.verification.verifier import Selection


@verb
def verify(
    policy: PolicyLike,
    domain: AnyDomain | None = None,
    requirement: AnyRequirement | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    version: str | None = None,
    method: str | None = None,
    method_options: Mapping[str, Any] | None = None,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    share: float | None = None,
    after: Certificate | str | Path | None = None,
    ignore_looks: bool = False,
    issued: str | None = None,
    estimate: int | None = None,
    width: float | Sequence[float] | None = None,
    trust: Collection[str] = (),
    execution: Execution = IN_PROCESS,
    on_progress: Callable[[int], None] | None = None,
) -> Certificate:
    """Verify a policy on fresh episodes and return a certificate.

    Args:
        policy: a policy, a policy file, a run or its folder, an external policy, a function from observation to action,
            or an object with `reset()` and `act(observation)`, of which each episode gets its own copy.
        domain: the domain in which the policy acts; default: that of its training.
        requirement: the requirement; default: that of its run.
        parameters: changes to the parameters of the domain.
        version: your name for this version of the policy, for the certificate; a function has no other version.
        method: the statistical test: "anytime", "calibrated", "bayes", "sprt" or "fixed"; default: that of the earlier
            looks that are counted, or "anytime".
        method_options: parameters of the method, as in `{"indifference": 0.01}` for "sprt"; default: those of the
            earlier looks, if they used this method.
        max_episodes: the test ends undecided after this number of episodes.
        seed: the episodes are a function of it.
        share: part of the permitted error that this look may use; default: all of it. `look_share(1)` leaves room for
            later looks.
        after: certificate, or its file, of an earlier undecided look at this or another policy. The new certificate
            lists these looks, and the error of all of them stays within the permitted error. Results of `synthesize`
            and run folders keep their own account: verifying them continues it.
        ignore_looks: do not count the earlier looks at this run; the certificate says so.
        issued: issue time in the certificate; default: now.
        estimate: number of further episodes for an estimate of shares and return that is not biased by the stopping
            rule. They follow the decision and are not part of it.
        width: answer questions (`P=? [ ... ]`) until their intervals have this width; default: after `max_episodes`.
            Several questions need one each, in their order, unless all are about probabilities.
            It is part of the rule that decides when to stop, so fix it beforehand.
        trust: code (`module:name`) that files name and that may be imported, and files that may run code themselves:
            TorchScript (*.pt) and Stable-Baselines3 (`sb3:`).
        execution: devices, worker processes, Ray, time-outs; the result does not depend on it.
        on_progress: called with the number of episodes of each batch.
    """
    found, where, wanted = as_subject(policy, domain, requirement, parameters, trust)
    subject = VerificationInput(with_version(found, version), where, wanted)
    known = known_looks(policy, ignored=ignore_looks)
    if known is not None and (share is not None or after is not None) and not ignore_looks:
        raise RunError(
            f"{policy} keeps its own account of looks, so leave out share and after (--retryable, --after), "
            "or say ignore_looks=True (--ignore-looks)"
        )
    counted = known if known is not None and not ignore_looks else None
    ledger = _ledger(share, as_certificate(after), subject) if counted is None else counted
    notes = [IGNORED_LOOKS_NOTE] if known is not None and ignore_looks else []
    used, used_options = ledger.earlier_method(make_statement(subject.requirement, describe(subject.domain)))
    method = used if method is None else method
    if method_options is None:
        method_options = used_options if method == used else {}
    certificate = verification.verify(
        *subject, method=method, options=method_options, max_episodes=max_episodes, seed=seed,
        execution=execution, ledger=ledger, issued=issued, notes=notes,
        estimate=estimate, width=width, progress=on_progress,
    )  # fmt: skip
    if counted is not None and counted.path is not None:
        keep_certificate(counted.path.parent, certificate)
    return certificate


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
    width: float | Sequence[float] | None = None,
    trust: Collection[str] = (),
    execution: Execution = IN_PROCESS,
) -> Selection:
    """Certify the first candidate that passes. Each is tested on fresh episodes; all share one permitted error.

    Args:
        candidates: policies in order of preference, fixed before the first episode is sampled.
        domain: the domain in which they act.
        requirement: the requirement.
        method: the statistical test, as in `verify`.
        method_options: parameters of the method.
        max_episodes: maximum number of episodes per candidate.
        seed: the episodes are a function of it.
        issued: issue time in the certificate; default: now.
        width: width of the intervals of answers, as in `verify`; questions are answered for the chosen candidate only.
        trust: files that may run code, as in `verify`.
        execution: devices, worker processes, Ray, time-outs; the result does not depend on it.

    Returns:
        The index of the certified candidate, and the certificate, which lists all looks.
    """
    for candidate in candidates:
        if known_looks(candidate) is not None:
            raise RunError(
                f"{candidate!s} keeps its own account of looks; use psyco.verify, or pass its policy (run.policy), "
                "which has none"
            )
    where = as_domain(domain)
    return verification.certify_candidates(
        [find_policy(candidate, trust)[0] for candidate in candidates],
        where, written_for(as_requirement(requirement), where),
        method=method, options=method_options or {}, max_episodes=max_episodes, seed=seed,
        execution=execution, issued=issued, width=width,
    )  # fmt: skip


@verb
def compare_policies(
    new: PolicyLike,
    old: PolicyLike,
    domain: AnyDomain | None = None,
    requirement: AnyRequirement | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    margin: float = DEFAULT_MARGIN,
    confidence: float | None = None,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    share: float | None = None,
    issued: str | None = None,
    trust: Collection[str] = (),
    execution: Execution = IN_PROCESS,
) -> PolicyComparison:
    """Show that a new policy is at least as good as an old one, or that it is worse, on pairs of fresh episodes.

    Compared are the probability of each constraint's formula, each bounded quantity, and the return, by the pairs that
    the new policy wins and loses. The verdict is BETTER, NOT_WORSE, WORSE or UNDECIDED.

    Args:
        new: the new policy, as in `verify`.
        old: the policy to compare it with, as in `verify`.
        domain: the domain in which both act; default: that in which the new policy was trained.
        requirement: the requirement; default: that of the new policy's run.
        parameters: changes to the parameters of the domain.
        margin: by how much the new policy may be worse, in probability or in the share of pairs; 0: it must be better.
        confidence: 1 minus the permitted error; default: the largest confidence in the requirement, or 0.95.
        max_episodes: the comparison ends undecided after this number of episodes of each policy.
        seed: the episodes are a function of it; those of one number have one seed for both policies.
        share: part of the permitted error that this comparison may use; default: all of it. A run keeps its own account
            of comparisons with one old policy.
        issued: issue time; default: now.
        trust: code and files that may run, as in `verify`.
        execution: devices, worker processes, Ray, time-outs; the result does not depend on it.
    """
    found, where, wanted = as_subject(new, domain, requirement, parameters, trust)
    if confidence is None:
        confidence = max((constraint.confidence for constraint in wanted.constraints), default=0.95)
    known = known_looks(new)
    if known is not None and share is not None:
        raise RunError(f"{new} keeps its own account of looks, so leave out share")
    return comparison.compare_policies(
        found, find_policy(old, trust)[0], where, wanted,
        margin=margin, confidence=confidence, max_episodes=max_episodes, seed=seed, execution=execution,
        ledger=known if known is not None else single_look(1.0 if share is None else share), issued=issued,
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
    width: float | Sequence[float] | None = None,
    horizon: int | None = None,
    cut: Cut = "error",
    first_index: int = 0,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Certificate:
    """Test recorded outcomes in the order in which episodes began, as far as needed, and answer questions.

    Files may state the beginning of each episode: `index` counts episodes 0, 1, 2, ... as they begin, and none may be
    missing; `started` is a time. Outcomes are sorted by these. Without them, the order of the recording must be the
    order in which the episodes began, and an episode that still runs must not be skipped: of parallel episodes the
    short ones end first.

    Args:
        outcomes: satisfied or not, `[B]`, or `[B, N]` for N constraints and questions: Booleans or 0 and 1, and numbers
            for an expected value. Or a file: one outcome or number per line, or CSV with a column per constraint and
            question; "-" is the standard input.
        requirement: constraints and questions; `P>=0.85 & C>=0.98` and `P=?` without a formula are allowed.
        traces: the file holds signals, CSV or JSON lines with one row per state and an `episode` column; the
            requirement judges them first.
        method: the statistical test, as in `verify`.
        method_options: parameters of the method.
        max_episodes: maximum number of outcomes, chosen without looking at them; default: all.
        issued: issue time in the certificate; default: now.
        width: answer questions until their intervals have this width; default: with all outcomes.
        horizon: longest episode of traces, in steps; rates and totals need it.
        cut: "violated" counts episodes of traces that end neither `terminated` nor `truncated` as violated, where the
            file has such columns; default: they are an error.
        first_index: the index of the first episode.
        groups: names of groups and their agents, in traces; default: by their numbers, as in `pursuer_0.x`.
    """
    wanted = as_requirement(requirement, parse if traces else outcome_requirement)
    if groups is not None and not traces:
        raise RunError("groups are for traces: outcomes have no signals of agents")
    if horizon is not None:
        if not traces:
            raise RunError(f"horizon is the longest episode of traces, in steps; got {horizon!r} without traces")
        horizon = check_count("horizon", horizon)
    if cut not in get_args(Cut):
        raise RunError(f"cut is 'error' or 'violated', got {cut!r}")
    if cut != "error" and not traces:
        raise RunError("cut is for traces: outcomes have no end")
    first_index = check_count("first_index", first_index, 0)
    judged: Any = outcomes
    if isinstance(outcomes, str | Path):
        data, origin = _read(outcomes)
        if traces:
            if groups is not None or is_quantified(wanted):
                wanted = recorded_traces.written_for_traces(data, wanted, groups, origin=origin)
            judged = recorded_traces.read_traces(
                data, wanted, origin=origin, horizon=horizon, cut=cut, first_index=first_index
            )
        else:
            judged = recordings.read_outcomes(data, wanted, origin=origin, first_index=first_index)
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
    adversary: Policy | str | Path | None = None,
    version: str | None = None,
    trust: Collection[str] = (),
    execution: Execution = IN_PROCESS,
) -> Replay:
    """Repeat every look of a certificate and report all differences.

    Args:
        certificate: the certificate, or its file.
        policy: the certified policy, as in `verify`.
        domain: the domain, where it cannot be made by name.
        adversary: the adversary, or its file, of a certificate against one.
        version: version of the policy, as in `verify`.
        trust: code (`module:name`) that the certificate names, and files that may run code, as in `verify`.
        execution: devices, worker processes, Ray, time-outs; the result does not depend on it.
    """
    given = isinstance(certificate, Certificate)
    text = certificate.to_json() if isinstance(certificate, Certificate) else read_text(certificate, "certificate")
    if isinstance(policy, str) and is_model_name(policy) and domain is None:  # a chain, which has no other policy
        domain = as_domain(policy, Certificate.from_json(text, origin=str(certificate), strict=False).parameters)
        policy = chain_policy(domain)
    if adversary is not None:
        claimed = Certificate.from_json(text, origin=str(certificate), strict=False)
        domain = _with_adversary(adversary, claimed, domain, trust)
    return recertify.replay(
        text,
        with_version(find_policy(policy, trust)[0], version),
        origin="the certificate" if given else str(certificate),
        domain=None if domain is None else as_domain(domain),
        execution=execution,
        trust=trust,
    )


def _with_adversary(
    adversary: Policy | str | Path, claimed: Certificate, domain: AnyDomain | None, trust: Collection[str]
) -> Domain:
    """Return the domain of a certificate against an adversary."""
    about, disturbance, found = adversary_of(claimed.parameters), None, None  # type: Any, Any, Any
    if about is not None and "agent" in about:
        disturbance, found = read_adversary(about), find_policy(adversary)[0]
    else:
        disturbance, found = as_adversary(adversary)
    if found is None or about is None:
        raise RunError(
            "adversary (--adversary) is the file of the adversary that a certificate is about, and this certificate is "
            f"about {'none' if found is not None else 'one with another file'}"
        )
    if domain is not None:
        return attacked_domain(as_domain(domain), disturbance, found)
    parameters = {name: value for name, value in claimed.parameters.items() if name != "adversary"}
    base = make_from_description(DomainDescription(str(claimed.domain), parameters), trusted_names(trust))
    return attacked_domain(base, disturbance, found)


@verb
def exact(
    policy: PolicyLike,
    domain: AnyDomain | None = None,
    requirement: AnyRequirement | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    trust: Collection[str] = (),
) -> ExactAnswer:
    """Compute the exact probabilities and expected return of a policy on a finite domain, and the optimum.

    The optimum is over all controllers, including those that observe counters, have memory or randomise.

    Args:
        policy: as in `verify`.
        domain: the domain in which the policy acts; default: that of its training.
        requirement: the requirement; default: that of its run.
        parameters: changes to the parameters of the domain.
        trust: code (`module:name`) that files name and that may be imported, and files that may run code themselves:
            TorchScript (*.pt) and Stable-Baselines3 (`sb3:`).
    """
    return solver.exact(*as_subject(policy, domain, requirement, parameters, trust))


@verb
def optimum(
    domain: AnyDomain, requirement: AnyRequirement, *, parameters: Mapping[str, Any] | None = None
) -> list[Optimum]:
    """Return the smallest and largest value of each property of a requirement over all policies on a model, by Storm.

    Under constraints on probabilities, the last one is the best expected return that satisfies them.

    Args:
        domain: a PRISM or JANI file, or its domain.
        requirement: constraints and questions.
        parameters: parameters of a domain that is given by name.
    """
    made = as_domain(domain, parameters)
    if not isinstance(made, ModelFile | ProgramFile):
        raise RunError(f"{made.name} is no PRISM or JANI file; psyco.exact has the optimum of a finite domain")
    return model_optimum(made, as_requirement(requirement))


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
    width: float | Sequence[float] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> VerificationPlan:
    """Predict the verdicts and the length of a verification before any episode is sampled.

    Probabilities are computed by exact dynamic programming. Expected values are simulated, since mean and spread do not
    determine a distribution: values are drawn from a Beta distribution on their range, those of a rate in episodes of
    one length. The defaults are those of `synthesize`: its first look at a candidate, with half of the permitted error.

    Args:
        requirement: the requirement; `P>=0.85 & C>=0.98` without a formula is allowed.
        method: one method; default: all methods, side by side.
        method_options: parameters of that method.
        max_episodes: maximum number of episodes.
        share: part of the permitted error that this look may use; 1 for a policy that is verified once.
        p: true probabilities; default: a selection around the required one.
        mean: true means of an expected value.
        spread: standard deviation of its values.
        horizon: longest episode; it determines the range of totals and counts that `within` does not state.
        width: wanted width of the intervals of answers to questions (`P=?`); default: questions are left out.
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
        width=width,
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
    execution: Execution = IN_PROCESS,
) -> Iterator[CheckResult]:
    """Check a domain for learning and verification, or list a model; yield each result at once.

    Args:
        domain: the environment or the PRISM or JANI file: a domain, or a name that `psyco.make` accepts.
        requirement: a requirement whose signals must exist.
        parameters: parameters of a domain that is given by name.
        seed: seed of policies and episodes.
        episodes: training episodes of the planned synthesis; default: 60,000.
        steps: training steps of the planned synthesis, instead of episodes.
        learner: learner of the planned synthesis.
        execution: execution of the planned synthesis; with workers, episodes are also repeated in other processes.
    """
    made = as_domain(domain, parameters)
    if isinstance(made, ModelFile | ProgramFile):
        return check_model(made, None if requirement is None else as_requirement(requirement))
    wanted = None if requirement is None else written_for(as_requirement(requirement), made)
    check_one_budget(**{n: v for n, v in {"episodes": episodes, "steps": steps}.items() if v is not None})
    settings = (
        Settings(steps=steps, learner=learner)
        if steps
        else Settings(episodes=DEFAULT_EPISODES if episodes is None else episodes, learner=learner)
    )
    return _checked(made, wanted, seed, settings, execution)


def _checked(
    domain: Domain,
    requirement: Requirement | None,
    seed: int,
    settings: Settings,
    execution: Execution,
) -> Iterator[CheckResult]:
    """Yield all checks and, if none failed, the plan of a synthesis."""
    failed = False
    results = (
        check_environment(domain, requirement, seed=seed, execution=execution)
        if isinstance(domain, GymDomain)
        else _check_compiled(domain, requirement, seed)
    )
    for each in results:
        failed = failed or each.passed is False
        yield each
    if failed or requirement is None:
        return
    with warnings.catch_warnings():  # the checks have said it
        warnings.simplefilter("ignore")
        problem = prepare(domain, requirement, dataclasses.replace(settings, seed=seed), execution)
    if isinstance(domain, GymDomain):
        simulator = simulator_throughput(problem)
        plan = problem.plan(simulator, learning_throughput(problem, simulator))
        where = ", in one process" if execution.workers == 1 else f", with {execution.workers} workers"
    else:  # learning would have to be compiled before its speed is known
        plan, where = problem.plan(), ""
    yield CheckResult("plan", True, f"of a synthesis with {settings.budget}{where}\n{plan}", plan.to_json())


def _check_compiled(domain: Domain, requirement: Requirement | None, seed: int) -> Iterator[CheckResult]:
    """Yield the checks of a compiled domain, and whether a finite one agrees with its enumeration."""
    yield from check_compiled(domain, requirement, seed=seed)
    if is_finite_domain(domain):
        try:
            check_consistency(require_finite(domain))  # type: ignore[arg-type]  # hashable, as for jit
        except DomainError as error:
            yield CheckResult("enumeration", False, str(error))
        else:
            yield CheckResult(
                "enumeration", True, "it agrees with samples of reset and step: exact answers are possible"
            )


def _ledger(share: float | None, after: Certificate | None, subject: VerificationInput) -> Ledger:
    """Return the ledger of a single look, or of a look after those of a certificate."""
    if after is None:
        return single_look(1.0 if share is None else share)
    stream = Stream.CERTIFY if after.stream == "certify" else Stream.VERIFY
    earlier, where = certificate_entries(after), describe(subject.domain)
    if earlier[0].target.statement != make_statement(subject.requirement, where):
        raise RunError(
            f"the earlier certificate is about another requirement or domain:\n{after.requirement}\non "
            f"{after.domain} {after.parameters} instead of:\n{subject.requirement}\non {where.name} {where.parameters}"
        )
    return Ledger(earlier, look_share if share is None else lambda look: share, stream)


def _read(file: str | Path) -> tuple[bytes, str]:
    """Return the content of a recording and its name for messages."""
    if str(file) == "-":
        return sys.stdin.buffer.read(), "the input"
    return read_bytes(file, "recording"), str(file)


# Learn the risk of a violation, by which a guard hands over.


RECORD_BATCH = 250  # episodes that are recorded at the same time


@verb
def learn_risk(
    policy: PolicyLike,
    domain: AnyDomain | None = None,
    requirement: AnyRequirement | None = None,
    *,
    within: int | None = None,
    limit: float = 0.1,
    episodes: int = 1000,
    seed: int = 0,
    parameters: Mapping[str, Any] | None = None,
    trust: Collection[str] = (),
    execution: Execution = IN_PROCESS,
) -> Risk:
    """Fit the probability of a violation to fresh episodes of a policy; `print` shows its calibration.

    Args:
        policy: the policy, as in `verify`.
        domain: the domain in which the policy acts; default: that of its training.
        requirement: the requirement; default: that of its run.
        within: estimate the risk of a violation within this number of steps; None: in the rest of the episode.
        limit: risk at which a guard hands over; `risk.with_limit(limit)` changes it.
        episodes: number of recorded episodes; they serve no other purpose.
        seed: the episodes are a function of it.
        parameters: changes to the parameters of the domain.
        trust: code (`module:name`) that files name and that may be imported, and files that may run code themselves.
        execution: worker processes of a Gymnasium environment.
    """
    found, where, wanted = as_subject(policy, domain, requirement, parameters, trust)
    found.check(where)
    count = check_count("episodes", episodes)
    if within is not None:
        within = check_count("within", within)
    monitor = Monitor(wanted, horizon=where.horizon, counters=counters_of(where))
    paths = []
    for first in range(0, count, RECORD_BATCH):
        paths += record_episodes(
            where, found, seed=seed, first=first, count=min(RECORD_BATCH, count - first), stream=Stream.RISK,
            execution=execution,
        )  # fmt: skip
    return fit_risk(monitor, paths, within=within, limit=limit)
