"""Policies with a memory: each episode has its own, whoever is played beside it; who hides a memory is found out."""

from __future__ import annotations

import random
import threading
from typing import Any

import jax
import numpy as np
import pytest

import psyco
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.policies.external import as_policy
from psyco._src.policies.network import network_for
from psyco._src.rollout.episodes import Stream, episode_keys, episode_seeds, stream_key
from psyco._src.rollout.gym_sampler import GymSampler, Job, in_process_backend
from psyco._src.rollout.sampler import make_sampler
from tests.environments import Alternating, CompiledSteps, Steps, Walk
from tests.making import with_execution

DOMAINS = {"gymnasium": psyco.make(Steps, horizon=6), "compiled": CompiledSteps()}
# Alternating meets the first always and the second in 5% of the episodes. Were one memory to serve 64 episodes side by
# side, each of them would see the same action all the time: the first never met, the second always.
CHANGING = "P>=0.9 [ G (step <= 1 | info.changed) ] & C>=0.95"
STEADY = "P>=0.5 [ G !info.changed | G info.lucky ] & C>=0.95"


def required(kind: str, text: str) -> str:
    return text if kind == "gymnasium" else text.replace("info.", "")


class ByState:
    """The same controller, with its memory in somebody else's hands."""

    def initial(self, count: int) -> Any:
        return np.zeros(count, int)

    def act(self, observations: Any, state: Any) -> tuple[Any, Any]:
        assert len(observations) == len(state)
        return 1 - state, 1 - state


class ByPredict:
    """The same with the signature and the conventions of RecurrentPPO: a state `[layers, rows, units]` per cell."""

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        assert deterministic
        rows = len(observation)
        if state is None:
            state = tuple(np.full((1, rows, 3), 7) for _ in range(2))
        hidden, cell = (np.where(episode_start[:, None], 0, each) for each in state)
        return 1 - hidden[0, :, 0], (1 - hidden, cell)


class OneForAll:
    """The same as a function, whose memory serves whoever asks."""

    last = 0

    def __call__(self, observation: Any) -> int:
        self.last = 1 - self.last
        return self.last


CONTROLLERS: list[Any] = [Alternating, Alternating(), ByState(), ByState, ByPredict()]
for _ in "used before":
    CONTROLLERS[1].reset()
    CONTROLLERS[1].act(None)


@pytest.mark.parametrize("controller", CONTROLLERS, ids=["class", "object", "state", "state class", "predict"])
@pytest.mark.parametrize("kind", DOMAINS)
def test_each_episode_has_its_own_memory(kind: str, controller: Any) -> None:
    domain = DOMAINS[kind]
    certificate = psyco.verify(controller, domain, required(kind, CHANGING))
    assert certificate.verdict is psyco.Verdict.SATISFIED and certificate.findings[0].violated == 0
    certificate = psyco.verify(controller, domain, required(kind, STEADY), method="fixed", max_episodes=100)
    assert certificate.verdict is psyco.Verdict.VIOLATED
    assert certificate.findings[0].satisfied == lucky(kind, certificate)
    assert psyco.replay(certificate, controller, domain=domain).matches


def lucky(kind: str, certificate: psyco.Certificate) -> int:
    """How many of its episodes are lucky: looked up, or played by a network in compiled code."""
    stream, count = Stream[str(certificate.stream).upper()], certificate.episodes
    keys = episode_keys(stream_key(0, stream, certificate.seed_block or 0), 0, count)
    if kind == "gymnasium":
        found = sum(Steps().reset(seed=seed)[1]["lucky"] for seed in episode_seeds(keys))
    else:
        domain = DOMAINS[kind]
        network = network_for(domain)
        sampler = jax.jit(make_sampler(domain, network, psyco.parse("P>=0.5 [ G lucky ]")))
        found = int(sampler(np.zeros((count, network.size), np.float32), keys).satisfied.sum())
    assert 0 < found < 15
    return found


@pytest.mark.more
def test_workers_keep_memories_apart_too() -> None:
    def certified(**where: Any) -> str:
        domain = psyco.make(Steps, horizon=6)
        return psyco.verify(
            Alternating(), domain, f"{CHANGING}; {STEADY}", **with_execution(issued="now", **where)
        ).to_json()

    assert certified() == certified(workers=2)


@pytest.mark.parametrize("kind", DOMAINS)
def test_a_memory_that_episodes_would_share_is_refused_with_the_remedy(kind: str) -> None:
    domain = DOMAINS[kind]
    for text, share in ((CHANGING, 0.0), (STEADY, 1.0)):  # what would be found: the opposite of what is true
        requirement = psyco.parse(required(kind, text))
        keys = jax.random.split(jax.random.key(0), 64)
        episodes = make_sampler(domain, as_policy(OneForAll()).network, requirement)(np.zeros((64, 0)), keys)
        assert episodes.satisfied.mean() == share
        with pytest.raises(psyco.RunError, match=r"has a memory, or draws random.* give an object with reset\(\)"):
            psyco.verify(OneForAll(), domain, requirement)


