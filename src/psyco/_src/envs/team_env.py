"""PettingZoo environments of several agents, as one Gymnasium environment with a joint observation and a joint action.

The joint observation is a tuple with one observation per agent, the joint action has their actions one after the
other, and the reward is the sum of theirs. An agent that leaves early keeps its last observation; its reward is 0, and
its actions are ignored. It has left once it was terminated or truncated, or is no longer in `agents`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError
from psyco._src.envs.agents import AgentSpace, action_width, slices

PETTINGZOO = "pettingzoo:"  # before the name of a module, as in pettingzoo:mpe2.simple_spread_v3
TEAM = "signals of agents"  # their key in `info`; an agent cannot have this name
OWN_SIGNALS = ("reward", "return", "terminated", "truncated")  # of each agent


@dataclass(frozen=True)
class ParallelFactory:
    """Makes the parallel environment of a PettingZoo module; an AEC one is converted."""

    module: str

    def __call__(self, **arguments: Any) -> Any:
        """Return the environment."""
        from psyco._src.envs.registry import KNOWN_TEAMS, import_code

        package = self.module.partition(".")[0]
        if package in KNOWN_TEAMS and find_spec(package) is None:
            raise DomainError(f'{PETTINGZOO}{self.module} needs {package}: pip install "psyco[pettingzoo]"')
        found = import_code(self.module, f"{PETTINGZOO}{self.module}")
        make = getattr(found, "parallel_env", None) or getattr(found, "env", None)
        if not callable(make):
            raise DomainError(f"{self.module} has neither parallel_env nor env, as modules of PettingZoo do")
        return make(**arguments)


def is_team_source(name: Any) -> bool:
    """Return whether a text names an environment of PettingZoo."""
    return isinstance(name, str) and name.startswith(PETTINGZOO)


def as_team(env: Any) -> Any:
    """Return an environment of PettingZoo as one of Gymnasium; any other object unchanged."""
    if isinstance(env, gymnasium.Env) or not hasattr(env, "possible_agents"):
        return env
    if hasattr(env, "agent_iter"):  # agents take turns
        env = _as_parallel(env)
    return TeamEnv(env)


def _as_parallel(env: Any) -> Any:
    try:
        from pettingzoo.utils.conversions import aec_to_parallel
    except ImportError:
        raise DomainError('agents that take turns need PettingZoo: pip install "psyco[pettingzoo]"') from None
    if not getattr(env, "metadata", {}).get("is_parallelizable", False):
        raise DomainError(
            f"in {env} agents take turns (AEC), and PettingZoo cannot convert it: its metadata lack is_parallelizable; "
            "PSyCo takes environments in which all agents act at the same time"
        )
    return aec_to_parallel(env)


class TeamEnv(gymnasium.Env[Any, Any]):
    """A parallel environment whose agents act as one."""

    def __init__(self, env: Any) -> None:
        self.env, self.agents = env, tuple(map(str, env.possible_agents))
        if not self.agents:
            raise DomainError("possible_agents of the environment is empty; name its agents there")
        self._names = tuple(env.possible_agents)
        self.metadata = dict(getattr(env, "metadata", {}))
        self.render_mode = getattr(env, "render_mode", None)
        self.own_observations = tuple(env.observation_space(name) for name in self._names)
        self.own_actions = tuple(env.action_space(name) for name in self._names)
        self.observation_space = spaces.Tuple(self.own_observations)
        self.action_space = joint_space(self.own_actions)
        self._places = slices([max(1, math.prod(space.shape or ())) for space in self.own_actions])

    @property
    def own_class(self) -> type:
        """The class of the environment below all wrappers."""
        return type(getattr(self.env, "unwrapped", self.env))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Return the joint observation, and `info` with that of each agent under its name."""
        super().reset(seed=seed)
        observations, infos = self.env.reset(seed=seed, options=options)
        if missing := [str(name) for name in self._names if name not in observations]:
            raise DomainError(f"{missing[0]} is not there at the start of an episode; all agents must begin it")
        self._seen = {name: observations[name] for name in self._names}
        self._infos: dict[Any, Any] = {name: dict(infos.get(name, {})) for name in self._names}
        self._own = {
            f"{name}.{signal}": value
            for name in self.agents
            for signal, value in zip(OWN_SIGNALS, (0.0, 0.0, False, False), strict=True)
        }
        return self._observation(), self._info()

    def step(self, action: Any) -> Any:
        """Step all agents that are still there."""
        acting, whole = list(self.env.agents), self._split(action)
        observations, rewards, terminated, truncated, infos = self.env.step({name: whole[name] for name in acting})
        own, total = dict(self._own), 0.0
        for name in self._names:
            if self._has_left(name):  # it may still be listed
                own[f"{name}.reward"] = 0.0
                continue
            stays = name in self.env.agents
            if missing := [what for what, given in (("reward", rewards), ("observation", observations))
                           if name not in given and (what == "reward" or stays)]:  # fmt: skip
                raise ValueError(f"step gives no {missing[0]} of {name}, which was there")
            reward = float(rewards[name])
            total += reward
            own[f"{name}.reward"], own[f"{name}.return"] = reward, own[f"{name}.return"] + reward
            cut = bool(truncated[name])
            own[f"{name}.terminated"] = bool(terminated[name]) or not (stays or cut)
            own[f"{name}.truncated"] = cut
            if name in observations:
                gone = own[f"{name}.terminated"] or cut  # the environment may reuse its arrays
                self._seen[name] = deepcopy(observations[name]) if gone else observations[name]
            self._infos[name] = dict(infos.get(name, {}))
        self._own = own
        # An episode ends with its last agent; a cut of one of them is a cut of the episode.
        over = all(map(self._has_left, self._names))
        cut = over and any(own[f"{name}.truncated"] for name in self.agents)
        return self._observation(), total, over and not cut, cut, self._info()

    def _has_left(self, name: Any) -> bool:
        return bool(self._own[f"{name}.terminated"] or self._own[f"{name}.truncated"])

    def render(self) -> Any:
        """Return the picture of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _observation(self) -> tuple[Any, ...]:
        return tuple(self._seen[name] for name in self._names)

    def _info(self) -> dict[str, Any]:
        return {str(name): own for name, own in self._infos.items()} | {TEAM: self._own}

    def _split(self, action: Any) -> dict[Any, Any]:
        """Return the action of each agent, in its own space."""
        flat, found = np.ravel(np.asarray(action)), dict[Any, Any]()
        for name, space, place in zip(self._names, self.own_actions, self._places, strict=True):
            own = flat[place]
            if isinstance(space, spaces.Discrete):
                found[name] = int(space.start) + int(own[0])
            else:
                first = space.start.ravel() if isinstance(space, spaces.MultiDiscrete) else 0
                found[name] = (own + first).reshape(space.shape or ()).astype(space.dtype)
        return found


def joint_space(own: Sequence[Any]) -> spaces.Space[Any]:
    """Return the space of the actions of several agents, one after the other."""
    if all(isinstance(space, spaces.Box) for space in own):
        low, high = (np.concatenate([np.ravel(getattr(space, end)) for space in own]) for end in ("low", "high"))
        return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
    if all(isinstance(space, spaces.Discrete | spaces.MultiDiscrete) for space in own):
        choices = [[space.n] if isinstance(space, spaces.Discrete) else np.ravel(space.nvec) for space in own]
        return spaces.MultiDiscrete(np.concatenate(choices))
    if all(isinstance(space, spaces.MultiBinary) for space in own):
        return spaces.MultiBinary(sum(math.prod(space.shape) for space in own))
    kinds = ", ".join(sorted({type(space).__name__ for space in own}))
    raise DomainError(
        f"agents act in {kinds}; give all of them continuous actions, or all of them discrete ones, with a wrapper"
    )


def joint_action(agents: Sequence[AgentSpace], own: Sequence[Any], chosen: Any, source: str) -> NDArray[Any]:
    """Return the joint action of a policy that answers `{agent: action}`.

    Args:
        agents: with their spaces.
        own: their action spaces in the environment; none for a compiled domain.
        chosen: the answer.
        source: the policy, for messages.
    """
    if not isinstance(chosen, Mapping):
        raise ValueError(f"the policy {source} gives {chosen!r:.80}; give a dict with an action for each agent")
    names = [each.name for each in agents]
    if missing := [name for name in names if name not in chosen]:
        raise ValueError(
            f"the policy {source} gives no action for {missing[0]}, only for {', '.join(map(str, chosen))}"
        )
    if extra := [name for name in chosen if name not in names]:
        raise ValueError(f"the policy {source} gives an action for {extra[0]}; the agents are: {', '.join(names)}")
    parts = []
    for i, name in enumerate(names):
        action = np.asarray(chosen[name])
        if action.dtype.kind not in "biuf" or (not own and action.size != action_width(agents[i].actions)):
            raise ValueError(
                f"the policy {source} gives {name} {chosen[name]!r:.80}, not an action of {agents[i].actions}"
            )
        if own:
            space = own[i]
            if not _is_in(space, action):
                raise ValueError(f"the policy {source} gives {name} the action {chosen[name]!r:.80}, not in {space}")
            action = action - getattr(space, "start", 0)
        parts.append(action.ravel())
    return np.concatenate(parts)


def _is_in(space: spaces.Space[Any], action: NDArray[Any]) -> bool:
    """Return whether an action is in a space, whatever its type; 1.0 is in Discrete(2), and 0.5 is not."""
    if isinstance(space, spaces.Discrete) and action.shape == ():
        return float(action).is_integer() and space.contains(int(action))
    if not np.isfinite(action).all():
        return False
    typed = action.astype(space.dtype)
    return space.contains(typed) and (isinstance(space, spaces.Box) or bool((typed == action).all()))
