"""Episodes of Gymnasium environments: many stepped side by side, each with its own weights, in one process.

Which episodes share a batch must not matter: an episode is a function of its parameters and its seed. So every row
of the batched network is a product of its own, and an environment is reset with the episode's seed before it is used.
"""

from __future__ import annotations

import atexit
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import add, length_hint
from threading import Lock
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from psyco._src.core.atomic_io import digest
from psyco._src.core.errors import EpisodeError, PsycoError, told
from psyco._src.envs.gym_env import NUMBERS, Env, GymDomain, Transition, moment_signals
from psyco._src.envs.sandbox import as_guest, close
from psyco._src.logic.batch_monitor import BatchMonitor
from psyco._src.policies.base import Actor
from psyco._src.rollout.episodes import Episodes, episode_seeds, joined
from psyco._src.rollout.execution import EpisodeCache
from psyco._src.rollout.obs_stats import seen_among
from psyco._src.rollout.signal_recorder import EpisodeFault, SignalRecorder, brief
from psyco._src.rollout.trace import NEEDED, OBS, graded, trace

SIDE_BY_SIDE = 64  # environments that one process steps at a time
MEMORY = 2**28  # bytes that the recorded observations of such a batch may take
FLAGS = {bool, np.bool_}  # what says that an episode has ended
NOISE = 1  # beside an episode's seed, for the noise of exploration
KEPT_EVERY = 2.0  # seconds that a worker plays before its episodes are kept, where there is a memory
IDLE = -1  # what a worker's progress shows while no environment is at work


class Job(NamedTuple):
    """What a worker needs to know once; its environments serve every job in the same domain."""

    domain: GymDomain
    network: Actor
    monitor: BatchMonitor


class Chunk(NamedTuple):
    """What a worker needs to know for each batch."""

    theta: NDArray[np.float32]  # [B, D]
    seeds: list[int]  # [B]
    std: NDArray[np.float32] | None = None  # [B, outputs] of the noise, for exploring episodes
    observed: bool = False  # whether the episodes say what was seen

    def take(self, rows: list[int]) -> Chunk:
        """Some of it."""
        noise = None if self.std is None else self.std[rows]
        return Chunk(self.theta[rows], [self.seeds[row] for row in rows], noise, self.observed)

    def identity(self, row: int) -> str:
        """Tells an episode, and what is shown of it, from all others of a job."""
        noise = b"" if self.std is None else self.std[row].tobytes()
        head = f"{self.seeds[row]} {self.observed} {len(noise)} ".encode()
        return digest(head + noise + self.theta[row].tobytes())


class Heartbeat(Protocol):
    """A place where a worker writes what it is about to do, for somebody who watches it: [seed, step, row]."""

    def __setitem__(self, index: int, value: int, /) -> None: ...


# Runs chunks of a job and gives the number of each and its episodes, as soon as it is done; see pool.py and cluster.py
# for others than `in_process`.
Backend = Callable[[Job, list[Chunk]], Iterator[tuple[int, Episodes]]]


