"""Checks of an environment before learning and verification; each result says what to fix."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Discrete, MultiDiscrete, flatdim
from numpy.typing import NDArray

from psyco._src.core.errors import DomainError, EpisodeError, PsycoError, RequirementError, RunError, suggest
from psyco._src.core.wording import plural
from psyco._src.envs.base import CompiledDomain, Domain, signal_table
from psyco._src.envs.gym_env import INFO_PREFIX, GymDomain, is_info
from psyco._src.envs.sandbox import close_envs, sandboxed
from psyco._src.envs.value_bounds import requirement_warnings
from psyco._src.logic.ast import Requirement
from psyco._src.logic.batch_monitor import BatchMonitor, compile_monitor
from psyco._src.logic.lint import early_end_note
from psyco._src.logic.validate import check_bounds, check_signals
from psyco._src.policies.image_network import default_network_for
from psyco._src.rollout.episodes import TRACE_SIGNALS, Stream, episode_keys, episode_seeds, stream_key
from psyco._src.rollout.execution import IN_PROCESS, Execution
from psyco._src.rollout.gym_sampler import Chunk, EpisodeRunner, Job, Signals
from psyco._src.rollout.jax_sampler import record_batch
from psyco._src.rollout.process_pool import shared_pool
from psyco._src.rollout.repeatability import REMEDY, first_difference, play_alone
from psyco._src.rollout.sampler import make_backend

CHECK_EPISODES = 8
QUICK_EPISODES, QUICK_STEPS = 3, 100  # of the checks before a synthesis
ENDLESS_REMEDY = "Fix the environment: every episode must terminate or be truncated."


class CheckResult(NamedTuple):
    """Result of one check."""

    name: str
    passed: bool | None  # None: information, not a fault
    message: str
    data: Any = None  # the message's content as plain data, where that is more than a sentence


def check_environment(
    domain: GymDomain,
    requirement: Requirement | None = None,
    *,
    seed: int = 0,
    execution: Execution = IN_PROCESS,
) -> Iterator[CheckResult]:
    """Check spaces, signals, determinism, seeding, episode length and speed of an environment with random policies.

    Args:
        domain: the environment.
        requirement: a requirement whose signals are checked too.
        seed: of policies and episodes.
        execution: where episodes are made; with workers, they are repeated there too.
    """
    yield CheckResult(
        "spaces",
        True,
        f"observations {domain.observation_space} as {domain.observation_size} numbers, actions {domain.action_space}",
    )
    if domain.observation_parts:
        yield CheckResult("observed", True, "; ".join(_part_texts(domain)))
    judged = TRACE_SIGNALS | {"action"}
    if requirement is not None:
        found = _signals(domain, requirement)
        yield found
        judged |= _requirement_signals(requirement) if found.passed else frozenset()
        if found.passed is not False:
            yield from (CheckResult("requirement", None, text) for text in requirement_warnings(requirement, domain))
    try:
        network = default_network_for(domain)
    except DomainError as error:
        yield CheckResult("size", False, str(error))
        return
    key = stream_key(seed, Stream.RECORD)
    rng = np.random.default_rng(seed)
    theta = rng.normal(0.0, 1.0, (CHECK_EPISODES, network.size)).astype(np.float32)
    chunk = Chunk(theta, episode_seeds(episode_keys(key, 0, CHECK_EPISODES)))
    runner, job = EpisodeRunner(), Job(domain, network)
    try:
        first = runner.rollout(job, chunk, judged)
        began = time.perf_counter()
        again = runner.rollout(job, chunk, judged)
        seconds = time.perf_counter() - began
        alone = play_alone(job, theta, chunk.seeds, judged, execution)
    except EpisodeError as error:
        yield CheckResult("episodes", False, f"{error}. {ENDLESS_REMEDY}")
        return
    yield CheckResult("episodes", True, f"{CHECK_EPISODES} episodes of random policies ended without an error or a NaN")
    yield _containment(domain, chunk.seeds[0], first.signals["action"][0], int(first.length[0]))
    where = "alone in a new environment" + ", in another process" * execution.uses_workers
    yield _repetition(domain, "determinism", chunk, first.trimmed, again.trimmed, "in the same environment")
    yield _repetition(domain, "fresh start", chunk, first.trimmed, alone, where)
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
    steps = int(first.length.sum())
    mean = steps / CHECK_EPISODES
    at_limit = int((first.length == domain.horizon).sum())
    yield CheckResult(
        "length", True,
        f"{mean:.0f} steps on average, {first.length.min()} to {first.length.max()}; {at_limit} of {CHECK_EPISODES} "
        f"episodes reached the horizon of {domain.horizon}",
    )  # fmt: skip
    if requirement is not None and found.passed:
        end = np.arange(domain.horizon + 1) >= first.length[:, None]
        satisfied, _ = _monitor(requirement)(first.signals, end=end)
        if note := early_end_note(requirement, domain.horizon, first.length[satisfied.all(axis=1)].tolist()):
            yield CheckResult("early ends", None, note)
    if requirement is None:  # otherwise the plan of a synthesis measures it
        yield CheckResult("speed", True, f"about {steps / seconds:,.0f} steps per second in one process")


def check_compiled(domain: Domain, requirement: Requirement | None = None, *, seed: int = 0) -> Iterator[CheckResult]:
    """Check the functions, signals and episodes of a compiled domain with random policies.

    Args:
        domain: the domain.
        requirement: a requirement whose signals are checked too.
        seed: of policies and episodes.
    """
    try:
        table = signal_table(domain)
        assert isinstance(domain, CompiledDomain)  # or there is no table
        actions, horizon = domain.actions, plural(domain.horizon, "step")
        yield CheckResult("spaces", True, f"observations of length {domain.observation_size}, {actions}, {horizon}")
        sized = (f"{name}[{info.size}]" if info.size is not None else name for name, info in table.items())
        yield CheckResult("signal names", True, ", ".join(sized))
        if ranges := getattr(domain, "ranges", {}):
            stated = (f"{name} from {low:g} to {high:g}" for name, (low, high) in ranges.items())
            yield CheckResult("ranges", True, ", ".join(stated))
        if requirement is not None:
            yield _signals(domain, requirement)
            yield from (CheckResult("requirement", None, text) for text in requirement_warnings(requirement, domain))
        network = default_network_for(domain)
        theta = np.random.default_rng(seed).normal(0.0, 1.0, (CHECK_EPISODES, network.size)).astype(np.float32)
        keys = episode_keys(stream_key(seed, Stream.RECORD), 0, CHECK_EPISODES)
        signals, length = record_batch(domain, network, None, jnp.asarray(theta), keys)
    except PsycoError as error:
        yield CheckResult("functions", False, str(error))
        return
    for name, values in signals.items():
        if not np.isfinite(values).all():
            episode, step = np.argwhere(~np.isfinite(values))[0][:2]
            problem = (
                f"{name} is not a finite number at step {step} of an episode of a random policy (number {episode})"
            )
            yield CheckResult("episodes", False, problem)
            return
    steps = f"{length.min()} to {length.max()} steps"
    yield CheckResult("episodes", True, f"{CHECK_EPISODES} of random policies ended without a NaN, after {steps}")


def find_faults(job: Job, size: int, *, seed: int = 0, execution: Execution = IN_PROCESS) -> list[CheckResult]:
    """Return the checks that fail in a few short episodes of random policies: a quick part of `check_environment`.

    Args:
        job: domain, network and monitor of a synthesis.
        size: number of parameters of the network.
        seed: of policies and episodes.
        execution: where episodes are made.
    """
    domain = job.domain
    short = dataclasses.replace(domain, horizon=min(domain.horizon, QUICK_STEPS))
    theta = np.random.default_rng(seed).normal(0.0, 1.0, (QUICK_EPISODES, size)).astype(np.float32)
    seeds = episode_seeds(episode_keys(stream_key(seed, Stream.RECORD), 0, QUICK_EPISODES))
    whole = Chunk(theta, seeds, recorded=TRACE_SIGNALS | {"action"} | job.monitor.signals)
    alone = [whole.take([i])._replace(look=f"replay {i}") for i in range(QUICK_EPISODES)]
    # A few short episodes are not worth a cluster: one process here isolates them as well.
    backend = shared_pool(1, execution.step_timeout) if execution.ray else make_backend(execution)[0]
    try:
        played = dict(backend(job._replace(domain=short), [whole, whole, *alone]))
    except RunError as error:
        return [CheckResult("episodes", False, f"{error}. {ENDLESS_REMEDY}")]
    first, again, *others = (played[i] for i in range(len(played)))
    found = [
        _repetition(domain, "determinism", whole, first, again, "in the same environment"),
        _repetition(domain, "fresh start", whole, first, [path for (path,) in others], "alone in a new environment"),
    ]
    if not execution.uses_workers:
        found.append(_containment(short, seeds[0], first[0]["action"], len(first[0]["action"]) - 1))
    return [each for each in found if each.passed is False]


def _signals(domain: Domain, requirement: Requirement) -> CheckResult:
    try:
        check_signals(requirement, signal_table(domain), domain.name)
        check_bounds(requirement, domain.horizon, domain.name)
    except RequirementError as error:
        return CheckResult("signals", False, str(error))
    names, table = _requirement_signals(requirement), signal_table(domain)
    unknown = sorted(name for name in names if is_info(name) and name not in table)
    if unknown:
        known = [name for name in table if is_info(name) and not name.endswith(INFO_PREFIX)]
        return CheckResult(
            "signals", None,
            f"{', '.join(name + suggest(name, known) for name in unknown)} did not appear in a few random steps (seen: "
            f"{', '.join(known) or 'none'}); "
            "where it is missing it counts as 0",
        )  # fmt: skip
    return CheckResult(
        "signals", True, f"the requirement's signals are there: {', '.join(sorted(names)) or 'none needed'}"
    )


def _part_texts(domain: GymDomain) -> Iterator[str]:
    """Yield the signals of the parts of an observation, with their entries in the flat one."""
    for name, part in domain.observation_parts.items():
        entries = "" if part.size is None else f"[0..{part.size - 1}]"
        last = part.first + flatdim(part.space) - 1
        where = f"obs[{part.first}]" if last == part.first else f"obs[{part.first}..{last}]"
        one_hot = " as zeros and a one" * isinstance(part.space, Discrete | MultiDiscrete)
        yield f"{name}{entries} is {where}{one_hot}"


def _requirement_signals(requirement: Requirement) -> frozenset[str]:
    return _monitor(requirement).signals


def _monitor(requirement: Requirement) -> BatchMonitor:
    return compile_monitor(
        [bound.formula for bound in requirement.probability_bounds],
        measured=[each.subject for each in requirement.measured],
    )


@sandboxed()
def _containment(domain: GymDomain, seed: int, actions: NDArray[Any], length: int) -> CheckResult:
    """Replay the recorded actions of one episode, and check that the observation space contains every observation.

    Bounds that an observation exceeds are information, as in LunarLander, whose angles do; another shape or type is a
    fault.
    """
    env, outside = domain.make_env(), None
    unbounded = _unbounded(env.observation_space)
    try:
        (observation, _), ended = env.reset(seed=seed), False
        for t in range(length + 1):
            if not (env.observation_space if outside is None else unbounded).contains(observation):
                fits = unbounded.contains(observation)
                outside = CheckResult(
                    "observations", None if fits else False,
                    f"at step {t} of the episode with seed {seed} the observation {observation!r} is not in "
                    f"{env.observation_space}: check {'the bounds' if fits else 'shape and dtype'} of the space",
                )  # fmt: skip
                if not fits:
                    return outside
            if t < length and not ended:  # one that cannot repeat an episode may end earlier
                action: Any = actions[t + 1]
                if domain.actions.size is None:
                    action = int(action)
                else:
                    action = np.asarray(action, domain.action_space.dtype).reshape(domain.action_space.shape or ())
                observation, _, terminated, truncated, _ = env.step(action)
                ended = terminated or truncated
    finally:
        close_envs(env)
    return outside or CheckResult("observations", True, "all observations are in their space")


def _unbounded(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return a space without the bounds of its boxes."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _unbounded(part) for name, part in space.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(tuple(map(_unbounded, space.spaces)))
    if isinstance(space, spaces.Box) and space.low.dtype.kind in "fiu":
        dtype: type[Any] = space.low.dtype.type
        low, high = (-np.inf, np.inf) if space.low.dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return spaces.Box(low, high, space.shape, dtype)
    return space


def _repetition(
    domain: GymDomain, name: str, chunk: Chunk, first: list[Signals], again: list[Signals], where: str
) -> CheckResult:
    for seed, one, other in zip(chunk.seeds, first, again, strict=True):
        if (found := first_difference(one, other)) is not None:
            what = f"the episode with seed {seed} differs when it is repeated {where}: {found}. "
            if domain.seeded:
                return CheckResult(name, False, what + REMEDY)
            return CheckResult(name, None, what + "That is as declared (seeded=False)")
    return CheckResult(name, True, f"episodes repeat exactly {where}")
