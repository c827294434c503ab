"""Shields: backward induction against the definition, episodes that keep to them, and policies that carry them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco import DomainError, RequirementError, RunError
from psyco._src.envs.registry import describe, make_from_description
from psyco._src.envs.shield import Shielded, protected, with_shield
from psyco._src.logic.parser import parse
from psyco._src.policies.c_export import c_files
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import Policy, load_policy, policy_for
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.rollout.record import record_episodes
from psyco._src.rollout.sampler import make_sampler
from tests.environments import Doors
from tests.envs.test_masks import MODEL

FREE = "P>=0.9 [ G !trapped ] & C>=0.9"
BARE = Doors(has_mask=False)


def shielded(requirement: str = FREE, level: float = 1.0, domain: Any = BARE) -> Any:
    found = with_shield(domain, parse(requirement), level)
    assert isinstance(found, Shielded)
    return found


def bits(word: Any) -> list[int]:
    return [int(word) >> action & 1 for action in range(3)]


def rooms(domain: Any) -> dict[int, int]:
    """The number of the state of each room in the shield's table, not trapped."""
    seen = zip(domain.choices.observations, domain.tables.decided, strict=True)
    return {int(obs[:3].argmax()): number for number, (obs, decided) in enumerate(seen) if not decided}


def test_a_shield_of_level_1_allows_what_keeps_the_formula() -> None:
    """In a room of `Doors`, the doors that it offers are those behind which nobody is trapped."""
    domain = shielded()
    numbers = rooms(domain)
    assert sorted(numbers) == [0, 1, 2]
    for room, number in numbers.items():
        for row in domain.tables.words:
            assert bits(row[number]) == list(BARE.offers[room])
    np.testing.assert_allclose(domain.tables.best[0], 1.0)


OUT = {0: (2, 1, 0), 1: (3, 2, 0), 2: (4, 3, 0)}  # rooms that doors lead to; 3 and more are out


@pytest.mark.parametrize(("text", "level"), [("F<=3 room=2", 0.9), ("F<=3 room=2", 0.5), ("G<=4 room<2", 0.4)])
def test_allowed_choices_are_those_of_the_definition(text: str, level: float) -> None:
    """By recursion over what the doors do: a door opens with 3/4, and what is out stays in room 2 as the last state."""
    reach, bound = text.startswith("F"), int(text[3])

    @cache
    def best(room: int, step: int) -> float:
        if room >= 2:
            return float(reach)
        return max(after(room, door, step) for door in range(3)) if step < bound else float(not reach)

    def after(room: int, door: int, step: int) -> float:
        return 0.75 * best(OUT[room][door], step + 1) + 0.25 * best(room, step + 1)

    domain = shielded(f"P>=0.5 [ {text} ]", level, BARE)
    numbers = {}  # of rooms 0 and 1, by their rows: trapped or not, the future is the same
    for number, (obs, decided) in enumerate(zip(domain.choices.observations, domain.tables.decided, strict=True)):
        if not decided:
            numbers.setdefault(int(obs[:3].argmax()), number)
    assert len(domain.tables.rows) == bound
    for step, row in enumerate(domain.tables.rows):
        for room in (0, 1) if step else (0,):
            limit = min(level, best(room, step)) - 1e-9
            wanted = [int(after(room, door, step) >= limit) for door in range(3)]
            assert bits(domain.tables.words[row][numbers[room]]) == wanted, (step, room)
    assert domain.tables.best[numbers[0]] == pytest.approx(best(0, 0))


def random_policy(domain: Any, seed: int = 0) -> Policy:
    network = network_for(domain, hidden=8)
    return policy_for(domain, network, 3 * network.init(jax.random.key(seed)))


def test_episodes_keep_to_the_shield_and_count_what_it_changed() -> None:
    domain = shielded()
    network = network_for(domain, hidden=8)
    keys = episode_keys(stream_key(0, Stream.TRAIN), 0, 40)
    theta = 3 * jax.vmap(network.init)(keys)
    sampler = make_sampler(domain, network, parse(FREE))
    episodes = sampler(theta, keys)
    assert np.asarray(episodes.satisfied).all()
    changed = np.asarray(episodes.fallback_steps)
    assert 0 < changed.sum() < np.asarray(episodes.length).sum()
    noisy = sampler.explore(theta, jnp.ones((40, 3)), keys)
    assert np.asarray(noisy.satisfied).all() and noisy.fallback_steps is None
    # The choices that it changed are those that would have been taken without it, door by door.
    free = make_sampler(BARE, network_for(BARE, hidden=8), parse(FREE))(theta, keys)
    assert not np.asarray(free.satisfied).all()
    assert ((changed > 0) >= ~np.asarray(free.satisfied)[:, 0]).all()


@pytest.mark.slow
def test_a_saved_policy_acts_with_numpy_as_in_its_episodes(tmp_path: Path) -> None:
    domain = shielded("P>=0.5 [ F<=3 room=2 ]", 0.5)
    random_policy(domain).save(tmp_path / "policy")
    policy = load_policy(tmp_path / "policy")
    assert policy.digest == random_policy(domain).digest
    for signals in record_episodes(domain, policy, seed=0, count=8):
        running = policy.begin()
        chosen = [int(running.act(obs[:3])) for obs in signals["obs"][:-1]]
        assert chosen == signals["action"][1:].tolist()
    with pytest.raises(RunError, match=r"has a shield: ask policy.begin\(\)"):
        policy([1, 0, 0])
    with pytest.raises(RunError, match="is no state of the model"):
        policy.begin().act([0.5, 0.5, 0.0])
    with pytest.raises(RunError, match="a policy with a shield is not exported"):
        c_files(policy)
    with pytest.raises(RunError, match="has no shield"):
        random_policy(BARE).begin()


