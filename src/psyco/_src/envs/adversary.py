"""An adversary: part of the randomness, or a bounded disturbance, is chosen to make a policy fail.

Domains are derived from one. In an `AdversaryDomain` the policy is fixed and the adversary acts, so that an ordinary
learner learns it. In an `AttackedDomain` the adversary is fixed and the policy acts, so that an ordinary test verifies
it. Both are finite where their base is. In a `MixtureDomain` every episode draws one of several adversaries, so that a
policy learns against all of them. `gym_adversary.py` has the same for Gymnasium environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError
from psyco._src.envs.actions import Actions, Continuous, Discrete
from psyco._src.envs.agents import agents_of
from psyco._src.envs.base import CompiledDomain, Domain, FiniteDomain, State, is_finite_domain
from psyco._src.envs.base import parameters as parameters_of
from psyco._src.envs.gym_adversary import DisturbedGym
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.variants import FORMS, DerivedDomain, Disturbance, adversary_parameters, is_family


@dataclass(frozen=True)
class FixedPolicy:
    """A policy inside of a domain: equal to others with the same digest, so that equal domains compile once."""

    digest: str  # SHA-256 of its file
    act: Callable[[Array], Array] = field(compare=False)  # observation -> action


@dataclass(frozen=True)
class _Derived(DerivedDomain):
    """What both derived domains have in common."""

    base: CompiledDomain
    disturbance: Disturbance
    fixed: FixedPolicy
    # Values of each number of an observation, where these are few: the adversary then observes their one-hot codes.
    levels: tuple[tuple[float, ...], ...] = ()

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest values of signals."""
        return getattr(self.base, "ranges", {})

    def reset(self, key: Array) -> State:
        """Return a random initial state."""
        return self.base.reset(key)

    def signals(self, state: State) -> Mapping[str, Array]:
        """Return the signals of the base."""
        return self.base.signals(state)

    @property
    def draw(self) -> Callable[[Array], Any]:
        """The draws of all steps; the last number stands for the adversary's choice."""
        if self.disturbance.kind != "draws":
            found: Callable[[Array], Any] = self.base.draw  # type: ignore[attr-defined]  # optional
            return found
        p = self.draw_probabilities()
        return lambda key: jax.random.choice(key, len(p), (self.horizon,), p=jnp.asarray(p, jnp.float32))

    def draw_probabilities(self) -> NDArray[np.float64]:
        """Return the probabilities of the random draws of a step, and last that the adversary chooses one."""
        own, share = self._finite.draw_probabilities(), self.disturbance.size
        return np.append((1.0 - share) * own, share) if self.disturbance.kind == "draws" else own

    def initial_distribution(self) -> tuple[NDArray[np.float64], State]:
        """Return the initial states of the base and their probabilities."""
        return self._finite.initial_distribution()

    @property
    def _finite(self) -> FiniteDomain:
        assert is_finite_domain(self.base)
        return self.base

    @cached_property
    def _draws(self) -> int:
        return len(self._finite.draw_probabilities())

    def _view(self, state: State, action: Array | None) -> Array:
        """Return what the adversary observes: the observation, and the action that the policy is about to take."""
        own = self.base.observe(state)
        if self.levels:  # the action follows from the observation, which a table tells apart
            codes = [own[i] == jnp.asarray(values) for i, values in enumerate(self.levels)]
            return jnp.concatenate(codes).astype(jnp.float32)
        return own if action is None else jnp.concatenate([own, _encode(self.base.actions, action)])

    def _advance(self, drawn: Any, state: State, action: Array, choice: Any) -> tuple[State, Array, Array | bool]:
        """Return the step in which the policy takes an action and the adversary has made its choice."""
        match self.disturbance.kind, self.base.actions:
            case "draws", _:
                return self._finite.transition(state, action, jnp.where(drawn == self._draws, choice, drawn))
            case "action", Continuous(low, high):
                changed = action + self.disturbance.size * choice
                action = jnp.clip(changed, jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32))
        return self.base.step(drawn, state, action)


