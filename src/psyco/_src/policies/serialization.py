"""PSyCo's own policies and their files, read and run with NumPy alone (`psyco.runtime`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from psyco._src.core.errors import RunError
from psyco._src.core.files import from_json, read_bytes
from psyco._src.envs.actions import ACTIONS, Actions
from psyco._src.envs.agents import agent_spaces_of, agents_of
from psyco._src.envs.shield_table import ShieldProgress, ShieldTable, same_shield
from psyco._src.envs.variants import observed_parameters
from psyco._src.policies.image_network import ImageNetwork
from psyco._src.policies.joint_network import JointNetwork, TeamMember, member_of
from psyco._src.policies.network import NEEDS_EPISODE, Network, has_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psyco._src.envs.base import Domain

FORMAT = "psyco-policy-1"
SHIELD_ARRAYS = ("keys", "decided", "words", "rows")  # tensors of a `ShieldTable`
OPTIONAL = ("one_hot", "masked", "memory")  # fields of a network that are written only where they are used


@dataclass(frozen=True, eq=False, repr=False)
class Policy:
    """A deterministic policy: `policy(observation) -> action`, or with a memory `policy.begin().act(observation)`."""

    theta: NDArray[np.float32]  # [D]
    network: Network
    actions: Actions
    domain: str  # name of the domain it was made for
    parameters: dict[str, Any]  # of that domain
    version: str | None = None  # label given by the user; not in the file
    origin: str = ""  # of a policy that PSyCo has not learned, in words
    shield: ShieldTable | None = None  # which actions are allowed, by state and step

    kind: ClassVar[Literal["file"]] = "file"  # what its digest identifies

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the certificate: whose policy it is, where there are several agents."""
        return () if not isinstance(self.network, JointNetwork) else (_describe_team(self.network),)

    @property
    def stated_shield(self) -> Mapping[str, Any] | None:
        """Level and requirement of the shield with which it was made; None: it has none."""
        found = self.parameters.get("shield")
        return found if isinstance(found, dict) else None  # a domain may have another parameter of that name

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents, in the order of observations and actions; empty where there is one."""
        return tuple(each.name for each in self.network.members) if isinstance(self.network, JointNetwork) else ()

    def agent(self, name: str) -> Policy:
        """Return the policy of one agent of several: from its own observation to its own action."""
        i = member_of(self.network, name, f"the policy for {self.domain}")
        assert isinstance(self.network, JointNetwork)
        theta, own = self.network.own_parameters(self.theta, i), self.network.own[i]
        origin = f"the agent {name} of the policy sha256:{self.digest}"
        return Policy(theta, own, self.network.members[i].actions, self.domain, self.parameters, origin=origin)

    def __repr__(self) -> str:
        image = self.network.image if isinstance(self.network, ImageNetwork) else ()
        seen = "x".join(map(str, image)) or self.network.inputs
        widths = seen, *self.network.layers, self.network.outputs
        kind = f" ({self.network.memory})" if self.network.recurrent else ""
        return f"<Policy for {self.domain}: {' -> '.join(map(str, widths))}{kind}, sha256:{self.digest[:16]}>"

    def __call__(self, observation: ArrayLike, mask: ArrayLike | None = None) -> NDArray[Any]:
        """Return the action for one observation `[inputs]` or a batch `[..., inputs]`.

        Instead of one-hot codes, one observation may also be what the environment gives: the number of a `Discrete`
        space, counted from its start; for a table, also the numbers of a space of several.

        A policy for a domain with action masks chooses among the offered ones. Its observation ends with the mask,
        or `mask` has it: `[..., n]`, 1 for the actions that are offered.
        """
        if self.network.recurrent:
            raise RunError(NEEDS_EPISODE)
        if self.shield is not None and mask is None:
            raise RunError("this policy has a shield: ask policy.begin() for an episode, or give mask")
        return self._act(observation, mask)

    def _act(
        self, observation: ArrayLike, mask: ArrayLike | None = None, memory: NDArray[np.float32] | None = None
    ) -> NDArray[Any]:
        """Return the action, and update the memory `[1, memory_size]`, if there is one."""
        raw, sizes = np.asarray(observation), self.network.one_hot or (self.network.observed,)
        if raw.dtype.kind not in "biuf":
            advice = f"; of one agent: policy.agent({self.agents[0]!r})" if self.agents else ""
            raise RunError(f"this policy takes {self.network.inputs} numbers, got {observation!r:.80}{advice}")
        if raw.dtype.kind in "iu" and raw.shape == (() if len(sizes) == 1 else (len(sizes),)):
            raw = raw.ravel() if self.network.indexed else _one_hot(raw.ravel(), sizes)
        x = raw.astype(np.float32, copy=False)
        if isinstance(self.network, ImageNetwork) and x.shape[-len(self.network.image) :] == self.network.image:
            x = x.reshape(*x.shape[: -len(self.network.image)], self.network.inputs)
        if mask is not None:
            x = self._with_mask(x, np.asarray(mask, np.float32))
        if self.network.masked and x.shape[-1:] == (self.network.observed,):
            raise RunError(f"this policy needs to know which of {self.actions.outputs} actions are offered: give mask")
        if x.shape[-1:] != (self.network.inputs,):
            takes = f"images of shape {self.network.image}, or " if isinstance(self.network, ImageNetwork) else ""
            raise RunError(
                f"this policy takes {takes}{self.network.inputs} numbers, the observation has shape {x.shape}"
            )
        rows = self._scores(x.reshape(-1, x.shape[-1]), *([] if memory is None else [memory]))
        # As `Network.act`, in NumPy.
        action: NDArray[Any] = self.actions.decode(rows if self.actions.ranked else np.tanh(rows, out=rows))
        return action.reshape(x.shape[:-1] + action.shape[1:])

    def _with_mask(self, x: NDArray[np.float32], mask: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return observations `[..., inputs]` that end with their action masks."""
        if not self.network.masked:
            raise RunError(f"this policy takes no mask: {self.domain} offers every action in every state")
        if mask.shape != (*x.shape[:-1], self.actions.outputs) or not np.isin(mask, (0, 1)).all():
            raise RunError(f"a mask is {self.actions.outputs} numbers, 0 or 1, for each observation; got {mask}")
        if not mask.any(axis=-1).all():
            raise RunError("the mask offers no action; one at least must be 1")
        return np.concatenate([x, mask], axis=-1)

    def begin(self) -> PolicyEpisode:
        """Return the policy at the start of an episode, with its shield or memory: ask its `act` in every state."""
        if self.shield is None and not self.network.recurrent:
            raise RunError(
                "this policy has no memory, so ask itself: policy(observation). It has no shield, or one whose states "
                "its observations do not tell apart"
            )
        return PolicyEpisode(self)

    def _check_agents(self, domain: Domain) -> None:
        """Raise RunError if the agents of a domain are not those of this policy."""
        own, theirs = self.agents, agents_of(domain)
        if own != theirs:
            words = [f"the agents {', '.join(names)}" if names else "one agent" for names in (own, theirs)]
            hint = f"; this is {self.origin}" if not own and self.origin.startswith("the agent ") else ""
            raise RunError(
                f"this policy was made for {self.domain} with {words[0]}; {domain.name} has {words[1]}{hint}"
            )
        if isinstance(self.network, JointNetwork):
            for member, space in zip(self.network.members, agent_spaces_of(domain), strict=True):
                if (member.inputs, member.actions) != (space.size, space.actions):
                    raise RunError(
                        f"this policy has {member.inputs} observations and {member.actions} for {member.name}; "
                        f"{domain.name} has {space.size} observations and {space.actions}"
                    )

    @cached_property
    def _scores(self) -> Callable[..., NDArray[np.float32]]:
        return self.network.numpy_scores(self.theta[None])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file's bytes, which identifies the policy in a certificate."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the policy file: safetensors, with the network and the domain in its header."""
        about = {
            "format": FORMAT,
            "network": _network_fields(self.network),
            "actions": _action_fields(self.actions),
            "domain": self.domain,
            "parameters": self.parameters,
        } | ({"origin": self.origin} if self.origin else {})
        tensors = {"theta": np.asarray(self.theta, np.float32)}
        if self.shield is not None:
            parts = vars(self.shield)
            tensors |= {f"shield.{name}": parts[name] for name in SHIELD_ARRAYS}
            about["shield"] = {name: parts[name] for name in ("actions", "level", "signals", "masked")}
        return _write_tensors(tensors, {"psyco": json.dumps(about, sort_keys=True)})

    def save(self, path: str | Path) -> None:
        """Write the policy file; the same policy gives the same bytes."""
        Path(path).write_bytes(self.to_bytes())

    def check(self, domain: Domain) -> None:
        """Raise RunError if spaces or shield of a domain are not those that this policy was made for."""
        self.check_spaces(domain)
        own, theirs = self.stated_shield, None
        if hasattr(domain, "shield_table"):
            theirs = getattr(domain, "shield", None)
        if own != theirs:
            words = [f"a shield of level {each['level']:g}" if each else "no shield" for each in (own, theirs)]
            raise RunError(
                f"this policy was made with {words[0]}, and {domain.name} has {words[1]} here: it would not act as its "
                "file does. Leave out the domain, which the file names"
            )
        if not same_shield(self.shield, getattr(domain, "shield_table", None)):
            raise RunError(
                f"the shield in this policy was computed from {domain.name} with other parameters, and would be "
                "computed anew: the certificate would be about another policy. Learn with these parameters"
            )

    def check_spaces(self, domain: Domain) -> None:
        """Raise RunError if observations or actions of a domain are not those that this policy was made for."""
        observed, offered = observed_parameters(self.parameters), tuple(getattr(domain, "observed_parameters", ()))
        if observed and observed != offered:
            names = ", ".join(observed)
            raise RunError(
                f"this policy observes the parameters {names} of its environment, in this order, and {domain.name} "
                f"shows it {', '.join(offered) or 'none'}; give a family that varies these, with --observe-parameters"
            )
        self._check_agents(domain)
        have = (self.network.inputs, self.actions)
        want = (domain.observation_size, domain.actions)
        if have == want and self.network.masked != has_mask(domain):
            words = ["all actions in every state", "some actions in each state, which an action mask says"]
            raise RunError(
                f"this policy was made for {self.domain}, which offers {words[self.network.masked]}; "
                f"{domain.name} offers {words[not self.network.masked]}"
            )
        if have != want:
            raise RunError(
                f"this policy was made for {self.domain} ({self.network.inputs} observations, {self.actions}); "
                f"{domain.name} has {domain.observation_size} observations and {domain.actions}"
            )
        image = getattr(domain, "image", None)
        if isinstance(self.network, ImageNetwork) and image != (own := self.network.observes):
            raise RunError(f"this policy observes {own}; {domain.name} has {'no images' if image is None else image}")


