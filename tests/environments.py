"""Small environments for tests, in a separate module that worker processes can import."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from psyco._src.envs.actions import Continuous, Discrete

PROCESS = int.from_bytes(os.urandom(4), "big")


class Walk(gymnasium.Env[Any, Any]):
    """A random walk that ends at |x| >= 3; `fault` occurs at step `at` of every `rare`-th episode, by seed."""

    observation_space: Any = spaces.Box(-10.0, 10.0, (2,))
    action_space: Any = spaces.Discrete(2)

    def __init__(self, fault: str = "", at: int = 3, rare: int = 2, marker: str = "") -> None:
        self.fault, self.at, self.rare, self.marker = fault, at, rare, marker

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.faulty = seed is not None and seed % self.rare == 0 and seed > 0  # 0 is the trial when a domain is made
        self.x, self.t, self.ended = float(self.np_random.normal()), 0, False
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert not self.ended, "stepped beyond its end"
        self.t += 1
        self.x += 0.5 * (1 if action else -1) + 0.3 * float(self.np_random.normal())
        self.ended = abs(self.x) >= 3
        outcome: list[Any] = [
            self._observe(),
            1.0,
            self.ended,
            False,
            {"cost": float(self.x > 1), "deep": {"x": self.x}},
        ]
        if self.faulty and self.t == self.at:
            self._go_wrong(outcome)
        return tuple(outcome)

    def _observe(self) -> Any:
        return np.array([self.x, self.t], np.float32)

    def _go_wrong(self, outcome: list[Any]) -> None:
        match self.fault:
            case "silent":
                raise Unspeakable
            case "raise":
                raise ZeroDivisionError("the simulator fell over")
            case "nan":
                outcome[0] = np.array([np.nan, 0.0], np.float32)
            case "inf":
                outcome[0] = np.array([np.inf, 0.0], np.float32)
            case "shape":
                outcome[0] = np.zeros(1, np.float32)
            case "square":
                outcome[0] = np.zeros((2, 2), np.float32)
            case "object":
                outcome[0] = object()
            case "objects":
                outcome[0] = np.array([object(), object()])
            case "text":
                outcome[0] = np.array(["1.0", "2.0"])
            case "other space":
                self.observation_space = spaces.Box(-1.0, 1.0, (3,))
                outcome[0] = np.zeros(3, np.float32)
            case "reward":
                outcome[1] = float("nan")
            case "no reward":
                outcome[1] = None
            case "rewards":
                outcome[1] = np.ones(2)
            case "flag":
                outcome[2] = "no"
            case "tuple":
                del outcome[4]
            case "info":
                outcome[4]["cost"] = float("nan")
            case "no info":
                outcome[4] = None
            case "info object":
                outcome[4]["cost"] = object()
            case "exit":
                sys.exit(0)
            case "memory":
                raise MemoryError("no memory for the next state")
            case "hang":
                time.sleep(3600)
            case "crash":
                os._exit(7)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "kill":  # as the kernel does when memory runs out
                os.kill(os.getpid(), signal.SIGKILL)
            case "crash once" | "kill once":
                if not Path(self.marker).exists():
                    Path(self.marker).touch()
                    if self.fault == "crash once":
                        os._exit(7)
                    os.kill(os.getpid(), signal.SIGKILL)


class Unspeakable(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise ValueError("nor can this")


class Moody(Walk):
    """A walk that reads its fault from a file, so that a test can fix it without changing the run."""

    def __init__(self, mood: str, at: int = 3, rare: int = 97) -> None:
        super().__init__(at=at, rare=rare)
        self.mood = Path(mood)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.fault = self.mood.read_text()
        begun = super().reset(seed=seed)
        if self.faulty and self.fault == "hang in reset":
            time.sleep(3600)
        return begun


class Rude(Walk):
    """A walk with correct values that misuses its process; the file `book` lists the processes it started."""

    def __init__(self, book: str) -> None:
        super().__init__()
        os.chdir(Path(book).parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.book = Path(book).name  # it relies on its folder

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        print("{ hello from the simulator")
        os.write(1, b"{ hello from its C code\n")
        if seed and not Path(self.book).exists():  # 0 is the trial when a domain is made
            with open(self.book, "x") as file:
                print(
                    subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid,
                    file=file,
                )
        return super().reset(seed=seed)

    def close(self) -> None:
        raise OSError("the window is gone")


class Stuck(Walk):
    """A walk whose `close` hangs."""

    def close(self) -> None:
        time.sleep(3600)


class Sparing(Walk):
    """A walk with `info["cost"]` in some states of some episodes only."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, info if info["cost"] else {}


