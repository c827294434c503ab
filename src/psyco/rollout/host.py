"""Episodes of Gymnasium environments: many stepped side by side, each with its own weights, in one process.

Which episodes share a batch must not matter: an episode is a function of its parameters and its seed. So every row
of the batched network is a product of its own, and an environment is reset with the episode's seed before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from psyco.domain.gym_env import INFO, Env, GymDomain, signal_values
from psyco.errors import DomainError, EpisodeError
from psyco.foreign import ForeignPolicy
from psyco.policy import Network
from psyco.rollout.episodes import Episodes
from psyco.spec.monitor import Monitor, compile_monitor

SIDE_BY_SIDE = 64  # environments that one process steps at a time
MEMORY = 2**28  # bytes that the recorded observations of such a batch may take


class Actor(Protocol):
    """B policies at work: `(flat observations [B, size], raw observations) -> actions` as `step` takes them."""

    def __call__(self, flat: NDArray[np.float32], raw: Sequence[Any]) -> Sequence[Any]:
        """One action per row."""

    def take(self, rows: NDArray[np.intp]) -> Actor:
        """The same for some of the policies."""


class Job(NamedTuple):
    """What a worker needs to know once."""

    domain: GymDomain
    network: Network | ForeignPolicy
    monitor: Monitor


class Chunk(NamedTuple):
    """What a worker needs to know for each batch."""

    theta: NDArray[np.float32]  # [B, D]
    seeds: list[int]  # [B]


class Progress(Protocol):
    """A place where a worker writes what it is about to do, for somebody who watches it: [seed, step, row]."""

    def __setitem__(self, index: int, value: int, /) -> None: ...


# Runs chunks of a job and returns their episodes in order; see pool.py and cluster.py for others than `in_process`.
Backend = Callable[[Job, list[Chunk]], list[Episodes]]


@dataclass(frozen=True, eq=False)
class HostSampler:
    """The Sampler of Gymnasium environments."""

    job: Job
    backend: Backend
    workers: int = 1

    @property
    def compiled(self) -> bool:
        """It cannot be called inside `jax.jit`."""
        return False

    def __call__(self, theta: Any, keys: Any) -> Episodes:
        """Run parameters `[B, D]` with keys `[B]`, one episode each."""
        return self.run(np.asarray(theta, np.float32), episode_seeds(keys))

    def run(self, theta: NDArray[np.float32], seeds: list[int]) -> Episodes:
        """The same with the seeds of the environments."""
        size = min(_side_by_side(self.job.domain), -(-len(seeds) // self.workers))
        chunks = [Chunk(theta[i : i + size], seeds[i : i + size]) for i in range(0, len(seeds), size)]
        parts = self.backend(self.job, chunks)
        return Episodes(*map(np.concatenate, zip(*parts, strict=True)))  # type: ignore[arg-type]


def episode_seeds(keys: Any) -> list[int]:
    """The seed of each episode's environment: 32 bits of its key, which `fold_in` has mixed well."""
    return np.asarray(jax.random.key_data(keys))[..., -1].tolist()


def in_process() -> Backend:
    """Run everything here, one chunk after the other."""
    runners: dict[int, Runner] = {}

    def run(job: Job, chunks: list[Chunk]) -> list[Episodes]:
        runner = runners.setdefault(id(job), Runner(job))
        return [runner(chunk) for chunk in chunks]

    return run