def _describe_team(network: JointNetwork) -> str:
    groups = [", ".join(each.name for each in members) for members in network.sharers]
    policies = "share one policy" if len(groups) == 1 else f"follow {len(groups)} policies ({'; '.join(groups)})"
    names = ", ".join(each.name for each in network.members)
    return f"The agents {names} {policies}. Each acts on its own observation alone."


def policy_for(domain: Domain, network: Network, theta: ArrayLike, origin: str = "") -> Policy:
    """Return a policy with the description of its domain.

    Args:
        domain: where it acts; its description is stored in the policy's file.
        network: from observations to actions.
        theta: parameters `[D]`, stored as float32.
        origin: of a policy that PSyCo has not learned, in words.
    """
    from psyco._src.envs.registry import describe  # imports the simulators

    name, values = describe(domain)
    shield = getattr(domain, "shield_table", None)
    return Policy(check_finite(theta), network, domain.actions, name, values, origin=origin, shield=shield)


def check_finite(theta: ArrayLike) -> NDArray[np.float32]:
    """Return learned parameters `[D]` as float32; raise RunError if learning has diverged."""
    found = np.asarray(theta, np.float32)
    if not np.isfinite(found).all():
        raise RunError(
            "learning has diverged: parameters of the policy are not finite. Causes are observations or rewards of "
            "1e10 and more (scale them with a wrapper), or too large a learning rate"
        )
    return found


