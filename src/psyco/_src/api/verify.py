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
    as_teams,
    chain_policy,
    find_policy,
    known_looks,
    verb,
)
from psyco._src.core import files
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
from psyco._src.envs.variants import AnyAdversary, Deviation, adversary_of, read_adversary
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
from psyco._src.reports.crossplay_page import crossplay_page
from psyco._src.reports.stress_page import stress_page
from psyco._src.rollout.env_checker import CheckResult, check_compiled, check_environment
from psyco._src.rollout.episodes import Stream
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.record import record_episodes
from psyco._src.runs.adversarial_training import AdversarialTraining
from psyco._src.runs.adversarial_training import train_against as learn_against
from psyco._src.runs.attack import AttackResult, attacked_domain
from psyco._src.runs.attack import attack as attack_policy
from psyco._src.runs.problem import prepare
from psyco._src.runs.settings import (
    DEFAULT_ADVERSARY_EPISODES,
    DEFAULT_EPISODES,
    DEFAULT_RESPONSE_EPISODES,
    Settings,
    check_one_budget,
)
from psyco._src.runs.store import Run, is_run, keep_certificate, read_run, refuse_file_of_run
from psyco._src.runs.time_budget import learning_throughput, simulator_throughput
from psyco._src.runs.train import Callback
from psyco._src.verification import comparison, recertify, recordings
from psyco._src.verification import outcomes as recorded
from psyco._src.verification import verifier as verification
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.comparison import DEFAULT_MARGIN, PolicyComparison
from psyco._src.verification.crossplay import DEFAULT_EPISODES as DEFAULT_PAIRING_EPISODES
from psyco._src.verification.crossplay import CrossPlay
from psyco._src.verification.crossplay import crossplay as play_crosswise
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
from psyco._src.verification.stress import DEFAULT_SEARCH_EPISODES, StressResult
from psyco._src.verification.stress import stress as search_worst
from psyco._src.verification.verifier import Selection

DEFAULT = Settings()


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
                wanted = recordings.written_for_traces(data, wanted, groups, origin=origin)
            judged = recordings.read_traces(
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
def crossplay(
    policies: Sequence[PolicyLike],
    domain: AnyDomain | None = None,
    requirement: AnyRequirement | None = None,
    *,
    agent: str | Sequence[str] | None = None,
    parameters: Mapping[str, Any] | None = None,
    episodes: int = DEFAULT_PAIRING_EPISODES,
    seed: int = 0,
    out: str | Path | None = None,
    trust: Collection[str] = (),
    execution: Execution = IN_PROCESS,
    on_progress: Callable[[int], None] | None = None,
) -> CrossPlay:
    """Test agents of each joint policy with partners of each: a matrix of verdicts under one permitted error.

    Args:
        policies: two or more, each as in `verify`; all for the same agents.
        domain: the domain in which they act; default: that of their training.
        requirement: the requirement; default: that of the runs.
        agent: the agent or group that follows the row's policy, or several; all others follow the column's. Default:
            the first agent.
        parameters: changes to the parameters of the domain.
        episodes: number of episodes of each pairing.
        seed: the episodes are a function of it.
        out: write a page with the matrix to this file, as HTML.
        trust: code and files that may run, as in `verify`.
        execution: devices, worker processes, Ray, time-outs; the result does not depend on it.
        on_progress: called with the number of episodes of each batch.

    Returns:
        The certificates of all pairings, which share one permitted error.
    """
    if isinstance(policies, str | Path) or not isinstance(policies, Sequence):
        raise RunError(f"policies must be a list of two or more, got {policies!r:.100}")
    if out is not None:
        refuse_file_of_run(Path(out))
    found, names, where, wanted = as_teams(policies, domain, requirement, parameters, trust)
    played = play_crosswise(
        found, names, where, wanted, agents=[agent] if isinstance(agent, str) else list(agent or ()),
        episodes=episodes, seed=seed, execution=execution, progress=on_progress,
    )  # fmt: skip
    if out is not None:
        files.write(Path(out), crossplay_page(played).encode())
    return played


@verb
def stress(
    policy: PolicyLike,
    domain: AnyDomain | None = None,
    requirement: AnyRequirement | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    search_episodes: int = DEFAULT_SEARCH_EPISODES,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    out: str | Path | None = None,
    trust: Collection[str] = (),
    execution: Execution = IN_PROCESS,
    on_progress: Callable[[int], None] | None = None,
) -> StressResult:
    """Search a family of environments for the one with the lowest probability, and test the requirement there.

    The statement is about the environment that was found, and rests on fresh episodes. It says nothing about others.

    Args:
        policy: as in `verify`.
        domain: a family, from `vary`; default: that of its training.
        requirement: the requirement; default: that of its run.
        parameters: changes to the parameters of the domain, such as `{"vary": {"max_speed": "0.08..0.12"}}`.
        search_episodes: number of episodes of the search.
        max_episodes: maximum number of fresh episodes in the environment that was found.
        seed: search and episodes are a function of it.
        out: write a page with a map of the family to this file, as HTML.
        trust: code and files that may run, as in `verify`.
        execution: devices, worker processes, Ray, time-outs.
        on_progress: called with the number of episodes of each batch.

    Returns:
        The environment, its findings, and all environments that were tried.
    """
    if out is not None:
        refuse_file_of_run(Path(out))
    subject = as_subject(policy, domain, requirement, parameters, trust)
    found = search_worst(
        *subject, search_episodes=search_episodes, max_episodes=max_episodes, seed=seed, ledger=known_looks(policy),
        execution=execution, progress=on_progress,
    )  # fmt: skip
    if out is not None:
        files.write(Path(out), stress_page(found).encode())
    return found


@verb
def attack(
    policy: PolicyLike,
    domain: AnyDomain | None = None,
    requirement: AnyRequirement | None = None,
    *,
    adversary: Any,
    parameters: Mapping[str, Any] | None = None,
    learner: Any = AUTO_LEARNER,
    episodes: int = DEFAULT_ADVERSARY_EPISODES,
    method: str = DEFAULT_METHOD,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    exact: bool = False,
    trust: Collection[str] = (),
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] = (),
) -> AttackResult:
    """Learn an adversary that makes a policy fail, and verify the policy against it on fresh episodes.

    The certificate is about episodes against this adversary, and says nothing about others.

    Args:
        policy: a PSyCo policy, as in `verify`; against a given adversary, any policy.
        domain: the domain in which the policy acts; default: that of its training.
        requirement: the requirement; default: that of its run.
        adversary: 0.2: with this probability the adversary chooses the random draw of a step, in a domain that lists
            its draws; "obs:0.05", "action:0.1": it changes each number of an observation or action by at most this.
            Or an adversary that was learned before, or its file.
        parameters: changes to the parameters of the domain.
        learner: learner of the adversary, as in `synthesize`.
        episodes: training episodes of the adversary.
        method: the statistical test, as in `verify`.
        max_episodes: maximum number of fresh episodes.
        seed: adversary and episodes are a function of it.
        exact: on a finite domain, also compute the probability of a violation exactly, and that against the worst
            adversary.
        trust: code and files that may run, as in `verify`.
        execution: devices and the like; the result does not depend on it.
        callbacks: receivers of progress, as in `synthesize`.

    Returns:
        The adversary, the domain in which it acts, the certificate, and exact probabilities if asked for.
    """
    subject = as_subject(policy, domain, requirement, parameters, trust)
    disturbance, given = as_adversary(adversary)
    return _attack_with_account(
        policy, subject, disturbance, adversary=given, method=method, max_episodes=max_episodes,
        settings=Settings(learner=learner, episodes=episodes, seed=seed, verify_every=0),
        with_exact=exact, execution=execution, callbacks=callbacks,
    )  # fmt: skip