class Leaky(Walk):
    """A walk that keeps state from one episode to the next."""

    memory = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.memory += 0.125
        self.x += self.memory
        return self._observe(), {}


class Deaf(Walk):
    """A walk that ignores its seed: its randomness is fixed when the process begins."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=PROCESS)

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, -abs(self.x), *rest


class Careless(Walk):
    """A walk with unseeded randomness."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=int.from_bytes(os.urandom(4), "big"))


class Manufactured(Walk):
    """A walk with a hazard that is drawn in the constructor: every sixth object is biased."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Manufactured.made += 1
        self.bias = 0.25 * (Manufactured.made % 6 == 0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x += self.bias
        return self._observe(), {}


class Local(Walk):
    """A walk with a bias that is drawn when its process begins."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x += PROCESS / 2**32
        return self._observe(), {}


class Counting(Walk):
    """A walk whose module counts episodes: after the first 40 its steps cost more, which nothing else shows."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        Counting.episodes += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "cost": 0.25 * (Counting.episodes > 40)}


class Warm(Walk):
    """Reports no violation once all objects of its class have made enough steps."""

    steps = 0

    def step(self, action: Any) -> Any:
        *outcome, info = super().step(action)
        Warm.steps += 1
        return *outcome, {**info, "bad": float(Warm.steps <= 600)}


class Drawn(Walk):
    """A walk whose rendered frame is a grey that encodes the step."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "rgb_array"], "render_fps": 25}

    def __init__(self, render_mode: str | None = None, broken: str = "") -> None:
        super().__init__()
        self.render_mode, self.broken = render_mode, broken

    def render(self) -> Any:
        if self.broken == "raise":
            raise ImportError("pygame is not installed")
        return np.full((20, 30, 1 if self.broken == "grey" else 3), 8 * self.t, np.uint8)


class Mixed(gymnasium.Env[Any, Any]):
    """An environment with given spaces; `info` repeats the action."""

    def __init__(self, observations: str = "dict", actions: str = "multi") -> None:
        self.observation_space = {
            "dict": spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1.0, 1.0, (2, 2))}),
            "tuple": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(-1.0, 1.0, (1,)))),
            "discrete": spaces.Discrete(4, start=-1),
            "image": spaces.Box(0, 255, (2, 3), np.uint8),
        }[observations]
        self.action_space = {
            "multi": spaces.MultiDiscrete([2, 3]),
            "binary": spaces.MultiBinary(3),
            "discrete": spaces.Discrete(3, start=5),
            "box": spaces.Box(np.float32([-0.3, 0.1]), np.float32([0.7, 0.4])),
            "whole": spaces.Box(-2, 2, (2,), np.int64),
            "endless": spaces.Box(-np.inf, 1.0, (1,)),
            "text": spaces.Text(3),
        }[actions]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        inside = self.action_space.contains(action)
        return self.observation_space.sample(), 0.0, False, False, {"inside": inside, "action": action}


def slow_walk(seconds: float = 0.002) -> gymnasium.Env[Any, Any]:
    """Return a walk whose steps take some time."""
    return gymnasium.wrappers.TransformReward(Walk(), lambda reward: time.sleep(seconds) or reward)


def to_the_left(observation: Any) -> int:
    """Return the action of a simple policy."""
    return int(observation[0] < 0)


def height(observation: Any, info: dict[str, Any]) -> float:
    """Return the value of a user-defined signal."""
    return float(observation[0]) ** 2


gymnasium.register("PsycoTestWalk-v0", entry_point=Walk, max_episode_steps=40)
gymnasium.register("PsycoTestDrawn-v0", entry_point=Drawn, max_episode_steps=40)


