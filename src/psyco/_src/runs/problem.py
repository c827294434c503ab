"""A synthesis problem, ready to run: a domain, a requirement and settings, checked against each other once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from numpy.typing import ArrayLike

from psyco._src.core.errors import RunError, suggest
from psyco._src.core.provenance import code_digest
from psyco._src.envs.base import Domain, written_for
from psyco._src.envs.gym_env import INFO_PREFIX, is_info
from psyco._src.envs.model_file import KnownTransitions, ModelFile
from psyco._src.envs.registry import DomainDescription, describe
from psyco._src.envs.shield import Shielded, with_shield
from psyco._src.envs.value_bounds import ValueRange
from psyco._src.envs.variants import read_tail
from psyco._src.learners.base import Learner
from psyco._src.learners.candidate_buffer import CandidateBuffer, CandidateBufferState
from psyco._src.learners.expectation_constraints import expectation_bounds
from psyco._src.learners.independent import IndependentLearner, agent_tasks, with_agent_returns
from psyco._src.learners.lagrangian import LagrangianLearner
from psyco._src.learners.learner_registry import (
    learner_class,
    learner_options,
    make_learner,
    make_options,
)
from psyco._src.learners.robust import RobustLearner, check_robust
from psyco._src.learners.running_stats import NormalizedLearner
from psyco._src.logic.ast import Requirement
from psyco._src.logic.batch_monitor import BatchMonitor, compile_monitor
from psyco._src.policies.image_network import default_network_for
from psyco._src.policies.joint_network import joint_network_for, with_actions_of
from psyco._src.policies.network import Network, has_mask, table_for
from psyco._src.policies.serialization import Policy, check_finite
from psyco._src.rollout.episodes import Episodes, Sampler, Stream, episode_keys, stream_key
from psyco._src.rollout.execution import IN_PROCESS, EpisodeCache, Execution
from psyco._src.rollout.gym_sampler import GymSampler
from psyco._src.rollout.jax_sampler import JaxSampler
from psyco._src.rollout.obs_normalization import POLICY_EPISODES, RANDOM_EPISODES, with_obs_normalization
from psyco._src.rollout.sampler import make_monitor, make_sampler
from psyco._src.rollout.throughput import Throughput, measure_throughput
from psyco._src.runs.budget import (
    CONTROL_HIDDEN,
    LearningClock,
    RunPlan,
    expected_episodes,
    make_run_plan,
    resolve_auto,
    resolve_bias,
    resolve_encoder,
    resolve_normalization,
    select_learner,
)
from psyco._src.runs.settings import Settings
from psyco._src.runs.warm_start import check_initial_policy, initial_network, initial_normalization
from psyco._src.verification.episode_stream import check_info_keys
from psyco._src.verification.verifier import decidable_ranges

SPELLING_EPISODES = 8  # in which a key of `info` must appear if it looks misspelt


@dataclass(frozen=True)
class Problem:
    """Everything that learning, selection and certificate share; `prepare` makes it.

    Args:
        domain: the domain.
        requirement: the parsed requirement.
        settings: settings of the run; all of them are resolved.
        network: policy network, with its observation normalization.
        sampler: samples training episodes.
        learner: learner with the task of this problem.
        execution: where episodes are computed.
        value_ranges: one range per expectation and question of the requirement.
        normalization: resolved observation normalization.
        initial_policy: the policy that learning starts from; None: random parameters.
        learner_reason: why this learner was chosen; empty: the settings name it.
        simulator: speed of the simulator, if it was needed to choose the learner; None: it was not measured.
        clock: ends learning when the rest of a given time is needed; None: the budget alone ends it.
    """

    domain: Domain
    requirement: Requirement
    settings: Settings
    network: Network
    sampler: Sampler
    learner: Learner
    execution: Execution
    value_ranges: tuple[ValueRange, ...] = ()
    normalization: str = "none"
    initial_policy: Policy | None = None
    learner_reason: str = ""
    simulator: Throughput | None = None
    clock: LearningClock | None = None

    @cached_property
    def description(self) -> DomainDescription:
        """The domain as plain data."""
        return describe(self.domain)

    @cached_property
    def code_hash(self) -> str | None:
        """Hash of the source code of the domain; None: unknown."""
        return code_digest(self.domain)

    @cached_property
    def constraint_monitor(self) -> BatchMonitor:
        """The compiled formulas of the probability constraints as written, for recorded episodes."""
        return compile_monitor([constraint.formula for constraint in self.requirement.probability_constraints])

    @cached_property
    def training_sampler(self) -> Sampler:
        """The sampler of training episodes; independent learners need the return of each agent, too."""
        sampler = self.sampler
        if self.settings.learning == "joint" or not isinstance(sampler, GymSampler | JaxSampler):
            return sampler
        monitor = with_agent_returns(sampler.monitor, self.domain)
        if isinstance(sampler, GymSampler):
            return dataclasses.replace(sampler, job=sampler.job._replace(monitor=monitor))
        return dataclasses.replace(sampler, monitor=monitor)

    def as_measured(self, episodes: Episodes) -> Episodes:
        """Return training episodes `[G, B]` with the values that the requirement measures."""
        count = len(self.requirement.measured)
        if episodes.value is None or self.settings.learning == "joint":
            return episodes
        columns: dict[str, Any] = {
            name: getattr(episodes, name)[..., :count] if count else None
            for name in ("value", "reached", "first_out_of_range")
        }
        return episodes._replace(**columns)

    @cached_property
    def verification_sampler(self) -> Sampler:
        """The sampler of selection and certificate: the same episodes, without statistics that only learners use."""
        if isinstance(self.sampler, GymSampler | JaxSampler) and self.sampler.with_obs_stats:
            return dataclasses.replace(self.sampler, with_obs_stats=False)
        return self.sampler

    @property
    def generations(self) -> int:
        """Number of generations; if the budget is in steps, the expected number."""
        return -(-expected_episodes(self.settings, self.domain) // self.learner.episodes_per_generation)

    @cached_property
    def wrapped_learner(self) -> CandidateBuffer:
        """The learner with observation normalization and a buffer of candidates; checkpoints hold its state."""
        running = self.normalization == "running"
        inner = self.learner
        if self.settings.learning == "independent":
            assert isinstance(inner, LagrangianLearner)
            expectations = inner.known_task.expectations
            inner = IndependentLearner(inner, agent_tasks(self.requirement, expectations, self.domain))
        tail = read_tail(self.settings.robust)
        if running and not learner_class(self.settings.learner).normalizes_observations:
            inner = NormalizedLearner(inner, self.network)
        if tail is not None:
            inner = RobustLearner(inner, self.domain, tail, expected_episodes(self.settings, self.domain))
        limit = self.settings.violations_while_learning or 0
        return CandidateBuffer(inner, self.settings.candidates, self.generations, self.settings.steps, limit)

    @property
    def check_interval(self) -> int:
        """Generations between two checks of the current policy; the last interval of a run may be shorter."""
        return max(1, (self.settings.verify_every or 1000) // self.learner.episodes_per_generation)

    @property
    def has_checks(self) -> bool:
        """Whether the current policy is checked after every interval."""
        return bool(self.settings.verify_every and self.requirement.constraints)

    @property
    def learner_choice(self) -> str:
        """The automatically chosen learner and the reason for it; empty if the settings name the learner."""
        return f"learner {self.settings.learner}: {self.learner_reason}" if self.learner_reason else ""

    def policy(self, theta: ArrayLike) -> Policy:
        """Return the policy with parameters `[D]`."""
        shield = getattr(self.domain, "shield_table", None)
        return Policy(check_finite(theta), self.network, self.domain.actions, *self.description, shield=shield)

    def with_cache(self, cache: EpisodeCache) -> Problem:
        """Return the problem with a cache of episodes, if episodes cost time and repeat under their seeds."""
        if not isinstance(self.sampler, GymSampler) or not self.sampler.domain.seeded:
            return self
        return dataclasses.replace(
            self,
            sampler=dataclasses.replace(self.sampler, episode_cache=cache),
            execution=dataclasses.replace(self.execution, episode_cache=cache),
        )

    def is_finished(self, generation: int, state: CandidateBufferState) -> bool:
        """Whether the budget is spent after these generations, or the next one might exceed the limit of violations."""
        left = self.violations_left(state)
        if left is not None and left < self.learner.episodes_per_generation:
            return True
        if self.settings.steps:
            return int(state.steps) >= self.last_step
        return generation >= self.generations

    def violations_left(self, state: CandidateBufferState) -> int | None:
        """Return how many episodes may still violate a constraint while learning; None: any number."""
        limit = self.settings.violations_while_learning
        return None if limit is None or state.violations is None else limit - int(state.violations)

    @property
    def last_step(self) -> int:
        """The number of steps after which learning ends; 0: its budget is in episodes."""
        return min(self.settings.stop_after or self.settings.steps, self.settings.steps)

    def plan(
        self,
        simulator: Throughput | None = None,
        learning: Throughput | None = None,
        time: str = "",
        steps: int | None = None,
    ) -> RunPlan:
        """Return episodes and steps of every phase, and with a measured speed their duration.

        Args:
            simulator: speed of the simulator; None: not measured.
            learning: speed of simulator and learner together; None: not measured.
            time: how a budget in time became one in steps, in words.
            steps: expected training steps, if the time ends learning earlier than its budget.
        """
        if self.initial_policy is not None:
            normalization = POLICY_EPISODES if self.network.scale != self.initial_policy.network.scale else 0
        else:
            normalization = RANDOM_EPISODES if self.normalization == "sampled" else 0
        return make_run_plan(
            self.settings,
            self.domain,
            self.requirement,
            simulator=simulator,
            learning=learning,
            normalization=normalization,
            learner=self.learner_choice,
            time=time,
            steps=steps,
        )


def prepare(
    domain: Domain,
    requirement: Requirement,
    settings: Settings,
    execution: Execution = IN_PROCESS,
    *,
    network: Network | None = None,
    initial_policy: Policy | None = None,
    simulator: Throughput | None = None,
) -> Problem:
    """Check everything that can be checked before the first episode, and resolve the automatic settings.

    Args:
        domain: the domain.
        requirement: the requirement.
        settings: settings of the run.
        execution: where episodes are computed.
        network: network of a resumed run, so that its normalization is not computed again.
        initial_policy: the policy that the settings say learning starts from.
        simulator: speed of the simulator, if known; else it is measured if the choice of the learner depends on it.
    """
    requirement = written_for(requirement, domain)
    domain = with_shield(domain, requirement, settings.shield)
    monitor = make_monitor(domain, requirement, severity=settings.severity)
    ranges = decidable_ranges(requirement, domain)
    check_initial_policy(settings, initial_policy, domain)
    check_robust(settings.robust, domain, requirement)

    def measure() -> Throughput:
        nonlocal simulator
        simulator = simulator or measure_simulator(domain, requirement, settings.seed, execution, monitor)
        return simulator

    name, reason = select_learner(settings, domain, measure)
    resolved = resolve_auto(settings, name, domain, requirement)
    normalization = resolve_normalization(settings, name, domain)
    if initial_policy is not None:
        normalization = initial_normalization(initial_policy, normalization, settings.normalization)
    if network is None:
        key = stream_key(settings.seed, Stream.NORMALIZE)
        if initial_policy is not None:
            network = initial_network(initial_policy, domain, normalization, key, execution)
        else:
            hidden = resolved.get("hidden", settings.hidden)
            if learner_class(name).is_tabular:
                network = table_for(domain)
            else:
                network = joint_network_for(
                    domain,
                    hidden=hidden,
                    bias=resolve_bias(settings, name),
                    memory=settings.memory,
                    encoder=resolve_encoder(settings, name, domain),
                    policies=resolved.get("policies", settings.policies),
                )
            if normalization == "running":  # of all inputs, observed parameters of a family among them
                network = dataclasses.replace(network, shift=(), scale=())
            if normalization == "sampled":
                network = with_obs_normalization(network, domain, key, execution)
    elif (network.inputs, network.outputs, network.masked) != (
        domain.observation_size,
        domain.actions.outputs,
        has_mask(domain),
    ):
        raise RunError(f"{domain.name} has changed: the network of the run does not fit its observations and actions")
    elif network.scale and initial_policy is None:
        normalization = "sampled"  # as at the start of the run, whatever "auto" means by now
    network = with_actions_of(network, domain)
    sampler = make_sampler(
        domain,
        network,
        requirement,
        execution=execution,
        with_obs_stats=normalization == "running",
        monitor=monitor,
    )
    learner = make_learner(
        make_options(name, resolved.pop("options")),
        requirement,
        expectations=expectation_bounds(requirement, domain),
        network=network,
        actions=domain.actions,
        horizon=domain.horizon,
        episode_budget=expected_episodes(settings, domain),
        step_budget=settings.steps or None,
        violation_limit=settings.violations_while_learning,
        transitions=_known_model(domain, requirement) if learner_class(name).is_tabular else None,
    )
    limit, least = settings.violations_while_learning, learner.episodes_per_generation
    if limit is not None and limit < least:
        raise RunError(
            f"at most {limit} violations while learning: a generation has {least} episodes, "
            f"all of which may violate the requirement. Allow at least {least}, or play fewer: --option population=4"
        )
    # The settings of a run contain every option of its learner, so that later versions with other defaults repeat it.
    options = {option: getattr(learner, option) for option in learner_options(name)}
    return Problem(
        domain,
        requirement,
        dataclasses.replace(settings, learner=name, options=options, **resolved),
        network,
        sampler,
        learner,
        execution,
        ranges,
        normalization,
        initial_policy,
        reason,
        simulator,
    )


def _known_model(domain: Domain, requirement: Requirement) -> KnownTransitions | None:
    """Return the known transitions of a model with the costs of a requirement; None: the domain has none."""
    return domain.known_model(requirement) if isinstance(domain, ModelFile | Shielded) else None


def check_spelling(problem: Problem) -> None:
    """Raise RequirementError if a key of `info` seems misspelt: a similar one is known, and episodes report only that.

    Few keys are unknown after the random steps with which a domain is made, so these episodes are seldom played.
    """
    if not isinstance(problem.sampler, GymSampler):
        return
    known, named = (
        {name.removeprefix(INFO_PREFIX) for name in names if is_info(name) and not name.endswith(INFO_PREFIX)}
        for names in (problem.sampler.domain.table, problem.sampler.monitor.signals)
    )
    if any(suggest(name, known) for name in named - known):
        key = stream_key(problem.settings.seed, Stream.THROUGHPUT, 2)
        theta = jax.vmap(problem.network.init)(episode_keys(jax.random.fold_in(key, 0), 0, SPELLING_EPISODES))
        episodes = problem.verification_sampler(theta, episode_keys(key, 0, SPELLING_EPISODES))
        check_info_keys(problem.requirement, problem.domain, episodes.missing_info)


def measure_simulator(
    domain: Domain,
    requirement: Requirement,
    seed: int,
    execution: Execution,
    monitor: BatchMonitor | None = None,
) -> Throughput:
    """Return the speed of the simulator, before the learner is known.

    Args:
        domain: the domain.
        requirement: the requirement.
        seed: seed of the run.
        execution: where episodes are computed.
        monitor: the compiled requirement, if there is one.
    """
    network = default_network_for(domain, hidden=CONTROL_HIDDEN)
    sampler = make_sampler(domain, network, requirement, execution=execution, monitor=monitor)
    key = stream_key(seed, Stream.THROUGHPUT)
    return measure_throughput(sampler, network, key, workers=execution.workers)