@verb
def exploit(
    policy: PolicyLike,
    domain: AnyDomain | None = None,
    requirement: AnyRequirement | None = None,
    *,
    agent: str,
    goal: str = "violation",
    deviation: Policy | str | Path | None = None,
    parameters: Mapping[str, Any] | None = None,
    learner: Any = AUTO_LEARNER,
    episodes: int = DEFAULT_RESPONSE_EPISODES,
    method: str = DEFAULT_METHOD,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    exact: bool = False,
    trust: Collection[str] = (),
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] = (),
) -> AttackResult:
    """Learn the best response of one agent of several, all others fixed, and verify the joint policy against it.

    The certificate is about episodes against this deviation, and says nothing about others.

    Args:
        policy: the joint policy, a PSyCo policy, as in `verify`; against a given deviation, any policy.
        domain: the domain in which the agents act; default: that of their training.
        requirement: the requirement; default: that of its run.
        agent: the name of the agent that deviates.
        goal: "violation": it makes the formulas of the requirement fail; "return": it raises its own return, or the
            team's where agents have none.
        deviation: a joint policy or its file, whose part for this agent is the deviation; None: learn one.
        parameters: changes to the parameters of the domain.
        learner: learner of the deviation, as in `synthesize`; by default `ppo`.
        episodes: training episodes of the deviation.
        method: the statistical test, as in `verify`.
        max_episodes: maximum number of fresh episodes.
        seed: deviation and episodes are a function of it.
        exact: on a finite domain, also compute the probability of a violation exactly, that against the best response,
            and the value of the game of this agent against the others.
        trust: code and files that may run, as in `verify`.
        execution: devices and the like; the result does not depend on it.
        callbacks: receivers of progress, as in `synthesize`.

    Returns:
        The joint policy with the deviating agent, the certificate, what the agent gains in return, and exact
        probabilities if asked for.
    """
    given = None if deviation is None else find_policy(deviation)[0]
    if given is not None and not isinstance(given, Policy):
        raise RunError("a deviation is a joint PSyCo policy, as psyco exploit --save writes it")
    subject = as_subject(policy, domain, requirement, parameters, trust)
    settings = Settings(learner=learner, episodes=episodes, seed=seed, verify_every=0)
    return _attack_with_account(
        policy, subject, Deviation(agent, goal), adversary=given, method=method, max_episodes=max_episodes,
        settings=settings, with_exact=exact, execution=execution, callbacks=callbacks,
    )  # fmt: skip


