"""The protocol of a compiled domain: pure functions over a state that JAX can trace.

A domain is a frozen dataclass, so that two domains with the same parameters are equal and compile once:

    @dataclass(frozen=True)
    class Corridor:
        length: int = 10
        horizon: int = 50
        name: ClassVar[str] = "corridor"
        ...

Write random numbers and constants as you would in any JAX program; `examples/corridor.py` is a complete one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol, runtime_checkable

import jax
from jax import Array

from psyco._src.core.errors import DomainError
from psyco._src.envs.actions import Actions
from psyco._src.logic.ast import SignalInfo

State = Any  # any pytree of arrays


@dataclasses.dataclass(frozen=True)
class Scene:
    """How to draw a domain seen from above, for `psyco render` and the page of a run.

    A domain that has a property `scene` is drawn with it, any other one as curves of its signals:

        @property
        def scene(self) -> Scene:
            return Scene(("obstacle", "agent"), (0.0, 0.0), (self.width, self.height), contact=0.5)

    Args:
        bodies: signals that are positions `[2]`, at least one. The page marks violations at the last of them, so let
            that be the agent. There are six colours; more bodies begin again with the first.
        low: the lower left corner of the frame, x and y.
        high: its upper right corner.
        contact: two bodies closer than this touch, which is marked; 0 marks nothing.
    """

    bodies: tuple[str, ...]
    low: tuple[float, float]
    high: tuple[float, float]
    contact: float = 0.0

    def __post_init__(self) -> None:
        if not self.bodies:
            raise DomainError("a scene needs a body: the name of a signal that is a position [2]")
        if not (self.low[0] < self.high[0] and self.low[1] < self.high[1]):
            raise DomainError(f"a scene from {self.low} to {self.high} is empty; low must lie below high")


class Domain(Protocol):
    """Where an agent acts: what learning and verification need to know of it before it runs."""

    @property
    def name(self) -> str:
        """The name it is made by."""

    @property
    def horizon(self) -> int:
        """The longest episode, in steps."""

    @property
    def actions(self) -> Actions:
        """What a policy may do."""

    @property
    def observation_size(self) -> int:
        """The length of an observation."""


@runtime_checkable
class CompiledDomain(Domain, Protocol):
    """A simulator as pure functions, which JAX compiles.

    It may also have a method `draw(key)`: the randomness of all steps of an episode, drawn at once, which is faster;
    arrays whose first axis is the horizon. Then `step` is given its entry of them instead of a key. And it may have
    `ranges`, which maps signals (`distance`, `obs[2]`, `reward`) to the least and the largest value that they can have:
    what is required of the mean of such a signal then needs no `within [lo,hi]`. `counters` names signals that never
    fall along an episode; what is left of a requirement is then said by how much they may still rise.
    """

    def reset(self, key: Array) -> State:
        """A random initial state."""

    def step(self, key: Array, state: State, action: Array) -> tuple[State, Array, Array | bool]:
        """The next state, the reward `[]` for reaching it, and whether the episode ends there `[]` bool.

        Where episodes always last to the horizon, a plain `False` says so and makes them cheaper.
        """

    def observe(self, state: State) -> Array:
        """What the policy sees, `[observation_size]`."""

    def signals(self, state: State) -> Mapping[str, Array]:
        """What a formula may speak of: numbers and Booleans `[]`, or vectors `[k]`."""


# Every domain has these, kept by the rollout itself.
BUILT_IN_SIGNALS = {
    "step": SignalInfo(None, False),
    "reward": SignalInfo(None, False),
    "return": SignalInfo(None, False),
}


def signal_table(domain: Domain) -> dict[str, SignalInfo]:
    """The signals that a formula about this domain may name, found without running it."""
    if not isinstance(domain, CompiledDomain):
        return dict(domain.table)  # type: ignore[attr-defined]  # a host domain knows them from when it was made
    return dict(_compiled_table(domain))  # type: ignore[arg-type]  # jit asks of them to be hashable, too


@cache
def _compiled_table(domain: CompiledDomain) -> dict[str, SignalInfo]:
    state = jax.eval_shape(domain.reset, jax.eval_shape(lambda: jax.random.key(0)))
    shapes = jax.eval_shape(lambda s: dict(domain.signals(s)), state)
    table = {}
    for name, shape in shapes.items():
        if len(shape.shape) > 1:
            raise DomainError(
                f"signal {name!r} of {domain.name} has shape {shape.shape}; give numbers or vectors"
            )
        table[name] = SignalInfo(shape.shape[0] if shape.shape else None, shape.dtype == bool)
    table["obs"] = SignalInfo(domain.observation_size, False)
    table["action"] = SignalInfo(domain.actions.size, False)
    return table | BUILT_IN_SIGNALS


def counters_of(domain: Domain) -> tuple[str, ...]:
    """The signals that never fall along an episode, if it names some."""
    return tuple(getattr(domain, "counters", ()))


def scene_of(domain: Domain) -> Scene | None:
    """How to draw this domain, if it says so."""
    scene = getattr(domain, "scene", None)
    if not isinstance(scene, Scene):
        return None
    table = signal_table(domain)
    for body in scene.bodies:
        if body not in table or table[body].size != 2:
            raise DomainError(
                f"the scene of {domain.name} has a body {body!r}, which is no signal with an x and a y; "
                f"there are: {', '.join(name for name, info in table.items() if info.size == 2) or 'none'}"
            )
    return scene


def parameters(domain: Domain) -> dict[str, Any]:
    """The keyword arguments that make this domain again."""
    if hasattr(domain, "parameters"):
        return dict(domain.parameters)
    if not dataclasses.is_dataclass(domain):
        raise DomainError(
            f"{type(domain).__name__} must be a frozen dataclass, so that its parameters are known"
        )
    return {f.name: getattr(domain, f.name) for f in dataclasses.fields(domain) if f.init}