class ThroughItsClass(Alternating):
    """Copies of it share a memory after all."""

    def act(self, observation: Any) -> int:
        type(self).last = 1 - getattr(type(self), "last", 0)
        return type(self).last


def test_a_memory_that_copies_share_is_refused() -> None:
    with pytest.raises(psyco.RunError, match="episodes share a memory"):
        psyco.verify(ThroughItsClass, DOMAINS["gymnasium"], CHANGING)


class Drawing:
    """A policy that draws random numbers from its episode's seed, as an environment of Gymnasium does."""

    def reset(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def act(self, observation: Any) -> int:
        return int(self.random.random() < 0.05)


@pytest.mark.parametrize("kind", DOMAINS)
def test_random_actions_are_drawn_from_the_episodes_seed(kind: str) -> None:
    domain, rng = DOMAINS[kind], np.random.default_rng(0)
    requirement = required(kind, STEADY)
    with pytest.raises(psyco.RunError, match=r"draws random numbers.* reset\(seed\) gets"):
        psyco.verify(lambda observation: rng.integers(2), domain, requirement)
    certificate = psyco.verify(Drawing, domain, requirement)
    assert psyco.replay(certificate, Drawing, domain=domain).matches


class Lucky:
    """A policy with a generator of its own: in 30% of all episodes in the field, it does the wrong thing."""

    def __init__(self, generator: Any, constant: bool = False, drawn: str = "reset") -> None:
        self.parts, self.constant, self.drawn, self.wrong = {"luck": [generator]}, constant, drawn, False

    def reset(self) -> None:
        if self.constant:
            self.parts["luck"] = [np.random.default_rng(7)]
        if self.drawn == "reset":
            self.draw()

    def draw(self) -> None:
        self.wrong = self.parts["luck"][0].random() < 0.3

    def act(self, observation: Any) -> int:
        if self.drawn == "act":
            self.draw()
        return int(self.wrong)


@pytest.mark.parametrize("drawn", ["reset", "act"])
@pytest.mark.parametrize("generator", [np.random.default_rng(0), np.random.RandomState(0), random.Random(0)])
@pytest.mark.parametrize("guarded", [False, True])
def test_luck_that_all_copies_of_a_policy_share_is_refused(generator: Any, drawn: str, guarded: bool) -> None:
    """All episodes would draw the same number, so a true 0.7 was SATISFIED for 0.85 in seven of ten verifications."""
    domain, right = psyco.make(Steps, horizon=1), "P>=0.85 [ G (action <= 0) ] & C>=0.9"
    policy: Any = Lucky(generator, drawn=drawn)
    if guarded:
        policy = psyco.Guard(policy, lambda observation: 0, "P>=0.1 [ G (step <= 5) ]", horizon=1, counters=["step"])
    with pytest.raises(psyco.RunError, match=r"Lucky draws random numbers .* def reset\(self, seed\)"):
        psyco.verify(policy, domain, right)


def test_luck_that_is_the_same_in_the_field_or_never_drawn_is_no_fault() -> None:
    domain, right = psyco.make(Steps, horizon=1), "P>=0.85 [ G (action <= 0) ] & C>=0.9"
    for policy in (Lucky(np.random.default_rng(0), constant=True), Lucky(np.random.default_rng(0), drawn="never")):
        assert psyco.verify(policy, domain, right).verdict is psyco.Verdict.SATISFIED


def test_a_policy_does_not_draw_the_numbers_of_its_environment() -> None:
    """Steps is lucky where its first number is below 0.05; Drawing, with the same seed, would take 1 just there."""
    domain, same = psyco.make(Steps, horizon=1), "P>=0.5 [ G (info.lucky <=> action = 1) ]"
    certificate = psyco.verify(Drawing, domain, same, method="fixed", max_episodes=200)
    assert certificate.findings[0].violated > 0


class Patient:
    """It goes to the right once it has waited for as long as the first observation says."""

    def reset(self) -> None:
        self.left: int | None = None

    def act(self, observation: Any) -> int:
        self.left = int(5 * abs(observation[0])) if self.left is None else self.left - 1
        return int(self.left < 0)


class PatientByState:
    def initial(self, count: int) -> Any:
        return None

    def act(self, observations: Any, state: Any) -> tuple[Any, Any]:
        left = (5 * abs(observations[:, 0])).astype(int) if state is None else state - 1
        return (left < 0).astype(int), left


@pytest.mark.parametrize("controller", [Patient, PatientByState()])
def test_memories_stay_with_their_episodes_when_others_end(controller: Any) -> None:
    domain = psyco.make(Walk, horizon=30)
    job = Job(domain, as_policy(controller).network, compile_monitor([]))
    sampler, seeds = GymSampler(job, in_process_backend()), list(range(1, 13))
    together = sampler.run(np.zeros((12, 0), np.float32), seeds)
    assert len(set(together.length.tolist())) > 3
    for row, seed in enumerate(seeds):
        alone = sampler.run(np.zeros((1, 0), np.float32), [seed])
        assert (alone.length, alone.returns) == (together.length[row], together.returns[row])
    psyco.verify(controller, domain, "P>=0.5 [ G step >= 0 ]", max_episodes=5)  # asked twice, it says the same


class Zigzag:
    """Left and down, in a rhythm of its own."""

    def reset(self) -> None:
        self.steps = 0

    def act(self, observation: Any) -> int:
        self.steps += 1
        return (3, 4, 4, 3, 4, 4, 4, 3)[self.steps % 8]


def test_memories_stay_with_their_episodes_in_a_compiled_domain() -> None:
    domain = psyco.make("obstacle-run", horizon=20)
    sampler = make_sampler(domain, as_policy(Zigzag).network, psyco.parse("P>=0.5 [ F target ]"))
    keys = jax.random.split(jax.random.key(2), 12)
    together = sampler(np.zeros((12, 0)), keys)
    assert len(set(together.length.tolist())) > 3
    for row in range(12):
        alone = sampler(np.zeros((1, 0)), keys[row : row + 1])
        assert (alone.length, alone.returns) == (together.length[row], together.returns[row])


@pytest.mark.more
@pytest.mark.parametrize("name", ["obstacle-run", "particle-dance"])
def test_stepping_a_compiled_domain_gives_the_episodes_of_compiled_code(name: str) -> None:
    """A policy of ours as a function of somebody else's: the same episodes, those that end early among them."""
    domain = psyco.make(name, horizon=12)
    network = network_for(domain)
    theta = np.asarray(network.init(jax.random.key(3)))
    policy = psyco._src.policies.serialization.policy_for(domain, network, theta)
    requirement = psyco.parse("P>=0.5 [ G (step <= 5 | return >= -8) ]; P>=0.5 [ F (reward > -0.5) ]")
    keys = jax.random.split(jax.random.key(1), 20)
    ours = jax.jit(make_sampler(domain, network, requirement))(np.tile(theta, (20, 1)), keys)
    theirs = make_sampler(domain, as_policy(lambda seen: policy(seen)).network, requirement)(np.zeros((20, 0)), keys)
    np.testing.assert_array_equal(ours.length, theirs.length)
    np.testing.assert_array_equal(ours.satisfied, theirs.satisfied)
    np.testing.assert_allclose(ours.returns, theirs.returns, rtol=1e-5)
    np.testing.assert_allclose(ours.cost, theirs.cost, rtol=1e-5)


@pytest.mark.parametrize(("fault", "signal"), [("observation", "obs"), ("reward", "reward"), ("signal", "height")])
def test_what_is_not_a_number_is_an_error_that_says_where(fault: str, signal: str) -> None:
    where = rf"compiled-steps, episode with seed \d+, at step \d: {signal} is .*nan"
    with pytest.raises(psyco.EpisodeError, match=where):
        psyco.verify(Alternating, CompiledSteps(fault=fault), "P>=0.9 [ G step >= 0 ]")


def test_an_episode_is_recorded_with_the_memory_of_its_own() -> None:
    for kind, domain in DOMAINS.items():
        actions = psyco.record(Alternating, domain, episode=3)["action"]
        assert actions.tolist() == [1, 1, 0, 1, 0, 1, 0], kind


def test_there_is_no_exact_answer_about_a_memory() -> None:
    with pytest.raises(psyco.RunError, match=r"Alternating is stateful; exact answers"):
        psyco.exact(Alternating, psyco.make("obstacle-run"), "P>=0.5 [ F target ]")
    with pytest.raises(psyco.RunError, match=r"OneForAll chose"):
        psyco.exact(OneForAll(), psyco.make("obstacle-run"), "P>=0.5 [ F target ]")


def test_a_state_that_does_not_fit_its_rows_is_said() -> None:
    class Short(ByState):
        def act(self, observations: Any, state: Any) -> tuple[Any, Any]:
            return [0, 1], state

    with pytest.raises(psyco.EpisodeError, match="2 actions for 64 observations"):
        psyco.verify(Short(), DOMAINS["gymnasium"], CHANGING)


def test_an_object_that_cannot_be_copied_is_said() -> None:
    controller = Alternating()
    controller.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(psyco.RunError, match=r"cannot copy the policy.* its class"):
        psyco.verify(controller, DOMAINS["gymnasium"], CHANGING)
