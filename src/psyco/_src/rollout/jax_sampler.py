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
from psyco._src.envs.base import CompiledDomain, State
from psyco._src.logic.batch_monitor import BatchMonitor
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Episodes, Sampler, episode_seeds
from psyco._src.rollout.obs_stats import seen_among
from psyco._src.rollout.trace import NEEDED, OBS, graded, trace

FEW = 16  # numbers


@dataclass(frozen=True)
class JaxSampler:
    """The Sampler of compiled domains; equal samplers share their compiled code."""

    domain: CompiledDomain
    network: Network
    monitor: BatchMonitor
    devices: tuple[Any, ...] = ()  # more than one: the batch is split over them
    observed: bool = False  # whether episodes say what was seen

    @property
    def compiled(self) -> bool:
        """It can be called inside `jax.jit`."""
        return True

    def __call__(self, theta: Array, keys: Array) -> Episodes:
        """Run parameters `[B, D]` with keys `[B]`, one episode each."""
        return self._split(jax.vmap(self._episode), theta, keys)

    def explore(self, theta: Array, std: Array, keys: Array) -> Episodes:
        """The same with noise of standard deviation `[B, outputs]` on the scores, and with a trace."""
        return self._split(jax.vmap(self._exploring), theta, keys, std)

    def _split(self, run: Callable[..., Episodes], theta: Array, keys: Array, *rest: Array) -> Episodes:
        """Run a batch, split over the devices."""
        devices = len(self.devices)
        if devices < 2:
            return run(theta, keys, *rest)
        share = -(-len(keys) // devices)  # each device's part, the last ones wrapping around to fill it

        def part(*rows: Array) -> Episodes:
            mine = (jax.lax.axis_index("devices") * share + jnp.arange(share)) % len(keys)
            episodes = run(*(each[mine] for each in rows))
            return jax.tree.map(lambda x: jax.lax.all_gather(x, "devices", tiled=True)[: len(keys)], episodes)

        # Everything goes in and comes out whole: were it left split, the learner's sums would be split too,
        # and the order of a sum must not depend on the number of devices.
        mesh, whole = Mesh(np.array(self.devices), ("devices",)), PartitionSpec()
        split = jax.shard_map(part, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
        return split(theta, keys, *rest)

    def _episode(self, theta: Array, key: Array) -> Episodes:
        wanted = self.monitor.signals | OBS if self.observed else self.monitor.signals
        path, length = _run(self.domain, self.network, wanted, theta, key)
        end = jnp.arange(self.domain.horizon + 1) >= length
        satisfied, cost = self.monitor(path.signals, end=end)
        further = self.monitor.measure(path.signals, end=end)._asdict()
        if self.observed:
            further["seen"] = seen_among(path.signals["obs"][:-1], ~end[:-1])
        further["grade"] = graded(self.monitor, path.signals, end)
        return Episodes(path.final_return, cost, satisfied, length, broken=path.broken, **further)

    def _exploring(self, theta: Array, key: Array, std: Array) -> Episodes:
        disturbance, wanted = _disturbance(self.domain, key, std), self.monitor.signals | NEEDED
        path, length = _run(self.domain, self.network, wanted, theta, key, disturbance)
        end = jnp.arange(self.domain.horizon + 1) >= length
        satisfied, cost = self.monitor(path.signals, end=end)
        seen = trace(self.monitor, path.signals, length, disturbance, end, path.terminated)
        further = self.monitor.measure(path.signals, end=end)._asdict()
        further["grade"] = graded(self.monitor, path.signals, end)
        return Episodes(path.final_return, cost, satisfied, length, seen, path.broken, **further)


def refuse_broken(
    sampler: Sampler, broken: Any, theta: Array, keys: Array, std: Array | None = None
) -> NoReturn:
    """NaN compares as false, so it would count as whatever a formula makes of that: an episode with it is an error.

    The first broken episode is played again, to say where and in what it ceased to consist of finite numbers.
    """
    assert isinstance(sampler, JaxSampler)
    i = int(np.argmax(broken))
    domain = sampler.domain
    signals, length = jax.device_get(
        _replay(domain, sampler.network, theta[i], keys[i], None if std is None else std[i])
    )
    for t in range(int(length) + 1):
        for name in sorted(signals, key=lambda name: name == "return"):  # a reward explains a return
            if not np.isfinite(value := signals[name][t]).all():
                problem = f"{name} is {value}, which is no finite number"
                raise EpisodeError(domain.name, episode_seeds(keys[i : i + 1])[0], t, problem)
    raise AssertionError("an episode is called broken, and all of it is finite")


class _EpisodeKeys(NamedTuple):
    """The randomness of an episode."""

    reset: Array
    steps: Array
    noise: Array  # of exploration


def _keys(key: Array) -> _EpisodeKeys:
    # All from one split: what `fold_in` derives from the same key may well be one of these.
    return _EpisodeKeys(*jax.random.split(key, 3))


class _Path(NamedTuple):
    signals: dict[str, Array]  # each [n+1] or [n+1, size]
    final_return: Array  # []
    broken: Array  # [] bool: an observation, action, reward or signal was no finite number
    terminated: Array  # [] bool: it ended by itself, not because time ran out


class EpisodeState(NamedTuple):
    """Where an episode stands."""

    state: State
    alive: Array  # [] bool: the episode goes on
    reward: Array  # [] of the step that led here
    ret: Array  # [] accumulated
    action: Array  # the last action taken
    length: Array  # [] int32 steps taken
    nought: Array  # [] 0 as long as all has been finite, NaN from then on


def start(domain: CompiledDomain, key: Array) -> tuple[State, Any]:
    """The first state of an episode, and what chance has in store for its steps, `[n, ...]`."""
    keys = _keys(key)
    state = domain.reset(keys.reset)
    # Random numbers are cheap all at once and dear one step at a time.
    draws = (
        domain.draw(keys.steps) if hasattr(domain, "draw") else jax.random.split(keys.steps, domain.horizon)
    )
    return state, draws


def first_moment(state: State, action: Array) -> EpisodeState:
    """The action of a moment is the one that led to it; the first moment shows the first action."""
    zero = jnp.float32(0)
    return EpisodeState(state, jnp.bool_(True), zero, zero, action, jnp.int32(0), zero)


def advance(domain: CompiledDomain, now: EpisodeState, drawn: Any, action: Array) -> EpisodeState:
    """The moment after a step; an episode that has ended stands still."""
    state, reward, done = domain.step(drawn, now.state, action)
    reward = jnp.asarray(reward, jnp.float32)
    nxt = EpisodeState(
        state, jnp.logical_not(done), reward, now.ret + reward, action, now.length + 1, now.nought
    )
    if done is False:  # no episode ends early, and nothing ever stands still
        return nxt
    return jax.tree.map(lambda new, old: jnp.where(now.alive, new, old), nxt, now)


def _run(
    domain: CompiledDomain,
    network: Network,
    wanted: frozenset[str] | None,
    theta: Array,
    key: Array,
    disturbance: Array | None = None,
) -> tuple[_Path, Array]:
    """One episode: the wanted signals (None: all) along its path, and its length.

    A `disturbance` `[n, outputs]` is what exploration adds to the scores of the network.
    After the end the last moment repeats until the horizon, so that every path has n+1 states.
    """

    parts = network.parts(theta)

    def act(state: State, added: Array | None) -> Array:
        return network.act(domain.actions, parts, domain.observe(state), added)

    def step(now: EpisodeState, chance: tuple[Any, Array | None]) -> tuple[EpisodeState, dict[str, Array]]:
        drawn, added = chance
        nxt = advance(domain, now, drawn, act(now.state, added))
        every = moment_signals(domain, nxt)
        # All signals are looked at: what is asked for may be a Boolean that was made of a NaN.
        return nxt._replace(nought=nxt.nought + _nought(*every.values())), _only(wanted, every)

    state, draws = start(domain, key)
    first = first_moment(state, act(state, None if disturbance is None else disturbance[0]))
    every = moment_signals(domain, first)
    first = first._replace(nought=_nought(*every.values()))
    last, rest = jax.lax.scan(step, first, (draws, disturbance))
    signals = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), _only(wanted, every), rest)
    return _Path(signals, last.ret, jnp.isnan(last.nought), ~last.alive), last.length


