"""What people hand over: a domain or its name, a requirement as text or a file, a policy as almost anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import gymnasium

from psyco._src.core.errors import DomainError, RunError
from psyco._src.envs.base import Domain
from psyco._src.envs.registry import DomainDescription, make, remake
from psyco._src.envs.trust import names
from psyco._src.logic.ast import Requirement
from psyco._src.logic.parser import parse
from psyco._src.logic.requirement import AnyRequirement, as_requirement
from psyco._src.policies import external
from psyco._src.policies.external import AnyPolicy, as_policy
from psyco._src.policies.guard import Guard
from psyco._src.policies.serialization import Policy
from psyco._src.runs.store import Run, is_run, ledger_of, read_run
from psyco._src.verification.ledger import Ledger

AnyDomain: TypeAlias = Domain | str | Callable[..., Any]
PolicyLike: TypeAlias = external.PolicyLike | Run


def as_domain(domain: AnyDomain, parameters: Mapping[str, Any] | None = None) -> Domain:
    """The domain itself, or that of a name, a class or a function."""
    if isinstance(domain, gymnasium.Env):
        raise DomainError(
            f"{domain!r} is an environment; give what makes it, a class or a function, since many are stepped at once"
        )
    if isinstance(domain, str | type) or not hasattr(domain, "horizon"):
        if not callable(domain) and not isinstance(domain, str):
            raise DomainError(
                f"{domain!r} is no domain; psyco.make makes one of a name, a class or a function"
            )
        return make(domain, **(parameters or {}))
    if parameters:
        raise DomainError(f"{domain!r} is made already; give its parameters where it is made")
    return cast(Domain, domain)


class VerificationInput(NamedTuple):
    """What is verified: a policy, where it acts, and what must hold."""

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
    """A policy with its own domain and requirement, unless others are given; only runs know their requirement.

    Args:
        policy: a policy, a file, a run or its folder, or a function from observation to action.
        domain: where it acts, if not where it was learned.
        requirement: what must hold, if not what its run was made for.
        parameters: of the domain, over its own.
        trust: the code that files may name, and files that may run code themselves.
    """
    found, own = find_policy(policy, trust)
    where = _where(found, domain, parameters, trust)
    if requirement is None and own is None:
        raise RunError(
            f"{policy} is a policy without a requirement; say what to verify with requirement (--require)"
        )
    # A run's own is text: it must not name another file.
    return VerificationInput(
        found, where, as_requirement(requirement) if requirement is not None else parse(str(own))
    )


def as_actor(
    policy: PolicyLike,
    domain: AnyDomain | None,
    parameters: Mapping[str, Any] | None = None,
    trust: Collection[str] = (),
) -> tuple[AnyPolicy, Domain]:
    """A policy and where it acts: in its own domain, unless another is given."""
    found, _ = find_policy(policy, trust)
    return found, _where(found, domain, parameters, trust)


def _where(
    found: AnyPolicy, domain: AnyDomain | None, parameters: Mapping[str, Any] | None, trust: Collection[str]
) -> Domain:
    own = found.policy if isinstance(found, Guard) else found  # a guard is at home where its policy is
    if domain is not None and not (isinstance(own, Policy) and domain == own.domain):
        where = as_domain(domain, parameters)
    elif isinstance(own, Policy):
        named = names(trust) | (set() if domain is None else {own.domain})  # who names the domain trusts it
        where = remake(DomainDescription(own.domain, {**own.parameters, **(parameters or {})}), named)
    else:
        raise RunError(f"{own.source} is a policy of others: say where it acts with domain (--domain)")
    found.check(where)
    return where


def find_policy(policy: PolicyLike, trust: Collection[str] = ()) -> tuple[AnyPolicy, str | None]:
    """A policy from whatever stands for one, and the requirement that its run or its guard was made for, if any."""
    if isinstance(policy, str | Path):
        if not str(policy).strip():
            raise RunError("an empty name is no policy")
        if os.path.isdir(policy):  # false, not an error, for a name that no folder can have
            policy = read_run(Path(policy))
    elif isinstance(result := getattr(policy, "policy", None), Policy) and not isinstance(
        policy, Run | Guard
    ):
        return result, None  # what `psyco.synthesize` returns
    if isinstance(policy, Run):
        if policy.config is None:
            raise RunError("\n".join(policy.problems))
        return policy.policy, policy.config.requirement
    found = as_policy(policy, trust)
    return found, str(found.requirement) if isinstance(found, Guard) else None


def as_start(policy: PolicyLike | None) -> Policy | None:
    """The policy that learning starts from, from whatever stands for one of ours."""
    if policy is None:
        return None
    found, _ = find_policy(policy)
    if not isinstance(found, Policy):
        raise RunError(
            f"{policy} is no policy of ours: learning goes on from what psyco.synthesize made, a run or its policy file"
        )
    return found


def known_looks(policy: PolicyLike) -> Ledger | None:
    """The account of looks at a policy, where it has one: in its run's folder, or in what `synthesize` returned."""
    if isinstance(policy, Run):
        return ledger_of(policy.folder)
    if not isinstance(policy, str | Path):
        looks = getattr(policy, "looks", None)
        return looks if isinstance(looks, Ledger) else None
    try:
        path = Path(policy).resolve()  # a link to a run's policy is that policy
        folder = path if path.is_dir() else path.parent
        return ledger_of(folder) if path.exists() and is_run(folder) else None
    except (OSError, ValueError):  # no name of a file
        return None


def find_run(run: Run | str | Path) -> Run:
    """A run, or that of a folder."""
    if isinstance(run, Run):
        return run
    if not isinstance(run, str | Path):
        raise RunError(f"{run!r} is no run; give its folder, or what psyco.open_run returns")
    return read_run(Path(run))