@dataclass(frozen=True)
class AdversaryDomain(_Derived):
    """A domain in which the adversary acts against a fixed policy."""

    @property
    def actions(self) -> Actions:
        """The choices of the adversary: a random draw, or the direction of a change in [-1, 1]."""
        match self.disturbance.kind, self.base.actions:
            case "draws", _:
                return Discrete(self._draws)
            case "action", own:
                size = own.outputs
            case _:
                size = self.base.observation_size
        return Continuous((-1.0,) * size, (1.0,) * size)

    @property
    def observation_size(self) -> int:
        """Length of an observation: that of the base, and the action that the policy is about to take."""
        if self.levels:
            return sum(self.one_hot)
        action = jax.eval_shape(
            lambda x: _encode(self.base.actions, self.fixed.act(x)), jnp.zeros(self.base.observation_size)
        )
        return self.base.observation_size + (0 if self.disturbance.kind == "obs" else action.size)

    @property
    def one_hot(self) -> tuple[int, ...]:
        """Sizes of the one-hot codes in an observation; empty if it has none."""
        return tuple(map(len, self.levels))

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the base, the kind and the size of the adversary, and the policy against which it acts."""
        return parameters_of(self.base) | adversary_parameters(self.disturbance, against=self.fixed.digest)

    def observe(self, state: State) -> Array:
        """Return the observation of the base, and the action that the policy is about to take."""
        own = self.base.observe(state)
        return self._view(state, None if self.disturbance.kind == "obs" else self.fixed.act(own))

    def step(self, drawn: Any, state: State, choice: Array) -> tuple[State, Array, Array | bool]:
        """Return next state, reward of the policy and termination."""
        seen = self.base.observe(state)
        if self.disturbance.kind == "obs":
            seen = seen + self.disturbance.size * choice
        return self._advance(drawn, state, self.fixed.act(seen), choice)

    def transition(self, state: State, choice: Array, draw: Array) -> tuple[State, Array, Array]:
        """Return the step for random draw number `draw`; the last one is the adversary's choice."""
        return self.step(draw, state, choice)  # type: ignore[return-value]  # of a finite base


@dataclass(frozen=True)
class AttackedDomain(_Derived):
    """A domain in which a policy acts against a fixed adversary."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the base, and kind, size and policy of the adversary."""
        return parameters_of(self.base) | adversary_parameters(self.disturbance, [self.fixed.digest])

    def observe(self, state: State) -> Array:
        """Return the observation, changed by the adversary if that is what it may change."""
        own = self.base.observe(state)
        return own + self.disturbance.size * self.fixed.act(own) if self.disturbance.kind == "obs" else own

    def step(self, drawn: Any, state: State, action: Array) -> tuple[State, Array, Array | bool]:
        """Return next state, reward and termination."""
        choice = None if self.disturbance.kind == "obs" else self.fixed.act(self._view(state, action))
        return self._advance(drawn, state, action, choice)

    def transition(self, state: State, action: Array, draw: Array) -> tuple[State, Array, Array]:
        """Return the step for random draw number `draw`."""
        if self.disturbance.kind == "draws":
            return self.step(draw, state, action)  # type: ignore[return-value]  # of a finite base
        return self._finite.transition(state, action, draw)


class MixtureState(NamedTuple):
    """State of an episode of a mixture."""

    own: Any  # of the base
    member: Array  # [] int32, the adversary of this episode


