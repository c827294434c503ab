"""Episodes in drawn members of a family, and the tests of a share of environments over them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy import special

from psyco._src.envs.base import Domain
from psyco._src.envs.family import MEMBERS, check_member
from psyco._src.logic.ast import Requirement
from psyco._src.rollout.episodes import COMPILER_OPTIONS, Episodes, Sampler, concatenate_episodes, member_keys
from psyco._src.rollout.jax_sampler import raise_nonfinite
from psyco._src.verification.base import Verdict
from psyco._src.verification.environments import (
    LOG_WEIGHTS,
    VERDICTS,
    EnvironmentScore,
    EnvironmentsTally,
    EnvironmentsTest,
    make_environment_tests,
)
from psyco._src.verification.episode_stream import episode_columns

LANES, ROUND = 16, 16  # environments that play at the same time, and episodes of each before the next look at them
HOST_LANES, HOST_ROUND = 8, 8  # where environments are stepped on the host
DRAWN_AT_ONCE = 64  # members


@dataclass(frozen=True, eq=False)
class MemberStream:
    """Episodes in chosen members of a family; episode i of a member is a function of key, member and i.

    Args:
        sampler: makes the episodes.
        theta: parameters `[D]` of the policy.
        key: random key.
        domain: the family.
        progress: called with the number of episodes of each batch.
    """

    sampler: Sampler
    theta: Array
    key: Array
    domain: Domain
    progress: Callable[[int], None] | None = None

    @property
    def lanes(self) -> tuple[int, int]:
        """Number of members that play side by side, and of their episodes in a batch."""
        return (LANES, ROUND) if self.sampler.compiled else (HOST_LANES, HOST_ROUND)

    def keys(self, number: NDArray[Any], index: NDArray[Any]) -> Array:
        """Return the keys of episodes."""
        return member_keys(self.key, jnp.asarray(number, jnp.uint32), jnp.asarray(index, jnp.uint32))

    def play(self, number: NDArray[Any], index: NDArray[Any]) -> Episodes:
        """Play the episodes `index` `[B]` of the members `number` `[B]`."""
        keys = self.keys(number, index)
        if self.sampler.compiled:
            episodes: Episodes = jax.device_get(_play(self.sampler, self.theta, keys))
            if np.any(episodes.nonfinite):
                raise_nonfinite(self.sampler, episodes.nonfinite, self.theta[None].repeat(len(keys), 0), keys)
        else:
            episodes = self.sampler(jnp.broadcast_to(self.theta, (len(keys), self.theta.size)), keys)
        if self.progress is not None:
            self.progress(len(keys))
        return episodes


@jax.jit(static_argnums=0, compiler_options=COMPILER_OPTIONS)
def _play(sampler: Sampler, theta: Array, keys: Array) -> Episodes:
    return sampler(jnp.broadcast_to(theta, (len(keys), theta.size)), keys)


def draw_members(key: Array) -> Iterator[int]:
    """Yield the numbers of independently drawn members, without end."""
    for first in itertools.count(0, DRAWN_AT_ONCE):
        yield from (1 + np.asarray(_draws(key, np.uint32(first)), np.int64) % (MEMBERS - 1)).tolist()


@jax.jit
def _draws(key: Array, first: Array) -> Array:
    index = first + jnp.arange(DRAWN_AT_ONCE, dtype=jnp.uint32)
    return jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(key, i))[1])(index)


@dataclass
class _Lane:
    """An environment while it plays."""

    number: int
    parts: list[Episodes] = dataclasses.field(default_factory=list)
    outcomes: NDArray[np.bool_] = dataclasses.field(default_factory=lambda: np.zeros((0, 0), bool))  # [n, K]
    scores: list[EnvironmentScore] | None = None

    @property
    def episodes(self) -> int:
        """Number of episodes that its tests consumed; while it plays, have consumed so far."""
        return max((score.satisfied + score.violated for score in self.scores or ()), default=len(self.outcomes))


@dataclass(frozen=True, eq=False)
class EnvironmentsResult:
    """The tests of all constraints, and what they consumed."""

    source: MemberStream
    tests: list[EnvironmentsTest]
    tallies: list[EnvironmentsTally]
    consumed: Episodes
    number: NDArray[np.int64]  # [B] member of each consumed episode
    index: NDArray[np.int64]  # [B] its index within the member
    episodes: int

    @property
    def sampled(self) -> Episodes:
        """The episodes: no property is answered from further ones."""
        return self.consumed

    def keys_at(self, index: NDArray[np.intp]) -> Array:
        """Return the keys of consumed episodes by their position."""
        return self.source.keys(self.number[index], self.index[index])

    @property
    def returns(self) -> NDArray[np.float32]:
        """Returns of the first episode of each environment, `[E]`: independent draws of environment and episode."""
        return np.asarray(self.consumed.returns)[self.index == 0]


def verify_environments(
    source: MemberStream, requirement: Requirement, *, max_episodes: int, share: float = 1.0
) -> EnvironmentsResult:
    """Draw environments and test them, until every constraint is decided or the episodes are spent.

    Environments play side by side, and are counted in the order in which they were drawn: in the order in which they
    end, quick verdicts would come first.
    """
    tests = make_environment_tests(requirement, share)
    counted: list[_Lane] = []
    parts: list[Episodes] = []  # the counted episodes
    wealth = [np.broadcast_to(LOG_WEIGHTS, (2, len(LOG_WEIGHTS)))] * len(tests)
    verdicts, used = [Verdict.UNDECIDED] * len(tests), 0
    for lane in _finished_lanes(source, requirement, tests, max_episodes):
        own = concatenate_episodes(lane.parts)
        if lane.scores is None or used + lane.episodes > max_episodes:
            parts.append(_first(own, 0))  # where none is counted, the columns of no episodes
            break
        counted.append(lane)
        parts.append(_first(own, lane.episodes))
        used += lane.episodes
        for k, (test, score) in enumerate(zip(tests, lane.scores, strict=True)):
            wealth[k] = wealth[k] + test.growth(np.array([[score.accept, score.reject]]), test.required)[0]
            if verdicts[k] is Verdict.UNDECIDED:
                code = test.decide(special.logsumexp(wealth[k], axis=-1)[None])
                verdicts[k] = VERDICTS[int(code[0])]
        if Verdict.VIOLATED in verdicts or Verdict.UNDECIDED not in verdicts:
            break
    tallies = [
        EnvironmentsTally(
            tuple(lane.scores[k] for lane in counted if lane.scores),
            used,
            verdict,
            tuple(lane.number for lane in counted),
            source.domain,
        )
        for k, verdict in enumerate(verdicts)
    ]
    return EnvironmentsResult(
        source,
        tests,
        tallies,
        concatenate_episodes(parts),
        np.array([lane.number for lane in counted for _ in range(lane.episodes)], np.int64),
        np.array([i for lane in counted for i in range(lane.episodes)], np.int64),
        used,
    )


def _finished_lanes(
    source: MemberStream, requirement: Requirement, tests: Sequence[EnvironmentsTest], max_episodes: int
) -> Iterator[_Lane]:
    """Yield environments in the order in which they were drawn; the last one has no scores if it needs more episodes.

    An environment that can no longer be counted within the maximum is not drawn, and does not play on.
    """
    width, size = source.lanes
    waiting: list[_Lane] = []  # drawn and not yet yielded
    members, used = draw_members(source.key), 0
    while True:
        playing, total = [], used
        for lane in waiting:
            total += lane.episodes
            if lane.scores is None and total < max_episodes:
                playing.append(lane)
        if total < max_episodes:
            fresh = [_Lane(number) for number in itertools.islice(members, width - len(playing))]
            for lane in fresh:
                check_member(source.domain, lane.number)
            waiting, playing = [*waiting, *fresh], [*playing, *fresh]
        if not playing:
            yield from waiting[:1]
            return
        # Always full batches, so that one program is compiled: few environments play more episodes each.
        slots = np.arange(width) % len(playing)
        number = np.repeat([playing[i].number for i in slots], size)
        starts = [len(playing[i].outcomes) + slot // len(playing) * size for slot, i in enumerate(slots)]
        episodes = source.play(number, np.concatenate([start + np.arange(size) for start in starts]))
        columns = np.stack(episode_columns(requirement, episodes)[: len(tests)], axis=1)
        for i, lane in enumerate(playing):
            rows = np.repeat(slots == i, size)
            lane.parts.append(jax.tree.map(lambda column, rows=rows: column[rows], episodes))
            own = columns[rows].astype(bool)
            lane.outcomes = np.concatenate([lane.outcomes, own]) if len(lane.outcomes) else own
            scores = [test.score(lane.outcomes[:, k]) for k, test in enumerate(tests)]
            lane.scores = None if any(score is None for score in scores) else [s for s in scores if s is not None]
        while waiting and waiting[0].scores is not None:
            used += waiting[0].episodes
            yield waiting.pop(0)


def _first(episodes: Episodes, count: int) -> Episodes:
    first: Episodes = jax.tree.map(lambda column: column[:count], episodes)
    return first
