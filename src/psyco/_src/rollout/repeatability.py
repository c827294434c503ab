"""Whether episodes are functions of their seeds: some are played again, and compared bit by bit.

An episode that depends on anything else (a hazard that was drawn when its environment was made, statistics that a
wrapper keeps, a policy that remembers) may depend on the other episodes, which a test takes as independent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from jax import Array
from numpy.typing import NDArray

from psyco._src.core.errors import RunError
from psyco._src.policies.base import Actor
from psyco._src.policies.external import AnyPolicy
from psyco._src.policies.serialization import Policy
from psyco._src.rollout import external_sampler
from psyco._src.rollout.episodes import TRACE_SIGNALS, digest_path, environment_seeds
from psyco._src.rollout.execution import Execution
from psyco._src.rollout.external_sampler import ExternalSampler
from psyco._src.rollout.gym_sampler import Chunk, EpisodeRunner, GymSampler, Job, Signals
from psyco._src.rollout.signal_recorder import brief

MAX_REPLAYS = 16  # of one verification
MAX_VIOLATIONS = 4  # among them: what a policy or a wrapper has learned from a violation would show there


class Replays(NamedTuple):
    """Which of the counted episodes are played again, as rows of these."""

    rows: list[int]  # each alone in a new environment
    early: set[int]  # among them, by the policy in its current state
    used: list[int]  # among them, twice more in environments that have played other episodes


def choose_replays(satisfied: NDArray[np.bool_], process: Any = None) -> Replays:
    """Return at most `MAX_REPLAYS` replays of B episodes.

    They are the first, the last of every process (of some, if there are many), some of the violations, and others
    evenly spread; the early ones are the violations and the first half. The first and the last violation are played in
    used environments too.

    Args:
        satisfied: whether each episode satisfied each constraint `[B, K]`.
        process: where each was played `[B]`, as in `Episodes`; None: in one process.
    """
    failed = np.flatnonzero(~satisfied.all(axis=1)).tolist()
    half = MAX_VIOLATIONS // 2
    violations = {*failed[:half], *failed[-half:]}
    used = sorted({*failed[:1], *failed[-1:]})
    count, last = MAX_REPLAYS - len(violations) - 2 * len(used), len(satisfied) - 1
    lasts = {last} if process is None else {last - i for i in np.unique(process[::-1], return_index=True)[1].tolist()}
    lasts = set(sorted(lasts)[1 - count :])
    spread = np.linspace(0, last, count - len(lasts) + 1).astype(int).tolist()
    return Replays(sorted({*violations, *spread, *lasts}), {*violations, *spread[: len(spread) // 2]}, used)


def play_alone(
    job: Job, theta: NDArray[np.float32], seeds: Sequence[int], wanted: frozenset[str], execution: Execution
) -> list[Signals]:
    """Return the wanted signals along Gymnasium episodes, each alone in a new environment.

    Args:
        job: domain and actor.
        theta: parameters `[B, D]`.
        seeds: of the episodes `[B]`.
        wanted: names of the signals.
        execution: where episodes are made; with workers, new processes play these.
    """
    chunks = [Chunk(theta[i : i + 1], [seed], recorded=wanted, look=f"replay {i}") for i, seed in enumerate(seeds)]
    if not execution.uses_workers:
        with closing(EpisodeRunner()) as runner:
            return [runner(job, chunk)[0] for chunk in chunks]
    from psyco._src.rollout.process_pool import ProcessPool

    processes = min(len(chunks), os.cpu_count() or 1, execution.workers if execution.ray is None else len(chunks))
    with closing(ProcessPool(processes, execution.step_timeout)) as pool:
        played = dict(pool(job, chunks))
    return [played[i][0] for i in range(len(chunks))]


class Difference(NamedTuple):
    """The first difference of two paths."""

    signal: str
    step: int
    values: tuple[Any, Any]  # on either path

    def __str__(self) -> str:
        one, other = map(brief, self.values)
        return f"{self.signal} at step {self.step} is {one} on one path and {other} on the other"


def first_difference(one: Signals, other: Signals) -> Difference | None:
    """Return the first difference of two paths, or None; an action comes before the state that it led to."""
    found: list[tuple[float, Difference]] = []
    for name in sorted(one.keys() & other.keys()):
        count = min(len(one[name]), len(other[name]))
        a, b = (np.asarray(path[name][:count], np.float64).reshape(count, -1) for path in (one, other))
        # `action` of a state led to it; in the first state it is the one to come, as in the second.
        first = int(name == "action")
        for step in np.flatnonzero((a != b).any(axis=1)[first:])[:1] + first:
            values = one[name][step].tolist(), other[name][step].tolist()
            found.append((step - 0.5 * first, Difference(name, int(step), values)))
    if found:
        return min(found)[1]
    n, m = (len(next(iter(path.values()))) - 1 for path in (one, other))
    return Difference("the length", min(n, m), (n, m)) if n != m else None


def pack_policy(policy: AnyPolicy) -> bytes | None:
    """Return a copy of an external policy in its current state; None for a network, and if Python cannot copy it."""
    if isinstance(policy, Policy):
        return None
    try:
        packed: bytes = cloudpickle.dumps(policy)
        cloudpickle.loads(packed)
    except Exception:  # both run code of the objects
        return None
    return packed


@dataclass(frozen=True)
class ReplayCheck:
    """Plays counted episodes again, and compares their signals.

    Args:
        sampler: has made the episodes, with digests.
        policy: has acted in them.
        packed: a copy of the policy from before the first episode, from `pack_policy`.
        execution: where the episodes were made.
    """

    sampler: GymSampler | ExternalSampler
    policy: AnyPolicy
    packed: bytes | None
    execution: Execution

    def __call__(self, replays: Replays, indices: list[int], keys: Array, digests: NDArray[np.uint64]) -> None:
        """Raise RunError if an episode is not the same when it is played again.

        Args:
            replays: B episodes. The policy in its current state plays the early ones, with all that it may remember; a
                copy, which remembers nothing, plays the others.
            indices: of the episodes in their stream `[B]`.
            keys: of the episodes `[B]`.
            digests: of the episodes `[B, S]`.
        """
        # Workers get a copy anyway.
        one_group = self.packed is None or self.execution.uses_workers
        first = [i for i, row in enumerate(replays.rows) if one_group or row in replays.early]
        paths = dict(zip(first, self._play(self.policy.network, keys[np.array(first, int)]), strict=True))
        if rest := [i for i in range(len(keys)) if i not in paths]:
            paths |= zip(rest, self._play(self._copy, keys[np.array(rest, int)]), strict=True)
        where = f"alone in {'another process' if self.execution.uses_workers else 'a new environment'}"
        for i, index in enumerate(indices):
            self._compare(index, keys[i : i + 1], digests[i], paths[i], where)
        if replays.used and isinstance(self.sampler, GymSampler):
            rows = [replays.rows.index(row) for row in replays.used]
            theta = np.stack([self.policy.theta] * len(rows))
            seeds = environment_seeds(self.sampler.domain, keys[np.array(rows)])
            # The second time in the same environments: what one has kept of this very episode would show.
            for _ in range(2):
                for i, path in zip(rows, self.sampler.record(theta, seeds, self._recorded), strict=True):
                    where = "in an environment that had played other episodes"
                    self._compare(indices[i], keys[i : i + 1], digests[i], path, where, paths[i])

    def _compare(
        self, index: int, key: Array, digests: NDArray[np.uint64], path: Signals, where: str, *others: Signals
    ) -> None:
        changed = digest_path(self._judged(path)) != digests
        if changed.any():
            names = np.array(sorted(self._judged(path)))[changed].tolist()
            raise RunError(self._message(index, key, digests, path, names, where, others))

    def _play(self, network: Actor, keys: Array) -> list[Signals]:
        theta = np.broadcast_to(self.policy.theta, (len(keys), self.policy.theta.size))
        if isinstance(self.sampler, GymSampler):
            job = self.sampler.job._replace(network=network)
            return play_alone(job, theta, environment_seeds(job.domain, keys), self._recorded, self.execution)
        # A compiled domain is a function of the key, so only the policy can differ.
        return external_sampler.rollout(self.sampler.domain, network, self._recorded, theta, keys).trimmed

    @property
    def _recorded(self) -> frozenset[str]:
        return self.sampler.monitor.signals | TRACE_SIGNALS | {"action"}

    def _judged(self, path: Signals) -> Signals:
        return {name: path[name] for name in self.sampler.monitor.signals | TRACE_SIGNALS}

    @property
    def _copy(self) -> Actor:
        assert self.packed is not None
        policy: AnyPolicy = cloudpickle.loads(self.packed)
        return policy.network

    def _message(
        self,
        index: int,
        key: Array,
        digests: NDArray[np.uint64],
        replayed: Signals,
        names: Sequence[str],
        where: str,
        known: Sequence[Signals],
    ) -> str:
        """Return the error for an episode; further replays show where it differs, if they give the counted one."""
        others = [*known, *([] if self.packed is None else self._play(self._copy, key))]
        if isinstance(self.sampler, GymSampler):  # in environments that have played other episodes
            theta = np.asarray(self.policy.theta)[None]
            others += self.sampler.record(theta, environment_seeds(self.sampler.domain, key), self._recorded)
        counted = [path for path in others if np.array_equal(digest_path(self._judged(path)), digests)]
        found = next(filter(None, (first_difference(path, replayed) for path in counted or others)), None)
        what = f"{', '.join(names)} {'differs' if len(names) == 1 else 'differ'}" if found is None else str(found)
        seed = environment_seeds(self.sampler.domain, key)[0]
        happened = (
            f"{self.sampler.domain.name}: episode {index} of the verification (seed {seed}) was not "
            f"the same when it was played again {where}: {what}. "
        )
        if not isinstance(self.policy, Policy) and found is not None and found.signal == "action":
            return happened + (
                f"So the policy {self.policy.source} chose another action in the same situation: it remembers other "
                "episodes, or draws random numbers that are not a function of the seed. Give an object with reset() "
                "and act(observation), which is copied for each episode, and draw from the seed that reset(seed) gets"
            )
        return happened + REMEDY


REMEDY = (
    "So episodes depend on more than their seed, and maybe on each other. Take random numbers from self.np_random "
    "only, call super().reset(seed=seed), clear all state there, draw nothing when the environment is made, and keep "
    "nothing in classes, modules or wrappers. If it cannot repeat an episode, make it with seeded=False (--set "
    "seeded=false): the certificate then says that independence was assumed"
)