def _attack_with_account(
    policy: PolicyLike, subject: VerificationInput, disturbance: AnyAdversary, **arguments: Any
) -> AttackResult:
    """Attack a policy; of a run, the look is entered in its ledger, and the certificate kept."""
    ledger = known_looks(policy)
    result = attack_policy(*subject, disturbance, ledger=ledger, **arguments)
    if ledger is not None and ledger.path is not None:
        keep_certificate(ledger.path.parent, result.certificate)
    return result


@verb
def train_against(
    policy: PolicyLike,
    domain: AnyDomain | None = None,
    requirement: AnyRequirement | None = None,
    *,
    adversary: Any = None,
    agent: str | None = None,
    rounds: int = 4,
    parameters: Mapping[str, Any] | None = None,
    learner: Any = AUTO_LEARNER,
    episodes: int | None = None,
    policy_learner: Any = None,
    policy_episodes: int = DEFAULT_EPISODES,
    method: str = DEFAULT_METHOD,
    max_episodes: int = DEFAULT_MAX_EPISODES,
    seed: int = 0,
    exact: bool = False,
    trust: Collection[str] = (),
    execution: Execution = IN_PROCESS,
    callbacks: Sequence[Callback] = (),
) -> AdversarialTraining:
    """Let adversaries and policies learn in turn, and verify the best policy against all adversaries.

    In each round an adversary learns against the newest policy. Then a policy learns, from the one before, against a
    mixture of all adversaries so far. The certificates are about these adversaries, and say nothing about others.

    Args:
        policy: the first policy, a PSyCo policy, as in `verify`.
        domain: the domain in which the policy acts; default: that of its training.
        requirement: the requirement; default: that of its run.
        adversary: what adversaries may change, as in `attack`: 0.2, "obs:0.05", "action:0.1".
        agent: instead of that, the name of an agent of several, which deviates to make the requirement fail, as in
            `exploit`; the others learn against it.
        rounds: number of policies that learn.
        parameters: changes to the parameters of the domain.
        learner: learner of the adversaries, as in `synthesize`.
        episodes: training episodes of each adversary; default: 20,000, and 40,000 where an agent deviates.
        policy_learner: learner of the policies; default: that of the run of the first policy, else chosen for the
            domain.
        policy_episodes: training episodes of each policy.
        method: the statistical test, as in `verify`.
        max_episodes: maximum number of fresh episodes against each adversary.
        seed: everything is a function of it.
        exact: on a finite domain, also compute exact probabilities of the first policy and the result; where an agent
            deviates, those of all rounds.
        trust: code and files that may run, as in `verify`.
        execution: devices, workers and the like; the result does not depend on it.
        callbacks: receivers of progress, as in `synthesize`.

    Returns:
        The policy, its certificate against each adversary, and the violations of all rounds.
    """
    found, where, wanted = as_subject(policy, domain, requirement, parameters, trust)
    if (adversary is None) == (agent is None):
        raise RunError("give one of adversary and agent: what adversaries may change, or the agent that deviates")
    disturbance, given = (Deviation(agent), None) if agent is not None else as_adversary(adversary)
    if given is not None:
        raise RunError("adversaries are learned in every round: give their size, as in 0.2 or obs:0.05, not a policy")
    if episodes is None:
        episodes = DEFAULT_ADVERSARY_EPISODES if agent is None else DEFAULT_RESPONSE_EPISODES
    own = Settings(learner=learner, episodes=episodes, seed=seed, verify_every=0)
    theirs = _run_settings(policy) if policy_learner is None else Settings(learner=policy_learner)
    settings = Settings(
        learner=theirs.learner, options=theirs.options, episodes=policy_episodes, seed=seed, verify_every=0
    )
    return learn_against(
        found, where, wanted, disturbance, rounds=rounds, settings=settings, adversary_settings=own,
        method=method, max_episodes=max_episodes, ledger=known_looks(policy), with_exact=exact,
        execution=execution, callbacks=callbacks,
    )  # fmt: skip


def _run_settings(policy: PolicyLike) -> Settings:
    """Return the settings of the run that a policy belongs to; else the defaults."""
    if isinstance(policy, str | Path) and not isinstance(policy, Run):
        if not is_run(Path(policy)):
            return DEFAULT
        policy = read_run(Path(policy))
    config = policy.config if isinstance(policy, Run) else None
    return DEFAULT if config is None else config.settings


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
        else Settings(episodes=DEFAULT.episodes if episodes is None else episodes, learner=learner)
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
