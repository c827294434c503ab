"""The tabular learner: what it counts, that it solves the model exactly, and what it learns."""

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

import psyco
from psyco import Discrete, RunError, Settings
from psyco._src.core.errors import DomainError
from psyco._src.learners.learner_registry import make_learner
from psyco._src.learners.loop import train
from psyco._src.learners.table import Table, TransitionModel
from psyco._src.logic.parser import parse
from psyco._src.policies.network import Network, table_for
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.rollout.sampler import make_sampler
from psyco._src.runs.budget import fit_model, select_learner
from psyco._src.runs.problem import prepare
from psyco._src.runs.train import learn

RETURN = "Rmax=? [ C ]"
EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclasses.dataclass(frozen=True)
class Bridge:
    """Three steps to a river; then a rotten bridge (return 1, one in three falls in) or a ford (return 0.5)."""

    horizon: int = 6
    name: ClassVar[str] = "bridge"
    actions: ClassVar[Discrete] = Discrete(2)
    observation_size: ClassVar[int] = 4 + 2
    one_hot: ClassVar[tuple[int, ...]] = (4, 2)  # the place, and whether it is the river

    def reset(self, key: Any) -> Any:
        return {"place": jnp.int32(0), "wet": jnp.array(False)}

    def step(self, key: Any, state: Any, action: Any) -> Any:
        there = state["place"] == 3
        forward = jnp.where(action == 1, state["place"] + 1, 0)  # the other action leads back to the start
        wet = there & (action == 1) & (jax.random.uniform(key) < 1 / 3)
        reward = jnp.where(there, jnp.where(action == 1, 1.0, 0.5), 0.0)
        return {"place": jnp.minimum(forward, 3), "wet": state["wet"] | wet}, reward, there

    def observe(self, state: Any) -> Any:
        there = (state["place"] == 3).astype(int)
        return jnp.concatenate([jnp.eye(4)[state["place"]], jnp.eye(2)[there]])

    def signals(self, state: Any) -> dict[str, Any]:
        return {"wet": state["wet"]}


def learner_for(domain: Any, requirement: str, episodes: int, **options: Any) -> Table:
    found: Any = make_learner(
        Table(**options), parse(requirement), network=table_for(domain), actions=domain.actions,
        horizon=domain.horizon, episode_budget=episodes,
    )  # fmt: skip
    return found