def _disturbance(domain: CompiledDomain, key: Array, std: Array) -> Array:
    """What exploration adds to the scores along an episode, `[n, outputs]`."""
    return std * jax.random.normal(_keys(key).noise, (domain.horizon, len(std)), jnp.float32)


def _nought(*values: Array) -> Array:
    """0, or NaN where one of the values is no finite number: one multiplication each, and no branch."""
    total = jnp.float32(0)
    for value in values:
        if jnp.issubdtype(jnp.result_type(value), jnp.floating):
            zeros = jnp.ravel(0.0 * jnp.asarray(value, jnp.float32))
            # One by one, a few are added up faster than by a reduction in the middle of a loop.
            total = sum(zeros, start=total) if zeros.size <= FEW else total + zeros.sum()
    return total


def moment_signals(domain: CompiledDomain, now: EpisodeState) -> dict[str, Array]:
    """All signals of a moment."""
    return {
        **domain.signals(now.state),
        "obs": domain.observe(now.state),
        "action": now.action,
        "step": now.length,
        "reward": now.reward,
        "return": now.ret,
    }


def _only(wanted: frozenset[str] | None, every: Mapping[str, Array]) -> dict[str, Array]:
    return {name: value for name, value in every.items() if wanted is None or name in wanted}


def record_batch(
    domain: CompiledDomain,
    network: Network,
    wanted: frozenset[str] | None,
    theta: Array,
    keys: Array,
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int32]]:
    """The wanted signals (None: all) `[B, n+1, ...]` along episodes of parameters `[B, D]`, and the lengths `[B]`."""
    path, length = _record_batch(domain, network, wanted, theta, keys)
    return {name: np.asarray(value) for name, value in path.signals.items()}, np.asarray(length)


@jax.jit(static_argnums=(0, 1, 2))
def _record_batch(
    domain: CompiledDomain,
    network: Network,
    wanted: frozenset[str] | None,
    theta: Array,
    keys: Array,
) -> tuple[_Path, Array]:
    return jax.vmap(lambda t, k: _run(domain, network, wanted, t, k))(theta, keys)


@jax.jit(static_argnums=(0, 1))
def _replay(
    domain: CompiledDomain, network: Network, theta: Array, key: Array, std: Array | None
) -> tuple[dict[str, Array], Array]:
    """All signals along one episode, and its length."""
    path, length = _run(
        domain, network, None, theta, key, None if std is None else _disturbance(domain, key, std)
    )
    return path.signals, length
