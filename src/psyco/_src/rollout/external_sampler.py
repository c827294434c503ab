"""Episodes of compiled domains with an external policy, which is asked for actions between compiled steps.

States, steps and random numbers are those of `jax_sampler.py`, so the same actions lead through the same episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import EpisodeError, PsycoError, RunError, format_exception
from psyco._src.envs.base import CompiledDomain, State
from psyco._src.logic.batch_monitor import BatchMonitor
from psyco._src.policies.base import Actor, VectorPolicy
from psyco._src.policies.stateful import BATCH_ROWS
from psyco._src.rollout.episodes import COMPILER_OPTIONS, TRACE_SIGNALS, Episodes, digest_path, episode_seeds
from psyco._src.rollout.jax_sampler import EpisodeState, advance, initial_state, start, state_signals


@dataclass(frozen=True, eq=False)
class ExternalSampler:
    """The Sampler of external policies in compiled domains."""

    domain: CompiledDomain
    network: Actor
    monitor: BatchMonitor

    @property
    def compiled(self) -> bool:
        """It cannot be called inside `jax.jit`."""
        return False

    def __call__(self, theta: Any, keys: Array) -> Episodes:
        """Run one episode per parameter vector `[B, D]` and key `[B]`."""
        path = rollout(self.domain, self.network, self.monitor.signals | TRACE_SIGNALS, theta, keys)
        end = np.arange(self.domain.horizon + 1) >= path.length[:, None]
        satisfied, cost = self.monitor(path.signals, end=end)
        columns: list[Any] = [path.returns, cost.astype(np.float32), satisfied, path.length]
        further: dict[str, Any] = {
            **self.monitor.measure(path.signals, end=end)._asdict(),
            "fallback_steps": path.fallback_steps,
            "digests": np.stack(list(map(digest_path, path.trimmed))),
        }
        return Episodes(*columns, **further)

    def explore(self, theta: Any, std: Any, keys: Array, hold: Any = None) -> Episodes:
        """Raise RunError: an external policy has no scores to add noise to."""
        raise RunError("an external policy can be verified, but it cannot explore")


class RecordedPaths(NamedTuple):
    """Signals and outcomes of B episodes."""

    signals: dict[str, NDArray[Any]]  # [B, n+1] or [B, n+1, size]
    length: NDArray[np.int32]  # [B]
    returns: NDArray[np.float32]  # [B]
    fallback_steps: NDArray[np.int32] | None  # [B] as in Episodes

    @property
    def trimmed(self) -> list[dict[str, NDArray[Any]]]:
        """The signals of each episode up to its end, `[n+1]` or `[n+1, size]` each."""
        return [{name: x[i, : n + 1] for name, x in self.signals.items()} for i, n in enumerate(self.length.tolist())]


def rollout(
    domain: CompiledDomain, actor: Actor, wanted: frozenset[str] | None, theta: Any, keys: Array
) -> RecordedPaths:
    """Run one episode per parameter vector `[B, D]` and key `[B]`; returns the wanted signals (None: all).

    A policy is not asked beyond the end of its episode; the last state repeats until the horizon.
    """
    seeds, rows = episode_seeds(keys), np.arange(len(keys))
    act = policies = actor.vectorize(domain, np.asarray(theta, np.float32), seeds)
    # Copies fill the batch up, so that all batches share compiled code.
    fill = np.arange(-(-len(keys) // BATCH_ROWS) * BATCH_ROWS) % len(keys)
    state, obs, draws = _start(domain, keys[fill])
    first = _actor_signals(actor.signals, _first_signals(domain, state), rows)
    actions = _act(domain, act, 0, _check_finite(domain, seeds, 0, "obs", obs), first)[fill]
    now, signals = _begin(domain, state, actions)
    path = [signals]
    for t in range(1, domain.horizon + 1):
        now, signals = _step(domain, now, draws, t - 1, actions)
        path.append(signals)
        current = _check_finite(domain, seeds, t, "obs", signals["obs"])
        alive = np.asarray(now.alive)[rows]
        rows, act = rows[alive], act if alive.all() else act.take(np.flatnonzero(alive))
        if t == domain.horizon or not len(rows):
            break
        actions = actions.copy()  # the running step may still read the old array
        actions[rows] = _act(domain, act, t, current[rows], _actor_signals(actor.signals, signals, rows))
    path += path[-1:] * (domain.horizon + 1 - len(path))
    # All signals are checked: a wanted one may be a Boolean that was computed from a NaN.
    every = {
        name: np.stack([_check_finite(domain, seeds, t, name, each[name]) for t, each in enumerate(path)], axis=1)
        for name in sorted(path[0], key=lambda name: name == "return")  # a reward explains a return
    }
    chosen = {name: values for name, values in every.items() if wanted is None or name in wanted}
    length, returns = (np.asarray(column)[: len(seeds)] for column in (now.length, now.accumulated))
    return RecordedPaths(chosen, length, returns, policies.fallback_steps)


def _actor_signals(names: frozenset[str], signals: Mapping[str, Any], rows: NDArray[np.intp]) -> list[dict[str, Any]]:
    """Return the signals that an actor asks for beside observations, in each of these rows."""
    arrays = {name: np.asarray(signals[name]) for name in names}
    return [{name: array[row] for name, array in arrays.items()} for row in rows] if names else []


def _check_finite(domain: CompiledDomain, seeds: list[int], t: int, name: str, values: Array) -> NDArray[Any]:
    """Return the values `[B, ...]` of a step without the copies; raise EpisodeError if one is not finite."""
    array = np.asarray(values)[: len(seeds)]
    for row, *_ in np.argwhere(~np.isfinite(array))[:1].tolist():
        problem = f"{name} is {array[row]}, which is not a finite number"
        raise EpisodeError(domain.name, seeds[row], t, problem)
    return array


def _act(
    domain: CompiledDomain,
    act: VectorPolicy,
    t: int,
    obs: NDArray[np.float32],
    signals: Sequence[Mapping[str, Any]],
) -> NDArray[Any]:
    try:
        return np.asarray(act(obs, list(obs), signals=signals))
    except PsycoError:
        raise
    except Exception as error:  # any error of a third-party policy
        problem = f"the policy failed: {format_exception(error)}"
        raise RunError(f"{domain.name}, at step {t}: {problem}") from error


# ---- compiled, for all episodes at once -----------------------------------------------------------------------


@jax.jit(static_argnums=0, compiler_options=COMPILER_OPTIONS)
def _start(domain: CompiledDomain, keys: Array) -> tuple[State, Array, Any]:
    """Return states, observations, and the random draws of all steps."""
    state, draws = jax.vmap(lambda key: start(domain, key))(keys)
    return state, jax.vmap(domain.observe)(state), draws


@jax.jit(static_argnums=0, compiler_options=COMPILER_OPTIONS)
def _first_signals(domain: CompiledDomain, state: State) -> dict[str, Array]:
    """Return the signals of first states without the action, which is not chosen yet."""
    zeros = jnp.zeros(len(jax.tree.leaves(state)[0]), jnp.float32)
    own = jax.vmap(domain.signals)(state)
    return {
        **own,
        "obs": jax.vmap(domain.observe)(state),
        "step": zeros,
        "reward": zeros,
        "return": zeros,
    }


@jax.jit(static_argnums=0, compiler_options=COMPILER_OPTIONS)
def _begin(domain: CompiledDomain, state: State, actions: Array) -> tuple[EpisodeState, dict[str, Array]]:
    """Return the starts of episodes and their signals."""
    now = jax.vmap(initial_state)(state, actions)
    return now, jax.vmap(lambda each: state_signals(domain, each))(now)


@jax.jit(static_argnums=0, compiler_options=COMPILER_OPTIONS)
def _step(
    domain: CompiledDomain, now: EpisodeState, draws: Any, step: int, actions: Array
) -> tuple[EpisodeState, dict[str, Array]]:
    """Return the episodes after a step, and their signals."""
    drawn = jax.tree.map(lambda each: each[:, step], draws)
    now = jax.vmap(lambda *episode: advance(domain, *episode))(now, drawn, actions)
    return now, jax.vmap(lambda each: state_signals(domain, each))(now)
