"""Episodes of models without a horizon: pieces of paths, until each is absorbed or its requirement is decided.

A policy is asked once for every state, which makes a Markov chain of the model; only its states are simulated. The
signals of formulas follow from tables, so all of the language is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.random import threefry2x32_p
from numpy.typing import NDArray

from psyco._src.core.errors import EpisodeError, RunError
from psyco._src.envs.actions import Actions
from psyco._src.envs.model_file import ModelFile, pad_rows
from psyco._src.logic.batch_monitor import BatchMonitor
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import COMPILER_OPTIONS, Episodes, episode_seeds

BLOCK = 32  # steps whose random numbers are drawn at once; even
BLOCKS = 4  # most of them that are simulated before episodes that are decided are left out
BATCH = 1024  # episodes; batches are filled up, so that little is compiled
STATES = 4096  # states for which a network is asked at once


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
        theta = np.asarray(theta, np.float32).reshape(-1, self.network.size)
        if self.domain.is_chain or (theta == theta[0]).all():
            return self._chain_paths(theta[0], keys)
        policies, own = np.unique(theta, axis=0, return_inverse=True)
        groups = [np.flatnonzero(own.ravel() == i) for i in range(len(policies))]
        parts = [self._chain_paths(policies[i], keys[rows]) for i, rows in enumerate(groups)]
        most, order = max(part.states.shape[1] for part in parts), np.argsort(np.concatenate(groups))
        states = [np.pad(part.states, ((0, 0), (0, most - part.states.shape[1])), mode="edge") for part in parts]
        joined = np.concatenate(states)[order], np.concatenate([part.length for part in parts])[order]
        return ModelPaths(*joined, own.ravel(), np.concatenate([part.chosen for part in parts]))

    def _chain_paths(self, theta: NDArray[np.float32], keys: Array) -> ModelPaths:
        """Return the paths of episodes of one policy."""
        domain, decided = self.domain, self.domain.decided
        if decided is None:
            raise RunError(f"{domain.name} has no horizon, and no requirement: {domain.name}.for_requirement")
        chain = self._chain(theta)
        data, count = np.asarray(jax.random.key_data(keys)), len(keys)
        index = np.full(count, domain.initial_state, np.int32)
        known = np.full(count, decided.states[domain.initial_state] | _timed(decided, 0), np.int32)
        length = np.zeros(count, np.int32)
        pieces: list[_Played] = []
        rows, first = np.flatnonzero(known != decided.every), 0
        while len(rows):
            if first >= decided.cap:
                problem = f"it is not decided after {first:,} steps, which has a probability below 1e-15"
                raise EpisodeError(domain.name, episode_seeds(keys)[int(rows[0])], first, problem)
            fill = rows[np.arange(-(-len(rows) // BATCH) * BATCH) % len(rows)]
            piece = _piece(
                domain.tables.alias.words, chain.tables, self._decided,
                decided.every, decided.after, decided.bounded, data[fill], first, index[fill], known[fill],
            )  # fmt: skip
            played = int(piece.played)
            states = np.asarray(piece.states)[:played, : len(rows)]
            made, steps = (np.asarray(each)[: len(rows)] for each in (piece.known, piece.steps))
            pieces.append(_Played(rows, first, states, made == decided.every))
            index[rows], known[rows] = states[-1], made
            length[rows] += steps
            rows, first = rows[made != decided.every], first + played
        joined = _joined(pieces, count, int(length.max(initial=0)), domain.initial_state)
        return ModelPaths(joined, length, np.zeros(count, np.intp), chain.choice[None])

    def _chain(self, theta: NDArray[np.float32]) -> _Chain:
        """Return the chain of a policy; that of the last one is kept."""
        key = b"" if self.domain.is_chain else theta.tobytes()
        if key not in self._chains:
            self._chains.clear()
            self._chains[key] = _chain_of(self.domain, self.network, theta)
        return self._chains[key]

    @cached_property
    def _chains(self) -> dict[bytes, _Chain]:
        return {}

    @cached_property
    def _decided(self) -> Array:
        """The bits of the decided parts in each state, `[S]`."""
        assert self.domain.decided is not None
        return jnp.asarray(pad_rows(self.domain.decided.states))

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
        if states.shape[1] == 1:
            return np.zeros(states.shape)
        choices = path.choices
        if name == "action":
            taken = choices - tables.choices[states[:, :-1]]
            return np.take_along_axis(np.concatenate([taken[:, :1], taken], axis=1), step, axis=1)
        gained = self.domain.reward if name == "reward" else name
        if gained is None:
            return np.zeros(states.shape)
        values = tables.rewards[gained][choices]
        return np.take_along_axis(np.concatenate([np.zeros((len(values), 1)), values], axis=1), step, axis=1)


class ModelPaths(NamedTuple):
    """Paths of B episodes of at most n steps, of K policies."""

    states: NDArray[np.int32]  # [B, n+1]
    length: NDArray[np.int32]  # [B]
    policy: NDArray[np.intp]  # [B]
    chosen: NDArray[np.int32]  # [K, S] choice of each policy in each state

    @property
    def choices(self) -> NDArray[np.int32]:
        """The choice of each step, `[B, n]`."""
        return self.chosen[self.policy[:, None], self.states[:, :-1]]


class _Chain(NamedTuple):
    """A model with the choices of a policy."""

    choice: NDArray[np.int32]  # [S]
    tables: _ChainTables


class _ChainTables(NamedTuple):
    """The alias tables of the choices of a policy, by states, and their entries."""

    base: Array  # [S] int32 first entry
    shift: Array  # [S] uint32 shift of random bits to an entry
    threshold: Array  # [N] uint32
    below: Array  # [N] int32 successor below the threshold
    above: Array  # [N] int32 successor above it


def _chain_of(domain: ModelFile, network: Network, theta: NDArray[np.float32]) -> _Chain:
    tables, alias = domain.tables, domain.tables.alias
    offered, actions = np.diff(tables.choices), np.zeros(tables.states, np.int64)
    if not domain.is_chain:
        for first in range(0, tables.states, STATES):
            part = domain.observations[first : first + STATES]
            full = np.concatenate([part, np.zeros((STATES - len(part), part.shape[1]), np.float32)])
            actions[first : first + STATES] = np.asarray(_act(network, domain.actions, theta, full))[: len(part)]
    choice = (tables.choices[:-1] + actions % offered).astype(np.int32)
    found = (
        *(alias.base[choice], alias.shift[choice]),
        *(alias.threshold, tables.successor[alias.first], tables.successor[alias.second]),
    )
    return _Chain(choice, _ChainTables(*(jnp.asarray(pad_rows(each)) for each in found)))


@jax.jit(static_argnums=(0, 1), compiler_options=COMPILER_OPTIONS)
def _act(network: Network, space: Actions, theta: Array, observations: Array) -> Array:
    """Return the actions of a network for observations `[S, size]`."""
    return jax.vmap(partial(network.act, space, theta))(observations)


class _Played(NamedTuple):
    """A piece of the paths of R episodes that were not decided before."""

    rows: NDArray[np.intp]  # [R]
    first: int  # step before it
    states: NDArray[np.int32]  # [n, R]
    over: NDArray[np.bool_]  # [R] decided now


def _joined(pieces: list[_Played], count: int, last: int, initial: int) -> NDArray[np.int32]:
    """Return the states of all episodes, `[count, last+1]`."""
    states = np.empty((last + 1, count), np.int32)
    states[0] = initial
    for rows, first, piece, over in pieces:
        stop = min(first + len(piece), last)
        here: Any = slice(None) if len(rows) == count else rows  # a copy of blocks is much faster
        states[first + 1 : stop + 1, here] = piece[: stop - first]
        if stop < last:
            states[stop + 1 :, rows[over]] = piece[-1, over]
    return states.T


class _Piece(NamedTuple):
    states: Array  # [n, B]
    known: Array  # [B] bits of the decided parts
    steps: Array  # [B] int32 taken
    played: Array  # [] int32, first rows of the states that were played, in whole blocks


def _timed(decided: Any, step: Any) -> Any:
    return decided.bounded * (step >= decided.after)


@jax.jit(static_argnums=0, compiler_options=COMPILER_OPTIONS)
def _piece(
    words: int,
    tables: _ChainTables,
    decided: Array,
    every: Array,
    after: Array,
    bounded: Array,
    keys: Array,
    first: Array,
    index: Array,
    known: Array,
) -> _Piece:
    """Return a piece of the paths: up to some blocks, until all episodes are decided; those that are stay there."""

    def step(now: tuple[Array, Array, Array], chance: tuple[Array, Array]) -> Any:
        index, known, taken = now
        t, drawn = chance  # [], [W, B]
        shift = _at(tables.shift, index)
        entry = _at(tables.base, index) + jax.lax.shift_right_logical(drawn[0], shift).astype(jnp.int32)
        rest = jax.lax.shift_left(drawn[0], jnp.uint32(32) - shift) if words == 1 else drawn[1]
        to = jnp.where(rest < _at(tables.threshold, entry), _at(tables.below, entry), _at(tables.above, entry))
        runs = known != every
        to = jnp.where(runs, to, index)
        known = jnp.where(runs, known | _at(decided, to) | jnp.where(t >= after, bounded, 0), known)
        return (to, known, taken + runs), to

    def block(now: tuple[Array, Any, Array]) -> tuple[Array, Any, Array]:
        played, last, states = now
        times = first + played + 1 + jnp.arange(BLOCK)
        last, piece = jax.lax.scan(step, last, (times, _bits(words, own, first + played)))
        return played + BLOCK, last, jax.lax.dynamic_update_slice(states, piece, (played, 0))

    own = jax.vmap(lambda data: jax.random.key_data(jax.random.split(jax.random.wrap_key_data(data), 3)[1]))(keys)
    start = index, known, jnp.zeros(len(index), jnp.int32)
    states = jnp.zeros((BLOCK * BLOCKS, len(index)), jnp.int32)
    played, (_, known, taken), states = jax.lax.while_loop(
        lambda now: (now[0] < BLOCK * BLOCKS) & jnp.any(now[1][1] != every), block, (jnp.int32(0), start, states)
    )
    return _Piece(states, known, taken, played)


def _at(table: Array, index: Array) -> Array:
    """Return rows of a table whose indices are known to exist."""
    return table.at[index].get(mode="promise_in_bounds")


def _bits(words: int, keys: Array, first: Array) -> Array:
    """Return random bits `[BLOCK, words, B]` of the steps from `first`: they depend on key, step and word alone.

    They are made in the order in which steps use them. Each counter of Threefry has two words.
    """
    counter = (first * words // 2 + jnp.arange(BLOCK * words // 2)).astype(jnp.uint32)[:, None]
    pair = threefry2x32_p.bind(*jnp.broadcast_arrays(keys[:, 0], keys[:, 1], counter, jnp.uint32(0)))
    return jnp.stack(pair, axis=1).reshape(BLOCK, words, len(keys))
