"""A policy that hands over to a fallback while an episode is close to a violation.

It is a policy with a memory, a monitor of its requirement. So it has to be shown, beside every observation, the signals
that the requirement speaks of: samplers give them to whom asks for them (`Actor.signals`), and in the field
whoever calls `act` does. It acts with NumPy alone, if its two policies do.
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
from psyco._src.logic.requirement import AnyRequirement
from psyco._src.logic.runtime_monitor import Monitor, Outlook, Status
from psyco._src.policies.risk import Risk, risk_inputs
from psyco._src.policies.serialization import Policy

if TYPE_CHECKING:
    from psyco._src.envs.base import Domain
    from psyco._src.policies.base import VectorPolicy
    from psyco._src.policies.external import AnyPolicy, PolicyLike

KINDS = ("file", "tensors", "name")  # what a policy is known by, the best first

Rule: TypeAlias = Literal["slack"] | Risk


class Guard:
    """Acts as `policy` does, and as `fallback` while the episode is close to a violation: looked at in every state.

    Once the episode is violated the fallback acts, and once it is satisfied whatever comes, the policy does. Both see
    every state, so a memory of theirs is never behind.
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
        """Put a policy under guard.

        Args:
            policy: what acts as long as nothing threatens: anything that `psyco.verify` takes as a policy.
            fallback: what acts instead, for the same observations and actions.
            requirement: itself, its text, or the name of its file.
            when: "slack", when the next state could violate the requirement for good, although no counter rises by more
                than 1 (`Monitor.critical`); a risk, when it reaches its limit; or several of these.
            horizon: the longest episode, in steps; None if there is no limit.
            counters: signals that never fall along an episode, such as a number of collisions.
        """
        self.monitor = Monitor(requirement, horizon=horizon, counters=counters)
        self.requirement, self.horizon, self.counters = self.monitor.requirement, horizon, tuple(counters)
        rules: Any = when if isinstance(when, list | tuple) else [when]
        self.when: tuple[Rule, ...] = tuple(rules)
        self.version: str | None = None  # as the user calls it
        self._given: Any = policy
        self._fallback_given: Any = fallback
        self._watching, self.handed_over = self.monitor.another(), False
        self._check_rules()
        if isinstance(policy, Policy) and isinstance(fallback, Policy):
            _check_spaces(policy, fallback)

    def _check_rules(self) -> None:
        if not self.requirement.probabilities:
            raise RunError("no episode can violate this requirement: a guard needs a bound on a probability")
        if "action" in self.monitor.signals:
            raise RunError(
                "a guard looks at a state before it acts: its requirement can't speak of the action"
            )
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
                    f"there is no slack that could be used up: the first state can violate {self.requirement}\nname in "
                    "counters what never falls and rises one by one, or hand over by a risk (psyco.learn_risk)"
                )
        if not self.when:
            raise RunError("say when the fallback acts: when='slack', or a psyco.Risk")

    # ---- in the field ----

    def reset(self) -> Status:
        """An episode begins; what is known before its first state."""
        for each in (self._given, self._fallback_given):
            if _remembers(each):
                each.reset()
        self.handed_over = False
        return self._watching.start()

    def act(self, observation: Any, signals: Mapping[str, Any] | None = None) -> Any:
        """The action in the next state of the episode; `handed_over` then says whether it is the fallback's.

        Args:
            observation: what both policies see.
            signals: what the requirement speaks of, by name; `obs` is the observation unless it is given.
        """
        flat = np.ravel(np.asarray(observation, np.float32)) if not isinstance(observation, Mapping) else None
        known = {"obs": flat, **(signals or {})}
        self.handed_over = bool(self.hands_over([self._watching], [known["obs"]], [known])[0])
        chosen, instead = (_asked(each, observation, known) for each in (self._given, self._fallback_given))
        return instead if self.handed_over else chosen

    def hands_over(
        self, monitors: Sequence[Monitor], seen: Iterable[Any], signals: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.bool_]:
        """Whether the fallback acts, `[B]`, after the next state of B episodes.

        Args:
            monitors: one for each.
            seen: flat observations `[B, size]`.
            signals: by name, for each.
        """
        known = [{name: each[name] for name in self.monitor.signals & each.keys()} for each in signals]
        statuses = [monitor.update(now) for monitor, now in zip(monitors, known, strict=True)]
        close = np.zeros(len(monitors), bool)
        for rule in self.when:
            if isinstance(rule, Risk):
                inputs = np.array(list(map(risk_inputs, seen, known, statuses)))
                close |= rule(inputs) >= rule.limit
            else:
                close |= [monitor.critical for monitor in monitors]
        is_open, is_violated = (
            np.array([status.outlook is outlook for status in statuses])
            for outlook in (Outlook.OPEN, Outlook.VIOLATED)
        )
        return close & is_open | is_violated

    # ---- as a policy, in the place of one of ours wherever it is verified ----

    @cached_property
    def policy(self) -> AnyPolicy:
        """What acts as long as nothing threatens."""
        from psyco._src.policies.external import as_policy  # needs more than NumPy

        return as_policy(self._given)

    @cached_property
    def fallback(self) -> AnyPolicy:
        """What acts instead."""
        from psyco._src.policies.external import as_policy

        return as_policy(self._fallback_given)

    @property
    def network(self) -> Guard:
        """The Actor that samplers run: itself."""
        return self

    @property
    def theta(self) -> NDArray[np.float32]:
        """Parameters `[0]`: none that anybody could change."""
        return np.zeros(0, np.float32)

    @property
    def signals(self) -> frozenset[str]:
        """What it has to be shown beside observations."""
        return self.monitor.signals | self.policy.network.signals | self.fallback.network.signals

    @property
    def source(self) -> str:
        """What it is, in words."""
        return f"{_name(self.policy)} guarded by {_name(self.fallback)}"

    @property
    def remembers(self) -> bool:
        """It acts on more than what it sees now."""
        return True

    @property
    def kind(self) -> Literal["file", "tensors", "name"]:
        """What its digest tells it apart by: no better than either of its policies."""
        return max(self.policy.kind, self.fallback.kind, key=KINDS.index)

    @property
    def digest(self) -> str:
        """SHA-256 of those of its policies, and of all that says when it hands over."""
        rules = [rule.to_json() if isinstance(rule, Risk) else rule for rule in self.when]
        content = [self.policy.digest, self.fallback.digest, str(self.requirement), rules, self.horizon,
                   sorted(self.counters), self.version if self.kind == "name" else None]  # fmt: skip
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of its certificate should know about it."""
        rules = [
            f"its risk, learned from {rule.episodes:,} episodes, reaches {rule.limit:g}" if isinstance(rule, Risk)
            else "the next state could violate it"
            for rule in self.when
        ]  # fmt: skip
        said = f"The policy is a guard: {self.source}, which acts while an episode is open and {' or '.join(rules)}."
        return said, *self.policy.notes, *self.fallback.notes

    def with_version(self, version: str) -> Guard:
        """The same, as the user calls it."""
        named = copy(self)
        named.version = version
        return named

    def check(self, domain: Domain) -> None:
        """Refuse a domain in which it can't act, or can't see what its requirement speaks of."""
        from psyco._src.envs.base import signal_table
        from psyco._src.logic.validate import check_signals

        self.policy.check(domain)
        self.fallback.check(domain)
        check_signals(self.requirement, signal_table(domain), domain.name)
        if self.horizon is not None and self.horizon < domain.horizon:
            raise RunError(
                f"this guard knows episodes of at most {self.horizon} steps, {domain.name} has {domain.horizon}; "
                f"make it with horizon={domain.horizon}"
            )

    def crew(self, domain: Domain, theta: NDArray[np.float32], seeds: Sequence[int]) -> VectorPolicy:
        """Guards at the start of episodes with seeds `[B]`; their parameters `[B, 0]` say nothing."""
        leading, falling_back = (
            each.network.crew(domain, np.broadcast_to(each.theta, (len(seeds), each.theta.size)), seeds)
            for each in (self.policy, self.fallback)
        )
        monitors = [self.monitor.another() for _ in seeds]
        rows, handed = np.arange(len(seeds)), np.zeros(len(seeds), np.int32)
        return _VectorGuard(self, leading, falling_back, monitors, rows, handed)


@dataclass(frozen=True)
class _VectorGuard:
    """The Crew of a guard."""

    guard: Guard
    leading: VectorPolicy
    falling_back: VectorPolicy
    monitors: list[Monitor]  # of the episodes that go on
    rows: NDArray[np.intp]  # which these are
    handed: NDArray[np.int32]  # [B] of all of them, in how many steps the fallback acted

    def take(self, rows: NDArray[np.intp]) -> _VectorGuard:
        leading, falling_back = self.leading.take(rows), self.falling_back.take(rows)
        monitors = [self.monitors[row] for row in rows]
        return replace(
            self, leading=leading, falling_back=falling_back, monitors=monitors, rows=self.rows[rows]
        )

    def __call__(
        self,
        flat: NDArray[np.float32],
        raw: Sequence[Any],
        disturbance: NDArray[np.float32] | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        if disturbance is not None:
            raise RunError("a guard can be verified, but it cannot explore; learn the policy that it guards")
        handed = self.guard.hands_over(self.monitors, flat, signals)
        self.handed[self.rows] += handed
        chosen, instead = (crew(flat, raw, signals=signals) for crew in (self.leading, self.falling_back))
        return [two if over else one for one, two, over in zip(chosen, instead, handed, strict=True)]


def _check_spaces(policy: Policy, fallback: Policy) -> None:
    have, want = ((each.network.inputs, each.actions) for each in (fallback, policy))
    if have != want:
        raise RunError(
            f"the fallback has other spaces than the policy: it sees {have[0]} numbers and chooses from {have[1]}, the "
            f"policy sees {want[0]} and chooses from {want[1]}"
        )


def _asked(given: Any, observation: Any, signals: Mapping[str, Any]) -> Any:
    """What somebody does who was given as a policy."""
    if isinstance(given, Guard):
        return given.act(observation, signals)
    if _remembers(given):
        return given.act(observation)
    if callable(given) and not isinstance(given, type):
        return given(observation)
    raise RunError(
        f"{given!r:.100} can't be asked for a single action: give a guard that acts in the field a psyco.Policy, a "
        "function from observation to action, or an object with reset() and act(observation)"
    )


def _remembers(given: Any) -> bool:
    """Does it have a memory of its own? That comes first where it can also be called, as it does in verification."""
    return hasattr(given, "reset") and hasattr(given, "act") and not isinstance(given, type)


def _name(policy: AnyPolicy) -> str:
    return f"sha256:{policy.digest[:16]}" if isinstance(policy, Policy) else policy.source
