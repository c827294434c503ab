"""Episodes of compiled domains with a policy of others: one compiled step at a time, and the policy asked in between.

States, steps and random numbers are those of `device.py`, so the same actions lead through the same episodes.
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

from psyco._src.core.errors import EpisodeError, PsycoError, RunError, told
from psyco._src.envs.base import CompiledDomain, State
from psyco._src.logic.batch_monitor import BatchMonitor
from psyco._src.policies.base import Actor, VectorPolicy
from psyco._src.policies.stateful import ROWS
from psyco._src.rollout.episodes import COMPILER, Episodes, episode_seeds
from psyco._src.rollout.jax_sampler import EpisodeState, advance, first_moment, moment_signals, start


@dataclass(frozen=True, eq=False)
class ExternalSampler:
    """The Sampler of policies of others in compiled domains."""

    domain: CompiledDomain
    network: Actor
    monitor: BatchMonitor

    @property
    def compiled(self) -> bool:
        """It cannot be called inside `jax.jit`."""
        return False

    def __call__(self, theta: Any, keys: Array) -> Episodes:
        """Run parameters `[B, D]` with keys `[B]`, one episode each."""
        path = play(self.domain, self.network, self.monitor.signals, theta, keys)
        end = np.arange(self.domain.horizon + 1) >= path.length[:, None]
        satisfied, cost = self.monitor(path.signals, end=end)
        columns: list[Any] = [path.ret, cost.astype(np.float32), satisfied, path.length]
        further = {**self.monitor.measure(path.signals, end=end)._asdict(), "handed": path.handed}
        return Episodes(*columns, **further)

    def explore(self, theta: Any, std: Any, keys: Array) -> Episodes:
        """Nobody can learn with a policy that has no scores to disturb."""
        raise RunError("a policy that was made elsewhere can be verified, but it cannot explore")


class RecordedPaths(NamedTuple):
    """B episodes."""

    signals: dict[str, NDArray[Any]]  # [B, n+1] or [B, n+1, size]
    length: NDArray[np.int32]  # [B]
    ret: NDArray[np.float32]  # [B]
    handed: NDArray[np.int32] | None  # [B] as in Episodes


def play(
    domain: CompiledDomain, actor: Actor, wanted: frozenset[str] | None, theta: Any, keys: Array
) -> RecordedPaths:
    """The wanted signals (None: all) along episodes of parameters `[B, D]` with keys `[B]`, and how they ended.

    Nobody is asked beyond the end of an episode; its last moment repeats until the horizon.
    """
    seeds, rows = episode_seeds(keys), np.arange(len(keys))
    act = crew = actor.crew(domain, np.asarray(theta, np.float32), seeds)
    # Copies fill the batch up, so that all batches share compiled code.
    fill = np.arange(-(-len(keys) // ROWS) * ROWS) % len(keys)
    state, seen, draws = _start(domain, keys[fill])
    first = _shown(actor.signals, _signals(domain, state), rows)
    actions = _ask(domain, act, 0, _finite(domain, seeds, 0, "obs", seen), first)[fill]
    now, signals = _begin(domain, state, actions)
    path = [signals]
    for t in range(1, domain.horizon + 1):
        now, signals = _step(domain, now, draws, t - 1, actions)
        path.append(signals)
        seen = _finite(domain, seeds, t, "obs", signals["obs"])
        going = np.asarray(now.alive)[rows]
        rows, act = rows[going], act if going.all() else act.take(np.flatnonzero(going))
        if t == domain.horizon or not len(rows):
            break
        actions = actions.copy()  # the step that was just begun may still read the old ones
        actions[rows] = _ask(domain, act, t, seen[rows], _shown(actor.signals, signals, rows))
    path += path[-1:] * (domain.horizon + 1 - len(path))
    # All signals are looked at: what is asked for may be a Boolean that was made of a NaN.
    every = {
        name: np.stack([_finite(domain, seeds, t, name, each[name]) for t, each in enumerate(path)], axis=1)
        for name in sorted(path[0], key=lambda name: name == "return")  # a reward explains a return
    }
    together = {name: values for name, values in every.items() if wanted is None or name in wanted}
    return RecordedPaths(
        together, np.asarray(now.length)[: len(seeds)], np.asarray(now.ret)[: len(seeds)], crew.handed
    )


def _shown(names: frozenset[str], signals: Mapping[str, Any], rows: NDArray[np.intp]) -> list[dict[str, Any]]:
    """What an actor asks for beside observations, in each of these rows."""
    arrays = {name: np.asarray(signals[name]) for name in names}
    return [{name: array[row] for name, array in arrays.items()} for row in rows] if names else []


def _finite(domain: CompiledDomain, seeds: list[int], t: int, name: str, values: Array) -> NDArray[Any]:
    """The values `[B, ...]` of a step, without the copies; all must be finite, since garbage is never safe."""
    array = np.asarray(values)[: len(seeds)]
    for row, *_ in np.argwhere(~np.isfinite(array))[:1].tolist():
        problem = f"{name} is {array[row]}, which is no finite number"
        raise EpisodeError(domain.name, seeds[row], t, problem)
    return array


def _ask(
    domain: CompiledDomain,
    act: VectorPolicy,
    t: int,
    seen: NDArray[np.float32],
    shown: Sequence[Mapping[str, Any]],
) -> NDArray[Any]:
    try:
        return np.asarray(act(seen, list(seen), signals=shown))
    except PsycoError:
        raise
    except Exception as error:  # whatever a stranger's policy does
        problem = f"the policy failed: {told(error)}"
        raise RunError(f"{domain.name}, at step {t}: {problem}") from error


# ---- compiled, for all episodes at once -----------------------------------------------------------------------


@jax.jit(static_argnums=0, compiler_options=COMPILER)
def _start(domain: CompiledDomain, keys: Array) -> tuple[State, Array, Any]:
    """States, observations, and what chance has in store."""
    state, draws = jax.vmap(lambda key: start(domain, key))(keys)
    return state, jax.vmap(domain.observe)(state), draws


@jax.jit(static_argnums=0, compiler_options=COMPILER)
def _signals(domain: CompiledDomain, state: State) -> dict[str, Array]:
    """The signals of first states but for the action, which is not yet chosen."""
    nothing = jnp.zeros(len(jax.tree.leaves(state)[0]), jnp.float32)
    own = jax.vmap(domain.signals)(state)
    return {
        **own,
        "obs": jax.vmap(domain.observe)(state),
        "step": nothing,
        "reward": nothing,
        "return": nothing,
    }


@jax.jit(static_argnums=0, compiler_options=COMPILER)
def _begin(domain: CompiledDomain, state: State, actions: Array) -> tuple[EpisodeState, dict[str, Array]]:
    """The first moments and their signals."""
    now = jax.vmap(first_moment)(state, actions)
    return now, jax.vmap(lambda each: moment_signals(domain, each))(now)


@jax.jit(static_argnums=0, compiler_options=COMPILER)
def _step(
    domain: CompiledDomain, now: EpisodeState, draws: Any, step: int, actions: Array
) -> tuple[EpisodeState, dict[str, Array]]:
    """The next moments and their signals."""
    drawn = jax.tree.map(lambda each: each[:, step], draws)
    now = jax.vmap(lambda *episode: advance(domain, *episode))(now, drawn, actions)
    return now, jax.vmap(lambda each: moment_signals(domain, each))(now)
