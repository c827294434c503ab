"""Is an environment fit for learning and verification? Each check says what it found and what to mend."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError, EpisodeError, RequirementError
from psyco._src.envs.base import signal_table
from psyco._src.envs.gym_env import INFO, GymDomain
from psyco._src.envs.sandbox import close
from psyco._src.logic.ast import Requirement
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.validate import check_bounds, check_signals
from psyco._src.policies.network import network_for
from psyco._src.rollout.episodes import Stream, episode_keys, episode_seeds, stream_key
from psyco._src.rollout.gym_sampler import Chunk, EpisodeRunner, Job

EPISODES = 8


class CheckResult(NamedTuple):
    """One thing that was looked at."""

    name: str
    passed: bool | None  # None: worth knowing, but no fault
    message: str
    data: Any = None  # what the message says, as plain data, where that is more than a sentence


def check_environment(
    domain: GymDomain, requirement: Requirement | None = None, *, seed: int = 0, episodes: int = 60_000
) -> Iterator[CheckResult]:
    """Look at an environment from all sides, with random policies.

    Args:
        domain: what is checked.
        requirement: a requirement whose signals should be there.
        seed: of policies and episodes.
        episodes: of the synthesis whose duration is estimated.
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
    key = stream_key(seed, Stream.SHOW)
    rng = np.random.default_rng(seed)
    theta = rng.normal(0.0, 1.0, (EPISODES, network.size)).astype(np.float32)
    chunk = Chunk(theta, episode_seeds(episode_keys(key, 0, EPISODES)))
    runner, job = EpisodeRunner(), Job(domain, network, compile_monitor([]))
    wanted = frozenset({"obs", "action", "reward", "terminated"})
    try:
        first = runner.play(job, chunk, wanted)
        began = time.perf_counter()
        again = runner.play(job, chunk, wanted)
        seconds = time.perf_counter() - began
    except EpisodeError as error:
        yield CheckResult(
            "episodes", False, f"{error}. Mend the environment: every episode has to reach its end"
        )
        return
    yield CheckResult(
        "episodes", True, f"{EPISODES} episodes of random policies ended without an error or a NaN"
    )
    yield _containment(domain, chunk.seeds[0], first.signals["action"][0], int(first.length[0]))
    yield _repetition("determinism", chunk, first, again, "the same environment object")
    fresh = EpisodeRunner()
    one = Chunk(theta[-1:], chunk.seeds[-1:])
    last = first._replace(signals={k: v[-1:] for k, v in first.signals.items()}, length=first.length[-1:])
    yield _repetition("fresh start", one, last, fresh.play(job, one, wanted), "a new environment object")
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
    mean = steps / EPISODES
    at_limit = int((first.length == domain.horizon).sum())
    yield CheckResult(
        "length", True,
        f"{mean:.0f} steps on average, {first.length.min()} to {first.length.max()}; {at_limit} of {EPISODES} episodes "
        f"reached the horizon of {domain.horizon}",
    )  # fmt: skip
    rate = steps / seconds
    low, high = episodes * mean / rate, episodes * domain.horizon / rate
    yield CheckResult(
        "speed", True,
        f"{rate:,.0f} steps per second in one process; {episodes:,} training episodes would take {_duration(low)} "
        f"at this length, at most {_duration(high)} at the full horizon, and about 1/N of that with --workers N",
    )  # fmt: skip


def seed_doubts(job: Job, theta: NDArray[np.float32], seeds: list[int], ret: float) -> list[str]:
    """Does chance come from the seed? A sentence for every reason to doubt it; three further episodes tell.

    Args:
        job: what was played.
        theta: the parameters `[D]`.
        seeds: of two episodes.
        ret: the return of the first when it was played before, maybe in another process.
    """
    first, second = seeds
    runner, wanted = EpisodeRunner(), frozenset({"obs", "reward", "terminated"}) | job.monitor.signals
    try:  # one after the other, in one environment: making one may take long
        played = [runner.play(job, Chunk(theta[None], [seed]), wanted) for seed in (first, first, second)]
    finally:
        runner.close()
    paths = [list(each.signals.values()) for each in played]
    same, other = (all(map(np.array_equal, paths[0], path)) for path in paths[1:])
    doubts = []
    if not same or np.float32(played[0].ret[0]) != np.float32(ret):
        doubts.append(
            f"The seed {first} gave {job.domain.name} two different episodes: its chance events do not come from the "
            "seed alone. So this certificate cannot be repeated, and that its episodes are independent is in doubt."
        )
    if same and other:
        doubts.append(
            f"Two seeds gave {job.domain.name} the same episode: it may ignore its seed, or have no chance events. If "
            "they are drawn once per process, all episodes here share them, and that they are independent is in doubt."
        )
    return doubts


def _signals(domain: GymDomain, requirement: Requirement) -> CheckResult:
    try:
        check_signals(requirement, signal_table(domain), domain.name)
        check_bounds(requirement, domain.horizon, domain.name)
    except RequirementError as error:
        return CheckResult("signals", False, str(error))
    names = compile_monitor([demand.formula for demand in requirement.demands]).signals
    unseen = sorted(name for name in names if name.startswith(INFO) and name not in domain.table)
    if unseen:
        seen = ", ".join(name for name in domain.table if name.startswith(INFO) and name != INFO) or "none"
        return CheckResult(
            "signals", None,
            f"{', '.join(unseen)} did not appear in a few random steps (seen: {seen}); "
            "where it is missing it counts as 0",
        )  # fmt: skip
    return CheckResult(
        "signals", True, f"the requirement's signals are there: {', '.join(sorted(names)) or 'none needed'}"
    )


def _containment(domain: GymDomain, seed: int, actions: NDArray[Any], length: int) -> CheckResult:
    """Play one episode again, by the signals of its actions, and look at what the spaces say."""
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
                    action = np.asarray(action, domain.action_space.dtype).reshape(
                        domain.action_space.shape or ()
                    )
                observation, *_ = env.step(action)
    finally:
        close(env)
    return CheckResult("observations", True, "all observations are in their space")


def _repetition(name: str, chunk: Chunk, first: Any, again: Any, where: str) -> CheckResult:
    for key in ("obs", "reward", "terminated"):
        a, b = first.signals[key], again.signals[key]
        different = (a != b).reshape(*a.shape[:2], -1).any(axis=2)
        if different.any():
            row, step = np.argwhere(different)[0].tolist()
            return CheckResult(
                name, False,
                f"the episode with seed {chunk.seeds[row]} differs at step {step} when it is played again in {where}: "
                "take random numbers from self.np_random only, call super().reset(seed=seed), and let reset forget all",
            )  # fmt: skip
    return CheckResult(name, True, f"episodes repeat exactly in {where}")


def _duration(seconds: float) -> str:
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
