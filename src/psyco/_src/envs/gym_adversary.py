"""An adversary in Gymnasium environments: it disturbs observations or actions between environment and policy.

As in compiled domains, two domains are derived from one: in a `GymAdversary` the policy is fixed and the adversary
acts, in a `GymAttacked` the adversary is fixed and the policy acts. The environment itself is unchanged, and all
signals are its own: `obs` is what it reports, not what the policy is made to see, and `action` is what it was given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from psyco._src.envs.actions import Actions, Continuous
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.variants import Disturbance, adversary_parameters, mixture_member

Rows: TypeAlias = NDArray[np.float32]


class HostPolicy(Protocol):
    """A policy inside of an environment; PSyCo's own policies are such."""

    @property
    def digest(self) -> str:
        """SHA-256 of its file."""

    def __call__(self, observation: Any) -> NDArray[Any]:
        """Return the actions for a batch of observations `[..., inputs]`, each independent of the others."""


@dataclass(frozen=True, eq=False)
class DisturbedGym(GymDomain):
    """What both derived domains have in common; `view` and `apply` stand between the environment and its actor."""

    _: KW_ONLY
    base: GymDomain
    disturbance: Disturbance

    @property
    def sources(self) -> tuple[Any, ...]:
        """Classes and functions whose code determines an episode."""
        return (*self.base.sources, type(self))

    def action_signal(self, actions: Sequence[Any]) -> NDArray[np.float64]:
        """Return the signal `action` of arguments of `step`."""
        return self.base.action_signal(actions)

    def view(self, obs: Rows, seeds: Sequence[int]) -> Rows:
        """Return what the actor observes, `[B, size]`, for observations of the environment in episodes with seeds."""
        raise NotImplementedError

    def apply(self, obs: Rows, actions: Sequence[Any], seeds: Sequence[int]) -> Sequence[Any]:
        """Return the arguments of `step` for the actions of the actor."""
        raise NotImplementedError

    def _changed(self, actions: Rows, choice: Rows) -> Sequence[Any]:
        """Return disturbed actions as `step` takes them, within the range of actions."""
        assert isinstance(self.base.actions, Continuous)
        low, high = (np.asarray(end, np.float32) for end in (self.base.actions.low, self.base.actions.high))
        disturbed = np.clip(actions + np.float32(self.disturbance.size) * choice, low, high)
        return self.base.to_env_actions(disturbed)


@dataclass(frozen=True, eq=False)
class GymAdversary(DisturbedGym):
    """An environment in which the adversary acts against a fixed policy."""

    _: KW_ONLY
    fixed: HostPolicy

    @cached_property
    def observation_size(self) -> int:
        """Length of an observation: that of the base, and the action that the policy is about to take."""
        own = self.base.observation_size
        return own if self.disturbance.kind == "obs" else own + self.base.actions.outputs

    @cached_property
    def one_hot(self) -> tuple[int, ...]:
        """Empty: an observation is no one-hot code."""
        return ()

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the base, the kind and the size of the adversary, and the policy against which it acts."""
        return self.base.parameters | adversary_parameters(self.disturbance, against=self.fixed.digest)

    def view(self, obs: Rows, seeds: Sequence[int]) -> Rows:
        """Return the observations, and the actions that the policy is about to take."""
        if self.disturbance.kind == "obs":
            return obs
        return np.concatenate([obs, _encode(self.base.actions, self.fixed(obs))], axis=-1)

    def apply(self, obs: Rows, actions: Sequence[Any], seeds: Sequence[int]) -> Sequence[Any]:
        """Return the actions of the policy, which the adversary has disturbed."""
        choice = np.stack(actions)
        if self.disturbance.kind == "obs":
            return self.base.to_env_actions(self.fixed(obs + np.float32(self.disturbance.size) * choice))
        return self._changed(self.fixed(obs), choice)


@dataclass(frozen=True, eq=False)
class GymAttacked(DisturbedGym):
    """An environment in which a policy acts against a fixed adversary; of several, every episode draws one."""

    _: KW_ONLY
    adversaries: tuple[HostPolicy, ...]

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the base, and kind, size and policies of the adversary."""
        return self.base.parameters | adversary_parameters(self.disturbance, [each.digest for each in self.adversaries])

    def view(self, obs: Rows, seeds: Sequence[int]) -> Rows:
        """Return the observations, disturbed if that is what the adversary does."""
        if self.disturbance.kind != "obs":
            return obs
        return obs + np.float32(self.disturbance.size) * self._choice(obs, seeds)

    def apply(self, obs: Rows, actions: Sequence[Any], seeds: Sequence[int]) -> Sequence[Any]:
        """Return the actions, disturbed if that is what the adversary does."""
        if self.disturbance.kind == "obs":
            return actions
        own = np.stack(actions).reshape(len(actions), -1).astype(np.float32)
        return self._changed(own, self._choice(np.concatenate([obs, _encode(self.actions, own)], axis=-1), seeds))

    def _choice(self, x: Rows, seeds: Sequence[int]) -> Rows:
        choices = np.stack([each(x) for each in self.adversaries])
        members = np.array([mixture_member(_uniform(seed), len(choices)) for seed in seeds])
        chosen: Rows = choices[members, np.arange(len(members))]
        return chosen


def derive(domain: GymDomain, kind: type[Any], **own: Any) -> Any:
    """Return the `GymAdversary` or `GymAttacked` of an environment."""
    fields = {each.name: getattr(domain, each.name) for each in dataclasses.fields(domain)}
    if kind is GymAdversary:
        width = domain.observation_size if own["disturbance"].kind == "obs" else domain.actions.outputs
        space = spaces.Box(-1.0, 1.0, (width,), np.float32)
        fields |= {"actions": Continuous((-1.0,) * width, (1.0,) * width), "action_space": space}
    return kind(**fields, base=domain, **own)


def _encode(actions: Actions, action: NDArray[Any]) -> Rows:
    """Return continuous actions `[..., size]` in [-1, 1], for an adversary."""
    assert isinstance(actions, Continuous)
    low, high = np.asarray(actions.low, np.float32), np.asarray(actions.high, np.float32)
    return (2.0 * (action - low) / (high - low) - 1.0).astype(np.float32)


def _uniform(seed: int) -> float:
    """Return a number in [0, 1) for the seed of an episode: multiplicative hashing."""
    return (seed % 2**32 * 2654435761 % 2**32) / 2**32
