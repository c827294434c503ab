"""Recognize and describe families and adversaries from plain data: reading a certificate loads no simulator."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from psyco._src.core.errors import DomainError, RunError, suggest

if TYPE_CHECKING:
    from psyco._src.envs.base import CompiledDomain, Scene

Kind = Literal["draws", "obs", "action"]
FORMS = "write a share of the random draws such as 0.2, obs:0.05 or action:0.1"
GOALS = ("violation", "return")  # of an agent that deviates
MEAN, WORST = "mean", "worst"
ROBUST_FORMS = "mean, cvar:0.1 (the mean over the worst tenth of the environments) or worst"


@dataclass(frozen=True)
class Disturbance:
    """What an adversary may change.

    Args:
        kind: "draws": with probability `size` it chooses the random draw of a step; "obs": it changes each number of an
            observation by at most `size`; "action": each number of an action, within the range of actions.
        size: the share of the draws, or the largest change.
    """

    kind: Kind
    size: float

    def __post_init__(self) -> None:
        if self.kind not in (kinds := ("draws", "obs", "action")):
            raise DomainError(f"unknown kind of adversary {self.kind!r}{suggest(str(self.kind), kinds)}; {FORMS}")
        if not isinstance(self.size, int | float) or not math.isfinite(self.size) or self.size <= 0.0:
            raise DomainError(
                f"an adversary of size {self.size!r} changes nothing: its size is a number above 0; {FORMS}"
            )
        if self.kind == "draws" and self.size > 1.0:
            raise DomainError(f"the share of the random draws is above 0 and at most 1, got {self.size:g}; {FORMS}")

    def __str__(self) -> str:
        match self.kind:
            case "draws":
                return f"an adversary that chooses the random draw of a step with probability {self.size:g}"
            case "obs":
                return f"an adversary that changes each number of an observation by at most {self.size:g}"
            case _:
                return f"an adversary that changes each number of an action by at most {self.size:g}"


@dataclass(frozen=True)
class Deviation:
    """One agent of several acts for itself, against the policies of all others.

    Args:
        agent: its name.
        goal: "violation": it makes the requirement fail; "return": it raises its own return, or the team's where agents
            have none.
    """

    agent: str
    goal: str = "violation"

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise RunError(
                f"an agent deviates for {' or '.join(GOALS)}, got {self.goal!r}{suggest(str(self.goal), GOALS)}"
            )

    def __str__(self) -> str:
        purpose = "to make the requirement fail" if self.goal == "violation" else "for its return"
        return f"the agent {self.agent}, which deviates {purpose}"


AnyAdversary: TypeAlias = Disturbance | Deviation


def read_disturbance(given: Any) -> Disturbance:
    """Return the disturbance of a number (a share of the random draws) or of a text such as `obs:0.05`."""
    if isinstance(given, Disturbance):
        return given
    kind, _, size = str(given).rpartition(":")
    try:
        number = float(size)
    except ValueError:
        raise DomainError(f"{given!r} is no adversary: {FORMS}") from None
    return Disturbance(kind.strip() or "draws", number)  # type: ignore[arg-type]  # checked there


def adversary_of(parameters: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what kind of adversary the parameters of a domain name, and its policy; None if they name none."""
    found = parameters.get("adversary")
    return found if isinstance(found, Mapping) and _fields(found) else None


def _fields(adversary: Mapping[str, Any]) -> tuple[str, ...]:
    kinds = ("kind", "size"), ("agent", "goal")
    return next((names for names in kinds if adversary.keys() >= set(names)), ())


def read_adversary(adversary: Mapping[str, Any]) -> AnyAdversary:
    """Return an adversary from its plain data, without its policy."""
    kind: Any = Disturbance if "kind" in adversary else Deviation
    return kind(**{name: adversary[name] for name in _fields(adversary)})


def adversary_parameters(
    adversary: AnyAdversary, policies: Sequence[str] = (), *, against: str | None = None
) -> dict[str, Any]:
    """Return the parameter of a domain with an adversary; policies are named by their digests.

    Args:
        adversary: what it changes.
        policies: of the adversary; of several, every episode draws one.
        against: the policy that it acts against, where the adversary acts.
    """
    own = {"against": against} if against else {"policy": policies[0]} if len(policies) == 1 else {"policies": policies}
    return {"adversary": {**vars(adversary), **own}}


