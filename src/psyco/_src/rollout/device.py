"""Episodes of compiled domains: `vmap` over episodes, `lax.scan` over steps, sharded over JAX devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec
from numpy.typing import NDArray

from psyco._src.domain.base import CompiledDomain, State
from psyco._src.policy.actor import Actor
from psyco._src.rollout.episodes import Episodes
from psyco._src.rollout.trace import NEEDED, trace
from psyco._src.spec.monitor import Monitor


@dataclass(frozen=True)
class DeviceSampler:
    """The Sampler of compiled domains; equal samplers share their compiled code."""

    domain: CompiledDomain
    network: Actor
    monitor: Monitor
    devices: tuple[Any, ...] = ()  # more than one: the batch is split over them

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
        path, length = _run(self.domain, self.network, self.monitor.signals, theta, key)
        satisfied, cost = self.monitor(path.signals, end=jnp.arange(self.domain.horizon + 1) >= length)
        return Episodes(path.final_return, cost, satisfied, length)

    def _exploring(self, theta: Array, key: Array, std: Array) -> Episodes:
        noise = jax.random.normal(_keys(key).noise, (self.domain.horizon, len(std)), jnp.float32)
        disturbance, wanted = std * noise, self.monitor.signals | NEEDED
        path, length = _run(self.domain, self.network, wanted, theta, key, disturbance)
        end = jnp.arange(self.domain.horizon + 1) >= length
        satisfied, cost = self.monitor(path.signals, end=end)
        seen = trace(self.monitor, path.signals, length, disturbance, end)
        return Episodes(path.final_return, cost, satisfied, length, seen)


class _Keys(NamedTuple):
    """The randomness of an episode."""

    reset: Array
    steps: Array
    noise: Array  # of exploration


def _keys(key: Array) -> _Keys:
    # All from one split: what `fold_in` derives from the same key may well be one of these.
    return _Keys(*jax.random.split(key, 3))


class _Path(NamedTuple):
    signals: dict[str, Array]  # each [n+1] or [n+1, size]
    final_return: Array  # []


class _Moment(NamedTuple):
    """Where an episode stands."""

    state: State
    alive: Array  # [] bool: the episode goes on
    reward: Array  # [] of the step that led here
    ret: Array  # [] accumulated
    action: Array  # the last action taken
    length: Array  # [] int32 steps taken


def _run(
    domain: CompiledDomain,
    network: Actor,
    wanted: frozenset[str] | None,
    theta: Array,
    key: Array,
    disturbance: Array | None = None,
) -> tuple[_Path, Array]:
    """One episode: the wanted signals (None: all) along its path, and its length.

    A `disturbance` `[n, outputs]` is what exploration adds to the scores of the network.
    After the end the last moment repeats until the horizon, so that every path has n+1 states.
    """
    keys = _keys(key)

    def act(state: State, added: Array | None) -> Array:
        return network.act(domain.actions, theta, domain.observe(state), added)

    def step(now: _Moment, chance: tuple[Any, Array | None]) -> tuple[_Moment, dict[str, Array]]:
        drawn, added = chance
        action = act(now.state, added)
        state, reward, done = domain.step(drawn, now.state, action)
        reward = jnp.asarray(reward, jnp.float32)
        nxt = _Moment(state, jnp.logical_not(done), reward, now.ret + reward, action, now.length + 1)
        if done is not False:  # else no episode ends early, and nothing ever stands still
            nxt = jax.tree.map(lambda new, old: jnp.where(now.alive, new, old), nxt, now)
        return nxt, _signals(domain, nxt, wanted)

    start = domain.reset(keys.reset)
    zero, begin = jnp.float32(0), None if disturbance is None else disturbance[0]
    first = _Moment(start, jnp.bool_(True), zero, zero, act(start, begin), jnp.int32(0))
    # Random numbers are cheap all at once and dear one step at a time.
    draws = (
        domain.draw(keys.steps) if hasattr(domain, "draw") else jax.random.split(keys.steps, domain.horizon)
    )
    last, rest = jax.lax.scan(step, first, (draws, disturbance))
    # The action of a moment is the one that led to it; the first moment shows the first action.
    signals = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), _signals(domain, first, wanted), rest)
    return _Path(signals, last.ret), last.length


def _signals(domain: CompiledDomain, now: _Moment, wanted: frozenset[str] | None) -> dict[str, Array]:
    every: Mapping[str, Array] = {
        **domain.signals(now.state),
        "obs": domain.observe(now.state),
        "action": now.action,
        "step": now.length,
        "reward": now.reward,
        "return": now.ret,
    }
    return {name: value for name, value in every.items() if wanted is None or name in wanted}


def record_batch(
    domain: CompiledDomain,
    network: Actor,
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
    network: Actor,
    wanted: frozenset[str] | None,
    theta: Array,
    keys: Array,
) -> tuple[_Path, Array]:
    return jax.vmap(lambda t, k: _run(domain, network, wanted, t, k))(theta, keys)
