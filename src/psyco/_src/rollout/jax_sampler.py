"""Episodes of compiled domains: `vmap` over episodes, `lax.scan` over steps, sharded over JAX devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec
from numpy.typing import NDArray

from psyco._src.core.errors import EpisodeError
from psyco._src.envs.base import CompiledDomain, State, check_step
from psyco._src.envs.family import Family
from psyco._src.envs.shield import Shielded
from psyco._src.logic.batch_monitor import BatchMonitor
from psyco._src.policies.network import Network, has_mask
from psyco._src.rollout.episodes import (
    COMPILER_OPTIONS,
    OBS,
    TRACE_SIGNALS,
    Episodes,
    Sampler,
    episode_seeds,
    make_trace,
    summarize_observations,
    total_shaping_costs,
)

CHANGED = "shield.changed"  # signal of a sampler: whether the shield changed the choice that led to a state
MAX_UNROLLED = 16  # numbers that are summed one by one

# A recording runs a few times: a third of the default compile time counts more than its run time.
RECORDING_OPTIONS = {**COMPILER_OPTIONS, "xla_cpu_use_fusion_emitters": False}


@dataclass(frozen=True)
class JaxSampler:
    """The Sampler of compiled domains; equal samplers share their compiled code."""

    domain: CompiledDomain
    network: Network
    monitor: BatchMonitor
    devices: tuple[Any, ...] = ()  # a batch is split over them
    with_obs_stats: bool = False

    @property
    def compiled(self) -> bool:
        """It can be called inside `jax.jit`."""
        return True

    def __call__(self, theta: Array, keys: Array) -> Episodes:
        """Run one episode per parameter vector `[B, D]` and key `[B]`."""
        return self._split(jax.vmap(self._episode), theta, keys)

    def explore(self, theta: Array, std: Array, keys: Array, hold: Array | None = None) -> Episodes:
        """Run episodes with noise of standard deviation `[B, outputs]` on the scores, and record a trace."""
        return self._split(jax.vmap(self._episode), theta, keys, std, *([] if hold is None else [hold]))

    def _split(self, run: Callable[..., Episodes], theta: Array, keys: Array, *rest: Array) -> Episodes:
        """Run a batch, split over the devices."""
        devices = len(self.devices)
        if devices < 2:
            return run(theta, keys, *rest)
        share = -(-len(keys) // devices)  # episodes per device; the last devices wrap around to fill theirs

        def part(*rows: Array) -> Episodes:
            mine = (jax.lax.axis_index("devices") * share + jnp.arange(share)) % len(keys)
            episodes = run(*(each[mine] for each in rows))
            return jax.tree.map(lambda x: jax.lax.all_gather(x, "devices", tiled=True)[: len(keys)], episodes)

        # Inputs and outputs are replicated: split outputs would split the learner's sums too, and the order of a sum
        # must not depend on the number of devices.
        mesh, whole = Mesh(np.array(self.devices), ("devices",)), PartitionSpec()
        split = jax.shard_map(part, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
        return split(theta, keys, *rest)

    def _episode(self, theta: Array, key: Array, std: Array | None = None, hold: Array | None = None) -> Episodes:
        noise = None if std is None else _exploration_noise(self.domain, key, std, hold)
        further = OBS if self.with_obs_stats else frozenset()
        wanted = self.monitor.signals | (TRACE_SIGNALS if noise is not None else further)
        if isinstance(self.domain, Shielded) and noise is None:
            wanted |= {CHANGED}
        path, length = _run(self.domain, self.network, wanted, theta, key, noise)
        end = jnp.arange(self.domain.horizon + 1) >= length
        satisfied, cost = self.monitor(path.signals, end=end)
        trace = None
        if noise is not None:
            trace = make_trace(self.monitor, path.signals, length, noise, end, path.terminated)
        columns = self.monitor.measure(path.signals, end=end)._asdict()
        if noise is None and self.with_obs_stats:
            columns["obs_stats"] = summarize_observations(path.signals["obs"][:-1], ~end[:-1])
        if CHANGED in path.signals:
            columns["fallback_steps"] = jnp.sum(path.signals[CHANGED], dtype=jnp.int32)
        columns["shaping_cost"] = total_shaping_costs(self.monitor, path.signals, end)
        return Episodes(path.final_return, cost, satisfied, length, trace, path.nonfinite, **columns)


def raise_nonfinite(
    sampler: Sampler, nonfinite: Any, theta: Array, keys: Array, std: Array | None = None, hold: Array | None = None
) -> NoReturn:
    """Replay the first of the `nonfinite` `[B]` episodes and raise EpisodeError for its first NaN or infinity.

    NaN compares as false, so the verdict of a formula on it would be arbitrary.
    """
    assert isinstance(sampler, JaxSampler)
    i = int(np.argmax(nonfinite))
    domain = sampler.domain
    noise = [None if each is None else each[i] for each in (std, hold)]
    signals, length = jax.device_get(_replay(domain, sampler.network, theta[i], keys[i], *noise))
    for t in range(int(length) + 1):
        for name in sorted(signals, key=lambda name: name == "return"):  # a reward explains a return
            if not np.isfinite(value := signals[name][t]).all():
                problem = f"{name} is {value}, which is not a finite number"
                raise EpisodeError(domain.name, episode_seeds(keys[i : i + 1])[0], t, problem)
        if t < length and has_mask(domain) and not (signals["obs"][t][-domain.actions.outputs :] > 0.5).any():
            problem = "the action mask offers no action; one at least must be 1"
            raise EpisodeError(domain.name, episode_seeds(keys[i : i + 1])[0], t, problem)
    raise AssertionError("an episode is marked as not finite, but all of it is")


class _EpisodeKeys(NamedTuple):
    """The random keys of an episode."""

    reset: Array
    steps: Array
    noise: Array  # of exploration


def _keys(key: Array) -> _EpisodeKeys:
    # All from one split: a key that `fold_in` derives from the same key may equal one of these.
    return _EpisodeKeys(*jax.random.split(key, 3))


class _Path(NamedTuple):
    signals: dict[str, Array]  # each [n+1] or [n+1, size]
    final_return: Array  # []
    nonfinite: Array  # [] bool: an observation, action, reward or signal was not a finite number
    terminated: Array  # [] bool: it ended before the horizon


class EpisodeState(NamedTuple):
    """Current state of an episode."""

    state: State
    alive: Array  # [] bool: the episode has not ended
    reward: Array  # [] of the step that led here
    accumulated: Array  # [] return so far
    action: Array  # the last action
    length: Array  # [] int32 steps taken
    nan_flag: Array  # [] 0 as long as all numbers were finite, NaN from then on


def start(domain: CompiledDomain, key: Array) -> tuple[State, Any]:
    """Return the first state of an episode, and the random draws of its steps, `[n, ...]`."""
    keys = _keys(key)
    if isinstance(domain, Family):
        domain = domain.member(key)
    state = domain.reset(keys.reset)
    # Random numbers are much cheaper drawn all at once than step by step.
    draws = domain.draw(keys.steps) if hasattr(domain, "draw") else jax.random.split(keys.steps, domain.horizon)
    return state, draws


def initial_state(state: State, action: Array) -> EpisodeState:
    """Return the start of an episode. `action` is that which led to a state; in the first state, the first action."""
    zero = jnp.float32(0)
    return EpisodeState(state, jnp.bool_(True), zero, zero, action, jnp.int32(0), zero)


def advance(domain: CompiledDomain, now: EpisodeState, drawn: Any, action: Array) -> EpisodeState:
    """Return the episode after a step; an episode that has ended does not change."""
    outcome = domain.step(drawn, now.state, action)
    check_step(domain, now.state, outcome)
    state, reward, done = outcome
    reward = jnp.asarray(reward, jnp.float32)
    nxt = EpisodeState(
        state, jnp.logical_not(done), reward, now.accumulated + reward, action, now.length + 1, now.nan_flag
    )
    if done is False:  # no episode ends early
        return nxt
    return jax.tree.map(lambda new, old: jnp.where(now.alive, new, old), nxt, now)


def _run(
    domain: CompiledDomain,
    network: Network,
    wanted: frozenset[str] | None,
    theta: Array,
    key: Array,
    noise: Array | None = None,
) -> tuple[_Path, Array]:
    """Run one episode; returns the wanted signals (None: all) along its path, and its length.

    The exploration `noise` `[n, outputs]` is added to the scores of the network. After the end the last state repeats
    until the horizon, so that every path has n+1 states.
    """
    layers = network.unflatten(theta)
    views = agent_views(domain)

    def choose(observation: Array, memory: Array | None, added: Array | None) -> tuple[Array, Array | None]:
        scores, memory = network.scores_and_memory(layers, observation, memory)
        return network.decode(domain.actions, scores, added), memory

    def flag(now: EpisodeState, every: Mapping[str, Array]) -> Array:
        found = _nan_flag(*(value for name, value in every.items() if name not in views))
        if not has_mask(domain):
            return found
        offered = jnp.any(every["obs"][-domain.actions.outputs :] > 0.5)
        return found + jnp.where(now.alive & (now.length < domain.horizon) & ~offered, jnp.nan, 0.0)

    def step(
        current: tuple[EpisodeState, Array | None], chance: tuple[Any, Array | None]
    ) -> tuple[tuple[EpisodeState, Array | None], dict[str, Array]]:
        (now, memory), (drawn, added) = current, chance
        action, remembered = choose(domain.observe(now.state), memory, added)
        nxt = advance(domain, now, drawn, action)
        every = state_signals(domain, nxt)
        if wanted and CHANGED in wanted:
            free, _ = choose(domain.observe_free(now.state), memory, added)  # type: ignore[attr-defined]
            every[CHANGED] = now.alive & (action != free)
        # All signals are checked: a wanted one may be a Boolean that was computed from a NaN.
        return (nxt._replace(nan_flag=nxt.nan_flag + flag(nxt, every)), remembered), _only(wanted, every)

    state, draws = start(domain, key)
    memory = network.empty_memory()
    action, _ = choose(domain.observe(state), memory, None if noise is None else noise[0])
    first = initial_state(state, action)
    every = state_signals(domain, first)
    if wanted and CHANGED in wanted:
        every[CHANGED] = jnp.bool_(False)
    first = first._replace(nan_flag=flag(first, every))
    (last, _), rest = jax.lax.scan(step, (first, memory), (draws, noise))
    signals = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), _only(wanted, every), rest)
    return _Path(signals, last.accumulated, jnp.isnan(last.nan_flag), ~last.alive), last.length


def _exploration_noise(domain: CompiledDomain, key: Array, std: Array, hold: Array | None = None) -> Array:
    """Return the noise on the scores along an episode, `[n, outputs]`."""
    noise = std * jax.random.normal(_keys(key).noise, (domain.horizon, len(std)), jnp.float32)
    return noise if hold is None else noise[jnp.arange(domain.horizon) // hold * hold]


def _nan_flag(*values: Array) -> Array:
    """Return 0, or NaN if one of the values is not finite: one multiplication each, and no branch."""
    total = jnp.float32(0)
    for value in values:
        if jnp.issubdtype(jnp.result_type(value), jnp.floating):
            zeros = jnp.ravel(0.0 * jnp.asarray(value, jnp.float32))
            # Inside a loop, adding a few numbers one by one is faster than a reduction.
            total = sum(zeros, start=total) if zeros.size <= MAX_UNROLLED else total + zeros.sum()
    return total


def state_signals(domain: CompiledDomain, now: EpisodeState) -> dict[str, Array]:
    """Return all signals of a state."""
    found = {
        **domain.signals(now.state),
        "obs": domain.observe(now.state),
        "action": now.action,
        "step": now.length,
        "reward": now.reward,
        "return": now.accumulated,
    }
    return found | {name: found[whole][place] for name, (whole, place) in agent_views(domain).items()}


def agent_views(domain: CompiledDomain) -> Mapping[str, tuple[str, slice | int]]:
    """Return the signals of agents that are parts of a joint one, by name; empty where there is one agent."""
    found: Mapping[str, tuple[str, slice | int]] = getattr(domain, "views", {})
    return found


def _only(wanted: frozenset[str] | None, every: Mapping[str, Array]) -> dict[str, Array]:
    return {name: value for name, value in every.items() if wanted is None or name in wanted}


def record_batch(
    domain: CompiledDomain,
    network: Network,
    wanted: frozenset[str] | None,
    theta: Array,
    keys: Array,
    std: float = 0.0,
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int32]]:
    """Return the wanted signals (None: all) `[B, n+1, ...]` of episodes with parameters `[B, D]`, and lengths `[B]`.

    The scores have noise of standard deviation `std`.
    """
    path, length = _record_batch(domain, network, wanted, theta, keys, np.float32(std))
    return {name: np.asarray(value) for name, value in path.signals.items()}, np.asarray(length)


@jax.jit(static_argnums=(0, 1, 2), compiler_options=RECORDING_OPTIONS)
def _record_batch(
    domain: CompiledDomain,
    network: Network,
    wanted: frozenset[str] | None,
    theta: Array,
    keys: Array,
    std: Array,
) -> tuple[_Path, Array]:
    noise = jax.vmap(lambda key: _exploration_noise(domain, key, jnp.full(network.outputs, std)))(keys)
    return jax.vmap(lambda *episode: _run(domain, network, wanted, *episode))(theta, keys, noise)


@jax.jit(static_argnums=(0, 1))
def _replay(
    domain: CompiledDomain, network: Network, theta: Array, key: Array, std: Array | None, hold: Array | None
) -> tuple[dict[str, Array], Array]:
    """Return all signals along one episode, and its length."""
    noise = None if std is None else _exploration_noise(domain, key, std, hold)
    path, length = _run(domain, network, None, theta, key, noise)
    return path.signals, length