def mixture_member(u: float, count: int) -> int:
    """Return which of `count` adversaries acts in an episode with the random number u in [0, 1).

    The last one, which is the newest, acts in half of the episodes, the others share the rest.
    """
    return count - 1 if u < 0.5 or count == 1 else int((2.0 * u - 1.0) * (count - 1))


def describe_adversary(adversary: Mapping[str, Any]) -> str:
    """Return an adversary in words, from its plain data."""
    named = f"policy sha256:{str(adversary.get('policy'))[:16]}"
    if policies := adversary.get("policies"):
        named = f"of {len(policies)}, one is drawn for each episode"
    return f"{read_adversary(adversary)} ({named})"


class DerivedDomain:
    """A compiled domain that changes another one, its `base`, and has these properties from it."""

    base: CompiledDomain

    @property
    def name(self) -> str:
        """The name of the base."""
        return self.base.name

    @property
    def horizon(self) -> int:
        """Largest number of steps of an episode."""
        return self.base.horizon

    @property
    def actions(self) -> Any:
        """Action space of the base."""
        return self.base.actions

    @property
    def observation_size(self) -> int:
        """Length of an observation vector."""
        return self.base.observation_size

    @property
    def counters(self) -> tuple[str, ...]:
        """Signals that never decrease during an episode."""
        return tuple(getattr(self.base, "counters", ()))

    @property
    def scene(self) -> Scene | None:
        """The scene of the base."""
        return getattr(self.base, "scene", None)

    @property
    def sources(self) -> tuple[Any, ...]:
        """Classes whose code determines an episode."""
        own: tuple[Any, ...] = getattr(self.base, "sources", (type(self.base),))
        return (*own, type(self))


class FamilyOfEnvironments:
    """A domain whose episodes draw their environments from its `distributions`."""

    distributions: tuple[Any, ...]
    observes: bool  # whether the drawn parameters stand at the end of every observation
    observation_size: Any

    @property
    def observed_parameters(self) -> tuple[str, ...]:
        """The parameters at the end of an observation, in their order; empty if policies do not observe them."""
        return tuple(name for each in self.distributions for name in each.names) if self.observes else ()

    @property
    def observation_scaling(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Shift and scale of a network's inputs that take the observed parameters to about [-1, 1]; empty: none."""
        if not self.observes:
            return (), ()
        scaling = [pair for each in self.distributions for pair in each.scaling]
        others = self.observation_size - len(scaling)
        shift, scale = ([default] * others for default in (0.0, 1.0))
        return (*shift, *(x for x, _ in scaling)), (*scale, *(x for _, x in scaling))


def observed_parameters(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the same from the plain data of a domain."""
    vary = parameters.get("vary")
    if not parameters.get("observe_parameters") or not isinstance(vary, Mapping):
        return ()
    return tuple(part.strip() for names in vary for part in str(names).split(","))


def is_family(domain: Any) -> bool:
    """Return whether every episode draws its environment."""
    return isinstance(domain, FamilyOfEnvironments)


def describe_family(vary: Mapping[str, str]) -> str:
    """Return a family in words, from its plain data."""
    return ", ".join(f"{name} {_describe_values(name, text)}" for name, text in vary.items())


def _describe_values(name: str, text: str) -> str:
    if ".." in text or text.startswith("normal"):
        return re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", lambda number: f"{float(number[0]):.6g}", text)
    return text if len(text) <= 40 else f"from {len(text.split(';' if ',' in name else ',')):,} values"


def read_tail(robust: str) -> float | None:
    """Return the part of the environments that learning is for: None for all (mean), 0 for the worst cell alone."""
    if robust in (MEAN, WORST):
        return None if robust == MEAN else 0.0
    found = re.fullmatch(r"cvar:(\d*\.?\d+)", str(robust))
    if found is None or not 0.0 < float(found[1]) < 1.0:
        raise RunError(f"robust = {robust!r} is not allowed: write {ROBUST_FORMS}, with a number above 0 and below 1")
    return float(found[1])
