"""Checks of an environment before learning and verification; each result says what to fix."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError, EpisodeError, RequirementError
from psyco._src.envs.base import signal_table
from psyco._src.envs.gym_env import INFO_PREFIX, GymDomain
from psyco._src.envs.sandbox import close_envs
from psyco._src.logic.ast import Requirement
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.validate import check_bounds, check_signals
from psyco._src.policies.network import network_for
from psyco._src.rollout.episodes import Stream, episode_keys, episode_seeds, stream_key
from psyco._src.rollout.gym_sampler import Chunk, EpisodeRunner, Job

CHECK_EPISODES = 8


class CheckResult(NamedTuple):
    """Result of one check."""

    name: str
    passed: bool | None  # None: information, not a fault
    message: str
    data: Any = None  # the message's content as plain data, where that is more than a sentence


def check_environment(
    domain: GymDomain, requirement: Requirement | None = None, *, seed: int = 0, episodes: int = 60_000
) -> Iterator[CheckResult]:
    """Check spaces, signals, determinism, seeding, episode length and speed of an environment with random policies.

    Args:
        domain: the environment.
        requirement: a requirement whose signals are checked too.
        seed: of policies and episodes.
        episodes: training episodes whose duration is estimated.
    """
    yield CheckResult(
        "spaces",
        True,
        f"observations {domain.observation_space} as {domain.observation_size} numbers, {domain.actions}",
    )
    if requirement is not None:
        yield _signals(domain, requirement)
    try:
        network = network_for(domain)
    except DomainError as error:
        yield CheckResult("size", False, str(error))
        return
    key = stream_key(seed, Stream.RECORD)
    rng = np.random.default_rng(seed)
    theta = rng.normal(0.0, 1.0, (CHECK_EPISODES, network.size)).astype(np.float32)
    chunk = Chunk(theta, episode_seeds(episode_keys(key, 0, CHECK_EPISODES)))
    runner, job = EpisodeRunner(), Job(domain, network)
    wanted = frozenset({"obs", "action", "reward", "terminated"})
    try:
        first = runner.rollout(job, chunk, wanted)
        began = time.perf_counter()
        again = runner.rollout(job, chunk, wanted)
        seconds = time.perf_counter() - began
    except EpisodeError as error:
        yield CheckResult(
            "episodes", False, f"{error}. Fix the environment: every episode must terminate or be truncated."
        )
        return
    yield CheckResult("episodes", True, f"{CHECK_EPISODES} episodes of random policies ended without an error or a NaN")
    yield _containment(domain, chunk.seeds[0], first.signals["action"][0], int(first.length[0]))
    yield _repetition("determinism", chunk, first, again, "the same environment object")
    fresh = EpisodeRunner()
    one = Chunk(theta[-1:], chunk.seeds[-1:])
    last = first._replace(signals={k: v[-1:] for k, v in first.signals.items()}, length=first.length[-1:])
    yield _repetition("fresh start", one, last, fresh.rollout(job, one, wanted), "a new environment object")
    starts = first.signals["obs"][:, 0]
    if (starts == starts[0]).all():
        yield CheckResult(
            "seeds",
            None,
            "every seed gives the same first observation: fine if the start is meant to be fixed",
        )
    else:
        yield CheckResult("seeds", True, "different seeds give different episodes")
    runner.close()
    fresh.close()
    steps = int(first.length.sum())
    mean = steps / CHECK_EPISODES
    at_limit = int((first.length == domain.horizon).sum())
    yield CheckResult(
        "length", True,
        f"{mean:.0f} steps on average, {first.length.min()} to {first.length.max()}; {at_limit} of {CHECK_EPISODES} "
        f"episodes reached the horizon of {domain.horizon}",
    )  # fmt: skip
    rate = steps / seconds
    low, high = episodes * mean / rate, episodes * domain.horizon / rate
    yield CheckResult(
        "speed", True,
        f"{rate:,.0f} steps per second in one process; {episodes:,} training episodes would take {_duration(low)} "
        f"at this length, at most {_duration(high)} at the full horizon, and about 1/N of that with --workers N",
    )  # fmt: skip


def check_seeding(job: Job, theta: NDArray[np.float32], seeds: list[int], ret: float) -> list[str]:
    """Replay three episodes; returns a warning for each sign that randomness does not come from the seed alone.

    Args:
        job: domain, network and monitor of the episodes.
        theta: the parameters `[D]`.
        seeds: of two episodes.
        ret: the return of the first episode when it ran before, maybe in another process.
    """
    first, second = seeds
    runner, wanted = EpisodeRunner(), frozenset({"obs", "reward", "terminated"}) | job.monitor.signals
    try:  # one after the other, in one environment: making one may take long
        paths = [runner.rollout(job, Chunk(theta[None], [seed]), wanted) for seed in (first, first, second)]
    finally:
        runner.close()
    signals = [list(path.signals.values()) for path in paths]
    same, other = (all(map(np.array_equal, signals[0], again)) for again in signals[1:])
    warnings = []
    if not same or np.float32(paths[0].returns[0]) != np.float32(ret):
        warnings.append(
            f"The seed {first} gave {job.domain.name} two different episodes: its chance events do not come from the "
            "seed alone. So this certificate cannot be repeated, and that its episodes are independent is in doubt."
        )
    if same and other:
        warnings.append(
            f"Two seeds gave {job.domain.name} the same episode: it may ignore its seed, or have no chance events. If "
            "they are drawn once per process, all episodes here share them, and that they are independent is in doubt."
        )
    return warnings


def _signals(domain: GymDomain, requirement: Requirement) -> CheckResult:
    try:
        check_signals(requirement, signal_table(domain), domain.name)
        check_bounds(requirement, domain.horizon, domain.name)
    except RequirementError as error:
        return CheckResult("signals", False, str(error))
    names = compile_monitor([bound.formula for bound in requirement.probability_bounds]).signals
    unknown = sorted(name for name in names if name.startswith(INFO_PREFIX) and name not in domain.table)
    if unknown:
        known = (
            ", ".join(name for name in domain.table if name.startswith(INFO_PREFIX) and name != INFO_PREFIX) or "none"
        )
        return CheckResult(
            "signals", None,
            f"{', '.join(unknown)} did not appear in a few random steps (seen: {known}); "
            "where it is missing it counts as 0",
        )  # fmt: skip
    return CheckResult(
        "signals", True, f"the requirement's signals are there: {', '.join(sorted(names)) or 'none needed'}"
    )


def _containment(domain: GymDomain, seed: int, actions: NDArray[Any], length: int) -> CheckResult:
    """Replay the recorded actions of one episode, and check that the observation space contains every observation."""
    env = domain.make_env()
    try:
        observation, _ = env.reset(seed=seed)
        for t in range(length + 1):
            if not env.observation_space.contains(observation):
                return CheckResult(
                    "observations", False,
                    f"at step {t} of the episode with seed {seed} the observation {observation!r} is not in "
                    f"{env.observation_space}: check shape, dtype and bounds of the space",
                )  # fmt: skip
            if t < length:
                action: Any = actions[t + 1]
                if domain.actions.size is None:
                    action = int(action)
                else:
                    action = np.asarray(action, domain.action_space.dtype).reshape(domain.action_space.shape or ())
                observation, *_ = env.step(action)
    finally:
        close_envs(env)
    return CheckResult("observations", True, "all observations are in their space")


def _repetition(name: str, chunk: Chunk, first: Any, again: Any, where: str) -> CheckResult:
    for key in ("obs", "reward", "terminated"):
        a, b = first.signals[key], again.signals[key]
        different = (a != b).reshape(*a.shape[:2], -1).any(axis=2)
        if different.any():
            row, step = np.argwhere(different)[0].tolist()
            return CheckResult(
                name, False,
                f"the episode with seed {chunk.seeds[row]} differs at step {step} when it is repeated in {where}: "
                "take random numbers from self.np_random only, call super().reset(seed=seed), and clear all state",
            )  # fmt: skip
    return CheckResult(name, True, f"episodes repeat exactly in {where}")


def _duration(seconds: float) -> str:
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
