"""A run, ready to go: a domain, a requirement and settings, checked against each other."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

from psyco._src.verification.verifier import check_decidable
from psyco._src.envs.base import Domain
from psyco._src.envs.value_bounds import spans
from psyco._src.core.errors import RunError
from psyco._src.learners.base import Learner
from psyco._src.learners.candidate_buffer import CandidateBuffer
from psyco._src.learners.learner_registry import make_learner
from psyco._src.learners.expectation_constraints import means_of
from psyco._src.learners.normalized_learner import NormalizedLearner
from psyco._src.policies.serialization import Policy
from psyco._src.policies.network import Network, network_for
from psyco._src.rollout.episodes import Sampler, Stream, stream_key
from psyco._src.rollout.execution import HERE, Execution, EpisodeCache
from psyco._src.rollout.gym_sampler import GymSampler
from psyco._src.rollout.throughput import Throughput, measure
from psyco._src.rollout.sampler import make_sampler
from psyco._src.rollout.obs_normalization import EPISODES, OF_ONE, scaled
from psyco._src.logic.ast import Requirement
from psyco._src.runs.learner_selection import choose
from psyco._src.runs.budget import (
    CONTROL,
    RunPlan,
    bias_of,
    decided,
    expected_episodes,
    make_run_plan,
    scaling_of,
)
from psyco._src.runs.settings import Settings
from psyco._src.runs.warm_start import check_start, first_network


class Problem(NamedTuple):
    """What `prepare` makes."""

    domain: Domain
    requirement: Requirement
    settings: Settings
    network: Network
    sampler: Sampler
    learner: Learner
    execution: Execution
    scaling: str = "none"  # what became of "auto"
    start: Policy | None = None  # what learning starts from, where that is not chance
    reason: str = ""  # why it is this learner, where none was named

    @property
    def generations(self) -> int:
        """How many there will be; where the budget is in steps, how many are expected."""
        return -(-expected_episodes(self.settings, self.domain) // self.learner.episodes_per_generation)

    @property
    def keeper(self) -> CandidateBuffer:
        """The learner as it is run: it keeps candidates, and its state is what checkpoints hold."""
        running = self.scaling == "running" and not getattr(self.learner, "standardizes", False)
        inner = NormalizedLearner(self.learner, self.network) if running else self.learner
        return CandidateBuffer(inner, self.settings.candidates, self.generations, self.settings.steps)

    @property
    def segment(self) -> int:
        """Generations between two verification points; the last segment of a run may be shorter."""
        return max(1, (self.settings.verify_every or 1000) // self.learner.episodes_per_generation)

    @property
    def verified(self) -> bool:
        """Whether the current policy is verified after every segment."""
        return bool(self.settings.verify_every and self.requirement.constraints)

    def remembering(self, memory: EpisodeCache) -> Problem:
        """The same, with a memory of episodes where they cost time."""
        if not isinstance(self.sampler, GymSampler):
            return self
        return self._replace(
            sampler=dataclasses.replace(self.sampler, memory=memory),
            execution=dataclasses.replace(self.execution, memory=memory),
        )

    def is_over(self, generation: int, steps: int) -> bool:
        """Whether the budget is spent after so many generations and steps."""
        if self.settings.steps:
            return steps >= self.settings.steps
        return generation >= self.generations

    def plan(self, pace: Throughput | None = None, learning: Throughput | None = None, time: str = "") -> RunPlan:
        """What the run will spend, phase by phase; with a measured pace also how long it will take.

        Args:
            pace: of the simulator.
            learning: of simulator and learner together; None: that was not measured.
            time: what a budget in time was resolved to, in words.
        """
        if self.start is not None:
            scaling = OF_ONE if self.network.scale != self.start.network.scale else 0
        else:
            scaling = EPISODES if self.scaling == "sampled" else 0
        return make_run_plan(
            self.settings,
            self.domain,
            self.requirement,
            pace=pace,
            learning=learning,
            scaling=scaling,
            learner=self.choice,
            time=time,
        )

    @property
    def choice(self) -> str:
        """Which learner was chosen and why, in words; empty where it was asked for."""
        return f"learner {self.settings.learner}: {self.reason}" if self.reason else ""


def prepare(
    domain: Domain,
    requirement: Requirement,
    settings: Settings,
    execution: Execution = HERE,
    *,
    network: Network | None = None,
    start: Policy | None = None,
    pace: Throughput | None = None,
) -> Problem:
    """Check everything that can be checked before the first episode.

    Args:
        domain: where to learn.
        requirement: what must hold.
        settings: how to learn.
        execution: where episodes are made.
        network: that of a run which goes on, so that the episodes behind its scaling are not played again.
        start: the policy that the settings say learning starts from.
        pace: of the simulator, if it is known; else it is measured where the choice of a learner depends on it.
    """
    check_decidable(requirement)
    check_start(settings, start, domain)
    measured = partial(first_pace, domain, requirement, settings.seed, execution)
    name, reason = choose(settings, domain, measured if pace is None else lambda: pace)
    settings = decided(dataclasses.replace(settings, learner=name), domain, requirement)
    scaling = scaling_of(settings, domain)
    if network is None and start is not None:
        key = stream_key(settings.seed, Stream.SCALE)
        network = first_network(start, domain, scaling, key, execution)
    elif network is None:
        network = _network(domain, settings, scaling, execution)
    elif (network.inputs, network.outputs) != (domain.observation_size, domain.actions.outputs):
        raise RunError(
            f"{domain.name} has changed: the network that the run began with does not fit it any more"
        )
    elif network.scale and start is None:
        scaling = "sampled"  # as it began, whatever "auto" means by now
    sampler = make_sampler(
        domain, network, requirement, execution=execution, severity=settings.severity,
        observed=scaling == "running",
    )  # fmt: skip
    check_decidable(requirement, spans(requirement, domain))
    learner = make_learner(
        settings.learner, requirement, means=means_of(requirement, domain), network=network,
        actions=domain.actions, horizon=domain.horizon, budget=expected_episodes(settings, domain),
        steps=settings.steps, **settings.options,
    )  # fmt: skip
    return Problem(
        domain, requirement, settings, network, sampler, learner, execution, scaling, start, reason
    )


def first_pace(domain: Domain, requirement: Requirement, seed: int, execution: Execution) -> Throughput:
    """How fast episodes are made, before it is known how they will be learned from."""
    network = network_for(domain, hidden=CONTROL)
    sampler = make_sampler(domain, network, requirement, execution=execution)
    return measure(sampler, network, stream_key(seed, Stream.PACE), workers=execution.workers)


def _network(domain: Domain, settings: Settings, scaling: str, execution: Execution) -> Network:
    network = network_for(domain, hidden=settings.hidden, bias=bias_of(settings))
    if scaling == "sampled":
        return scaled(network, domain, stream_key(settings.seed, Stream.SCALE), execution)
    return network
