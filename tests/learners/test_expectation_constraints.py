"""Learning under bounds on expected values, on problems small enough to know the answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import psyco
from psyco._src.core.errors import RequirementError
from psyco._src.learners import belief as beliefs
from psyco._src.learners.base import LearningTask
from psyco._src.learners.belief import double_precision
from psyco._src.learners.expectation_constraints import (
    ExpectationBound,
    add_recent,
    empty_recent,
    excess,
    expectation_bounds,
    learning_costs,
    learning_step_costs,
)
from psyco._src.learners.lagrangian import LambdaController
from psyco._src.learners.learner_registry import make_learner
from psyco._src.learners.loop import train
from psyco._src.learners.ppo import PPO
from psyco._src.learners.safe_es import SafeES
from psyco._src.learners.snes import SNES
from psyco._src.logic.parser import parse
from psyco._src.policies.network import network_for
from psyco._src.rollout.episodes import Episodes
from psyco._src.rollout.execution import Execution
from psyco._src.rollout.sampler import make_sampler
from psyco._src.runs.checkpoint import CheckpointInfo, load_checkpoint, save_checkpoint
from psyco._src.verification.base import MeanTask, WeightedSums
from psyco._src.verification.bayes import mean_belief
from tests.learners.bind import bind
from tests.making import learned, prepared

DANCE = psyco.make("particle-dance", horizon=10)
UP_TO_5 = ExpectationBound(column=0, bound=5.0, at_least=False, rate=False, width=20.0, room=0.25, confidence=0.9)


def measured(*values, length=10) -> Episodes:
    """Episodes without formulas, with a value each."""
    count = len(values)
    return Episodes(
        jnp.zeros(count, jnp.float32), jnp.zeros((count, 0), jnp.float32), jnp.zeros((count, 0), bool),
        jnp.full(count, length, jnp.int32), value=jnp.asarray(values, jnp.float32).reshape(count, -1),
    )  # fmt: skip


# ---- bounds ---------------------------------------------------------------------------------------------------------


def sides(text: str) -> list[tuple]:
    found = expectation_bounds(parse(text), DANCE)
    return [(m.column, m.bound, m.at_least, m.rate, round(m.width, 9), round(m.room, 9)) for m in found]


def test_each_bound_that_can_fail_is_a_constraint_and_questions_are_none():
    near = "distance < 0.1"
    assert sides(f"R{{{near}}}<=1 [ C ]; R{{{near}}}=? [ C ]") == [(0, 1.0, False, False, 10.0, 0.1)]
    assert sides(f"R{{{near}}} in [2,5] [ C<=8 ]; R{{{near}}}>=0.5 [ I=3 ]") == [
        (0, 2.0, True, False, 8.0, 0.75),
        (0, 5.0, False, False, 8.0, 0.625),
        (1, 0.5, True, False, 1.0, 0.5),
    ]
    # Of a rate r, (x - r) is added up over at most 10 steps. P>=0.5 is none of a mean; S<=0.2 has no lower bound.
    assert sides(f"P>=0.5 [ F {near} ]; S<=0.2 [ {near} ]") == [(0, 0.2, False, True, 10.0, 0.2)]
    assert sides(f"R{{{near}}}<=10 [ C ]") == []
    # Of a CVaR, as of a mean; but for the best case, (1 - s) of the episodes do not matter.
    assert sides(f"CVaR{{{near}}}(0.75)<=1 [ C ]; CVaR{{{near}}}(0.9)>=5 [ C ]") == [
        (0, 1.0, False, False, 10.0, 0.025),
        (1, 5.0, True, False, 10.0, 0.05),
    ]
    assert sides(f"CVaR{{{near}}}(0.9)<=10 [ C ]") == []
    with pytest.raises(RequirementError, match="no range is known of 1 / distance"):
        expectation_bounds(parse("R{1 / distance}<=3 [ C ]"), DANCE)


def test_an_excess_is_the_distance_beyond_the_bound_relative_to_the_range():
    at_least, rate = UP_TO_5._replace(column=1, at_least=True), UP_TO_5._replace(bound=0.2, rate=True)
    found = excess((UP_TO_5, at_least, rate), measured([7.0, 4.0], [1.0, 6.0], length=10))
    np.testing.assert_allclose(found, [[0.1, 0.05, 0.25], [-0.2, -0.05, -0.05]], atol=1e-7)


def test_the_excess_of_a_cvar_has_the_sign_of_the_tail_mean_beyond_the_bound():
    """Its mean over the recent episodes is s (CVaR - bound) / width, by the definition of CVaR."""
    worst = UP_TO_5._replace(rest=0.25)
    values = np.arange(40.0) / 2
    recent = add_recent((worst,), measured(*values), empty_recent((worst,)))
    assert recent.shape == (40, 1)
    found = excess((worst,), measured(*values), recent)
    assert float(found.mean()) == pytest.approx(0.25 * (values[-10:].mean() - 5.0) / 20.0, abs=1e-6)
    smallest = worst._replace(at_least=True)
    recent = add_recent((smallest,), measured(*values), empty_recent((smallest,)))
    found = excess((smallest,), measured(*values), recent)
    assert float(found.mean()) == pytest.approx(0.25 * (5.0 - values[:10].mean()) / 20.0, abs=1e-6)
    assert empty_recent((UP_TO_5,)) is None


def test_costs_of_a_cvar_differ_also_where_exploration_avoids_what_the_policy_does():
    worst = UP_TO_5._replace(rest=0.1)
    recent = add_recent((worst,), measured(*[18.0] * 100), empty_recent((worst,)))
    explored = measured(*np.arange(10.0))
    assert len(set(np.asarray(excess((worst,), explored, recent))[:, 0])) == 1
    found = np.asarray(learning_costs((worst,), explored, recent))[:, 0]
    assert found[-1] > found[-2] > found[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("particle-dance", marks=pytest.mark.more), "CartPole-v1"])
def test_steps_add_up_to_the_excess_of_their_episode(name):
    """But for bounds of whole episodes. CartPole's end early."""
    domain = psyco.make(name, horizon=30)
    x = "distance < 0.4" if name == "particle-dance" else "obs[2] < 0"
    requirement = parse(f"P>=0.9 [ G !({x}) ]; R{{{x}}}<=2 [ C ]; S>=0.3 [ {x} ]; R{{{x}}}<=1 [ I=25 ]; P=? [ F {x} ]")
    network = network_for(domain)
    sampler = make_sampler(domain, network, requirement)
    theta = jax.vmap(network.init)(jax.random.split(jax.random.key(1), 6))
    episodes = sampler.explore(theta, jnp.zeros((6, network.outputs)), jax.random.split(jax.random.key(2), 6))
    means = expectation_bounds(requirement, domain)
    assert [mean.rate for mean in means] == [False, True]  # what is true at one moment is at most 1
    bounds = np.array([0.0 if mean.rate else mean.bound / mean.width for mean in means])
    by_step = np.asarray(learning_step_costs(means, episodes.trace)).sum(axis=1)
    # A violation in the last state counts once in a trace, and in every repetition of this state in an episode's cost.
    at_end = np.take_along_axis(np.asarray(episodes.trace.cost)[..., 0], np.asarray(episodes.length)[:, None] - 1, 1)
    repeated = (30 - np.asarray(episodes.length)) * at_end[:, 0]
    np.testing.assert_allclose(by_step[:, 0] + repeated, episodes.cost[:, 0], rtol=1e-6)
    np.testing.assert_allclose(by_step[:, 1:] - bounds, excess(means, episodes), atol=1e-6)
    np.testing.assert_allclose(np.asarray(episodes.trace.value).sum(axis=1), episodes.value, atol=1e-6)
    worst = means[0]._replace(rest=0.3)  # and of a CVaR but for c and the start, two other constants
    recent = add_recent((worst,), episodes, empty_recent((worst,)))
    by_step = np.asarray(learning_step_costs((worst,), episodes.trace, recent))[..., 1].sum(axis=1)
    of_episodes = np.asarray(learning_costs((worst,), episodes, recent))[:, 1]
    np.testing.assert_allclose(by_step - by_step[0], of_episodes - of_episodes[0], atol=1e-6)


