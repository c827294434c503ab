"""A policy that hands over to a fallback while an episode is close to a violation.

Its memory is a monitor of its requirement, so it needs the requirement's signals beside every observation. Samplers
pass the signals that an actor asks for (`Actor.signals`); in the field the caller of `act` does. It acts with NumPy
alone if its two policies do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.core.wording import plural
from psyco._src.logic.requirement import AnyRequirement
from psyco._src.logic.runtime_monitor import Monitor, Outlook, Status
from psyco._src.policies.base import VectorPolicy, WithoutParameters
from psyco._src.policies.risk import Risk, risk_inputs
from psyco._src.policies.serialization import Policy, PolicyEpisode

if TYPE_CHECKING:
    from psyco._src.envs.base import Domain
    from psyco._src.policies.external import AnyPolicy, PolicyLike

NO_SHIELD = "a guard has no shield: give it policies that were made without one, in a domain without one"
KINDS = ("file", "tensors", "name")  # what the digest of a policy identifies, most specific first

Rule: TypeAlias = Literal["slack"] | Risk


class Guard(WithoutParameters):
    """Acts as `policy`, and as `fallback` while the episode is close to a violation, which is decided in every state.

    After a violation the fallback acts; once the episode is satisfied for good, the policy does. Both see every state,
    so that a memory of theirs is up to date.
    """

    def __init__(
        self,
        policy: PolicyLike,
        fallback: PolicyLike,
        requirement: AnyRequirement,
        *,
        when: Rule | Sequence[Rule] = "slack",
        horizon: int | None = None,
        counters: Collection[str] = (),
    ) -> None:
        """Combine a policy with a fallback.

        Args:
            policy: acts by default: anything that `psyco.verify` takes as a policy.
            fallback: acts close to a violation, with the same observations and actions.
            requirement: a requirement, its text, or the name of its file.
            when: "slack", when the next state could violate the requirement for good, although no counter rises by more
                than 1 (`Monitor.critical`); a risk, when it reaches its limit; or several of these.
            horizon: maximum steps of an episode; None if there is no limit.
            counters: signals that never decrease during an episode, such as a number of collisions.
        """
        self.monitor = Monitor(requirement, horizon=horizon, counters=counters)
        self.requirement, self.horizon, self.counters = self.monitor.requirement, horizon, tuple(counters)
        rules: Any = when if isinstance(when, list | tuple) else [when]
        self.when: tuple[Rule, ...] = tuple(rules)
        self.version: str | None = None  # label given by the user
        self._given_policy: Any = policy
        self._given_fallback: Any = fallback
        self._monitor, self.handed_over = self.monitor.fresh_copy(), False
        self._acting = _begun(policy), _begun(fallback)
        self._check_rules()
        if isinstance(policy, Policy) and isinstance(fallback, Policy):
            _check_spaces(policy, fallback)
        if any(isinstance(each, Policy) and each.stated_shield for each in (policy, fallback)):
            raise RunError(NO_SHIELD)

    def _check_rules(self) -> None:
        if not self.requirement.probability_constraints:
            raise RunError("no episode can violate this requirement: a guard needs a bound on a probability")
        if "action" in self.monitor.signals:
            raise RunError("a guard judges a state before it acts: its requirement cannot use the signal `action`")
        for rule in self.when:
            if isinstance(rule, Risk):
                if rule.requirement != str(self.requirement):
                    raise RunError(
                        f"the risk was learned for another requirement:\n{rule.requirement}\ninstead of\n"
                        f"{self.requirement}"
                    )
            elif rule != "slack":
                raise RunError(f"a guard hands over when='slack', or by a psyco.Risk; got {rule!r:.100}")
            elif self.monitor.critical:
                raise RunError(
                    f"there is no slack to use up: the first state can violate {self.requirement}\nname in counters "
                    "the signals that never decrease and rise by at most 1, or hand over by a risk (psyco.learn_risk)"
                )
        if not self.when:
            raise RunError("say when the fallback acts: when='slack', or a psyco.Risk")

    # ---- in the field ----

    def reset(self) -> Status:
        """Start an episode; returns the status before its first state."""
        for each in (self._given_policy, self._given_fallback):
            if _has_memory(each):
                each.reset()
        self._acting = _begun(self._given_policy), _begun(self._given_fallback)
        self.handed_over = False
        return self._monitor.start()

    def act(self, observation: Any, signals: Mapping[str, Any] | None = None) -> Any:
        """Return the action in the next state of the episode; `handed_over` then says whether it is the fallback's.

        Args:
            observation: the observation of both policies.
            signals: the requirement's signals by name; `obs` defaults to the observation.
        """
        flat = np.ravel(np.asarray(observation, np.float32)) if not isinstance(observation, Mapping) else None
        known = {"obs": flat, **(signals or {})}
        self.handed_over = bool(self.hands_over([self._monitor], [known["obs"]], [known])[0])
        chosen, instead = (_single_action(each, observation, known) for each in self._acting)
        return instead if self.handed_over else chosen

    def hands_over(
        self, monitors: Sequence[Monitor], observations: Iterable[Any], signals: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.bool_]:
        """Return whether the fallback acts, `[B]`, in the next state of B episodes.

        Args:
            monitors: one per episode, which are updated.
            observations: flat `[B, size]`.
            signals: by name, one mapping per episode.
        """
        known = [{name: each[name] for name in self.monitor.signals & each.keys()} for each in signals]
        statuses = [monitor.update(now) for monitor, now in zip(monitors, known, strict=True)]
        close = np.zeros(len(monitors), bool)
        for rule in self.when:
            if isinstance(rule, Risk):
                inputs = np.array(list(map(risk_inputs, observations, known, statuses)))
                close |= rule(inputs) >= rule.limit
            else:
                close |= [monitor.critical for monitor in monitors]
        is_open, is_violated = (
            np.array([status.outlook is outlook for status in statuses]) for outlook in (Outlook.OPEN, Outlook.VIOLATED)
        )
        return close & is_open | is_violated

    # ---- as a policy, wherever one is verified ----

    @cached_property
    def policy(self) -> AnyPolicy:
        """The policy that acts by default."""
        from psyco._src.policies.external import as_policy  # needs more than NumPy

        return as_policy(self._given_policy)

    @cached_property
    def fallback(self) -> AnyPolicy:
        """The policy that acts close to a violation."""
        from psyco._src.policies.external import as_policy

        return as_policy(self._given_fallback)

    @property
    def signals(self) -> frozenset[str]:
        """Signals that it needs beside observations."""
        return self.monitor.signals | self.policy.network.signals | self.fallback.network.signals

    @property
    def source(self) -> str:
        """Description of both policies."""
        return f"{short_name(self.policy)} guarded by {short_name(self.fallback)}"

    @property
    def stateful(self) -> bool:
        """Its actions depend on more than the current observation."""
        return True

    @property
    def kind(self) -> Literal["file", "tensors", "name"]:
        """What its digest identifies: the less specific kind of its two policies."""
        return max(self.policy.kind, self.fallback.kind, key=KINDS.index)

    @property
    def digest(self) -> str:
        """SHA-256 of the digests of its policies and of its hand-over rules."""
        rules = [rule.to_json() if isinstance(rule, Risk) else rule for rule in self.when]
        content = [self.policy.digest, self.fallback.digest, str(self.requirement), rules, self.horizon,
                   sorted(self.counters), self.version if self.kind == "name" else None]  # fmt: skip
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the certificate."""
        rules = [
            f"its risk, learned from {plural(rule.episodes, 'episode')}, reaches {rule.limit:g}"
            if isinstance(rule, Risk) else "the next state could violate it"
            for rule in self.when
        ]  # fmt: skip
        note = f"The policy is a guard: {self.source}, which acts while an episode is open and {' or '.join(rules)}."
        return note, *self.policy.notes, *self.fallback.notes

    def with_version(self, version: str) -> Guard:
        """Return a copy with a version label."""
        named = copy(self)
        named.version = version
        return named

    def check(self, domain: Domain) -> None:
        """Raise RunError or RequirementError if it cannot act in this domain, or lacks signals there."""
        from psyco._src.envs.base import signal_table
        from psyco._src.logic.validate import check_signals

        if hasattr(domain, "shield_table"):
            raise RunError(NO_SHIELD)
        self.policy.check(domain)
        self.fallback.check(domain)
        check_signals(self.requirement, signal_table(domain), domain.name)
        if self.horizon is not None and self.horizon < domain.horizon:
            raise RunError(
                f"this guard is for episodes of at most {self.horizon} steps, {domain.name} has {domain.horizon}; "
                f"make it with horizon={domain.horizon}"
            )

    def vectorize(self, domain: Domain, theta: NDArray[np.float32], seeds: Sequence[int]) -> VectorPolicy:
        """Return guards at the start of episodes with seeds `[B]`; the parameters are `[B, 0]`."""
        policy, fallback = (
            each.network.vectorize(domain, np.broadcast_to(each.theta, (len(seeds), each.theta.size)), seeds)
            for each in (self.policy, self.fallback)
        )
        monitors = [self.monitor.fresh_copy() for _ in seeds]
        rows, fallback_steps = np.arange(len(seeds)), np.zeros(len(seeds), np.int32)
        return _VectorGuard(self, policy, fallback, monitors, rows, fallback_steps)