def lake() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Transitions `[S, A, S]` and expected rewards `[S, A]` of FrozenLake, as its environment states them."""
    known: Any = gymnasium.make("FrozenLake-v1").unwrapped
    to, reward = np.zeros((16, 4, 16)), np.zeros((16, 4))
    for state, by_action in known.P.items():
        for action, outcomes in by_action.items():
            for p, after, gain, terminated in outcomes:
                reward[state, action] += p * gain
                to[state, action, after] += p * (not terminated)
    return to, reward


def value(policy: NDArray[Any], to: NDArray[np.float64], reward: NDArray[np.float64], steps: int) -> float:
    """The return from state 0 of a policy `[S]`, by its definition."""
    found, rows = np.zeros(len(to)), np.arange(len(to))
    for _ in range(steps):
        found = reward[rows, policy] + to[rows, policy] @ found
    return float(found[0])


def test_every_step_is_counted_with_its_action_gain_cost_and_end() -> None:
    domain, requirement = psyco.make("Blackjack-v1", horizon=2), parse("P>=0.9 [ G reward >= 0 ] & C>=0.9")
    learner, network = learner_for(domain, str(requirement), 100, population=36, checks=4), table_for(domain)
    state = learner.init(jnp.zeros(network.size))
    theta = np.random.default_rng(0).normal(size=(40, network.size)).astype(np.float32)
    std = np.full((40, 2), 0.5, np.float32)
    sampler = make_sampler(domain, network, requirement)
    episodes = sampler.explore(theta, std, episode_keys(stream_key(0, Stream.TRAIN), 0, 40))
    trace: Any = episodes.trace
    model = jax.jit(learner._count)(state.model, theta, trace, None)
    transitions, gains, squares = np.zeros((704, 2, 705)), np.zeros((704, 2, 2)), np.zeros((704, 2, 2))
    for row, length in enumerate(episodes.length.tolist()):
        path = [*trace.obs[row, :length], trace.final_obs[row]]
        states = [np.ravel_multi_index([int(x[a:b].argmax()) for a, b in ((0, 32), (32, 43), (43, 45))], (32, 11, 2))
                  for x in path]  # fmt: skip
        for t in range(length):
            scores = network.numpy_scores(theta[row : row + 1])(path[t][None])[0]
            action = int(np.argmax(scores + trace.noise[row, t]))
            gain = np.array([trace.reward[row, t], trace.cost[row, t, 0]])
            transitions[states[t], action, 704 if t == length - 1 and trace.terminated[row] else states[t + 1]] += 1
            gains[states[t], action] += gain
            squares[states[t], action] += gain**2
    np.testing.assert_array_equal(model.transitions, transitions)
    np.testing.assert_array_equal(model.gains, gains)
    np.testing.assert_array_equal(model.squares, squares)
    assert model.starts.sum() == 40 and 0 < trace.terminated.sum() < 40 and gains[..., 1].sum() > 0


def test_the_known_model_is_solved_to_the_best_stationary_policy() -> None:
    """Time-dependent policies reach 0.7442 in 100 steps, and the discount 0.975 of other learners only 0.7298."""
    to, reward = lake()
    learner = learner_for(psyco.make("FrozenLake-v1"), RETURN, 1000)
    ends = np.concatenate([to, 1.0 - to.sum(axis=-1, keepdims=True)], axis=-1)
    model = TransitionModel(
        *map(jnp.asarray, (1e6 * ends, 1e6 * reward[..., None], 1e6 * reward[..., None], np.eye(16)[0]))
    )
    deployed, _, _ = jax.jit(learner._solve)(model, jnp.ones(1), jnp.zeros((16, 5)))
    best = np.zeros(16)
    for _ in range(100):
        best = (reward + to @ best).max(axis=1)
    found = value(np.asarray(deployed).argmax(axis=1), to, reward, 100)
    assert math.isclose(best[0], 0.74419, abs_tol=1e-5) and found > 0.74
    # All return and all cost are opposite goals of the same model.
    worst, _, _ = jax.jit(learner._solve)(model, -jnp.ones(1), jnp.zeros((16, 5)))
    assert value(np.asarray(worst).argmax(axis=1), to, reward, 100) < 1e-9


@pytest.mark.parametrize(
    ("requirement", "action"), [pytest.param(RETURN, 1, marks=pytest.mark.more), ("P>=0.9 [ G !wet ] & C>=0.9", 0)]
)
def test_the_constraint_decides_where_return_and_safety_disagree(requirement: str, action: int) -> None:
    domain = Bridge()
    learner = learner_for(domain, requirement, 1500, population=45, checks=5)
    sampler = make_sampler(domain, table_for(domain), parse(requirement))
    state, _ = train(
        learner, sampler, stream_key(0, Stream.TRAIN), learner.init(jnp.zeros(table_for(domain).size)),
        first=0, generations=30,
    )  # fmt: skip
    table = np.asarray(table_for(domain).unflatten(np.asarray(learner.deployed(state)))[0]).argmax(axis=1)
    assert table[[0, 2, 4]].tolist() == [1, 1, 1] and table[7] == action
    assert (float(state.lam[0]) < 0.7) if action == 0 else len(state.lam) == 0


@pytest.mark.more
def test_frozen_lake_is_learned_to_two_percent_of_the_optimum() -> None:
    result = psyco.synthesize("FrozenLake-v1", RETURN, episodes=2000, seed=0)
    policy = np.array([int(result.policy(state)) for state in range(16)])
    assert value(policy, *lake(), 100) >= 0.98 * 0.74419


def test_auto_is_the_table_where_observations_and_actions_are_few() -> None:
    def chosen(name: str, **settings: Any) -> tuple[str, str]:
        given: dict[str, Any] = {"horizon": 20} if name == "Blackjack-v1" else {}
        return select_learner(
            Settings(episodes=100, **settings), psyco.make(name, **given), lambda: pytest.fail("no need")
        )

    assert chosen("FrozenLake-v1") == ("table", "16 observations and 4 actions fit in a table")
    assert chosen("Blackjack-v1") == ("table", "704 observations and 2 actions fit in a table")
    assert chosen("FrozenLake-v1", hidden=(64, 64))[0] == "sac"
    assert chosen("CartPole-v1")[0] == "sac"
    problem = prepare(psyco.make("FrozenLake-v1"), parse(RETURN), Settings(episodes=100))
    assert problem.network == Network(16, 4, (), "learned", one_hot=(16,)) and problem.normalization == "none"
    assert problem.settings.hidden is None and problem.settings.options["optimism"] == 1.0


def test_what_a_table_cannot_do_is_refused() -> None:
    domain, requirement = psyco.make("FrozenLake-v1"), parse(RETURN)
    with pytest.raises(RunError, match="table starts from no policy, and has no hidden layers"):
        prepare(domain, requirement, Settings(learner="table", hidden=8))
    with pytest.raises(DomainError, match="CartPole-v1 has other ones"):
        prepare(psyco.make("CartPole-v1"), requirement, Settings(learner="table"))
    with pytest.raises(RunError, match=r"between 9,000 states by 2 actions.*more than its limit"):
        Table(task=dataclasses.replace(
            learner_for(domain, RETURN, 10).known_task, network=Network(9000, 2, (), "learned", one_hot=(9000,))
        ))  # fmt: skip
    with pytest.raises(RunError, match=r"from table_for\(domain\)"):
        make_learner("table", requirement, network=Network(4, 2), actions=Discrete(2), horizon=5)


@pytest.mark.extra("stormpy")
def test_on_a_model_the_cost_of_the_horizon_is_shared_by_all_steps() -> None:
    requirement = parse('P>=0.9 [ F "delivered" ]')
    domain: Any = psyco.make(str(EXAMPLES / "courier.prism"), N=6, horizon=2, reward="none", observe="index")
    network = table_for(domain)
    learner: Any = make_learner(
        Table(population=36, checks=4), requirement, network=network, actions=domain.actions, horizon=2,
        episode_budget=100, transitions=domain.known_transitions,
    )  # fmt: skip
    theta = np.zeros((40, network.size), np.float32)
    std = np.full((40, domain.actions.n), 0.5, np.float32)
    sampler = make_sampler(domain, network, requirement)
    trace: Any = sampler.explore(theta, std, episode_keys(stream_key(0, Stream.TRAIN), 0, 40)).trace
    counted = learner._count(learner.init(theta[0]).model, theta, trace, None).gains[..., 1]
    cut = np.asarray(trace.alive).sum(axis=1)[trace.terminated == 0]
    assert 0 < len(cut) < 40 and (cut == 2).all() and (trace.cost.sum(axis=(1, 2)) == 1).all()
    first = trace.alive[:, 1] == 0  # wet after the first step
    assert counted[domain.initial_state].sum() == first.sum() + 0.5 * len(cut)
    assert counted.sum() == 40


@pytest.mark.extra("stormpy")
@pytest.mark.more
def test_on_a_model_a_table_finds_the_optimum_and_only_what_is_offered() -> None:
    """The safest way of the courier is the road: delivered with probability 1; the bridge alone has 0.9 ** 3."""
    requirement = parse('P>=0.999 [ F "delivered" ]')
    settings = psyco.Settings(episodes=800, verify_every=0)
    made = psyco.make(str(EXAMPLES / "courier.prism"), N=6, horizon=12, reward="none")
    problem = prepare(fit_model(made, requirement, settings), requirement, settings)
    assert problem.settings.learner == "table"
    policy = problem.policy(problem.wrapped_learner.deployed(learn(problem).state))
    assert psyco.exact(policy, problem.domain, requirement).value.probabilities == pytest.approx((1.0,))
    numbers = np.arange(13, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(policy(numbers), [policy(int(number)) for number in numbers[:, 0]])


@pytest.mark.extra("stormpy")
def test_rewards_and_costs_of_a_model_are_known_where_an_episode_ends_once_a_formula_is_decided() -> None:
    """The bridge floods with 0.1; from the street before the last one it leads to the end with 0.9."""

    def gains(text: str, **parameters: Any) -> NDArray[np.float32]:
        made: Any = psyco.make(str(EXAMPLES / "courier.prism"), N=6, horizon=12, observe="index", **parameters)
        known = made.known_model(parse(text))
        assert known.gains.shape == (len(known.successor), 2)
        last = int(np.flatnonzero((made.tables.variables["at"] == 5) & ~made.tables.variables["wet"])[0])
        first = made.initial_state
        return known.gains[known.choice[[first, first, last], [0, 1, 0]]]

    reached = [[1, 0], [1, 0], [1, -0.9]]
    avoided = [[1, 0.1], [1, 0], [1, 0.1]]
    np.testing.assert_allclose(gains('P>=0.9 [ F "delivered" ]'), reached, rtol=1e-6)
    np.testing.assert_allclose(gains('P>=0.9 [ F<=12 "delivered" ]'), reached, rtol=1e-6)
    np.testing.assert_allclose(gains('P<=0.1 [ G !"delivered" ]'), reached, rtol=1e-6)
    np.testing.assert_allclose(gains("P>=0.9 [ G !wet ]"), avoided, rtol=1e-6)
    np.testing.assert_allclose(gains("P<=0.1 [ F wet ]"), avoided, rtol=1e-6)
    np.testing.assert_allclose(gains("P<=0.1 [ F at>=2 ]", until="at>=2")[:2, 1], [0.9, 0], rtol=1e-6)
    # An episode goes on after two streets, or ends before it is over for the bound; a mean is counted, too.
    for text in ("P<=0.1 [ F at>=2 ]", 'P>=0.9 [ F<=3 "delivered" ]', "R{time}<=3 [ C ]", "P>=0.9 [ F step>=2 ]"):
        found = gains(text)
        assert (found[:, 0] == 1).all() and np.isnan(found[:, 1]).all()


@pytest.mark.extra("stormpy")
@pytest.mark.more
def test_on_a_model_a_goal_that_is_never_seen_is_reached_as_likely_as_possible(tmp_path: Path) -> None:
    """One in a million and two in a million differ, and 200 episodes see neither: with a probability above 0.999."""
    branches = "{p} : (s'=1) + {rest} : (s'=2);"
    commands = [f"[] s=0 -> {branches.format(p=p, rest=1 - p)}" for p in (1e-6, 2e-6, 1e-6)]
    file = tmp_path / "rare.prism"
    file.write_text(f"mdp\nmodule m\n  s : [0..2] init 0;\n  {'  '.join(commands)}\n  [] s>0 -> true;\nendmodule\n")
    requirement, settings = parse("P>=0.9 [ F s=1 ]"), psyco.Settings(episodes=200, verify_every=0)
    made = psyco.make(str(file), horizon=3)
    problem = prepare(fit_model(made, requirement, settings), requirement, settings)
    policy = problem.policy(problem.wrapped_learner.deployed(learn(problem).state))
    assert psyco.exact(policy, problem.domain, requirement).value.probabilities == pytest.approx((2e-6,))