# ---- belief ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 20, 2000, 60_000])
def test_the_belief_about_a_mean_is_that_of_verification(count):
    values = np.random.default_rng(count).poisson(5.0, count).clip(0, 20).astype(float)
    task = MeanTask(0.0, 20.0, upper=5.0, false_accept=0.1, false_reject=0.1)
    expected = mean_belief(task, WeightedSums(*(sums[-1] for sums in task.cumulative_sums(WeightedSums(), values))))
    seen = excess((UP_TO_5,), measured(*values))
    with double_precision():
        belief = beliefs.observe(beliefs.prior(0, 1), np.zeros((count, 0), bool), seen)
        found = jax.jit(beliefs.confidence)(belief, np.zeros(0))
    assert float(found[0]) == pytest.approx(float(expected), abs=2e-4)  # float32 sums


def test_the_shortfall_of_a_mean_is_its_expected_distance_beyond_the_bound():
    seen = np.random.default_rng(0).normal(0.05, 0.2, (30, 1)).astype(np.float32)
    with double_precision():
        belief = beliefs.observe(beliefs.prior(0, 1), np.zeros((30, 0), bool), jnp.asarray(seen))
        found = float(beliefs.shortfall(belief, np.zeros(0), jnp.array([0.02]))[0])
    scale = np.sqrt((0.25 + 30 * seen.var(dtype=float)) / 30 / 30)
    posterior = stats.t(30, seen.mean(dtype=float), scale)
    expected, _ = integrate.quad(lambda m: (m - 0.02) * posterior.pdf(m), 0.02, 2.0)
    assert found == pytest.approx(expected / (2 * np.sqrt(np.mean(seen.astype(float) ** 2))), rel=1e-4)