def load_policy(path: str | Path) -> Policy:
    """Read a policy file, without running any code from it; raise RunError if it is damaged."""
    path = Path(path)
    try:
        tensors, metadata = _read_tensors(read_bytes(path, "policy"))
        about = from_json(metadata["psyco"], str(path))
        if about["format"] != FORMAT:
            raise RunError(f"{path} has format {about['format']!r}; this version reads {FORMAT!r}")
        actions = _read_actions(about["actions"])
        network = _read_network(about["network"])
        theta = tensors["theta"]
        domain, values, origin = str(about["domain"]), dict(about["parameters"]), str(about.get("origin", ""))
        if theta.dtype != np.float32:
            raise RunError(f"{path} is damaged: its parameters are {theta.dtype}, not float32")
        if theta.shape != (network.size,) or network.outputs != actions.outputs:
            raise RunError(f"{path} is damaged: {theta.size} parameters for a network of {network.size}")
        shield = _read_shield(about.get("shield"), tensors, network)
        if not np.isfinite(theta).all():
            raise RunError(f"{path} is damaged: it holds parameters that are not finite numbers")
    except RunError:
        raise
    except Exception as error:  # a damaged file may fail anywhere
        what = describe_other_file(path) or f"not a PSyCo policy file, or it is damaged ({error})"
        raise RunError(f"{path} is {what}") from None
    return Policy(theta, network, actions, domain, values, origin=origin, shield=shield)


