"""Try a policy where it may fail: the worst environment, adversaries, deviating agents, other partners."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from psyco._src.api.coerce import (
    AnyDomain,
    PolicyLike,
    VerificationInput,
    as_adversary,
    as_subject,
    as_teams,
    find_policy,
    known_looks,
    verb,
)
from psyco._src.core import files
from psyco._src.core.errors import RunError
from psyco._src.envs.variants import AnyAdversary, Deviation
from psyco._src.learners.learner_registry import AUTO_LEARNER
from psyco._src.logic.requirement import AnyRequirement
from psyco._src.policies.serialization import Policy
from psyco._src.reports.crossplay_page import crossplay_page
from psyco._src.reports.stress_page import stress_page
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.runs.adversarial_training import AdversarialTraining
from psyco._src.runs.adversarial_training import train_against as learn_against
from psyco._src.runs.attack import AttackResult
from psyco._src.runs.attack import attack as attack_policy
from psyco._src.runs.settings import (
    DEFAULT_ADVERSARY_EPISODES,
    DEFAULT_EPISODES,
    DEFAULT_RESPONSE_EPISODES,
    Settings,
)
from psyco._src.runs.store import Run, is_run, keep_certificate, read_run, refuse_file_of_run
from psyco._src.runs.train import Callback
from psyco._src.verification.crossplay import DEFAULT_EPISODES as DEFAULT_PAIRING_EPISODES
from psyco._src.verification.crossplay import CrossPlay
from psyco._src.verification.crossplay import crossplay as play_crosswise
from psyco._src.verification.methods import DEFAULT_MAX_EPISODES, DEFAULT_METHOD
from psyco._src.verification.stress import DEFAULT_SEARCH_EPISODES, StressResult
from psyco._src.verification.stress import stress as search_worst


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
    if isinstance(policy, str | Path) and is_run(Path(policy)):
        policy = read_run(Path(policy))
    config = policy.config if isinstance(policy, Run) else None
    return Settings() if config is None else config.settings