# ---- λ --------------------------------------------------------------------------------------------------------------


def lambdas(rule: LambdaController, batches) -> list[float]:
    """λ after each batch of values."""
    belief, lam = rule.init()
    seen = []
    for generation, values in enumerate(batches):
        with double_precision():
            belief, _, lam = rule.update(belief, lam, jnp.int32(generation), measured(*values))
        seen.append(float(lam[0]))
    return seen


def rule(mean: ExpectationBound = UP_TO_5, **options) -> LambdaController:
    defaults = {"margin": 0.4, "curriculum": 0.0, "gain": 0.1, "belief_window": 4.0}
    return LambdaController(LearningTask(c_req=(0.9,), expectations=(mean,)), 10, **(defaults | options))


BATCHES = [(9.0, 4.0), (12.0, 8.0), (8.0, 7.0), (3.0, 4.0), (0.0, 5.0), (2.0, 2.0), (14.0, 14.0)]


@pytest.mark.parametrize("curriculum", [0.0, 0.6])
def test_lambda_is_the_integral_of_the_distance_to_the_target(curriculum):
    """By the definition, in the unit of the value."""
    lam, count, squares, expected = 1.0, 0.0, 0.0, []
    for generation, values in enumerate(BATCHES):
        over = np.array(values) - 5.0
        count, squares = 0.75 * count + 2, 0.75 * squares + (over**2).sum()
        size, part = np.sqrt(squares / count), min(1.0, generation / 6) if curriculum else 1.0
        allowed = (1 - part) * size - part * 0.4 * min(5.0, size)
        lam = min(1.0, max(0.0, lam + 0.1 * (allowed - over.mean()) / (2 * size)))
        expected.append(lam)
    assert lambdas(rule(curriculum=curriculum), BATCHES) == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) >= 4


def test_lambda_knows_no_units_and_no_sides():
    milli = UP_TO_5._replace(bound=0.005, width=0.02)
    below = UP_TO_5._replace(bound=-5.0, at_least=True)
    once = lambdas(rule(), BATCHES)
    assert lambdas(rule(milli), np.array(BATCHES) / 1000) == pytest.approx(once, abs=1e-5)
    assert lambdas(rule(below), -np.array(BATCHES)) == once


@pytest.mark.parametrize("curriculum", [0.5, 0.9])
def test_the_curriculum_starts_without_a_constraint(curriculum):
    assert lambdas(rule(curriculum=curriculum), [(20.0, 20.0)]) == [1.0]