class PolicyEpisode:
    """A policy in a running episode, with its shield and its memory: it acts with NumPy alone."""

    def __init__(self, policy: Policy) -> None:
        """Start an episode."""
        self.policy = policy
        self._shield = None if policy.shield is None else ShieldProgress(policy.shield)
        size = policy.network.memory_size
        self._memory = np.zeros((1, size), np.float32) if size else None

    def act(
        self, observation: ArrayLike, signals: Mapping[str, Any] | None = None, *, mask: ArrayLike | None = None
    ) -> NDArray[Any]:
        """Return the action in the next state of the episode; with a shield, the choice among those that are allowed.

        Args:
            observation: as the domain gives it without a shield.
            signals: those that the shield needs beside it, by name.
            mask: which actions are offered `[n]`, of a policy without a shield whose observations lack it.
        """
        if self._shield is not None:
            flat = np.ravel(np.asarray(observation, np.float32))
            observation, mask = flat[: self.policy.network.observed], self._shield.mask(flat, signals or {})
        if self._memory is not None and np.size(observation) > max(self.policy.network.inputs, 1):
            raise RunError(
                f"an episode has one observation at a time, of {self.policy.network.inputs} numbers; got an array of "
                f"shape {np.shape(observation)}. Ask policy.begin() for each episode"
            )
        return self.policy._act(observation, mask, self._memory)


def _network_fields(network: Network) -> dict[str, Any]:
    found = {k: v for k, v in dataclasses.asdict(network).items() if k not in OPTIONAL or v != getattr(Network, k)}
    if isinstance(network, JointNetwork):
        found["members"] = [
            {name: value for name, value in vars(each).items() if value is not None}
            | {"actions": _action_fields(each.actions)}
            for each in network.members
        ]
    return found


def _read_network(about: dict[str, Any]) -> Network:
    fields = _tuples(about)
    if "image" in fields:
        return ImageNetwork(**fields)
    if "members" not in fields:
        return Network(**fields)
    members = tuple(
        TeamMember(**_tuples(each) | {"actions": _read_actions(each["actions"])}) for each in fields.pop("members")
    )
    return JointNetwork(**fields, members=members)


def _action_fields(actions: Actions) -> dict[str, Any]:
    return {"kind": type(actions).__name__, **dataclasses.asdict(actions)}


def _read_actions(about: dict[str, Any]) -> Actions:
    fields = _tuples(about)
    return ACTIONS[fields.pop("kind")](**fields)


def _read_shield(about: Any, tensors: dict[str, NDArray[Any]], network: Network) -> ShieldTable | None:
    if about is None:
        return None
    parts: dict[str, Any] = {name: tensors[f"shield.{name}"] for name in SHIELD_ARRAYS}
    shield = ShieldTable(**_tuples(about), **parts)
    states, rows = len(shield.keys), len(shield.words)
    fits = shield.decided.shape == (states,) and shield.words.shape == (rows, states) and shield.rows.ndim == 1
    if not fits or shield.actions != network.outputs or (shield.rows < 0).any() or (shield.rows >= rows).any():
        raise ValueError("its shield does not fit")
    return shield


def _one_hot(numbers: NDArray[Any], sizes: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return the one-hot codes of numbers, one after the other; raise RunError for a number that has none."""
    codes = [np.arange(size) == number for size, number in zip(sizes, numbers, strict=True)]
    if not all(code.any() for code in codes):
        raise RunError(f"this policy takes numbers from 0 to below {sizes}, the observation is {numbers.tolist()}")
    return np.concatenate(codes)


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with lists, which JSON has, as tuples, which frozen dataclasses have."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}


def _write_tensors(tensors: dict[str, NDArray[Any]], metadata: dict[str, str]) -> bytes:
    from safetensors.numpy import save

    return save(tensors, metadata)


def _read_tensors(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return tensors and metadata; safetensors' own `load` drops the metadata in the JSON header."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ValueError(error) from None
    (size,) = struct.unpack("<Q", data[:8])
    return tensors, json.loads(data[8 : 8 + size]).get("__metadata__", {})


def describe_other_file(path: Path) -> str | None:
    """Return the apparent type of a file and the remedy, to follow `FILE is`, without loading it; None if unknown."""
    if path.suffix in (".pkl", ".pickle"):
        return (
            "a pickle, which runs code when it is loaded, so PSyCo does not read it; "
            "if you trust it, load it in Python and give psyco.verify the object"
        )
    import zipfile  # only after an error

    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
    except Exception:  # a damaged archive may fail anywhere
        return None
    if "data" in names:
        return f"a model of Stable-Baselines3; write sb3:{path}"
    inside = {name.partition("/")[2] for name in names}  # PyTorch puts everything in a folder named after the file
    if "data.pkl" in inside and "constants.pkl" not in inside:  # TorchScript has both
        return (
            "a state_dict or a pickled object of PyTorch, not a TorchScript module; load it into its network in Python "
            "and give psyco.verify that torch.nn.Module, or save it with torch.jit.script(network).save(...)"
        )
    return None
