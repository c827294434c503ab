"""Agents of one joint policy with partners from another: networks become one policy, others act side by side."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.envs.agents import action_width, agent_spaces_of
from psyco._src.policies.base import VectorPolicy, WithoutParameters
from psyco._src.policies.guard import KINDS, short_name
from psyco._src.policies.joint_network import JointNetwork
from psyco._src.policies.serialization import Policy, policy_for

if TYPE_CHECKING:
    from psyco._src.envs.base import Domain
    from psyco._src.policies.external import AnyPolicy


def mix(policy: AnyPolicy, agents: Sequence[str], partners: AnyPolicy, domain: Domain) -> AnyPolicy:
    """Return the joint policy in which `agents` follow one policy, and all others their policy of `partners`.

    Two networks with equal hidden layers become one, which runs in compiled code and can be saved.
    """
    if isinstance(policy, Policy) and isinstance(partners, Policy):
        one, other = policy.network, partners.network
        if isinstance(one, JointNetwork) and isinstance(other, JointNetwork) and one.hidden == other.hidden:
            return _join(policy, one, agents, partners, other, domain)
    return MixedPolicy(policy, tuple(agents), partners)


def _join(
    policy: Policy, one: JointNetwork, agents: Sequence[str], partners: Policy, other: JointNetwork, domain: Domain
) -> Policy:
    chosen = [(policy, one) if member.name in agents else (partners, other) for member in one.members]
    shift: list[float] = []
    scale: list[float] = []
    for i, (member, (_, network)) in enumerate(zip(one.members, chosen, strict=True)):
        shift += network.own[i].shift or (0.0,) * member.inputs
        scale += network.own[i].scale or (1.0,) * member.inputs
    scaled = bool(one.scale or other.scale)
    joined = JointNetwork(
        one.inputs, one.outputs, one.hidden, "learned",
        tuple(shift) if scaled else (), tuple(scale) if scaled else (),
        members=tuple(replace(member, policy=i, index=0) for i, member in enumerate(one.members)),
    )  # fmt: skip
    theta = np.concatenate([network.own_parameters(each.theta, i) for i, (each, network) in enumerate(chosen)])
    origin = f"{', '.join(agents)} of the policy sha256:{policy.digest}, partners of sha256:{partners.digest}"
    return policy_for(domain, joined, theta, origin=origin)


@dataclass(frozen=True, eq=False)
class MixedPolicy(WithoutParameters):
    """Some agents follow `main`, all others `partners`, for two policies that do not become one network.

    Both see every joint observation, and each of them decides for its own agents.
    """

    main: AnyPolicy
    agents: tuple[str, ...]  # that follow `main`
    partners: AnyPolicy
    version: str | None = None  # label given by the user

    @property
    def signals(self) -> frozenset[str]:
        """Signals that it needs beside observations."""
        return self.main.network.signals | self.partners.network.signals

    @property
    def source(self) -> str:
        """Description of both policies."""
        return f"{', '.join(self.agents)} of {short_name(self.main)}, partners of {short_name(self.partners)}"

    @property
    def stateful(self) -> bool:
        """Whether its actions may depend on more than the current observation."""
        return any(getattr(each, "stateful", False) for each in (self.main, self.partners))

    @property
    def kind(self) -> Literal["file", "tensors", "name"]:
        """What its digest identifies: the less specific kind of its two policies."""
        return max(self.main.kind, self.partners.kind, key=KINDS.index)

    @property
    def digest(self) -> str:
        """SHA-256 of the digests of its policies and the names of the agents."""
        content = [self.main.digest, self.agents, self.partners.digest]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the certificate."""
        others = (each.notes for each in (self.main, self.partners) if not isinstance(each, Policy))
        return f"Agents of two policies: {self.source}.", *(note for notes in others for note in notes)

    def check(self, domain: Domain) -> None:
        """Raise RunError if one of its policies cannot act in this domain."""
        self.main.check(domain)
        self.partners.check(domain)

    def vectorize(self, domain: Domain, theta: NDArray[np.float32], seeds: Sequence[int]) -> VectorPolicy:
        """Return both policies at the start of episodes with seeds `[B]`; the parameters are `[B, 0]`."""
        policy, partners = (
            each.network.vectorize(domain, np.broadcast_to(each.theta, (len(seeds), each.theta.size)), seeds)
            for each in (self.main, self.partners)
        )
        spaces = agent_spaces_of(domain)
        own = np.repeat([each.name in self.agents for each in spaces], [action_width(each.actions) for each in spaces])
        return _VectorMixed(policy, partners, own)


@dataclass(frozen=True)
class _VectorMixed:
    """The VectorPolicy of a mixed policy."""

    main: VectorPolicy
    partners: VectorPolicy
    own: NDArray[np.bool_]  # [size] of a joint action: the numbers that `main` chooses

    @property
    def fallback_steps(self) -> NDArray[np.int32] | None:
        """Steps in which the fallback of a guard acted, if one of the two is a guard."""
        counts = [each.fallback_steps for each in (self.main, self.partners)]
        return next((count for count in counts if count is not None), None)

    def take(self, rows: NDArray[np.intp]) -> _VectorMixed:
        return replace(self, main=self.main.take(rows), partners=self.partners.take(rows))

    def __call__(
        self,
        flat: NDArray[np.float32],
        raw: Sequence[Any],
        noise: NDArray[np.float32] | None = None,
        signals: Sequence[Mapping[str, Any]] = (),
    ) -> Sequence[Any]:
        if noise is not None:
            raise RunError("agents of several policies can be verified, but they cannot explore")
        chosen, instead = (act(flat, raw, signals=signals) for act in (self.main, self.partners))
        return [np.where(self.own, one, other) for one, other in zip(chosen, instead, strict=True)]
