"""An adversary chooses random draws, or disturbs observations and actions within bounds."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.core.errors import DomainError
from psyco._src.envs.adversary import MixtureDomain, MixtureState, check_attackable
from psyco._src.envs.obstacle_run import MOVES
from psyco._src.envs.variants import Disturbance, read_disturbance
from psyco._src.exact.solver import best_probability, evaluate, game_value
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
        (psyco.make("CartPole-v1"), 0.2, "CartPole-v1 does not list its random draws"),
        (psyco.make("CartPole-v1"), "action:0.1", "CartPole-v1 has no continuous actions"),
        (psyco.make("FrozenLake-v1"), "obs:0.1", "changes the numbers of a vector"),
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


PLACES = list(itertools.product(range(3), repeat=2))  # of grid 3
MOVE = {(place, m): tuple(np.clip(np.add(place, MOVES[m]), 0, 2).tolist()) for place in PLACES for m in range(5)}


def actions_of(policy):
    return {(a, o): int(policy(np.array([*a, *o], np.float32))) for a in PLACES for o in PLACES}


def worst_by_definition(share, policy=None):
    """Value iteration over time, agent, obstacle and collisions up to two, written out for grid 3 and 6 steps.

    Without a policy: of the game, in which the best action is taken.
    """
    action = policy and actions_of(policy)
    value = {(a, o, c): float(c >= 2) for a in PLACES for o in PLACES for c in range(3)}

    def after(a, o, c, own):
        ahead = []
        for m in range(5):
            a2, o2 = MOVE[a, own], MOVE[o, m]
            c2 = min(c + (a2 == o2), 2)
            ahead.append(float(c2 >= 2) if a2 == (0, 0) else value[a2, o2, c2])
        return (1 - share) * np.mean(ahead) + share * max(ahead)

    for _ in range(6):
        value = {
            (a, o, c): 1.0 if c >= 2 else min(after(a, o, c, own) for own in ([action[a, o]] if action else range(5)))
            for a, o, c in value
        }
    return np.mean([value[a, o, 0] for a in PLACES for o in PLACES])


def prism_program(policy, share):
    """The decision process of the adversary on grid 3 with 6 steps, in PRISM's language, from the rules alone."""
    action, number = actions_of(policy), {place: i for i, place in enumerate(PLACES)}
    starts = " + ".join(f"1/81: (a'={i}) & (o'={j}) & (t'=0)" for i in range(9) for j in range(9))
    lines = ["mdp", "module run", "a: [0..8] init 0; o: [0..8] init 0; c: [0..2] init 0;", "t: [-1..6] init -1;",
             "done: bool init false;", f"[] t=-1 -> {starts};"]  # fmt: skip
    for (a, o), choice in itertools.product(action, range(5)):
        after = MOVE[a, action[a, o]]
        ends = "true" if after == (0, 0) else "false"
        updates = []
        for m in range(5):
            p, to = (1 - share) / 5 + (share if m == choice else 0), MOVE[o, m]
            count = "min(c+1,2)" if to == after else "c"
            update = f"(a'={number[after]}) & (o'={number[to]}) & (c'={count}) & (t'=t+1) & (done'={ends})"
            updates += [f"{p!r}: {update}"] if p else []
        guard = f"a={number[a]} & o={number[o]} & t>=0 & t<6 & !done"
        lines.append(f"[m{choice}] {guard} -> {' + '.join(updates)};")
    return "\n".join([*lines, "endmodule"])


@pytest.mark.extra("stormpy")
@pytest.mark.parametrize("share", [0.2, 1.0])
def test_storm_agrees_on_the_exact_worst_case(share, tmp_path):
    import stormpy

    policy = random_policy(SMALL, 1)
    (tmp_path / "adversary.prism").write_text(prism_program(policy, share))
    program = stormpy.parse_prism_program(str(tmp_path / "adversary.prism"))
    (asked,) = stormpy.parse_properties("Pmax=? [ F c=2 ]", program)
    model = stormpy.build_model(program, [asked])
    found = stormpy.model_checking(model, asked, environment=stormpy.environments.exact())
    domain = adversary_domain(policy, SMALL, Disturbance("draws", share))
    assert best_probability(domain, VIOLATED) == pytest.approx(found.get_value(model.initial_states[0]), abs=1e-9)


@pytest.mark.slow  # enumerates
def test_the_value_of_the_game_is_that_of_value_iteration_by_definition():
    value = game_value(SMALL, VIOLATED, 0.5)
    assert value == pytest.approx(worst_by_definition(0.5), abs=1e-9)
    assert value < best_probability(
        adversary_domain(random_policy(SMALL, 1), SMALL, Disturbance("draws", 0.5)), VIOLATED
    )


@pytest.mark.slow  # enumerates
@pytest.mark.parametrize("share", [0.2, pytest.param(1.0, marks=pytest.mark.more)])
def test_the_exact_worst_case_is_that_of_value_iteration_by_definition(share):
    policy = random_policy(SMALL, 1)
    domain = adversary_domain(policy, SMALL, Disturbance("draws", share))
    assert best_probability(domain, VIOLATED) == pytest.approx(worst_by_definition(share, policy), abs=1e-9)


@pytest.mark.more  # enumerates
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


@pytest.mark.slow  # compiles
def test_every_episode_of_a_mixture_is_one_of_a_single_adversary_and_the_newest_acts_in_half():
    """The share of the newest is off by more than 0.05 in 2,000 draws with probability below 1e-5; fixed seed."""
    size, policy = Disturbance("draws", 1.0), random_policy(SMALL, 2)
    where = adversary_domain(policy, SMALL, size)
    members = [attacked_domain(SMALL, size, random_policy(where, seed, table_for)) for seed in range(3)]
    mixture = MixtureDomain(tuple(members))
    states = jax.vmap(mixture.reset)(jax.random.split(jax.random.key(0), 2000))
    shares = np.bincount(np.asarray(states.member), minlength=3) / 2000
    assert shares == pytest.approx([0.25, 0.25, 0.5], abs=0.05)
    draw, action = jnp.int32(5), jnp.int32(1)  # the adversary chooses
    for i, member in itertools.product(range(2), range(3)):
        own = jax.tree.map(lambda x, i=i: x[i], states.own)
        after, reward, _ = mixture.step(draw, MixtureState(own, jnp.int32(member)), action)
        alone, alone_reward, _ = members[member].step(draw, own, action)
        assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), after.own, alone))
        assert reward == alone_reward
    assert mixture.parameters["adversary"]["policies"] == [each.fixed.digest for each in members]