def _side_by_side(domain: GymDomain) -> int:
    path = 4 * (domain.horizon + 1) * domain.observation_size
    return max(1, min(SIDE_BY_SIDE, MEMORY // path))


class Runner:
    """Plays the episodes of one job; it keeps its environments, since making one may take long."""

    def __init__(self, job: Job, progress: Progress | None = None) -> None:
        self.job = job
        self.progress = progress
        self._envs: list[Env] = []

    def __call__(self, chunk: Chunk) -> Episodes:
        """Episodes of parameters `[B, D]` with seeds `[B]`, judged."""
        path = self.play(chunk, self.job.monitor.signals)
        end = np.arange(self.job.domain.horizon + 1) >= path.length[:, None]
        satisfied, cost = self.job.monitor(path.signals, end=end)
        columns = path.ret.astype(np.float32), cost.astype(np.float32), satisfied, path.length
        return Episodes(*columns)  # type: ignore[arg-type]

    def play(self, chunk: Chunk, wanted: frozenset[str] | None) -> Played:
        """The wanted signals (None: all that are known) along the paths, and how they ended.

        After its end the last state of an episode repeats until the horizon, and nothing else does: an environment
        is never stepped beyond its end.
        """
        domain, seeds, count = self.job.domain, chunk.seeds, len(chunk.seeds)
        while len(self._envs) < count:
            self._envs.append(domain.make_env())
        steps = [env.step for env in self._envs]
        recorder = _Recorder(domain, count, wanted)
        flatten, progress = _flattener(domain), self.progress
        obs = np.empty((count, domain.observation_size), np.float32)
        flat = obs.reshape(-1)
        raw: list[Any] = [None] * count
        infos: list[dict[str, Any]] = [{}] * count
        rewards: list[Any] = [0.0] * count
        total: list[Any] = [0.0] * count
        ends = [(False, False)] * count
        length = [0] * count
        i = t = 0
        try:
            for i, env in enumerate(self._envs[:count]):
                if progress is not None:
                    progress[0], progress[1], progress[2] = seeds[i], 0, i
                raw[i], infos[i] = env.reset(seed=seeds[i])
                obs[i] = flatten(raw[i])
            act = actor(self.job.network, domain, chunk.theta)
            shown = None  # the rows that `act` sees; None: all
            alive = [(i, i) for i in range(count)]  # (position among the shown, row)
            while alive and t < domain.horizon:
                # One product tells whether all observations are finite; it may overflow, so look again.
                if not math.isfinite(flat.dot(flat)) and not np.isfinite(obs).all():
                    i = int(np.argmin(np.isfinite(obs).all(axis=1)))
                    raise ValueError(f"an observation that is not a finite number: {raw[i]}")
                actions = act(obs, raw) if shown is None else act(obs[shown], [raw[k] for k in shown])
                if t == 0:
                    recorder.first(obs, raw, infos, actions)
                t += 1
                ended = False
                for j, i in alive:
                    if progress is not None:
                        progress[0], progress[1], progress[2] = seeds[i], t, i
                    raw[i], reward, terminated, truncated, infos[i] = steps[i](actions[j])
                    obs[i] = flatten(raw[i])
                    if reward != reward:
                        raise ValueError("a reward that is not a number (NaN)")
                    rewards[i] = reward
                    total[i] += reward
                    if terminated or truncated or t == domain.horizon:
                        ended, length[i] = True, t
                        ends[i] = bool(terminated), not terminated
                recorder.moment(t, alive, obs, raw, infos, actions, rewards, total, ends)
                if ended:
                    alive = [(j, i) for j, i in alive if not length[i]]
                    if 2 * len(alive) <= (count if shown is None else len(shown)) and alive:
                        rows = np.array([i for _, i in alive])
                        act = act.take(np.array([j for j, _ in alive]))
                        shown, alive = rows, [(j, i) for j, (_, i) in enumerate(alive)]
        except EpisodeError:
            raise
        except Exception as error:  # whatever a stranger's code does, the user wants to know where
            raise EpisodeError(domain.name, seeds[i], t, _described(error)) from error
        if progress is not None:
            progress[0] = -1
        if not np.isfinite(total).all():
            i = int(np.argmin(np.isfinite(total)))
            raise EpisodeError(domain.name, seeds[i], length[i], "the return is not a finite number")
        signals = recorder.signals(t)
        for name in recorder.others:
            if (bad := _not_a_number(signals[name])) is not None:
                i, t = bad
                raise EpisodeError(domain.name, seeds[i], t, f"the signal {name} is not a number (NaN)")
        return Played(signals, np.array(total, np.float64), np.array(length, np.int32))

    def close(self) -> None:
        """Close the environments."""
        while self._envs:
            self._envs.pop().close()


def record(
    domain: GymDomain, network: Network | ForeignPolicy, theta: NDArray[np.float32], key: Any
) -> dict[str, NDArray[Any]]:
    """All signals along one episode, arrays of length n+1 where n is the episode's own length."""
    runner = Runner(Job(domain, network, compile_monitor([])))
    played = runner.play(Chunk(theta[None], episode_seeds(key[None])), None)
    runner.close()
    return {name: values[0, : int(played.length[0]) + 1] for name, values in played.signals.items()}


class Played(NamedTuple):
    """B episodes."""

    signals: dict[str, NDArray[Any]]  # [B, n+1] or [B, n+1, size]
    ret: NDArray[np.float64]  # [B]
    length: NDArray[np.int32]  # [B]


def _described(error: Exception) -> str:
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


def _flattener(domain: GymDomain) -> Callable[[Any], Any]:
    """`domain.flatten`, and quicker where an observation is flat already: the array itself."""
    shape = domain.observation_space.shape
    slow = domain.flatten
    if shape is None or len(shape) != 1:
        return slow

    def flat(observation: Any) -> Any:
        return (
            observation
            if type(observation) is np.ndarray and observation.shape == shape
            else slow(observation)
        )

    return flat


class _Recorder:
    """Keeps the signals that somebody wants, as arrays over time; the rows of ended episodes stay as they are."""

    def __init__(self, domain: GymDomain, count: int, wanted: frozenset[str] | None) -> None:
        self.domain, self.count = domain, count
        names = {name for name in domain.table if name != INFO} if wanted is None else wanted
        self.arrays: dict[str, NDArray[Any]] = {}  # [n+1, B, ...]
        kinds = {"obs": np.float32, "terminated": bool, "truncated": bool}
        for name in names & {"obs", "action", "reward", "return", "terminated", "truncated", "step"}:
            size = domain.table[name].size
            shape = (domain.horizon + 1, count) if size is None else (domain.horizon + 1, count, size)
            self.arrays[name] = np.zeros(shape, kinds.get(name, np.float64))
        # `info` and the user's functions give Python values, of types that are known in the end only.
        self.others = sorted(names - self.arrays.keys())
        self.values: dict[str, list[list[Any]]] = {name: [[] for _ in range(count)] for name in self.others}
        self.busy = bool(self.arrays or self.others)

    def first(
        self, obs: NDArray[Any], raw: Sequence[Any], infos: Sequence[Any], actions: Sequence[Any]
    ) -> None:
        """The initial states; they show the first action, all else there is still zero."""
        everyone = [(i, i) for i in range(self.count)]
        zero, no = [0.0] * self.count, [(False, False)] * self.count
        self.moment(0, everyone, obs, raw, infos, actions, zero, zero, no)

    def moment(
        self,
        t: int,
        alive: list[tuple[int, int]],
        obs: NDArray[Any],
        raw: Sequence[Any],
        infos: Sequence[Any],
        actions: Sequence[Any],
        rewards: Sequence[float],
        total: Sequence[float],
        ends: Sequence[tuple[bool, bool]],
    ) -> None:
        """The states after step t; only those of the living rows are new."""
        if not self.busy:
            return
        for name, array in self.arrays.items():
            if name == "obs":
                array[t] = obs
            elif name == "reward":
                array[t] = rewards
            elif name == "return":
                array[t] = total
            else:
                array[t] = array[t - 1]  # at t = 0 the last row, which is zero like the first
                for j, i in alive:
                    array[t, i] = self._value(name, t, actions[j], ends[i])
        if self.others:
            for _, i in alive:
                found = signal_values(self.domain, self.others, raw[i], infos[i])
                for name, value in zip(self.others, found, strict=True):
                    self.values[name][i].append(value)

    def _value(self, name: str, t: int, action: Any, end: tuple[bool, bool]) -> Any:
        match name:
            case "step":
                return t
            case "action":
                return self.domain.to_signal(action)
            case _:
                return end[name == "truncated"]

    def signals(self, last: int) -> dict[str, NDArray[Any]]:
        """`[B, n+1, ...]` each, where the last state repeats from the end of an episode on."""
        for array in self.arrays.values():
            array[last + 1 :] = array[last]
        done = {name: np.moveaxis(array, 0, 1) for name, array in self.arrays.items()}
        for name, rows in self.values.items():
            known = np.asarray(next((value for row in rows for value in row if value is not None), 0.0))
            if known.dtype.kind not in "biuf" or known.ndim > 1:
                raise DomainError(
                    f"the signal {name} of {self.domain.name} is {known.tolist()!r}; "
                    "a formula needs numbers or Booleans"
                )
            missing = np.zeros_like(known)  # a key that `info` does not have counts as 0, or false
            stacked = [
                np.stack([missing if value is None else np.asarray(value) for value in row]) for row in rows
            ]
            done[name] = np.stack([_pad(row, self.domain.horizon + 1) for row in stacked])
        return done


def _not_a_number(values: NDArray[Any]) -> tuple[int, int] | None:
    """The first (row, time) of a NaN."""
    if values.dtype.kind != "f" or not np.isnan(values).any():
        return None
    row, time, *_ = np.argwhere(np.isnan(values))[0].tolist()
    return row, time


def _pad(row: NDArray[Any], length: int) -> NDArray[Any]:
    return np.concatenate([row, np.repeat(row[-1:], length - len(row), axis=0)])


def actor(network: Network | ForeignPolicy, domain: GymDomain, theta: NDArray[np.float32]) -> Actor:
    """Policies with parameters `[B, D]`, ready to act in the environments of a domain."""
    return _Networks(network, domain, theta) if isinstance(network, Network) else network.actor(domain)


class _Networks:
    """B networks evaluated in one go, with the bits that each would give alone."""

    def __init__(self, network: Network, domain: GymDomain, theta: NDArray[np.float32]) -> None:
        self.network, self.domain, self.theta = network, domain, theta
        w1, w2, *biases = network.parts(theta)
        self.w1, self.w2 = np.ascontiguousarray(w1), np.ascontiguousarray(w2.swapaxes(1, 2))
        one = np.float32(1)
        self.b1: Any
        self.b2: Any
        self.b1, self.b2 = (b[:, None] for b in biases) if biases else (one, one)
        self.shift = np.array(network.shift, np.float32)
        self.scale = np.array(network.scale, np.float32)

    def take(self, rows: NDArray[np.intp]) -> _Networks:
        return _Networks(self.network, self.domain, self.theta[rows])

    def __call__(self, flat: NDArray[np.float32], raw: Sequence[Any]) -> Sequence[Any]:
        return self.domain.to_env(self.domain.actions.decode(self.outputs(flat)))

    def outputs(self, x: NDArray[np.float32]) -> Any:
        """`[B, outputs]`. A stacked matmul is one product per row, so a row does not see its neighbours."""
        if len(self.scale):
            x = (x - self.shift) / self.scale
        hidden = np.matmul(x[:, None], self.w1)
        hidden += self.b1
        np.maximum(hidden, 0, out=hidden)
        y = np.matmul(hidden, self.w2)
        y += self.b2
        return np.tanh(y, out=y)[:, 0]
