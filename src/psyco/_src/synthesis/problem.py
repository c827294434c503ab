"""A run, ready to go: a domain, a requirement and settings, checked against each other."""

from __future__ import annotations

from typing import NamedTuple, cast

from psyco._src.certify.verify import check_decidable
from psyco._src.domain.base import Domain
from psyco._src.domain.gym_env import GymDomain
from psyco._src.domain.ranges import spans
from psyco._src.errors import RunError
from psyco._src.learn.base import Learner
from psyco._src.learn.keep import Keeping
from psyco._src.learn.learners import make_learner
from psyco._src.learn.means import means_of
from psyco._src.policy.network import Bias, Network, network_for
from psyco._src.rollout.episodes import Sampler, Stream, stream_key
from psyco._src.rollout.execution import HERE, Execution
from psyco._src.rollout.sampler import make_sampler
from psyco._src.rollout.scaling import scaled
from psyco._src.spec.formula import Requirement
from psyco._src.synthesis.settings import Settings


class Problem(NamedTuple):
    """What `prepare` makes."""

    domain: Domain
    requirement: Requirement
    settings: Settings
    network: Network
    sampler: Sampler
    learner: Learner
    execution: Execution

    @property
    def generations(self) -> int:
        """How many there will be."""
        return -(-self.settings.episodes // self.learner.episodes_per_generation)

    @property
    def keeper(self) -> Keeping:
        """The learner as it is run: it keeps candidates, and its state is what checkpoints hold."""
        return Keeping(self.learner, self.settings.candidates, self.generations)

    @property
    def segment(self) -> int:
        """Generations between two verification points; the last segment of a run may be shorter."""
        return max(1, (self.settings.verify_every or 1000) // self.learner.episodes_per_generation)

    @property
    def verified(self) -> bool:
        """Whether the current policy is verified after every segment."""
        return bool(self.settings.verify_every and self.requirement.constraints)


def prepare(
    domain: Domain,
    requirement: Requirement,
    settings: Settings,
    execution: Execution = HERE,
    *,
    network: Network | None = None,
) -> Problem:
    """Check everything that can be checked before the first episode.

    Args:
        domain: where to learn.
        requirement: what must hold.
        settings: how to learn.
        execution: where episodes are made.
        network: that of a run which goes on, so that the episodes behind its scaling are not played again.
    """
    check_decidable(requirement)
    if network is None:
        network = _network(domain, settings, execution)
    elif (network.inputs, network.outputs) != (domain.observation_size, domain.actions.outputs):
        raise RunError(
            f"{domain.name} has changed: the network that the run began with does not fit it any more"
        )
    sampler = make_sampler(domain, network, requirement, execution=execution, severity=settings.severity)
    check_decidable(requirement, spans(requirement, domain))
    learner = make_learner(
        settings.learner, requirement, means=means_of(requirement, domain), network=network,
        budget=settings.episodes, **settings.options,
    )  # fmt: skip
    return Problem(domain, requirement, settings, network, sampler, learner, execution)


def _network(domain: Domain, settings: Settings, execution: Execution) -> Network:
    bias = {"auto": "one" if settings.learner == "snes" else "learned"}.get(settings.bias, settings.bias)
    network = network_for(domain, hidden=settings.hidden, bias=cast(Bias, bias))
    if settings.scaling == "sampled" or (settings.scaling == "auto" and isinstance(domain, GymDomain)):
        return scaled(network, domain, stream_key(settings.seed, Stream.SCALE), execution)
    return network
