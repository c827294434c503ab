"""Episodes of Gymnasium environments: many stepped side by side in one process, each with its own weights.

An episode is a function of its parameters and its seed: the other episodes of its batch must not matter. So every row
of the batched network is a separate product, and an environment is reset with the episode's seed before it is used.
"""

from __future__ import annotations

import atexit
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from operator import add, length_hint
from threading import Lock
from typing import Any, NamedTuple

import jax
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from psyco._src.core.errors import EpisodeError, PsycoError, format_exception
from psyco._src.core.files import digest
from psyco._src.envs.gym_adversary import DisturbedGym
from psyco._src.envs.gym_env import NUMERIC_KINDS, Env, GymDomain, Transition, to_floats, transition_signals
from psyco._src.envs.sandbox import close_envs, sandboxed
from psyco._src.logic.batch_monitor import BatchMonitor, compile_monitor
from psyco._src.policies.base import Actor
from psyco._src.policies.image_network import ImageNetwork
from psyco._src.rollout.episodes import (
    OBS,
    TRACE_SIGNALS,
    Episodes,
    concatenate_episodes,
    digest_path,
    environment_seeds,
    make_trace,
    summarize_observations,
    this_process,
    total_shaping_costs,
)
from psyco._src.rollout.execution import EpisodeCache
from psyco._src.rollout.signal_recorder import EpisodeFault, SignalRecorder, brief
from psyco._src.rollout.worker_pool import IDLE, Heartbeat

MAX_BATCH = 64  # environments that one process steps side by side
MAX_BATCH_BYTES = 2**28  # for the recorded observations of such a batch
BOOLEANS = {bool, np.bool_}  # types of `terminated` and `truncated`
NUMBERS = {np.float64}  # types of the return so far
NOISE_STREAM = 1  # beside an episode's seed, for its exploration noise
CACHE_SECONDS = 2.0  # of a worker between two additions to the episode cache
ALL_SIGNALS = frozenset({"*"})  # in `Chunk.recorded`

Signals = dict[str, NDArray[Any]]  # [n+1] or [n+1, size] each, where n is the length of the episode


NO_MONITOR = compile_monitor([])  # for episodes that are recorded only


class Job(NamedTuple):
    """Constant part of a worker's task; its environments serve every job in the same domain."""

    domain: GymDomain
    network: Actor
    monitor: BatchMonitor = NO_MONITOR


class Chunk(NamedTuple):
    """A batch of episodes for one worker. Its result is Episodes, or with `recorded` a list of `Signals`."""

    theta: NDArray[np.float32]  # [B, D]
    seeds: list[int]  # [B]
    std: NDArray[np.float32] | None = None  # [B, outputs] of the exploration noise
    hold: NDArray[np.int32] | None = None  # [B] steps for which each draw of it is held; None: one
    with_obs_stats: bool = False  # whether Episodes have observation statistics
    recorded: frozenset[str] | None = None  # names of the signals to record
    with_digests: bool = False  # whether Episodes have digests of their signals
    look: str = ""  # the verification, or replay, that the episodes belong to; its environments are made for it

    def take(self, rows: list[int]) -> Chunk:
        """Return the chunk of these rows."""
        std, hold = None if self.std is None else self.std[rows], None if self.hold is None else self.hold[rows]
        return self._replace(theta=self.theta[rows], seeds=[self.seeds[row] for row in rows], std=std, hold=hold)

    def identity(self, row: int) -> str:
        """Return a hash that tells the result of a row apart from all others of the same job."""
        noise = b"".join(each[row].tobytes() for each in (self.std, self.hold) if each is not None)
        head = f"{self.seeds[row]} {self.with_obs_stats} {self.with_digests} {len(noise)} ".encode()
        return digest(head + noise + self.theta[row].tobytes())


# Runs the chunks of a job; yields the number of each with its result, as soon as it is finished. See process_pool.py
# and ray_backend.py for others than `in_process_backend`.
Backend = Callable[[Job, list[Chunk]], Iterator[tuple[int, Any]]]


