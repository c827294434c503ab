"""Convert arguments: names to domains, texts and files to requirements, files and functions to policies."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

import gymnasium
import numpy as np

from psyco._src.core.errors import ArgumentError, DomainError, RunError, suggest
from psyco._src.core.files import read_text
from psyco._src.core.options import declared
from psyco._src.envs.actions import Discrete
from psyco._src.envs.base import Domain, written_for
from psyco._src.envs.multi_agent import joint_domain
from psyco._src.envs.registry import (
    BUILT_IN,
    DomainDescription,
    is_model_name,
    make,
    make_from_description,
    texts,
    trusted_names,
)
from psyco._src.envs.variants import Disturbance, adversary_of, read_disturbance
from psyco._src.learners.learner_registry import LEARNERS
from psyco._src.logic.ast import Requirement
from psyco._src.logic.parser import parse
from psyco._src.logic.requirement import AnyRequirement, as_requirement
from psyco._src.policies import external
from psyco._src.policies.external import AnyPolicy, ExternalPolicy, as_policy
from psyco._src.policies.guard import Guard
from psyco._src.policies.network import Network, network_for
from psyco._src.policies.serialization import Policy, load_policy, policy_for
from psyco._src.rollout.execution import Execution
from psyco._src.runs.behaviour_cloning import clone, limit_scores, play_demonstrations, read_demonstrations
from psyco._src.runs.budget import CONTROL_HIDDEN
from psyco._src.runs.settings import Settings
from psyco._src.runs.store import Run, is_run, open_ledger, read_run
from psyco._src.runs.train import Callback, RunProgress
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.ledger import Ledger

AnyDomain: TypeAlias = Domain | str | Callable[..., Any]
PolicyLike: TypeAlias = external.PolicyLike | Run
# What learning can start from: a policy, or demonstrations.
StartLike: TypeAlias = PolicyLike | Mapping[str, Any] | Sequence[Mapping[str, Any]]


def as_domain(domain: AnyDomain, parameters: Mapping[str, Any] | None = None) -> Domain:
    """Return a domain, made from its name, class or factory function if needed."""
    if isinstance(domain, gymnasium.Env):
        raise DomainError(
            f"{domain!r} is an environment; pass its class or a function that makes it, since many are stepped at once"
        )
    if isinstance(domain, str | type) or not hasattr(domain, "horizon"):
        if not callable(domain) and not isinstance(domain, str):
            raise DomainError(f"{domain!r} is not a domain; psyco.make makes one from a name, a class or a function")
        return make(domain, **(parameters or {}))
    if parameters:
        raise DomainError(f"{domain!r} is already a domain; pass its parameters where it is made")
    return joint_domain(cast(Domain, domain))


class VerificationInput(NamedTuple):
    """A policy, its domain and its requirement."""

    policy: AnyPolicy
    domain: Domain
    requirement: Requirement


def as_subject(
    policy: PolicyLike,
    domain: AnyDomain | None,
    requirement: AnyRequirement | None,
    parameters: Mapping[str, Any] | None = None,
    trust: Collection[str] = (),
) -> VerificationInput:
    """Return a policy with its domain and requirement; default: those of its training. Only runs have a requirement.

    Args:
        policy: a policy, a file, a run or its folder, or a function from observation to action.
        domain: the domain, if not that of its training.
        requirement: the requirement, if not that of its run.
        parameters: changes to the parameters of the domain.
        trust: code that files may name, and files that may run code themselves.
    """
    own: str | None = None
    if isinstance(policy, str) and is_model_name(policy) and domain is None:
        where = as_domain(policy, parameters)
        if requirement is not None and as_requirement(requirement).only_optima:  # they are about all policies
            network = network_for(where, hidden=1)
            found: AnyPolicy = policy_for(where, network, np.zeros(network.size), origin="any policy")
        else:
            found = chain_policy(where)
    else:
        found, own = find_policy(policy, trust)
        where = _where(found, domain, parameters, trust)
    if requirement is None and own is None:
        raise RunError(f"{policy} is a policy without a requirement; give one with requirement (--require)")
    # The requirement of a run is text: it must not name another file.
    wanted = as_requirement(requirement) if requirement is not None else parse(str(own))
    return VerificationInput(found, where, written_for(wanted, where))


class Teams(NamedTuple):
    """Joint policies for one domain, and the requirement that they are tested by."""

    policies: list[AnyPolicy]
    names: list[str]  # of their files or folders where these differ, else whole paths
    domain: Domain
    requirement: Requirement


def as_teams(
    policies: Sequence[PolicyLike],
    domain: AnyDomain | None,
    requirement: AnyRequirement | None,
    parameters: Mapping[str, Any] | None = None,
    trust: Collection[str] = (),
) -> Teams:
    """Return policies that shall act together; domain and requirement default to those that they have in common."""
    if not policies:
        raise RunError("no policies are given")
    places = [each.folder if isinstance(each, Run) else each for each in policies]
    names = [str(each) if isinstance(each, str | Path) else f"policy {i}" for i, each in enumerate(places)]
    found = [find_policy(policy, trust) for policy in policies]
    own = [(name, policy) for name, (policy, _) in zip(names, found, strict=True) if isinstance(policy, Policy)]
    for name, policy in own if domain is None else ():
        one, other = (
            f"{each.domain}({', '.join(f'{key}={value}' for key, value in each.parameters.items())})"
            for each in (own[0][1], policy)
        )
        if one != other:
            raise RunError(
                f"{own[0][0]} was learned in {one}, and {name} in {other}: policies act together in one domain. Name "
                "it with domain (--domain)"
            )
    # Where no domain is given, an external policy acts in that of the others.
    where = _where(own[0][1] if own else found[0][0], domain, parameters, trust)
    stated = [(name, parse(text)) for name, (_, text) in zip(names, found, strict=True) if text is not None]
    if requirement is not None:
        stated = [("", as_requirement(requirement))]
    if not stated:
        raise RunError("these policies have no requirement; give one with requirement (--require)")
    for name, other_requirement in stated[1:]:
        if other_requirement != stated[0][1]:
            raise RunError(
                f"{stated[0][0]} and {name} were learned for different requirements; give one with requirement "
                "(--require)"
            )
    short = [Path(name).name for name in names]
    shown = short if len(set(short)) == len(short) and all(short) else names
    return Teams([policy for policy, _ in found], shown, where, written_for(stated[0][1], where))


def chain_policy(domain: Domain) -> Policy:
    """Return the only policy of a Markov chain; raise RunError where there is a choice."""
    if domain.actions != Discrete(1):
        raise RunError(
            f"{domain.name} is a decision process, with up to {domain.actions.outputs} choices in a state: give the "
            f"policy first, and --domain {domain.name}; psyco synthesize learns one, and psyco exact --optimum "
            "computes the best values"
        )
    network = Network(domain.observation_size, 1, 1)
    return policy_for(domain, network, np.zeros(network.size), origin="a Markov chain has nothing to choose")


def as_actor(
    policy: PolicyLike,
    domain: AnyDomain | None,
    parameters: Mapping[str, Any] | None = None,
    trust: Collection[str] = (),
) -> tuple[AnyPolicy, Domain]:
    """Return a policy and its domain; default: that of its training."""
    found, _ = find_policy(policy, trust)
    return found, _where(found, domain, parameters, trust)


def _where(
    found: AnyPolicy, domain: AnyDomain | None, parameters: Mapping[str, Any] | None, trust: Collection[str]
) -> Domain:
    own = found.policy if isinstance(found, Guard) else found  # a guard acts in the domain of its policy
    if domain is not None and not (isinstance(own, Policy) and domain == own.domain):
        where = as_domain(domain, parameters)
    elif isinstance(own, Policy):
        # What the caller names is trusted: the domain, and the parameters given here.
        named = trusted_names(trust) | set(texts([own.domain if domain is not None else None, parameters or {}]))
        where = make_from_description(DomainDescription(own.domain, {**own.parameters, **(parameters or {})}), named)
    else:
        raise RunError(f"{own.source} is an external policy: give its domain with domain (--domain)")
    found.check(where)
    return where


def find_policy(policy: PolicyLike, trust: Collection[str] = ()) -> tuple[AnyPolicy, str | None]:
    """Return the policy of an argument, and the requirement of its run or guard, if any."""
    if isinstance(policy, str | Path):
        if not str(policy).strip():
            raise RunError("an empty name is not a policy")
        if str(policy) in BUILT_IN and not os.path.exists(policy):
            raise RunError(f"{policy} is a domain: the policy comes first, then the domain")
        if os.path.isdir(policy):  # False, not an error, for an impossible name
            policy = read_run(Path(policy))
    elif isinstance(result := getattr(policy, "policy", None), Policy) and not isinstance(policy, Run | Guard):
        return result, None  # a `Result` of `psyco.synthesize`
    if isinstance(policy, Run):
        if policy.config is None:
            raise RunError("\n".join(policy.problems))
        return policy.policy, policy.config.requirement
    found = as_policy(policy, trust)
    return found, str(found.requirement) if isinstance(found, Guard) else None


def as_start(
    source: StartLike | None,
    domain: Domain,
    settings: Settings,
    execution: Execution,
    trust: Collection[str] = (),
    callbacks: Sequence[Callback] = (),
) -> Policy | None:
    """Return the PSyCo policy that learning starts from: the one given, or one that acts like the source.

    Args:
        source: a policy of any kind, or demonstrations.
        domain: where learning takes place.
        settings: their seed, and their hidden layers if they are given.
        execution: where an external policy plays its episodes.
        trust: files that may run code.
        callbacks: they receive the progress of behaviour cloning.
    """
    if source is None:
        return None
    demonstrations = read_demonstrations(source, domain)
    if demonstrations is None:
        found, _ = find_policy(cast(PolicyLike, source), trust)
        if isinstance(found, Policy):
            return found
        found.check(domain)
        same = found.as_network(domain) if isinstance(found, ExternalPolicy) else None
        if same is not None and settings.hidden not in (None, same.network.hidden):
            same = None
        if same is not None and not same.actions.ranked:
            return same
        demonstrations = play_demonstrations(found, domain, settings.seed, execution)
        if same is not None:
            return limit_scores(same, demonstrations.observations)

    def report(done: int, total: int) -> None:
        for callback in callbacks:
            callback.on_progress(RunProgress("cloning", done, total, "updates"))

    return clone(demonstrations, domain, hidden=settings.hidden or CONTROL_HIDDEN, seed=settings.seed, report=report)


def as_adversary(adversary: Any) -> tuple[Disturbance, Policy | None]:
    """Return what an adversary may change, and its policy if it was learned before and is given, or its file."""
    if isinstance(adversary, str | Path) and os.path.isfile(adversary):
        adversary = load_policy(adversary)
    if not isinstance(adversary, Policy):
        return read_disturbance(adversary), None
    about = adversary_of(adversary.parameters)
    if about is None or "kind" not in about:
        raise RunError(f"{adversary!r} is no adversary; psyco.attack learns one and returns it as `adversary`")
    return Disturbance(about["kind"], about["size"]), adversary


def known_looks(policy: PolicyLike, *, ignored: bool = False) -> Ledger | None:
    """Return the ledger of looks at a policy, from its run folder or its `Result`; None if it has none.

    With `ignored` that of a run folder is empty, and its file may be gone or damaged.
    """
    if isinstance(policy, Run):
        return open_ledger(policy.folder, ignored=ignored)
    if not isinstance(policy, str | Path):
        looks = getattr(policy, "looks", None)
        return looks if isinstance(looks, Ledger) else None
    try:
        path = Path(policy).resolve()  # a link to a run's policy is that policy
        folder = path if path.is_dir() else path.parent
        return open_ledger(folder, ignored=ignored) if path.exists() and is_run(folder) else None
    except (OSError, ValueError):  # not a file name
        return None


def as_certificate(certificate: Certificate | str | Path | None) -> Certificate | None:
    """Return a certificate, read from its file if needed."""
    if certificate is None or isinstance(certificate, Certificate):
        return certificate
    return Certificate.from_json(read_text(certificate, "certificate"), origin=str(certificate))


def find_run(run: Run | str | Path) -> Run:
    """Return a run, read from its folder if needed."""
    if isinstance(run, Run):
        return run
    if not isinstance(run, str | Path):
        raise RunError(f"{run!r} is not a run; give its folder, or the result of psyco.open_run")
    return read_run(Path(run))


# Report misspelt or misplaced keyword arguments of the public functions, with a suggestion.


P = ParamSpec("P")
R = TypeVar("R")
# Arguments that collect options, and their types.
OBJECTS: dict[str, tuple[type, ...]] = {"settings": (Settings,), "execution": (Execution,)}


def verb(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a public function: a keyword that is unknown or of another type raises `ArgumentError` with a remedy."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
        for name in keywords:
            if name not in known:
                hint = next(_places(name, known), "") or suggest(name, known)
                raise ArgumentError(f"psyco.{function.__name__} has no argument {name!r}{hint}")
        for name, kinds in OBJECTS.items():
            value = keywords.get(name)
            # A study file has settings as a table, so the functions for many runs take a mapping too.
            accepted = (*kinds, Mapping) if function.__name__ in ("pareto_front", "tune") else kinds
            if value is not None and not isinstance(value, accepted):
                raise ArgumentError(f"{name} must be a psyco.{kinds[0].__name__}(...), got {value!r}")
        return function(*arguments, **keywords)

    return checked


def _places(name: str, known: list[str]) -> Iterator[str]:
    """Yield the object that declares an argument of this name: settings, execution or a learner."""
    if "execution" in known and name in declared(Execution):
        yield f"; it is part of execution: execution=psyco.Execution({name}=...)"
    if "settings" in known and name in declared(Settings):
        yield f"; it is a setting: settings=psyco.Settings({name}=...)"
    for learner in LEARNERS if "learner" in known else ():
        if name in declared(cls := LEARNERS[learner]):
            yield f"; it is an option of a learner: learner=psyco.{cls.__name__}({name}=...)"