def test_a_value_at_its_bound_that_never_changes_moves_nothing():
    assert lambdas(rule(margin=0.0), [(5.0, 5.0)] * 3) == [1.0] * 3


class Line:
    """A sampler without a domain: the return r lies in (-1, 1), and the mean of the value is 10 ((1 + r) / 2)^2."""

    compiled = True

    def __call__(self, theta, keys):
        ret = jax.nn.soft_sign(theta.mean(axis=1))
        far = jax.vmap(jax.random.uniform)(keys) - (1.0 - ret) / 2.0
        value = 20.0 * jnp.maximum(far, 0.0)[:, None]
        none = jnp.zeros((len(keys), 0))
        return Episodes(ret, none, none.astype(bool), jnp.ones(len(keys), jnp.int32), value=value)


def test_return_is_maximised_as_far_as_the_expectation_lets_it():
    """The target is 0.5 - 0.2 * 0.5, so the best return is 2 sqrt(0.04) - 1 = -0.6; the search starts at -0.33.

    Over seeds the mean of the last quarter stays within 0.025 of it.
    """
    bound = ExpectationBound(column=0, bound=0.5, at_least=False, rate=False, width=20.0, room=0.025, confidence=0.9)
    learner = make_learner(
        SafeES(population=40, checks=40, margin=0.2, curriculum=0.0, gain=0.03),
        parse("Rmax=? [ C ]"),
        expectations=[bound],
        episode_budget=80_000,
    )
    start = learner.init(jnp.full(5, -0.5))
    _, rows = train(learner, Line(), jax.random.key(3), start, first=0, generations=learner.generations)
    late = np.asarray(rows.episodes.returns).mean(axis=1)[-learner.generations // 4 :]
    assert late.mean() == pytest.approx(-0.6, abs=0.05)
    assert rows.info.c_sat[-1, 0] > 0.9


class Gamble:
    """A sampler without a domain: the return r lies in (-1, 1); one episode in ten has a value, 5 (1 + r)."""

    compiled = True

    def __call__(self, theta, keys):
        ret = jax.nn.soft_sign(theta.mean(axis=1))
        value = jnp.where(jax.vmap(jax.random.uniform)(keys) < 0.1, 5.0 * (1.0 + ret), 0.0)[:, None]
        none = jnp.zeros((len(keys), 0))
        return Episodes(ret, none, none.astype(bool), jnp.ones(len(keys), jnp.int32), value=value)


@pytest.mark.parametrize("rest", [0.1, 1.0])
def test_a_cvar_is_met_where_the_same_bound_on_the_mean_allows_everything(rest):
    """The mean of the worst tenth, 5 (1 + r), is at most 4 for r <= -0.2; the mean of all is at most 1 for every r.

    Over seeds the mean of the last quarter lies between -0.44 and -0.37, and at 0.9 for the mean.
    """
    bound = ExpectationBound(
        column=0, bound=4.0, at_least=False, rate=False, width=10.0, room=0.4 * rest, confidence=0.9, rest=rest
    )
    options = SafeES(population=20, checks=2, margin=0.3, curriculum=0.0, gain=0.03)
    learner = make_learner(options, parse("Rmax=? [ C ]"), expectations=[bound], episode_budget=40_000)
    start = learner.init(jnp.full(5, -0.5))
    _, rows = train(learner, Gamble(), jax.random.key(3), start, first=0, generations=learner.generations)
    late = np.asarray(rows.episodes.returns).mean(axis=1)[-learner.generations // 4 :].mean()
    if rest == 1.0:
        assert late > 0.5
    else:
        assert -0.6 < late < -0.2


# ---- snes -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calibration", "values", "lam"),
    [
        ("naive", (0.0, 4.0), 0.6),  # the mean 2 leaves 3 of the 5 below the bound
        ("naive", (0.0, 20.0), 0.0),
        ("hard", (0.0,) * 40, 1.0),
        ("hard", (20.0,) * 40, 0.0),
        ("soft", (20.0,) * 40, 0.0),
    ],
)
def test_the_papers_rules_apply_to_the_position_of_a_mean_and_to_the_belief_in_it(calibration, values, lam):
    learner = bind(SNES, c_req=(0.9,), expectations=(UP_TO_5,), population=len(values), calibration=calibration)
    state = learner.init(jnp.zeros(3))
    with double_precision():
        proposal = learner.propose(jax.random.key(0), state)
        state, row = learner.update(state, proposal, measured(*values))
    assert float(row.lam) == pytest.approx(lam, abs=1e-6)
    assert float(state.belief.excess.episodes[0]) == len(values)


# ---- whole runs -----------------------------------------------------------------------------------------------------

MIXED = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.9; R{distance < 0.1}<=0.3 [ C ] & C>=0.9"


def small(requirement: str, **settings):
    settings = {"episodes": 660, "verify_every": 220, "candidates": 2, "hidden": 4, "seed": 2} | settings
    return prepared(DANCE, requirement, **settings)


@pytest.mark.full
def test_an_expected_count_a_share_of_time_and_a_sum_are_learned_alike_and_questions_change_nothing():
    """Episodes of Particle Dance all have the same length."""
    texts = [
        "R{distance < 0.5}<=2.5 [ C ] & C>=0.9",
        "S<=0.25 [ distance < 0.5 ] & C>=0.9",
        "R{distance < 0.5}<=2.5 [ C ] & C>=0.9; P=? [ F (distance < 0.1) ]; R{distance < 0.2}=? [ C ]",
    ]
    runs = [learned(small(text, curriculum=0.0)) for text in texts]
    assert runs[0].metrics["lambda"].min() < 0.9
    for at, metrics, _ in runs[1:]:
        assert at.state.theta.tobytes() == runs[0].at.state.theta.tobytes()
        assert metrics["lambda"].tobytes() == runs[0].metrics["lambda"].tobytes()


@pytest.mark.more
@pytest.mark.parametrize(
    "learner", ["safe-es", "ppo", "snes", pytest.param("evosax", marks=pytest.mark.extra("evosax"))]
)
def test_a_mixed_run_goes_on_from_its_checkpoint_byte_for_byte(learner, tmp_path):
    options = {"critic_hidden": 4, "population": 20} if learner == "ppo" else {}
    problem = small(f"{MIXED}; CVaR{{distance < 0.1}}(0.9)<=2 [ C ]", learner=learner, **options)
    whole = learned(problem)
    about = CheckpointInfo(1, "identity", "config", 0, 0, "digest")
    (tmp_path / "checkpoints").mkdir()
    save_checkpoint(tmp_path, about, whole.reached[0])
    (file,) = (tmp_path / "checkpoints").iterdir()
    rest = learned(problem, start=load_checkpoint(file).restore(whole.reached[0]))
    ends = [jax.tree.leaves(each.at.state) for each in (whole, rest)]
    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(*ends, strict=True))
    columns = {"satisfied[0]", "cost[0]", *(f"c_sat[{k}]" for k in range(3)), "value[0]", "value[1]"}
    assert {name for name in whole.metrics if name.endswith("]")} == columns


@pytest.mark.more
def test_where_episodes_are_made_changes_nothing():
    domain = psyco.make("CartPole-v1", horizon=20)
    network = network_for(domain, hidden=4)
    requirement = parse("S<=0.3 [ obs[2] < 0 ] & C>=0.9; R{abs(obs[0])}<=0.2 [ C ] within [0,50]")
    for options in (SafeES(population=10), PPO(population=10, critic_hidden=4)):
        ends = []
        for workers in (1, 2):
            sampler = make_sampler(domain, network, requirement, execution=Execution(workers=workers))
            learner = make_learner(
                options,
                requirement,
                expectations=expectation_bounds(requirement, domain),
                network=network,
                actions=domain.actions,
                horizon=domain.horizon,
                episode_budget=44,
            )
            start = learner.init(network.init(jax.random.key(0)))
            state, _ = train(learner, sampler, jax.random.key(1), start, first=0, generations=3)
            ends.append(np.asarray(learner.deployed(state)).tobytes())
        assert ends[0] == ends[1]
