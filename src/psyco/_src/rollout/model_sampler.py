"""Episodes of models without a horizon: pieces of paths, until each is absorbed or its requirement is decided.

Only the states of a path are simulated. The signals of formulas follow from tables, so all of the language is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import EpisodeError, RunError
from psyco._src.envs.actions import Actions
from psyco._src.envs.model_file import ModelFile, StepTables, move, pad_rows
from psyco._src.logic.batch_monitor import BatchMonitor
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import COMPILER_OPTIONS, Episodes, episode_seeds

PIECE = 32  # steps that are simulated at once
BATCH = 1024  # episodes; batches are filled up, so that little is compiled


@dataclass(frozen=True)
class ModelSampler:
    """The Sampler of models without a horizon."""

    domain: ModelFile
    network: Network
    monitor: BatchMonitor

    compiled: ClassVar[bool] = False  # it cannot be called inside `jax.jit`
    largest_batch: ClassVar[int] = BATCH

    def __call__(self, theta: Any, keys: Array) -> Episodes:
        """Run one episode per parameter vector `[B, D]` and key `[B]`."""
        path = self.paths(theta, keys)
        signals = {name: self._signal(name, path) for name in self.monitor.signals}
        end = np.arange(path.states.shape[1]) >= path.length[:, None]
        satisfied, cost = self.monitor(signals, end=end)
        returns: Any = np.zeros(len(path.length), np.float32)
        if self.domain.reward is not None:
            returns = (self._signal("reward", path) * (np.arange(len(end[0])) <= path.length[:, None])).sum(axis=1)
        columns: list[Any] = [np.float32(returns), cost.astype(np.float32), satisfied, path.length]
        return Episodes(*columns, **self.monitor.measure(signals, end=end)._asdict())

    def explore(self, theta: Any, std: Any, keys: Array, hold: Any = None) -> Episodes:
        """Raise RunError: learning needs a horizon."""
        raise RunError(f"learning on {self.domain.name} needs a horizon: --horizon N")

    def paths(self, theta: Any, keys: Array) -> ModelPaths:
        """Return the states and choices of episodes, up to the longest of them; the last state repeats."""
        domain, decided = self.domain, self.domain.decided
        if decided is None:
            raise RunError(f"{domain.name} has no horizon, and no requirement: {domain.name}.for_requirement")
        count, seeds = len(keys), episode_seeds(keys)
        theta = np.broadcast_to(np.asarray(theta, np.float32), (count, self.network.size))
        network = None if domain.is_chain else self.network
        rows = np.arange(count)
        index = np.full(count, domain.initial_state, np.int32)
        known = np.full(count, decided.states[domain.initial_state] | _timed(decided, 0), np.int32)
        length = np.zeros(count, np.int32)
        pieces: list[tuple[NDArray[np.intp], int, NDArray[np.int32], NDArray[np.int32]]] = []
        first = 0
        rows = rows[known[rows] != decided.every]
        while len(rows):
            if first >= decided.cap:
                problem = f"it is not decided after {first:,} steps, which has a probability below 1e-15"
                raise EpisodeError(domain.name, seeds[int(rows[0])], first, problem)
            fill = rows[np.arange(-(-len(rows) // BATCH) * BATCH) % len(rows)]
            piece = _piece(
                network, domain.actions, domain.tables.alias.words, domain.arrays,
                () if network is None else self.observations,
                jnp.asarray(pad_rows(decided.states)), decided.every, decided.after, decided.bounded,
                theta[fill] if network is not None else None, keys[fill], first, index[fill], known[fill],
            )  # fmt: skip
            made: Any = jax.tree.map(lambda x, n=len(rows): np.asarray(x)[..., :n], piece)
            pieces.append((rows, first, made.states.T, made.choices.T))
            index[rows], known[rows] = made.states[-1], made.known
            length[rows] += made.steps
            rows, first = rows[made.known != decided.every], first + PIECE
        last = int(length.max(initial=0))
        states = np.full((count, last + 1), domain.initial_state, np.int32)
        choices = np.zeros((count, last), np.int32)
        for place, begin, piece_states, piece_choices in pieces:
            stop = min(begin + PIECE, last)
            states[place, begin + 1 : stop + 1] = piece_states[:, : stop - begin]
            choices[place, begin:stop] = piece_choices[:, : stop - begin]
            states[place, stop + 1 :] = piece_states[:, -1:]
        return ModelPaths(states, choices, length)

    @cached_property
    def observations(self) -> Array:
        """The observation of each state, `[S, size]`."""
        return jnp.asarray(pad_rows(self.domain.observations))

    def _signal(self, name: str, path: ModelPaths) -> NDArray[Any]:
        """Return a signal along the paths, `[B, n+1]` or `[B, n+1, size]`; after the end it repeats."""
        tables, states = self.domain.tables, path.states
        step = np.minimum(np.arange(states.shape[1]), path.length[:, None])
        if name in tables.signals:
            return np.asarray(tables.signals[name][states])
        if name == "step":
            return step
        if name == "obs":
            return np.asarray(self.domain.observations[states])
        if name == "return":
            return np.take_along_axis(np.cumsum(self._signal("reward", path), axis=1), step, axis=1)
        if not path.choices.shape[1]:
            return np.zeros(states.shape)
        if name == "action":
            taken = path.choices - tables.choices[states[:, :-1]]
            return np.take_along_axis(np.concatenate([taken[:, :1], taken], axis=1), step, axis=1)
        gained = self.domain.reward if name == "reward" else name
        if gained is None:
            return np.zeros(states.shape)
        values = tables.rewards[gained][path.choices]
        return np.take_along_axis(np.concatenate([np.zeros((len(values), 1)), values], axis=1), step, axis=1)


class ModelPaths(NamedTuple):
    """Paths of B episodes of at most n steps."""

    states: NDArray[np.int32]  # [B, n+1]
    choices: NDArray[np.int32]  # [B, n] of each step
    length: NDArray[np.int32]  # [B]


class _Piece(NamedTuple):
    states: Array  # [n, B]
    choices: Array  # [n, B]
    known: Array  # [B] bits of the decided parts
    steps: Array  # [B] int32 taken


def _timed(decided: Any, step: Any) -> Any:
    return decided.bounded * (step >= decided.after)


@jax.jit(static_argnums=(0, 1, 2), compiler_options=COMPILER_OPTIONS)
def _piece(
    network: Network | None,
    space: Actions,
    words: int,
    tables: StepTables,
    observations: Any,
    decided: Array,
    every: Array,
    after: Array,
    bounded: Array,
    theta: Any,
    keys: Array,
    first: Array,
    index: Array,
    known: Array,
) -> _Piece:
    """Return a piece of the paths; episodes that are decided stay where they are."""

    def bits(key: Array) -> Array:
        return jax.random.bits(jax.random.fold_in(jax.random.split(key, 3)[1], first), (PIECE, words), jnp.uint32)

    def step(now: tuple[Array, Array, Array], chance: tuple[Array, Array]) -> Any:
        index, known, taken = now
        t, drawn = chance  # [], [B, W]
        actions = jnp.zeros_like(index)
        if network is not None:
            actions = jax.vmap(partial(network.act, space))(theta, observations[index])
        choice, to = jax.vmap(lambda i, a, d: move(tables, i, a, d))(index, actions, drawn)
        runs = known != every
        to = jnp.where(runs, to, index)
        known = jnp.where(runs, known | decided[to] | jnp.where(t >= after, bounded, 0), known)
        return (to, known, taken + runs), (to, choice)

    drawn = jnp.swapaxes(jax.vmap(bits)(keys), 0, 1)
    times = first + 1 + jnp.arange(PIECE)
    start = index, known, jnp.zeros(len(index), jnp.int32)
    (_, known, taken), (states, choices) = jax.lax.scan(step, start, (times, drawn))
    return _Piece(states, choices, known, taken)
