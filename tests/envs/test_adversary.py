"""An adversary chooses random draws, or disturbs observations and actions within bounds."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.core.errors import DomainError
from psyco._src.envs.adversary import check_attackable
from psyco._src.envs.obstacle_run import MOVES
from psyco._src.envs.variants import Disturbance, read_disturbance
from psyco._src.exact.solver import best_probability, evaluate
from psyco._src.exact.unfold import policy_actions, unfold
from psyco._src.policies.network import network_for, table_for
from psyco._src.policies.serialization import policy_for
from psyco._src.runs.attack import adversary_domain, attacked_domain

SMALL = psyco.make("obstacle-run", grid=3, horizon=6)
DANCE = psyco.make("particle-dance", horizon=5)
VIOLATED = psyco.parse_formula("!(G (!caught | collisions <= 1))")


def random_policy(domain, seed, network=network_for):
    made = network(domain)
    return policy_for(domain, made, made.init(jax.random.key(seed)))


@pytest.mark.parametrize(
    ("given", "kind", "size"),
    [(0.2, "draws", 0.2), ("0.5", "draws", 0.5), ("draws:1", "draws", 1.0), ("obs:0.05", "obs", 0.05),
     ("action:2", "action", 2.0)],
)  # fmt: skip
def test_an_adversary_is_a_share_of_the_draws_or_a_kind_and_a_size(given, kind, size):
    assert read_disturbance(given) == Disturbance(kind, size)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (0.0, "above 0"),
        (1.5, "at most 1, got 1.5"),
        ("-0.1", "above 0"),
        ("obs:-0.05", "a number above 0"),
        ("action:nan", "a number above 0"),
        ("ob:0.1", "unknown kind of adversary 'ob' (did you mean 'obs'?)"),
        ("much", "'much' is no adversary: write a share of the random draws such as 0.2, obs:0.05 or action:0.1"),
        (None, "is no adversary"),
    ],
)
def test_other_adversaries_are_errors_that_say_what_to_write(given, words):
    with pytest.raises(DomainError, match=re.escape(words)):
        read_disturbance(given)


@pytest.mark.parametrize(
    ("domain", "given", "words"),
    [
        (DANCE, 0.2, "particle-dance does not list its random draws"),
        (SMALL, "action:0.1", "obstacle-run has no continuous actions"),
        (psyco.make("particle-dance", vary={"max_speed": "0.08..0.12"}), "obs:0.1", "is a family, and"),
        (psyco.make("CartPole-v1"), "obs:0.1", "CartPole-v1 is a Gymnasium environment"),
    ],
)
def test_a_domain_without_the_disturbance_is_an_error(domain, given, words):
    with pytest.raises(DomainError, match=words):
        check_attackable(domain, read_disturbance(given))


def test_the_adversary_replaces_a_draw_with_its_probability():
    domain = adversary_domain(random_policy(SMALL, 0), SMALL, Disturbance("draws", 0.25))
    assert domain.draw_probabilities() == pytest.approx([0.15] * 5 + [0.25])
    draws = np.asarray(jax.vmap(domain.draw)(jax.random.split(jax.random.key(0), 4000)))
    # 24,000 draws: a share is off by more than 0.02 with probability below 1e-9.
    assert np.bincount(draws.ravel(), minlength=6) / draws.size == pytest.approx(domain.draw_probabilities(), abs=0.02)
    state = SMALL.reset(jax.random.key(1))
    pairs = np.array(list(itertools.product(range(6), range(5))))  # draw and choice
    after, *_ = jax.jit(jax.vmap(domain.transition, (None, 0, 0)))(state, pairs[:, 1], pairs[:, 0])
    moves = np.array(MOVES)[np.where(pairs[:, 0] == 5, pairs[:, 1], pairs[:, 0])]
    assert np.array_equal(after.obstacle, np.clip(np.asarray(state.obstacle) + moves, 0, 2))


def worst_by_definition(policy, share):
    """Value iteration over time, agent, obstacle and collisions up to two, written out for grid 3 and 6 steps."""
    grid, horizon = 3, 6
    places = list(itertools.product(range(grid), repeat=2))
    move = {
        (place, m): tuple(np.clip(np.add(place, MOVES[m]), 0, grid - 1).tolist()) for place in places for m in range(5)
    }
    action = {(a, o): int(policy(np.array([*a, *o], np.float32))) for a in places for o in places}
    value = {(a, o, c): float(c >= 2) for a in places for o in places for c in range(3)}
    for _ in range(horizon):
        new = {}
        for a, o, c in value:
            ahead = []
            for m in range(5):
                a2, o2 = move[a, action[a, o]], move[o, m]
                c2 = min(c + (a2 == o2), 2)
                ahead.append(float(c2 >= 2) if a2 == (0, 0) else value[a2, o2, c2])
            new[a, o, c] = 1.0 if c >= 2 else (1 - share) * np.mean(ahead) + share * max(ahead)
        value = new
    return np.mean([value[a, o, 0] for a in places for o in places])


@pytest.mark.slow  # enumerates
@pytest.mark.parametrize("share", [0.2, pytest.param(1.0, marks=pytest.mark.more)])
def test_the_exact_worst_case_is_that_of_value_iteration_by_definition(share):
    policy = random_policy(SMALL, 1)
    domain = adversary_domain(policy, SMALL, Disturbance("draws", share))
    assert best_probability(domain, VIOLATED) == pytest.approx(worst_by_definition(policy, share), abs=1e-9)


@pytest.mark.slow  # enumerates
def test_policy_against_adversary_and_adversary_against_policy_are_the_same_episodes():
    policy, size = random_policy(SMALL, 2), Disturbance("draws", 0.4)
    domain = adversary_domain(policy, SMALL, size)
    adversary = random_policy(domain, 3, table_for)
    attacked = attacked_domain(SMALL, size, adversary)
    one, other = (
        evaluate(unfold(where, [VIOLATED], policy_actions(actor, where)))
        for where, actor in ((domain, adversary), (attacked, policy))
    )
    assert one.probabilities[0] == pytest.approx(other.probabilities[0], abs=1e-12)
    assert one.expected_return == pytest.approx(other.expected_return, abs=1e-9)
    assert one.probabilities[0] < best_probability(domain, VIOLATED)


@pytest.mark.parametrize("given", ["obs:0.05", "action:0.03"])
def test_observations_and_actions_change_within_their_bound(given):
    size = read_disturbance(given)
    policy = random_policy(DANCE, 0)
    domain = adversary_domain(policy, DANCE, size)
    adversary = random_policy(domain, 1)
    attacked = attacked_domain(DANCE, size, adversary)
    state, push = DANCE.reset(jax.random.key(0)), jnp.zeros(2)
    seen, plain = attacked.observe(state), DANCE.observe(state)
    action = jnp.asarray(policy(np.asarray(seen)))
    after, *_ = attacked.step(push, state, action)
    change = np.abs(np.asarray(after.agent_velocity) - np.asarray(DANCE.step(push, state, action)[0].agent_velocity))
    if size.kind == "obs":
        assert 0 < np.abs(np.asarray(seen - plain)).max() <= size.size + 1e-6
        assert change.max() == 0
    else:
        assert np.array_equal(seen, plain)
        assert 0 < change.max() <= size.size + 1e-6
    # The adversary's own domain takes the same step.
    choice = jnp.asarray(adversary(np.asarray(domain.observe(state))))
    assert np.allclose(domain.step(push, state, choice)[0].agent, after.agent, atol=1e-6)