@dataclasses.dataclass(frozen=True)
class Slide:
    """A user-defined compiled domain: a block on a line, pushed to and fro."""

    length: int = 5
    horizon: int = 8
    name: ClassVar[str] = "slide"

    actions: ClassVar[Discrete] = Discrete(2)
    observation_size: ClassVar[int] = 1

    def reset(self, key: Any) -> Any:
        return jax.random.uniform(key, (), minval=-self.length, maxval=self.length)

    def step(self, key: Any, state: Any, action: Any) -> Any:
        x = state + 2.0 * action - 1.0 + 0.1 * jax.random.normal(key)
        return x, -abs(x), False

    def observe(self, state: Any) -> Any:
        return state[None]

    def signals(self, state: Any) -> dict[str, Any]:
        return {"x": state}


class Alternating:
    """A stateful controller that alternates between 1 and 0, starting with 1."""

    def reset(self) -> None:
        self.last = 0

    def act(self, observation: Any) -> int:
        self.last = 1 - self.last
        return self.last


class Steps(gymnasium.Env[Any, Any]):
    """Constant observations; `info` says whether the action changed, and a flag of 5% of episodes."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (1,))
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.last, self.lucky = None, bool(self.np_random.random() < 0.05)
        return np.zeros(1, np.float32), {"changed": False, "lucky": self.lucky}

    def step(self, action: Any) -> Any:
        changed, self.last = self.last not in (None, action), action
        return np.zeros(1, np.float32), 1.0, False, False, {"changed": changed, "lucky": self.lucky}


@dataclasses.dataclass(frozen=True)
class CompiledSteps:
    """The same as a compiled domain; `fault` occurs at the third step of a flagged episode."""

    horizon: int = 6
    fault: str = ""
    name: ClassVar[str] = "compiled-steps"

    actions: ClassVar[Discrete] = Discrete(2)
    observation_size: ClassVar[int] = 1

    def reset(self, key: Any) -> Any:
        lucky = jax.random.uniform(key) < 0.05
        return {"last": -1, "changed": False, "lucky": lucky, "time": 0}

    def step(self, key: Any, state: Any, action: Any) -> Any:
        changed = (state["last"] >= 0) & (state["last"] != action)
        wrong = self._wrong(state, "reward")
        return {**state, "last": action, "changed": changed, "time": state["time"] + 1}, 1.0 + wrong, False

    def observe(self, state: Any) -> Any:
        return jax.numpy.zeros(1) + self._wrong(state, "observation")

    def signals(self, state: Any) -> dict[str, Any]:
        signals = {name: state[name] for name in ("changed", "lucky")}
        return {**signals, "height": 1.0 + self._wrong(state, "signal")}

    def _wrong(self, state: Any, fault: str) -> Any:
        happens = state["lucky"] & (state["time"] == 2) & (self.fault == fault)
        return jax.numpy.where(happens, jax.numpy.nan, 0.0)


class Far(gymnasium.Env[Any, Any]):
    """Two places 0.24 m apart, 5,000 km from the origin; `kind` says how they are given."""

    action_space: Any = spaces.Discrete(2)

    def __init__(self, kind: str = "declared") -> None:
        self.kind = kind
        single, double = (spaces.Box(-1e9, 1e9, (2,), dtype) for dtype in (np.float32, np.float64))
        others = {
            "declared": double,
            "dict": spaces.Dict({"a": single, "b": spaces.Discrete(3)}),
            "matrix": spaces.Box(-1e9, 1e9, (2, 1), np.float64),
            "integers": spaces.Box(-(10**9), 10**9, (2,), np.int64),
        }
        self.observation_space = others.get(kind, single)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe()

    def step(self, action: Any) -> Any:
        observation, info = self._observe()
        return observation, 1.0, False, False, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        places = np.array([5_000_000.02, 5_000_000.26])
        observation: Any = {
            "declared": places,
            "returned": places,
            "list": places.tolist(),
            "dict": {"a": places, "b": 1},
            "matrix": places[:, None],
            "integers": np.rint(places * 100).astype(np.int64),
            "single": np.array([0.3, 0.7], np.float32),
            "info": np.zeros(2, np.float32),
        }[self.kind]
        return observation, {"place": places}


class DoorState(NamedTuple):
    room: jax.Array  # [] int32
    trapped: jax.Array  # [] bool


@dataclasses.dataclass(frozen=True)
class Doors:
    """Three rooms that offer some of three doors each; whoever takes another door is trapped for good.

    Door 0 leads two rooms on, door 1 one room on, door 2 back to the first; one in four times a door is stuck. An
    episode ends behind the last room, with a reward of 1.
    """

    horizon: int = 8
    offers: tuple[tuple[int, ...], ...] = ((0, 1, 1), (0, 1, 1), (1, 1, 0))
    has_mask: bool = True

    name: ClassVar[str] = "doors"
    actions: ClassVar[Discrete] = Discrete(3)
    counters: ClassVar[tuple[str, ...]] = ()

    @property
    def observation_size(self) -> int:
        return 6 if self.has_mask else 3

    @property
    def one_hot(self) -> tuple[int, ...]:
        return (3,)

    def reset(self, key: Any) -> DoorState:
        return DoorState(jnp.int32(0), jnp.bool_(False))

    def initial_distribution(self) -> tuple[Any, DoorState]:
        return np.ones(1), DoorState(jnp.zeros(1, jnp.int32), jnp.zeros(1, bool))

    def draw_probabilities(self) -> Any:
        return np.array([0.75, 0.25])

    def transition(self, state: DoorState, action: Any, draw: Any) -> Any:
        room = jnp.stack([state.room + 2, state.room + 1, jnp.int32(0)])[action]
        room = jnp.where(draw == 1, state.room, room)
        missing = jnp.asarray(self.offers)[state.room, action] == 0
        after = DoorState(jnp.minimum(room, 2).astype(jnp.int32), state.trapped | missing)
        return after, (room > 2).astype(jnp.float32), room > 2

    def step(self, key: Any, state: DoorState, action: Any) -> Any:
        return self.transition(state, action, jax.random.bernoulli(key, 0.25).astype(jnp.int32))

    def observe(self, state: DoorState) -> Any:
        mask = jnp.asarray(self.offers, jnp.float32)[state.room]
        return jnp.concatenate([jax.nn.one_hot(state.room, 3), *([mask] if self.has_mask else [])])

    def signals(self, state: DoorState) -> Any:
        return state._asdict()


class CueState(NamedTuple):
    """The cue and the number of steps."""

    cue: Any
    steps: Any


@dataclasses.dataclass(frozen=True)
class Cue:
    """The first observation is a cue, 1 or -1, all others are 0; the reward of every step is action * cue.

    Without a memory no policy expects more than 1, the reward of the first step.
    """

    horizon: int = 6

    name: ClassVar[str] = "cue"
    actions: ClassVar[Continuous] = Continuous((-1.0,), (1.0,))
    observation_size: ClassVar[int] = 2

    def reset(self, key: Any) -> CueState:
        return CueState(jax.random.rademacher(key, (), jnp.float32), jnp.int32(0))

    def step(self, key: Any, state: CueState, action: Any) -> Any:
        return CueState(state.cue, state.steps + 1), state.cue * action[0], False

    def observe(self, state: CueState) -> Any:
        return jnp.stack([jnp.where(state.steps == 0, state.cue, 0.0), 1.0 * (state.steps == 0)])

    def signals(self, state: CueState) -> dict[str, Any]:
        return {"cue": state.cue}


class HiddenWalk(Walk):
    """The walk, of which every second position is hidden; episodes end early."""

    def _observe(self) -> Any:
        return np.array([0.0 if self.t % 2 else self.x, self.t % 2], np.float32)


class PicturedWalk(Walk):
    """The walk, whose position is seen in a picture of 16 x 24 grey pixels."""

    observation_space: Any = spaces.Box(0, 255, (16, 24), np.uint8)

    def _observe(self) -> Any:
        near = np.clip(2.0 - abs(np.arange(24) - 12.0 - 3.0 * self.x), 0.0, 1.0)
        return np.broadcast_to(255 * near, (16, 24)).astype(np.uint8)
