"""Recognize and describe families and adversaries from plain data: reading a certificate loads no simulator."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from psyco._src.core.errors import DomainError, suggest

if TYPE_CHECKING:
    from psyco._src.envs.base import CompiledDomain, Scene

Kind = Literal["draws", "obs", "action"]
FORMS = "write a share of the random draws such as 0.2, obs:0.05 or action:0.1"


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
    """Return kind, size and policy of the adversary in the parameters of a domain; None if they name none."""
    found = parameters.get("adversary")
    return found if isinstance(found, Mapping) and {"kind", "size"} <= found.keys() else None


def describe_adversary(adversary: Mapping[str, Any]) -> str:
    """Return an adversary in words, from its plain data."""
    return f"{Disturbance(adversary['kind'], adversary['size'])} (policy sha256:{str(adversary.get('policy'))[:16]})"


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
    """Mark a domain whose episodes draw their environments from its `distributions`."""


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