def test_a_policy_is_judged_with_its_own_shield_or_not_at_all() -> None:
    """Observations of `Doors` have the same length with and without a shield, so their length tells nothing."""
    plain, other = Doors(), Doors(offers=((1, 1, 1), (0, 1, 1), (1, 1, 0)))
    stated = "P>=0.4 [ G<=4 room<2 ] & C>=0.9"
    with_it, elsewhere = (shielded(stated, 0.4, domain) for domain in (plain, other))
    policy = random_policy(with_it)
    assert psyco.verify(policy, with_it, stated, max_episodes=50).episodes_seen
    for made, domain, words in (
        (policy, plain, "made with a shield of level 0.4, and doors has no shield here"),
        (random_policy(plain), with_it, "made with no shield, and doors has a shield of level 0.4"),
        (policy, shielded(stated, 0.5, plain), "doors has a shield of level 0.5"),
        (policy, elsewhere, "was computed from doors with other parameters"),
    ):
        with pytest.raises(RunError, match=words):
            psyco.verify(made, domain, stated)
    with pytest.raises(RunError, match="made with a shield"):
        psyco.exact(policy, plain, stated)


def test_nothing_acts_without_the_shield_of_a_policy() -> None:
    """A guard in the field, and a call with an observation that has the mask of the domain, left it out."""
    policy = random_policy(shielded("P>=0.4 [ G<=4 room<2 ]", 0.4, Doors()))
    observation = np.array([1, 0, 0, 0, 1, 1], np.float32)
    with pytest.raises(RunError, match=r"has a shield: ask policy.begin\(\)"):
        policy(observation)
    assert policy(observation[:3], mask=[0, 1, 1]) in (1, 2)
    for pair in ((policy, lambda observation: 1), (lambda observation: 1, policy)):
        with pytest.raises(RunError, match="a guard has no shield"):
            psyco.Guard(*pair, "P>=0.5 [ G (tries <= 2) ]", horizon=8, counters=["tries"])
    guard = psyco.Guard(lambda _: 1, lambda _: 1, "P>=0.5 [ G (room <= 1) ]", horizon=8, counters=["room"])
    with pytest.raises(RunError, match="a guard has no shield"):
        psyco.verify(guard, shielded("P>=0.4 [ G<=4 room<2 ]", 0.4, Doors()), FREE)


def test_a_shield_is_a_parameter_of_its_domain() -> None:
    domain = shielded(level=0.75)
    described = describe(domain)
    assert described.parameters["shield"] == {"level": 0.75, "requirement": str(parse(FREE).constraints[0])}
    again = make_from_description(described, [described.name])
    assert again == domain and again.observation_size == 6
    assert with_shield(domain, parse(FREE), 0.2) is domain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("P>=0.9 [ G !trapped ]; P>=0.5 [ F room=2 ]", "this requirement has 2"),
        ("P>=0.9 [ F (room=2 & F room=0) ]", "is none"),
        ("P>=0.9 [ X room=1 ]", "another operator"),
        ("P>=0.9 [ G return>=0 ]", "return is no signal of a state of doors"),
    ],
)
def test_what_a_shield_does_not_protect_is_refused(text: str, words: str) -> None:
    with pytest.raises(RequirementError, match=words):
        with_shield(BARE, parse(text), 0.9)


def test_other_refusals_say_why() -> None:
    with pytest.raises(DomainError, match=r"a shield is computed from a model, and particle-dance is none"):
        with_shield(psyco.make("particle-dance"), parse("P>=0.9 [ G distance>=0.1 ]"), 0.9)
    with pytest.raises(DomainError, match=r"above 0, at most 1; got 1\.5"):
        with_shield(BARE, parse(FREE), 1.5)
    with pytest.raises(DomainError, match="has a shield, and exact answers are for policies without one"):
        psyco.exact(random_policy(shielded()), shielded(), FREE)
    with pytest.raises(RunError, match="shield"):
        psyco.Settings(shield=0.0)


def test_a_bound_from_above_protects_the_negation() -> None:
    above, below = protected(parse("P<=0.1 [ F trapped ]")), protected(parse("P>=0.9 [ G !trapped ]"))
    assert above.at_end is below.at_end is True
    assert above.yes is below.yes is None and str(above.no) == "trapped"


@pytest.mark.extra("stormpy")
def test_the_best_probability_on_a_model_is_that_of_storm(tmp_path: Path) -> None:
    file = tmp_path / "model.prism"
    file.write_text(MODEL)
    text = "P>=0.5 [ F<=5 s=3 ]"
    domain = shielded(text, 0.9, psyco.make(str(file), horizon=6))
    (best,) = psyco.optimum(str(file), "P=? [ F<=5 s=3 ]")
    assert domain.tables.best[domain.base.initial_state] == pytest.approx(best.largest)
    with pytest.raises(DomainError, match="needs the largest number of steps"):
        with_shield(psyco.make(str(file)), parse(text), 0.9)