@dataclass(frozen=True)
class MixtureDomain(DerivedDomain):
    """A domain in which a policy acts against one of several adversaries of one kind and size, drawn for each episode.

    As in `mixture_member`, the last one acts in half of the episodes.
    """

    members: tuple[AttackedDomain, ...]

    @property
    def base(self) -> CompiledDomain:  # type: ignore[override]
        """The domain without an adversary."""
        return self.members[0].base

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest values of signals."""
        return self.members[0].ranges

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the base, and kind, size and policies of the adversaries."""
        digests = [each.fixed.digest for each in self.members]
        return parameters_of(self.base) | adversary_parameters(self.members[0].disturbance, digests)

    @property
    def draw(self) -> Callable[[Array], Any]:
        """The draws of all steps."""
        return self.members[0].draw

    def reset(self, key: Array) -> MixtureState:
        """Return a random initial state of the base, and a random adversary."""
        own, other = jax.random.split(key)
        return MixtureState(self.base.reset(own), draw_member(other, len(self.members)))

    def observe(self, state: MixtureState) -> Array:
        """Return the observation, changed by the adversary if that is what it may change."""
        return self._by_member(state.member, [partial(each.observe, state.own) for each in self.members])

    def signals(self, state: MixtureState) -> Mapping[str, Array]:
        """Return the signals of the base."""
        return self.base.signals(state.own)

    def step(self, drawn: Any, state: MixtureState, action: Array) -> tuple[MixtureState, Array, Array | bool]:
        """Return next state, reward and termination."""
        steps = [partial(each.step, drawn, state.own, action) for each in self.members]
        own, reward, done = self._by_member(state.member, steps)
        return MixtureState(own, state.member), reward, done

    def _by_member(self, member: Array, outcomes: Sequence[Callable[[], Any]]) -> Any:
        """Return the outcome of this member."""
        made = [jax.tree.map(jnp.asarray, outcome()) for outcome in outcomes]
        return jax.tree.map(lambda *each: jnp.stack(each)[member], *made)


def draw_member(key: Array, count: int) -> Array:
    """Return which of `count` adversaries acts in an episode, as `mixture_member` does."""
    earlier = jax.random.randint(jax.random.fold_in(key, 1), (), 0, max(1, count - 1))
    newest = jax.random.bernoulli(key) | (count == 1)
    return jnp.where(newest, count - 1, earlier).astype(jnp.int32)


def check_attackable(domain: Domain, disturbance: Disturbance) -> CompiledDomain | GymDomain:
    """Return the domain if an adversary can make this disturbance in it; else raise DomainError."""
    if agents := agents_of(domain):
        raise DomainError(
            f"{domain.name} has the agents {', '.join(agents)}, and an adversary acts against a policy of one agent; "
            "psyco exploit learns what one of several gains by deviating"
        )
    if is_family(domain):
        raise DomainError(f"{domain.name} is a family, and an adversary acts in one environment (--vary none)")
    if getattr(domain, "has_mask", False):
        raise DomainError(f"{domain.name} has action masks, and an adversary learns in domains without them")
    if isinstance(domain, _Derived | MixtureDomain | DisturbedGym):
        raise DomainError(f"{domain.name} has an adversary already")
    if disturbance.kind == "draws" and not is_finite_domain(domain):
        raise DomainError(
            f"{domain.name} does not list its random draws (draw_probabilities, transition; see psyco.FiniteDomain), "
            "so an adversary cannot choose among them; obstacle-run does. Disturb obs:0.05 or action:0.1 instead"
        )
    if disturbance.kind == "action" and not isinstance(domain.actions, Continuous):
        raise DomainError(
            f"{domain.name} has no continuous actions, so they have no change of at most {disturbance.size:g}; {FORMS}"
        )
    if isinstance(domain, GymDomain):
        space = domain.observation_space
        if disturbance.kind == "obs" and not (isinstance(space, spaces.Box) and len(space.shape) == 1):
            raise DomainError(
                f"{domain.name} has observations in {space}, and an adversary changes the numbers of a vector; "
                "gymnasium.wrappers.FlattenObservation makes one of a Box or Dict"
            )
        return domain
    if not isinstance(domain, CompiledDomain):
        raise DomainError(f"{domain!r} is not a domain; psyco.make makes one of a name, a class or a function")
    return domain


def _encode(actions: Actions, action: Array) -> Array:
    """Return an action as numbers for an adversary: one-hot, or in [-1, 1]."""
    match actions:
        case Discrete(n):
            return jax.nn.one_hot(action, n, dtype=jnp.float32)
        case Continuous(low, high):
            least, most = np.asarray(low, np.float32), np.asarray(high, np.float32)
            return 2.0 * (action - least) / (most - least) - 1.0
        case _:
            return jnp.asarray(action, jnp.float32)