@dataclass(frozen=True, eq=False)
class GymSampler:
    """The Sampler of Gymnasium environments."""

    job: Job
    backend: Backend
    workers: int = 1
    observed: bool = False  # whether episodes say what was seen
    memory: EpisodeCache | None = None  # of episodes that are not played again

    @property
    def compiled(self) -> bool:
        """It cannot be called inside `jax.jit`."""
        return False

    def __call__(self, theta: Any, keys: Any) -> Episodes:
        """Run parameters `[B, D]` with keys `[B]`, one episode each."""
        return self.run(np.asarray(theta, np.float32), episode_seeds(keys))

    def explore(self, theta: Any, std: Any, keys: Any) -> Episodes:
        """The same with noise of standard deviation `[B, outputs]` on the scores, and with a trace."""
        return self.run(np.asarray(theta, np.float32), episode_seeds(keys), np.asarray(std, np.float32))

    def run(
        self, theta: NDArray[np.float32], seeds: list[int], std: NDArray[np.float32] | None = None
    ) -> Episodes:
        """The same with the seeds of the environments."""
        whole, memory = Chunk(theta, seeds, std, self.observed), self.memory
        if memory is None:
            parts = dict(self._play(whole, len(seeds)))
            return joined([parts[first] for first in sorted(parts)])
        names = [whole.identity(row) for row in range(len(seeds))]
        known = {row: found for row, name in enumerate(names) if (found := memory.get(name)) is not None}
        if known and not memory.proven and not self._proves(whole, known, memory):
            known = {}
        if rest := [row for row in range(len(seeds)) if row not in known]:
            began = time.monotonic()
            # Few at a time where they take long, so that an interruption does not cost much.
            for first, episodes in self._play(whole.take(rest), max(1, int(KEPT_EVERY / memory.seconds))):
                for i, row in enumerate(rest[first : first + len(episodes.ret)]):
                    known[row] = jax.tree.map(lambda column, i=i: column[i : i + 1].copy(), episodes)
                    memory.put(names[row], known[row])
            took = max(time.monotonic() - began, 1e-6)
            memory.seconds = took * min(self.workers, len(rest)) / len(rest)
        return joined([known[row] for row in range(len(seeds))])

    def _proves(self, whole: Chunk, known: Mapping[int, Episodes], memory: EpisodeCache) -> bool:
        """Whether the first and the last of the known episodes are still what they were; else all are forgotten."""
        rows = sorted({min(known), max(known)})
        again = dict(self._play(whole.take(rows), 1))
        proven = all(_same(again[i], known[row]) for i, row in enumerate(rows))
        if not proven:
            memory.clear()
        memory.proven = True
        return proven

    def _play(self, whole: Chunk, at_once: int) -> Iterator[tuple[int, Episodes]]:
        """The episodes part by part, as they come: the number of the first, and those from there on."""
        count = len(whole.seeds)
        size = min(side_by_side(self.job.domain), -(-count // self.workers), at_once)
        firsts = range(0, count, size)
        chunks = [whole.take(list(range(first, min(first + size, count)))) for first in firsts]
        for number, episodes in self.backend(self.job, chunks):
            yield firsts[number], episodes


def _same(one: Episodes, other: Episodes) -> bool:
    """Bit by bit."""
    mine, theirs = jax.tree.leaves(one), jax.tree.leaves(other)
    names = [[each is None for each in episodes] for episodes in (one, other)]
    return (
        names[0] == names[1]
        and len(mine) == len(theirs)
        and all(
            a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            for a, b in zip(mine, theirs, strict=True)
        )
    )


@cache
def in_process() -> Backend:
    """Run everything here, one chunk after the other; the environments are kept for the next job."""
    runner, turn = EpisodeRunner(), Lock()
    atexit.register(runner.close)  # a simulator behind an environment may be a process of its own

    def run(job: Job, chunks: list[Chunk]) -> Iterator[tuple[int, Episodes]]:
        with turn:
            for number, chunk in enumerate(chunks):
                yield number, runner(job, chunk)

    return run


def side_by_side(domain: GymDomain) -> int:
    """How many episodes one process plays at a time: what memory holds, and no more than pays off."""
    path = 4 * (domain.horizon + 1) * domain.observation_size
    return max(1, min(SIDE_BY_SIDE, MEMORY // path))


class PlayedEpisodes(NamedTuple):
    """B episodes."""

    signals: dict[str, NDArray[Any]]  # [B, n+1] or [B, n+1, size]
    ret: NDArray[np.float64]  # [B]
    length: NDArray[np.int32]  # [B]
    terminated: NDArray[np.bool_]  # [B] it ended by itself, not because time ran out
    disturbance: NDArray[np.float32] | None = None  # [B, n, outputs] of exploring episodes
    absent: NDArray[np.float32] | None = None  # [B, I] as in Episodes
    handed: NDArray[np.int32] | None = None  # [B] as in Episodes


class EpisodeRunner:
    """Plays episodes; it keeps its environments until a job comes in another domain, since making one may take long."""

    def __init__(self, whereabouts: Heartbeat | None = None) -> None:
        self.whereabouts = whereabouts
        self._domain: GymDomain | None = None  # that of the environments
        self._envs: list[Env] = []

    def __call__(self, job: Job, chunk: Chunk) -> Episodes:
        """Episodes of parameters `[B, D]` with seeds `[B]`, judged."""
        monitor = job.monitor
        wanted = monitor.signals | (
            NEEDED if chunk.std is not None else OBS if chunk.observed else frozenset()
        )
        path = self.play(job, chunk, wanted)
        end = np.arange(job.domain.horizon + 1) >= path.length[:, None]
        satisfied, cost = monitor(path.signals, end=end)
        columns: dict[str, Any] = {
            "ret": path.ret.astype(np.float32),
            "cost": cost.astype(np.float32),
            "satisfied": satisfied,
            "length": path.length,
            "absent": path.absent,
            "handed": path.handed,
            "grade": graded(monitor, path.signals, end),
            **monitor.measure(path.signals, end=end)._asdict(),
        }
        if chunk.std is None and chunk.observed:
            columns["seen"] = seen_among(path.signals["obs"][:, :-1], ~end[:, :-1])
        if path.disturbance is not None:
            columns["trace"] = trace(
                monitor, path.signals, path.length, path.disturbance, end, path.terminated
            )
        return Episodes(**columns)

    def play(self, job: Job, chunk: Chunk, wanted: frozenset[str] | None) -> PlayedEpisodes:
        """The wanted signals (None: all that are known) along the paths, and how they ended.

        After its end the last state of an episode repeats until the horizon, and nothing else does: an environment
        is never stepped beyond its end.
        """
        domain, seeds = job.domain, chunk.seeds
        self._prepare(domain, len(seeds))
        observe = _observer(domain)
        recorder = SignalRecorder(domain, seeds, wanted)
        ret, length = np.zeros(len(seeds)), np.zeros(len(seeds), np.int32)
        by_itself = np.zeros(len(seeds), bool)
        resets, steps = self._calls(seeds)
        raw: Sequence[Any]
        infos: Sequence[Any]
        turn: Iterator[Any]
        # From here on, one entry per episode that goes on; `rows` says which.
        rows = np.arange(len(seeds))
        total: list[Any] = [0.0] * len(seeds)
        t, turn, outcomes = 0, iter(resets), []
        try:
            with as_guest():
                outcomes = [reset() for reset in turn]
                raw, infos = zip(*outcomes, strict=True)
                obs = observe(raw)
                act = crew = job.network.crew(domain, chunk.theta, seeds)
                reward: Sequence[Any] = total  # of the first states
                asked = job.network.signals
                disturbance = _disturbance(chunk, domain.horizon)
                while len(rows):
                    added = None if disturbance is None else disturbance[rows, t]
                    shown = _shown(domain, asked, raw, infos, t, reward, total) if asked else ()
                    actions = act(obs, raw, added, shown)
                    if t == 0:
                        # The action of a state is the one that led to it; the first state shows the first action.
                        nothing = [False] * len(rows)
                        recorder.add(0, rows, obs, raw, infos, actions, total, total, nothing, nothing)
                    t, turn = t + 1, iter(steps)
                    outcomes = [step(action) for step, action in zip(turn, actions, strict=True)]
                    raw, reward, terminated, truncated, infos = zip(*outcomes, strict=True)
                    obs = observe(raw)
                    total = list(map(add, total, reward))
                    if not math.isfinite(sum(total)):
                        raise EpisodeFault(_first_not_finite(total), "a reward that is not a finite number")
                    if not FLAGS.issuperset(map(type, terminated + truncated)):
                        _check_outcomes(outcomes, "step")
                    if t == domain.horizon:
                        truncated = tuple(not ended for ended in terminated)
                    recorder.add(t, rows, obs, raw, infos, actions, reward, total, terminated, truncated)
                    if any(terminated) or any(truncated):
                        # Right for those that end here; the others come again.
                        ret[rows], length[rows], by_itself[rows] = total, t, terminated
                        going = [j for j in range(len(rows)) if not (terminated[j] or truncated[j])]
                        rows, obs, act = rows[going], obs[going], act.take(np.array(going, int))
                        raw, infos, reward, total, steps = (
                            [each[j] for j in going] for each in (raw, infos, reward, total, steps)
                        )
        except PsycoError:
            raise
        except Exception as error:  # whatever a stranger's code does, the user wants to know where
            at, problem = _diagnosis(error, turn, outcomes, len(rows), "step" if t else "reset")
            raise EpisodeError(domain.name, seeds[rows[at]], t, problem) from error
        if self.whereabouts is not None:
            self.whereabouts[0] = IDLE
        signals = recorder.finish(t, length)
        for name in (each for each in recorder.others if each in signals):
            if (bad := _not_finite(signals[name])) is not None:
                value = signals[name][*bad]
                raise EpisodeError(
                    domain.name, seeds[bad[0]], bad[1], f"{name} is {value}, which is no finite number"
                )
        return PlayedEpisodes(signals, ret, length, by_itself, disturbance, recorder.absent(), crew.handed)

    def close(self) -> None:
        """Close the environments."""
        envs, self._envs = self._envs, []
        close(*envs)

    def _prepare(self, domain: GymDomain, count: int) -> None:
        """At least so many environments of this domain."""
        if self._domain is not domain:
            self.close()
            self._domain = domain
        while len(self._envs) < count:
            self._envs.append(domain.make_env(limit=False))  # `t` counts

    def _calls(self, seeds: list[int]) -> tuple[list[Callable[[], Any]], list[Any]]:
        """`reset` and `step` of each environment; somebody who watches sees them announced."""
        envs = self._envs[: len(seeds)]
        resets: list[Any] = [partial(env.reset, seed=seed) for env, seed in zip(envs, seeds, strict=True)]
        steps: list[Any] = [env.step for env in envs]
        if self.whereabouts is not None:
            for row, seed in enumerate(seeds):
                resets[row] = _announced(resets[row], self.whereabouts, seed, row, first=0)
                steps[row] = _announced(steps[row], self.whereabouts, seed, row, first=1)
        return resets, steps


def _announced(
    call: Callable[..., Any], whereabouts: Heartbeat, seed: int, row: int, *, first: int
) -> Callable[..., Any]:
    number = itertools.count(first)

    def announce(*action: Any) -> Any:
        whereabouts[0], whereabouts[1], whereabouts[2] = seed, next(number), row
        return call(*action)

    return announce


def _disturbance(chunk: Chunk, steps: int) -> NDArray[np.float32] | None:
    """What exploration adds to the scores, `[B, n, outputs]`: each episode's from its own seed."""
    if chunk.std is None:
        return None
    shape = steps, chunk.std.shape[1]
    drawn = [np.random.default_rng((seed, NOISE)).standard_normal(shape, np.float32) for seed in chunk.seeds]
    return chunk.std[:, None] * np.stack(drawn)


# ---- observations ---------------------------------------------------------------------------------------------


def _observer(domain: GymDomain) -> Callable[[Sequence[Any]], NDArray[np.float32]]:
    """From the environments' observations to `[n, size]`, checked."""
    size, space, flatten = domain.observation_size, domain.observation_space, domain.flatten
    flat_already = isinstance(space, spaces.Box) and len(space.shape) == 1

    def join(raw: Sequence[Any]) -> NDArray[np.float32] | None:
        """All at once, `[n * size]`; None for what has to be looked at one by one."""
        try:  # "same_kind" refuses text, objects and complex numbers
            if flat_already and {size}.issuperset(map(len, raw)):
                x = np.concatenate(raw, dtype=np.float32, casting="same_kind")
                return x if x.ndim == 1 else None
        except (TypeError, ValueError):
            pass
        return None

    def observe(raw: Sequence[Any]) -> NDArray[np.float32]:
        if (x := join(raw)) is None:
            parts = []
            for at, observation in enumerate(raw):
                try:
                    parts.append(flatten(observation))
                except Exception as error:  # whatever a stranger's observation is
                    problem = str(error) if type(error) is ValueError else told(error)
                    raise EpisodeFault(at, f"{problem} (it is {brief(observation)})") from error
            x = np.concatenate(parts)
        # One product tells whether all is finite; it may overflow, so look again.
        if not math.isfinite(x.dot(x)) and not np.isfinite(x).all():
            at = int(np.argmin(np.isfinite(x))) // size
            raise EpisodeFault(at, f"an observation that is not finite: {brief(raw[at])}")
        return x.reshape(len(raw), size)

    return observe


# ---- what went wrong ------------------------------------------------------------------------------------------


def _diagnosis(
    error: Exception, turn: Iterator[Any], outcomes: list[Any], count: int, call: str
) -> tuple[int, str]:
    """At which position it went wrong, and how. `turn` has given out the calls that were begun."""
    if isinstance(error, EpisodeFault):
        return error.at, str(error)
    if not length_hint(turn) and len(outcomes) == count:
        try:
            _check_outcomes(outcomes, call)
        except EpisodeFault as wrong:
            return wrong.at, str(wrong)
    return max(0, count - length_hint(turn) - 1), told(error)


def _check_outcomes(outcomes: list[Any], call: str) -> None:
    """Complain about the first outcome of `reset` or `step` that is none."""
    values = 5 if call == "step" else 2
    for at, outcome in enumerate(outcomes):
        if not isinstance(outcome, tuple) or len(outcome) != values:
            raise EpisodeFault(at, f"{call} returned {brief(outcome)}; Gymnasium wants a tuple of {values}")
        if not isinstance(outcome[-1], Mapping):
            raise EpisodeFault(at, f"info is {brief(outcome[-1])}; Gymnasium wants a dictionary")
        for name, value in zip(("reward", "terminated", "truncated"), outcome[1:-1], strict=False):
            kinds, wanted = (NUMBERS, "a number") if name == "reward" else ("b", "a Boolean")
            if np.shape(value) or np.asarray(value).dtype.kind not in kinds:
                raise EpisodeFault(at, f"{name} is {brief(value)}; Gymnasium wants {wanted}")


def _first_not_finite(values: Sequence[Any]) -> int:
    return next((at for at, value in enumerate(values) if not math.isfinite(value)), 0)


def _not_finite(values: NDArray[Any]) -> tuple[int, int] | None:
    """The first (row, time) of NaN or infinity."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return None
    row, time, *_ = np.argwhere(~np.isfinite(values))[0].tolist()
    return row, time


# ---- signals --------------------------------------------------------------------------------------------------


def _shown(
    domain: GymDomain,
    names: frozenset[str],
    raw: Sequence[Any],
    infos: Sequence[Any],
    t: int,
    reward: Sequence[Any],
    total: Sequence[Any],
) -> list[dict[str, Any]]:
    """What an actor asks for beside observations, in states at time t that are not the last."""
    found = []
    for observation, info, gained, so_far in zip(raw, infos, reward, total, strict=True):
        state = moment_signals(domain, names, Transition(observation, info, None, t, gained, so_far))
        # As on recorded paths, a key that `info` does not have counts as 0, or false.
        missing = {name: np.zeros(domain.table[name].size or ()) if name in domain.table else 0.0
                   for name, value in state.items() if value is None}  # fmt: skip
        found.append(state | missing)
    return found
