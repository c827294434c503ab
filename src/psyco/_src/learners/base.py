"""The learner protocol: propose parameters to try, then update from their episodes.

A learner's class declares its options. Without a task its object is a set of options, as in `PPO(learning_rate=3e-4)`;
with one, which `learner_registry.make_learner` adds, it is the learner itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import jax.numpy as jnp
from jax import Array

from psyco._src.core.errors import RunError
from psyco._src.core.options import check_declared
from psyco._src.envs.actions import Actions
from psyco._src.envs.model_file import KnownTransitions
from psyco._src.learners.expectation_constraints import ExpectationBound
from psyco._src.policies.network import Bias, Network
from psyco._src.rollout.episodes import Episodes

# Schedules over the part of learning that is done, whether the budget is in episodes or in steps.


@dataclass(frozen=True)
class LearningBudget:
    """The length of learning, in generations or in steps, and the violations that it may cost.

    Args:
        generations: the number of generations; with a step budget, the expected number.
        steps: the step budget; None: the budget is in generations.
        violations: the largest number of violating episodes; None: any.
        longest: the number of generations if there are few violations; None: `generations`.
    """

    generations: int
    steps: int | None = None
    violations: int | None = None
    longest: int | None = None

    def generations_done(self, generation: Array, steps: Array, violations: Array | None = None) -> Array:
        """Return the number of generations done `[]`; with another budget, the equivalent of its use, a fraction."""
        done = generation
        if self.steps:
            done = jnp.asarray(steps).astype(jnp.float32) * (self.generations / self.steps)
        if self.violations and violations is not None:
            done = done if self.steps else done.astype(jnp.float32) * (self.generations / (self.longest or 1))
            done = jnp.maximum(done, violations.astype(jnp.float32) * (self.generations / self.violations))
        return done

    def fraction(self, generation: Array, steps: Array, violations: Array | None = None) -> Array:
        """Return the fraction of learning that is done `[]`, 0 to 1."""
        return jnp.minimum(self.generations_done(generation, steps, violations) / self.generations, 1.0)


def zero_counters() -> tuple[Array, Array]:
    """Return the counters of generations and steps `[]` int32 before the first generation."""
    return jnp.int32(0), jnp.int32(0)


def count_steps(episodes: Episodes) -> Array:
    """Return the total number of steps of these episodes, `[]` int32."""
    return jnp.sum(jnp.asarray(episodes.length), dtype=jnp.int32)


def count_violations(episodes: Episodes) -> Array:
    """Return how many of these episodes violate a constraint on a probability, `[]` int32."""
    return jnp.sum(~jnp.all(jnp.asarray(episodes.satisfied), axis=-1), dtype=jnp.int32)


def cosine(done: Array, of: float) -> Array:
    """Return the factor of a rate that decays from 1 to 0 along half a cosine."""
    return 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(done, float(of)) / float(of)))


def curriculum_fraction(done: Array, generations: int, curriculum: float) -> Array:
    """Return the fraction of a constraint that applies now: linear from 0 to 1 over the first part of learning.

    The paper proposes such a curriculum on the required probability.

    Args:
        done: the number of generations done.
        generations: of the whole run.
        curriculum: the length of the rise, as a fraction of learning; 0: the constraint applies in full at once.
    """
    if curriculum <= 0:
        return jnp.float32(1)
    return jnp.minimum(1.0, done.astype(jnp.float32) / (curriculum * generations))


LearnerState = Any  # any pytree of arrays


class Proposal(NamedTuple):
    """The parameters and seeds of one generation of episodes."""

    theta: Array  # [B, D] parameters, one episode each
    memo: Any  # private data of the learner, handed back to `update`
    # [B] int32, index of the episode seed of each row, so that rows can share one; None: row i has seed i.
    episode: Array | None = None
    # [B, outputs] standard deviation of the noise on the scores; if given, episodes come with a trace.
    std: Array | None = None
    hold: Array | None = None  # [B] int32, steps for which each draw of that noise is held; None: one
    # [B] uint32, member of a family that belongs to each episode seed; None: the seed determines it.
    member: Array | None = None


Propose: TypeAlias = Callable[[Array, LearnerState], Proposal]


class UpdateInfo(NamedTuple):
    """Diagnostics of one update."""

    lam: Array  # [] λ, weight of the return
    c_sat: Array  # [K] confidence that each constraint is satisfied


class Generation(NamedTuple):
    """The episodes of one generation and the diagnostics of its update; it becomes a row of the metrics table."""

    episodes: Episodes
    info: UpdateInfo


class Learner(Protocol):
    """Pure functions of a state; they run in a compiled loop and in a host loop alike.

    Rows of a proposal with the same `episode` meet the same initial state and the same chance events, so that they
    differ by their parameters alone (common random numbers). `update` is called under `belief.double_precision()`,
    everything else under JAX's default types.
    """

    @property
    def episodes_per_generation(self) -> int:
        """B: the number of episodes of one proposal."""

    @property
    def checks(self) -> int:
        """The number of check episodes, the last ones of a proposal: they are played by the deployed policy."""

    def init(self, theta: Array) -> LearnerState:
        """Return the state that starts from parameters `[D]`."""

    def propose(self, key: Array, state: LearnerState) -> Proposal:
        """Return the parameters to try in this generation."""

    def update(self, state: LearnerState, proposal: Proposal, episodes: Episodes) -> tuple[LearnerState, UpdateInfo]:
        """Learn from the episodes of a proposal."""

    def deployed(self, state: LearnerState) -> Array:
        """Return the parameters `[D]` that would be deployed if learning ended now."""


@dataclass(frozen=True)
class LearnerAround:
    """The base of learners around another one, `inner`, with the same episodes.

    Args:
        inner: the learner.
    """

    inner: Learner

    @property
    def episodes_per_generation(self) -> int:
        """B of `inner`."""
        return self.inner.episodes_per_generation

    @property
    def checks(self) -> int:
        """The number of check episodes of `inner`."""
        return self.inner.checks

    def deployed(self, state: Any) -> Array:
        """Return the deployed parameters `[D]` of `inner`."""
        return self.inner.deployed(state.inner)


@dataclass(frozen=True, kw_only=True)
class LearningTask:
    """The problem of a learner: P probability bounds and M expectation bounds, together K constraints, and a budget."""

    p_req: tuple[float, ...] = ()  # [P] required probabilities
    c_req: tuple[float, ...] = ()  # [K] required confidences, probabilities first
    expectations: tuple[ExpectationBound, ...] = ()  # [M]
    sign: float = 1.0  # 1: maximise the return, -1: minimise it
    # Training episodes of the whole run, which schedules follow; with a step budget, their expected number.
    episode_budget: int = 60_000
    step_budget: int | None = None  # training steps of the whole run; None: the budget is in episodes
    violation_limit: int | None = None  # violating training episodes that the whole run may have; None: any number
    network: Network | None = None  # of the policy
    actions: Actions | None = None  # its action space
    horizon: int | None = None  # maximum number of steps of an episode
    # [J + M] constraint of each cost of a trace, see `BatchMonitor.by_conjunct`; None: each constraint has one
    conjuncts: tuple[int, ...] | None = None
    counters: int = 0  # of a trace, see `BatchMonitor.budget_use`
    transitions: KnownTransitions | None = None  # of a model, for a table over its states

    @property
    def cost_owners(self) -> tuple[int, ...]:
        """The number of the constraint that each cost of a step belongs to."""
        return tuple(range(len(self.c_req))) if self.conjuncts is None else self.conjuncts


@dataclass(frozen=True, kw_only=True)
class LearnerOptions:
    """The base of all learners: checked options, and the task once it is known.

    An option that is None is chosen automatically, by `_resolve_auto`, when the task is known.
    """

    task: LearningTask | None = field(default=None, repr=False)

    # Traits, which other packages ask for instead of a learner's name.
    is_actor_critic: ClassVar[bool] = False  # it learns from single steps, and needs the policy's network
    is_tabular: ClassVar[bool] = False  # its policies are tables over one-hot codes, see `Network.one_hot`
    learns_memory: ClassVar[bool] = False  # its policies may be recurrent, see `Network.memory`
    learns_images: ClassVar[bool] = False  # its policies may have convolutions, see `ImageNetwork`
    default_bias: ClassVar[Bias] = "learned"  # biases of the policy network, if none are asked for
    needs_learned_bias: ClassVar[bool] = False
    several_agents: ClassVar[bool] = True  # it learns joint policies
    learns_independently: ClassVar[bool] = False  # several of it can learn side by side, one for each agent
    normalizes_observations: ClassVar[bool] = False  # itself, by running statistics
    check_method: ClassVar[str] = "fixed"  # statistical test of the current policy during learning

    @classmethod
    def gymnasium_options(cls, actions: Actions, horizon: int, return_constrained: bool) -> dict[str, Any]:
        """Return the default options on a Gymnasium environment, where they differ from the declared ones."""
        return {}

    def __post_init__(self) -> None:
        check_declared(self)
        self._check_options()
        if self.task is not None:
            self._resolve_auto()

    def _check_options(self) -> None:
        """Raise `RunError` for values that do not fit each other; declared limits have been checked."""

    def _resolve_auto(self) -> None:
        """Set the options that are None, for the task, and check their consequences.

        They are set once, so that a run's configuration shows the numbers and a prolonged run keeps them.
        """

    def _set_auto(self, **values: Any) -> None:
        """Set those of these options that are None."""
        for name, value in values.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def known_task(self) -> LearningTask:
        """The task; an error if there is none yet."""
        if self.task is None:
            raise RunError(
                f"{type(self).__name__} has options but no task yet: psyco.synthesize(..., learner=...) adds it, "
                "or make_learner"
            )
        return self.task


def ahead_of(learner: Learner) -> Propose | None:
    """Return a learner's `propose_ahead`, or None where it has none.

    `propose_ahead(key, state)` equals `propose(key, state)` after one more update, whatever that update learns.
    So episodes can be played while the update is computed, and no result depends on which takes longer.
    """
    found: Propose | None = getattr(learner, "propose_ahead", None)
    return found