@dataclass(frozen=True)
class _VectorGuard:
    """The VectorPolicy of a guard."""

    guard: Guard
    policy: VectorPolicy
    fallback: VectorPolicy
    monitors: list[Monitor]  # of the running episodes
    rows: NDArray[np.intp]  # indices of the running episodes
    fallback_steps: NDArray[np.int32]  # [B] of all episodes

    def take(self, rows: NDArray[np.intp]) -> _VectorGuard:
        policy, fallback = self.policy.take(rows), self.fallback.take(rows)
        monitors = [self.monitors[row] for row in rows]
        return replace(self, policy=policy, fallback=fallback, monitors=monitors, rows=self.rows[rows])

    def __call__(
        self,
        flat: NDArray[np.float32],
        raw: Sequence[Any],
        noise: NDArray[np.float32] | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        if noise is not None:
            raise RunError("a guard can be verified, but it cannot explore; learn the policy that it guards")
        known = signals or [{}] * len(raw)  # none are needed where a requirement is about `step` alone
        handed_over = self.guard.hands_over(self.monitors, flat, known)
        self.fallback_steps[self.rows] += handed_over
        chosen, instead = (act(flat, raw, signals=signals) for act in (self.policy, self.fallback))
        return [two if over else one for one, two, over in zip(chosen, instead, handed_over, strict=True)]


def _check_spaces(policy: Policy, fallback: Policy) -> None:
    have, want = ((each.network.inputs, each.actions) for each in (fallback, policy))
    if have != want:
        raise RunError(
            f"the fallback has other spaces than the policy: {have[0]} inputs and the actions {have[1]}, the policy "
            f"{want[0]} inputs and the actions {want[1]}"
        )


def _begun(given: Any) -> Any:
    """Return what acts in an episode: a policy of PSyCo with a memory has a new one in each."""
    return given.begin() if isinstance(given, Policy) and given.network.recurrent else given


def _single_action(given: Any, observation: Any, signals: Mapping[str, Any]) -> Any:
    """Return the action of a given policy for one observation."""
    if isinstance(given, Guard):
        return given.act(observation, signals)
    if _has_memory(given) or isinstance(given, PolicyEpisode):
        return given.act(observation)
    if callable(given) and not isinstance(given, type):
        return given(observation)
    raise RunError(
        f"{given!r:.100} can't be asked for a single action: give a guard that acts in the field a psyco.Policy, a "
        "function from observation to action, or an object with reset() and act(observation)"
    )


def _has_memory(given: Any) -> bool:
    """Whether it has `reset` and `act`, which precede a call, as in verification."""
    return hasattr(given, "reset") and hasattr(given, "act") and not isinstance(given, type)


def short_name(policy: AnyPolicy) -> str:
    """Return the start of a policy's digest, or the source of an external one."""
    return f"sha256:{policy.digest[:16]}" if isinstance(policy, Policy) else policy.source