@dataclass(frozen=True, eq=False)
class GymSampler:
    """The Sampler of Gymnasium environments."""

    job: Job
    backend: Backend
    workers: int = 1
    with_obs_stats: bool = False
    episode_cache: EpisodeCache | None = None
    look: str = ""  # the verification that counts the episodes; these have digests
    crashes: list[int] = field(default_factory=list, init=False, repr=False)  # of worker processes, in each batch

    @property
    def domain(self) -> GymDomain:
        """Where the episodes take place."""
        return self.job.domain

    @property
    def monitor(self) -> BatchMonitor:
        """The compiled requirement."""
        return self.job.monitor

    @property
    def compiled(self) -> bool:
        """It cannot be called inside `jax.jit`."""
        return False

    def __call__(self, theta: Any, keys: Any) -> Episodes:
        """Run one episode per parameter vector `[B, D]` and key `[B]`."""
        return self.run(np.asarray(theta, np.float32), environment_seeds(self.domain, keys))

    def explore(self, theta: Any, std: Any, keys: Any, hold: Any = None) -> Episodes:
        """Run episodes with noise of standard deviation `[B, outputs]` on the scores, and record a trace."""
        seeds, held = environment_seeds(self.domain, keys), None if hold is None else np.asarray(hold, np.int32)
        return self.run(np.asarray(theta, np.float32), seeds, np.asarray(std, np.float32), held)

    def run(
        self,
        theta: NDArray[np.float32],
        seeds: list[int],
        std: NDArray[np.float32] | None = None,
        hold: NDArray[np.int32] | None = None,
    ) -> Episodes:
        """Run one episode per parameter vector `[B, D]` and environment seed `[B]`, exploring if `std` is given."""
        whole = Chunk(theta, seeds, std, hold, self.with_obs_stats, with_digests=self.look != "", look=self.look)
        cache = self.episode_cache
        if cache is None:
            parts = dict(self._run_chunks(whole, len(seeds)))
            return concatenate_episodes([parts[first] for first in sorted(parts)])
        names = [whole.identity(row) for row in range(len(seeds))]
        known = {row: found for row, name in enumerate(names) if (found := cache.get(name)) is not None}
        if known and not cache.verified and not self._verify_cache(whole, known, cache):
            known = {}
        if missing := [row for row in range(len(seeds)) if row not in known]:
            began = time.monotonic()
            # Small chunks where episodes are slow, so that an interruption costs little.
            chunk_size = max(1, int(CACHE_SECONDS / cache.seconds_per_episode))
            for first, episodes in self._run_chunks(whole.take(missing), chunk_size):
                for i, row in enumerate(missing[first : first + len(episodes.returns)]):
                    known[row] = jax.tree.map(lambda column, i=i: column[i : i + 1].copy(), episodes)
                    cache.put(names[row], known[row])
            seconds = max(time.monotonic() - began, 1e-6)
            cache.seconds_per_episode = seconds * min(self.workers, len(missing)) / len(missing)
        return concatenate_episodes([known[row] for row in range(len(seeds))])

    def record(self, theta: NDArray[np.float32], seeds: list[int], wanted: frozenset[str] | None) -> list[Signals]:
        """Return the wanted signals (None: all) along one episode per parameter vector `[B, D]` and seed `[B]`."""
        whole = Chunk(theta, seeds, recorded=ALL_SIGNALS if wanted is None else wanted, look=self.look)
        if wanted is None:
            # The types of `info` values are those of a whole batch: one chunk, so that workers do not change them.
            ((_, paths),) = self.backend(self.job, [whole])
            return list(paths)
        parts = dict(self._run_chunks(whole, len(seeds)))
        return [path for first in sorted(parts) for path in parts[first]]

    def _verify_cache(self, whole: Chunk, known: Mapping[int, Episodes], cache: EpisodeCache) -> bool:
        """Replay the first and the last of the known episodes; clear the cache if one differs."""
        rows = sorted({min(known), max(known)})
        again = dict(self._run_chunks(whole.take(rows), 1))
        verified = all(_identical(again[i], known[row]) for i, row in enumerate(rows))
        if not verified:
            cache.clear()
        cache.verified = True
        return verified

    def _run_chunks(self, whole: Chunk, max_size: int) -> Iterator[tuple[int, Any]]:
        """Run in chunks of at most `max_size` episodes; yields the first row of each and its result, in any order."""
        count = len(whole.seeds)
        size = min(batch_size(self.job.domain), -(-count // self.workers), max_size)
        firsts = range(0, count, size)
        chunks = [whole.take(list(range(first, min(first + size, count)))) for first in firsts]
        before = getattr(self.backend, "crashes", 0)
        for number, result in self.backend(self.job, chunks):
            yield firsts[number], result
        self.crashes.append(getattr(self.backend, "crashes", 0) - before)


def _identical(one: Episodes, other: Episodes) -> bool:
    """Whether all columns are equal, bit by bit, wherever the episodes were played."""
    one, other = (episodes._replace(process=None) for episodes in (one, other))
    structures: list[Any] = [jax.tree.structure(episodes) for episodes in (one, other)]
    if structures[0] != structures[1]:
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


@cache
def in_process_backend() -> Backend:
    """Return a Backend that runs one chunk after the other here; environments are kept for the next job."""
    runner, turn = EpisodeRunner(), Lock()
    atexit.register(runner.close)  # the simulator of an environment may be a separate process

    def run(job: Job, chunks: list[Chunk]) -> Iterator[tuple[int, Any]]:
        with turn:
            for number, chunk in enumerate(chunks):
                yield number, runner(job, chunk)

    return run


def batch_size(domain: GymDomain) -> int:
    """Return how many episodes one process steps side by side: bounded by memory and by `MAX_BATCH`."""
    stated = domain.observation_space.dtype or np.float64
    number = np.dtype(np.uint8 if domain.exact_type is np.uint8 else np.result_type(stated, np.float32)).itemsize
    path = number * (domain.horizon + 1) * domain.observation_size
    return max(1, min(MAX_BATCH, MAX_BATCH_BYTES // path))


class HostPaths(NamedTuple):
    """Signals and outcomes of B episodes."""

    signals: dict[str, NDArray[Any]]  # [B, n+1] or [B, n+1, size]
    returns: NDArray[np.float64]  # [B]
    length: NDArray[np.int32]  # [B]
    terminated: NDArray[np.bool_]  # [B]
    noise: NDArray[np.float32] | None = None  # [B, n, outputs] of exploring episodes
    missing_info: NDArray[np.float32] | None = None  # [B, I] as in Episodes
    fallback_steps: NDArray[np.int32] | None = None  # [B] as in Episodes

    @property
    def trimmed(self) -> list[Signals]:
        """The signals of each episode up to its end, with observations as floating-point numbers."""
        return [
            {
                name: to_floats(values[i, : n + 1]) if name == "obs" else values[i, : n + 1].copy()
                for name, values in self.signals.items()
            }
            for i, n in enumerate(self.length.tolist())
        ]


class EpisodeRunner:
    """Steps environments; keeps them until another domain or look comes, since making one may take long."""

    def __init__(self, heartbeat: Heartbeat | None = None) -> None:
        self.heartbeat = heartbeat
        self._domain: GymDomain | None = None  # of the environments
        self._look = ""  # for which they were made
        self._envs: list[Env] = []

    def __call__(self, job: Job, chunk: Chunk) -> Any:
        """Return the judged Episodes of a chunk, or the `Signals` of each where the chunk asks for recordings."""
        monitor = job.monitor
        if chunk.recorded is not None:
            return self.rollout(job, chunk, None if chunk.recorded == ALL_SIGNALS else chunk.recorded).trimmed
        wanted = monitor.signals | (
            TRACE_SIGNALS
            if chunk.std is not None or chunk.with_digests
            else OBS
            if chunk.with_obs_stats
            else frozenset()
        )
        path = self.rollout(job, chunk, wanted)
        end = np.arange(job.domain.horizon + 1) >= path.length[:, None]
        satisfied, cost = monitor(path.signals, end=end)
        columns: dict[str, Any] = {
            "returns": path.returns.astype(np.float32),
            "cost": cost.astype(np.float32),
            "satisfied": satisfied,
            "length": path.length,
            "missing_info": path.missing_info,
            "fallback_steps": path.fallback_steps,
            "shaping_cost": total_shaping_costs(monitor, path.signals, end),
            **monitor.measure(path.signals, end=end)._asdict(),
        }
        if chunk.std is None and chunk.with_obs_stats:
            obs = seen_observations(job.domain, path.signals["obs"], chunk.seeds)[:, :-1]
            columns["obs_stats"] = summarize_observations(obs, ~end[:, :-1])
        if chunk.with_digests:
            ends = enumerate(path.length.tolist())
            parts = [{name: values[i, : n + 1] for name, values in path.signals.items()} for i, n in ends]
            columns["digests"] = np.stack(list(map(digest_path, parts)))
            columns["process"] = np.full(len(parts), this_process())
        if path.noise is not None:
            signals = path.signals
            if signals["obs"].dtype == np.uint8 and not isinstance(job.network, ImageNetwork):
                signals = signals | {"obs": to_floats(signals["obs"])}  # convolutions alone read bytes
            trace = make_trace(monitor, signals, path.length, path.noise, end, path.terminated)
            if isinstance(job.domain, DisturbedGym):
                seen: Any = seen_observations(job.domain, path.signals["obs"], chunk.seeds)
                trace = trace._replace(obs=seen[:, :-1], final_obs=seen[:, -1])
            columns["trace"] = trace
        return Episodes(**columns)

    def rollout(self, job: Job, chunk: Chunk, wanted: frozenset[str] | None) -> HostPaths:
        """Run the episodes of a chunk; returns the wanted signals (None: all known ones) along their paths.

        The last state of an episode repeats until the horizon; an environment is never stepped beyond its end.
        """
        domain, seeds = job.domain, chunk.seeds
        self._prepare(domain, chunk.look, len(seeds))
        disturbed = domain if isinstance(domain, DisturbedGym) else None
        observe = _observer(domain if disturbed is None else disturbed.base)
        recorder = SignalRecorder(domain, seeds, wanted, job.monitor)
        returns, length = np.zeros(len(seeds)), np.zeros(len(seeds), np.int32)
        has_terminated = np.zeros(len(seeds), bool)
        resets, steps = self._calls(seeds)
        raw: Sequence[Any]
        infos: Sequence[Any]
        turn: Iterator[Any]
        # From here on, one entry per running episode; `rows` holds their indices.
        rows = np.arange(len(seeds))
        total: list[Any] = [np.float64(0.0)] * len(seeds)  # not Python's: the sum of that and a float32 is a float32
        t, turn, outcomes = 0, iter(resets), []
        try:
            with sandboxed():
                outcomes = [reset() for reset in turn]
                raw, infos = zip(*outcomes, strict=True)
                exact, obs = observe(raw)
                nothing = [False] * len(rows)
                # Before a policy acts, which may write into its observation.
                recorder.add(0, rows, exact, raw, infos, None, total, total, nothing, nothing)
                act = policies = job.network.vectorize(domain, chunk.theta, seeds)
                reward: Sequence[Any] = total  # of the first states
                names = job.network.signals
                noise = _exploration_noise(chunk, domain.horizon)
                while len(rows):
                    added = None if noise is None else noise[rows, t]
                    shown = _actor_signals(domain, names, raw, infos, t, reward, total) if names else ()
                    if disturbed is None:
                        actions = act(obs, raw, added, shown)
                    else:
                        own = [seeds[row] for row in rows]
                        seen = disturbed.view(obs, own)
                        actions = act(seen, raw if seen is obs else list(seen), added, shown)
                        actions = disturbed.apply(obs, actions, own)
                    if t == 0:
                        recorder.add_first_actions(actions)
                    t, turn, outcomes = t + 1, iter(steps), []
                    # `env.step`, see `_calls`.
                    outcomes = [step(action) for step, action in zip(turn, actions, strict=True)]
                    raw, reward, terminated, truncated, infos = zip(*outcomes, strict=True)
                    exact, obs = observe(raw)
                    total = list(map(add, total, reward))
                    if not (
                        NUMBERS.issuperset(map(type, total)) and BOOLEANS.issuperset(map(type, terminated + truncated))
                    ):
                        _check_outcomes(outcomes, "step")
                    if not math.isfinite(sum(total)):
                        raise EpisodeFault(_first_nonfinite(total), "a reward that is not a finite number")
                    if t == domain.horizon:
                        truncated = tuple(not ended for ended in terminated)
                    recorder.add(t, rows, exact, raw, infos, actions, reward, total, terminated, truncated)
                    if any(terminated) or any(truncated):
                        # Final for the episodes that end here; overwritten later for the others.
                        returns[rows], length[rows], has_terminated[rows] = total, t, terminated
                        going = [j for j in range(len(rows)) if not (terminated[j] or truncated[j])]
                        rows, obs, act = rows[going], obs[going], act.take(np.array(going, int))
                        raw, infos, reward, total, steps = (
                            [each[j] for j in going] for each in (raw, infos, reward, total, steps)
                        )
        except PsycoError:
            raise
        except Exception as error:  # any error of third-party code gets its seed and step
            at, problem = _diagnose(error, turn, outcomes, len(rows), "step" if t else "reset")
            raise EpisodeError(domain.name, seeds[rows[at]], t, problem) from error
        if self.heartbeat is not None:
            self.heartbeat[0] = IDLE
        signals = recorder.finish(t, length)
        for name in (each for each in recorder.others if each in signals):
            if (bad := _nonfinite_position(signals[name])) is not None:
                value = signals[name][*bad]
                problem = f"{name} is {value}, which is not a finite number"
                raise EpisodeError(domain.name, seeds[bad[0]], bad[1], problem)
        return HostPaths(
            signals, returns, length, has_terminated, noise, recorder.missing_info(), policies.fallback_steps
        )

    def close(self) -> None:
        """Close the environments."""
        envs, self._envs = self._envs, []
        close_envs(*envs)

    def _prepare(self, domain: GymDomain, look: str, count: int) -> None:
        """Have at least `count` environments of this domain, which have played episodes of this look only."""
        if self._domain is not domain or self._look != look:
            self.close()
            self._domain, self._look = domain, look
        while len(self._envs) < count:
            self._envs.append(domain.make_env(limit=False))  # `t` in `rollout` is the time limit

    def _calls(self, seeds: list[int]) -> tuple[list[Callable[[], Any]], list[Any]]:
        """Return `reset` and `step` of each environment; with a heartbeat, each call is announced there."""
        envs = self._envs[: len(seeds)]
        resets: list[Any] = [partial(env.reset, seed=seed) for env, seed in zip(envs, seeds, strict=True)]
        steps: list[Any] = [env.step for env in envs]
        if self.heartbeat is not None:
            for row, seed in enumerate(seeds):
                resets[row] = _announced(resets[row], self.heartbeat, seed, row, first=0)
                steps[row] = _announced(steps[row], self.heartbeat, seed, row, first=1)
        return resets, steps


def seen_observations(domain: GymDomain, obs: NDArray[Any], seeds: Sequence[int]) -> NDArray[np.float32]:
    """Return observations `[B, n, size]` of episodes with seeds `[B]`, as the actor sees them: in single precision."""
    single = obs.astype(np.float32, copy=False)
    return domain.view(single, seeds) if isinstance(domain, DisturbedGym) else single


def _announced(
    call: Callable[..., Any], heartbeat: Heartbeat, seed: int, row: int, *, first: int
) -> Callable[..., Any]:
    number = itertools.count(first)

    def announce(*action: Any) -> Any:
        heartbeat[0], heartbeat[1], heartbeat[2] = seed, next(number), row
        return call(*action)

    return announce


def _exploration_noise(chunk: Chunk, steps: int) -> NDArray[np.float32] | None:
    """Return the noise on the scores, `[B, n, outputs]`, each episode's from its own seed."""
    if chunk.std is None:
        return None
    shape = steps, chunk.std.shape[1]
    drawn = [np.random.default_rng((seed, NOISE_STREAM)).standard_normal(shape, np.float32) for seed in chunk.seeds]
    noise = chunk.std[:, None] * np.stack(drawn)
    if chunk.hold is None:
        return noise
    held = np.arange(steps) // chunk.hold[:, None] * chunk.hold[:, None]  # [B, n] the step at which each was drawn
    return np.take_along_axis(noise, held[..., None], axis=1)


# ---- observations ---------------------------------------------------------------------------------------------


def _observer(domain: GymDomain) -> Callable[[Sequence[Any]], tuple[NDArray[Any], NDArray[np.float32]]]:
    """Return a function from the environments' observations to checked rows `[n, size]`, and these for a network.

    The former have the environment's own precision, in which they are judged; a network reads float32.
    """
    size, space, flatten = domain.observation_size, domain.observation_space, domain.flatten
    is_box, kept = isinstance(space, spaces.Box), (np.float32, domain.exact_type)
    is_vector = isinstance(space, spaces.Box) and len(space.shape) == 1
    shape_of: Any = len if is_vector else np.shape  # the former is faster
    shape: Any = size if is_vector else space.shape

    def concatenate(raw: Sequence[Any]) -> NDArray[Any] | None:
        """Return all rows at once, `[n * size]`; None if each observation needs flattening or a check."""
        try:
            if is_box and {shape}.issuperset(map(shape_of, raw)):
                x = np.concatenate(raw, axis=None)
                if x.size == len(raw) * size and x.dtype.kind in NUMERIC_KINDS:
                    return x if x.dtype in kept else to_floats(x)
        except (TypeError, ValueError):
            pass
        return None

    def observe(raw: Sequence[Any]) -> tuple[NDArray[Any], NDArray[np.float32]]:
        if (exact := concatenate(raw)) is None:
            parts = []
            for at, observation in enumerate(raw):
                try:
                    parts.append(flatten(observation))
                except Exception as error:  # an observation may be any object
                    problem = str(error) if type(error) is ValueError else format_exception(error)
                    raise EpisodeFault(at, f"{problem} (it is {brief(observation)})") from error
            exact = np.concatenate(parts)
        x = exact.astype(np.float32, copy=False)
        # One product shows whether all is finite, unless it overflows.
        if not math.isfinite(x.dot(x)) and not np.isfinite(x).all():
            at = int(np.argmin(np.isfinite(x))) // size
            raise EpisodeFault(at, f"an observation that is not finite: {brief(raw[at])}")
        shape = len(raw), size
        return exact.reshape(shape), x.reshape(shape)

    return observe


# ---- diagnosis ------------------------------------------------------------------------------------------------


def _diagnose(error: Exception, turn: Iterator[Any], outcomes: list[Any], count: int, call: str) -> tuple[int, str]:
    """Return the position of the faulty episode and the problem. `turn` has handed out the calls that were begun."""
    if isinstance(error, EpisodeFault):
        return error.at, str(error)
    if not length_hint(turn) and len(outcomes) == count:
        try:
            _check_outcomes(outcomes, call)
        except EpisodeFault as wrong:
            return wrong.at, str(wrong)
    return max(0, count - length_hint(turn) - 1), format_exception(error)


def _check_outcomes(outcomes: list[Any], call: str) -> None:
    """Raise EpisodeFault for the first invalid outcome of `reset` or `step`."""
    values = 5 if call == "step" else 2
    for at, outcome in enumerate(outcomes):
        if not isinstance(outcome, tuple) or len(outcome) != values:
            raise EpisodeFault(at, f"{call} returned {brief(outcome)}; Gymnasium wants a tuple of {values}")
        if not isinstance(outcome[-1], Mapping):
            raise EpisodeFault(at, f"info is {brief(outcome[-1])}; Gymnasium wants a dictionary")
        for name, value in zip(("reward", "terminated", "truncated"), outcome[1:-1], strict=False):
            kinds, expected = (NUMERIC_KINDS, "a number") if name == "reward" else ("b", "a Boolean")
            if np.shape(value) or np.asarray(value).dtype.kind not in kinds:
                raise EpisodeFault(at, f"{name} is {brief(value)}; Gymnasium wants {expected}")


def _first_nonfinite(values: Sequence[Any]) -> int:
    return next((at for at, value in enumerate(values) if not math.isfinite(value)), 0)


def _nonfinite_position(values: NDArray[Any]) -> tuple[int, int] | None:
    """Return the first (row, time) of NaN or infinity, or None."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return None
    row, time, *_ = np.argwhere(~np.isfinite(values))[0].tolist()
    return row, time


# ---- signals --------------------------------------------------------------------------------------------------


def _actor_signals(
    domain: GymDomain,
    names: frozenset[str],
    raw: Sequence[Any],
    infos: Sequence[Any],
    t: int,
    reward: Sequence[Any],
    total: Sequence[Any],
) -> list[dict[str, Any]]:
    """Return the signals that an actor asks for beside observations, in states at time t before the end."""
    result = []
    for observation, info, gained, so_far in zip(raw, infos, reward, total, strict=True):
        state = transition_signals(domain, names, Transition(observation, info, None, t, gained, so_far))
        # As on recorded paths, a missing key of `info` counts as 0 or false.
        missing = {name: np.zeros(domain.table[name].size or ()) if name in domain.table else 0.0
                   for name, value in state.items() if value is None}  # fmt: skip
        result.append(state | missing)
    return result
