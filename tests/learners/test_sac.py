"""SAC: its parts by their definitions, and the whole on problems small enough to know the answer."""

import math
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from scipy import stats

import psyco
from psyco._src.core.errors import EpisodeError, RunError
from psyco._src.envs.actions import Continuous, Discrete, MultiBinary, MultiDiscrete
from psyco._src.learners.distributions import action_of, entropy, max_entropy, probabilities
from psyco._src.learners.learner_registry import make_learner
from psyco._src.learners.loop import run_generations, train
from psyco._src.learners.replay_buffer import StateRows, Transitions
from psyco._src.learners.running_stats import empty_stats
from psyco._src.learners.sac import SAC, ActorParameters, SACState, _scores
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Episodes, episode_keys
from psyco._src.runs.problem import Problem
from psyco._src.runs.train import initial_state
from tests import making
from tests.environments import Walk
from tests.learners.bind import bind
from tests.learners.test_ppo import Hill
from tests.making import flat, prepared

pytestmark = pytest.mark.slow  # compiles and trains networks

BOX = Continuous((-1.0, -1.0), (1.0, 1.0))
ONE: dict[str, Any] = {
    "p_req": (0.85,), "c_req": (0.98,), "network": Network(3, 2, 8, "learned"), "actions": BOX, "horizon": 10,
}  # fmt: skip
SMALL = {
    "learner": "sac",
    "hidden": 8,
    "critic_hidden": 16,
    "batch_size": 32,
    "verify_every": 15,
    "episodes": 150,
}
MOST = "Rmax=? [ C ];"


class Echo(gymnasium.Env[Any, Any]):
    """An environment of 8 steps that shows the last action, and which of two actions is rewarded next."""

    observation_space: Any = spaces.Box(-10.0, 10.0, (3,))

    def __init__(self, several: bool = False, fails: int = 0) -> None:
        self.action_space: Any = spaces.MultiDiscrete([3, 2]) if several else spaces.Discrete(3)
        self.fails, self.episodes = fails, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episodes += 1
        self.wanted = int(self.np_random.integers(2))
        return np.array([0.0, 0.0, self.wanted], np.float32), {}

    def step(self, action: Any) -> Any:
        if self.episodes == self.fails:
            raise ValueError("no more")
        pair = np.atleast_1d(action)
        reward = float(pair[0] == self.wanted)
        self.wanted = int(self.np_random.integers(2))
        shown = np.array([pair[0], pair[1] if len(pair) > 1 else 0, self.wanted], np.float32)
        return shown, reward, False, False, {}


def explored(problem: Problem, state: Any) -> tuple[Any, Episodes]:
    proposal = problem.learner.propose(jax.random.key(3), state)
    keys = episode_keys(jax.random.key(4), 0, problem.learner.episodes_per_generation)
    return proposal, problem.sampler.explore(proposal.theta, proposal.std, keys, proposal.hold)


def buffer_rows(problem: Problem) -> tuple[Episodes, StateRows, Any]:
    """Return episodes, the rows of their states `[B, n + 1, ...]`, and which of these are kept."""
    learner: Any = problem.learner
    proposal, episodes = explored(problem, initial_state(problem).state.inner)
    rows, inside = jax.device_get(jax.jit(learner._rows)(proposal.theta[0], episodes.trace))
    shape = len(episodes.returns), problem.domain.horizon + 1
    return episodes, *jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), (rows, inside))


@pytest.mark.parametrize("several", [False, True])
def test_rows_have_the_actions_that_were_taken(several: bool) -> None:
    """The environment shows them in the state that follows."""
    goal = "Rmin=? [ C ];" if several else MOST
    problem = prepared(psyco.make(lambda: Echo(several), horizon=8), goal, **SMALL)
    episodes, rows, inside = buffer_rows(problem)
    assert inside.all()
    gained = rows.reward.sum(axis=1)
    np.testing.assert_array_equal(gained, -episodes.returns if several else episodes.returns)
    assert gained.any()
    np.testing.assert_array_equal(rows.action[:, :-1, :3].argmax(axis=-1), rows.obs[:, 1:, 0])
    assert len(np.unique(rows.obs[..., 0])) == 3
    if several:
        np.testing.assert_array_equal(rows.action[:, :-1, 3:].argmax(axis=-1), rows.obs[:, 1:, 1])
    np.testing.assert_array_equal(rows.action[:, :-1].sum(axis=-1), 2 if several else 1)
    assert not rows.action[:, -1].any()
    count = len(episodes.returns)
    np.testing.assert_array_equal(rows.taken, [[1.0] * 8 + [0.0]] * count)
    np.testing.assert_array_equal(rows.not_ended, [[1.0] * 7 + [0.0] * 2] * count)
    assert rows.not_terminated.all()  # all episodes ended by the time limit


def test_ends_counters_and_values_to_go() -> None:
    problem = prepared(psyco.make(Walk, horizon=30), "P>=0.5 [ G count(obs[0] > 1) <= 3 ] & C>=0.9", population=30,
                       **SMALL)  # fmt: skip
    episodes, rows, inside = buffer_rows(problem)
    trace: Any = episodes.trace
    assert trace.terminated.sum() > len(episodes.returns) / 2
    for row, length in enumerate(episodes.length):
        assert inside[row].sum() == length + 1
        np.testing.assert_array_equal(rows.obs[row, length], trace.final_obs[row])
        np.testing.assert_array_equal(
            rows.not_terminated[row, :length], [1.0] * (length - 1) + [1.0 - trace.terminated[row]]
        )
        np.testing.assert_allclose(rows.context[row, :, 1], np.arange(31) / 30, rtol=1e-6)
    np.testing.assert_array_equal(rows.context[..., 0], trace.counters[..., 0])

    learner: Any = problem.learner
    found = np.asarray(jax.jit(learner._to_go)(trace))
    powers = learner.discount ** np.arange(30)
    for t in (0, 7, 29):
        np.testing.assert_allclose(found[:, t, 0], trace.reward[:, t:] @ powers[: 30 - t], rtol=1e-4)
        np.testing.assert_allclose(found[:, t, 1], rows.cost[:, t:-1, 0] @ powers[: 30 - t], rtol=1e-4, atol=1e-6)


def test_the_target_is_its_definition() -> None:
    """Critics whose weights are 0 predict their last bias for every input."""
    learner = bind(SAC, **ONE, discount=0.9, counters=1)
    state = learner.init(jnp.zeros(learner.network.size))
    said = jnp.array([2.0, 1.5, 0.7])
    targets = jax.tree.map(jnp.zeros_like, state.learned.targets) | {"b3": said[:, None]}
    actor = ActorParameters(state.learned.actor.theta, jnp.log(jnp.array([0.5, 2.0])))
    learned = state.learned._replace(targets=targets, actor=actor, temperature=jnp.log(jnp.float32(0.3)))
    nothing = jnp.zeros(4)
    rows = StateRows(
        obs=jnp.zeros((4, 3)), context=jnp.zeros((4, 2)), action=jnp.zeros((4, 2)),
        reward=jnp.array([1.0, 2.0, 3.0, 4.0]), cost=jnp.array([[0.0], [1.0], [2.0], [3.0]]), taken=nothing + 1,
        not_ended=jnp.array([1.0, 1.0, 0.0, 0.0]), not_terminated=jnp.array([1.0, 1.0, 1.0, 0.0]),
    )  # fmt: skip
    key, size = jax.random.key(5), jnp.array([2.0, 4.0])
    target = jax.jit(learner._target)(
        key, learned, Transitions(rows, jnp.zeros((4, 3)), jnp.zeros((4, 2))), jnp.zeros((4, 3)), size
    )
    # The policy's scores are 0: an action is tanh of the noise, whose density changes as tanh does.
    noise = np.asarray(jax.random.normal(key, (4, 2)))
    tried = noise * [0.5, 2.0]
    chance = (stats.norm.logpdf(tried, scale=[0.5, 2.0]) - np.log(1 - np.tanh(tried) ** 2)).sum(axis=1)
    ahead = np.array([1, 1, 1, 0]) * (1.5 - 0.3 * chance)
    np.testing.assert_allclose(target[0], np.array([1, 2, 3, 4]) / 2 + 0.9 * ahead, rtol=1e-4)
    np.testing.assert_array_equal(target[0], target[1])
    np.testing.assert_allclose(target[2], np.array([0, 1, 2, 3]) / 4 + 0.9 * np.array([1, 1, 0, 0]) * 0.7, rtol=1e-5)


@pytest.mark.parametrize("actions", [Discrete(4), MultiDiscrete((3, 2)), MultiBinary(3)])
def test_actions_follow_their_probabilities(actions: Any) -> None:
    """Gumbel's noise on scores chooses by softmax; fails by chance with probability below 1e-6."""
    scores = jnp.asarray(np.random.default_rng(0).normal(size=actions.outputs), jnp.float32)
    noise = jax.random.gumbel(jax.random.key(0), (20_000, actions.outputs))
    if isinstance(actions, MultiBinary):
        noise -= jax.random.gumbel(jax.random.key(1), noise.shape)
    picked = np.asarray(action_of(actions, scores + noise))
    assert set(np.unique(picked)) == {0.0, 1.0}
    np.testing.assert_allclose(picked.mean(axis=0), probabilities(actions, scores), atol=5 * 0.5 / math.sqrt(20_000))
    counts = np.unique(picked, axis=0, return_counts=True)[1]
    assert float(entropy(actions, scores)) == pytest.approx(stats.entropy(counts), abs=0.02)
    assert float(entropy(actions, 0 * scores)) == pytest.approx(max_entropy(actions), rel=1e-6)


def hill(requirement: str, *, episodes: int, **options: Any) -> tuple[Problem, SACState, Any]:
    problem = prepared(Hill(), requirement, episodes=episodes, learner="sac", hidden=8, critic_hidden=16, batch_size=64,
                       updates_per_step=1.0, population=8, **options)  # fmt: skip
    start = initial_state(problem).state.inner
    return problem, *train(
        problem.learner, problem.sampler, jax.random.key(0), start, first=0, generations=problem.generations
    )


def deployed(problem: Problem, state: Any, count: int = 100) -> Episodes:
    theta = problem.learner.deployed(state)
    return problem.sampler(jnp.broadcast_to(theta, (count, theta.size)), jax.random.split(jax.random.key(9), count))


@pytest.mark.full
def test_it_stays_within_the_requirement_and_takes_what_that_leaves() -> None:
    """At most 0.3 in each of 10 steps is a return of at most 3; without the requirement it comes near 10."""
    problem, state, rows = hill("P>=0.9 [ G height <= 0.3 ] & C>=0.9", episodes=900, checks=4)
    found = deployed(problem, state)
    assert float(rows.episodes.returns.mean(axis=1).max()) > 6  # the constraint applies after the return has risen
    assert float(rows.info.lam.min()) < 0.5
    assert float(found.satisfied.mean()) > 0.9
    assert 0.0 < float(found.returns.mean()) <= 3.0


@pytest.mark.more
def test_it_learns_choices_and_half_a_run_can_be_continued_with_the_same_bytes() -> None:
    """Chance gets 8/3 of 8."""
    problem = prepared(psyco.make(Echo, horizon=8), MOST, **SMALL)
    whole = making.learned(problem)
    assert float(whole.metrics["return"][:5].mean()) < 5
    assert float(deployed(problem, whole.at.state.inner, 20).returns.mean()) > 7.5
    assert len(whole.reached) > 5
    again = making.learned(problem, whole.reached[4])
    for first, second in zip(jax.tree.leaves(whole.at.state), jax.tree.leaves(again.at.state), strict=True):
        np.testing.assert_array_equal(first, second)
    assert jax.tree.structure(initial_state(problem).state) == jax.tree.structure(whole.at.state)


def test_at_first_all_exploring_episodes_hold_their_noise() -> None:
    """Where white noise finds no reward, one held episode in a generation may miss it too."""
    problem = prepared(psyco.make(Echo, horizon=8), MOST, **SMALL, hold=3)
    learner: Any = problem.learner
    hold = np.asarray(learner.propose(jax.random.key(0), initial_state(problem).state.inner).hold)
    np.testing.assert_array_equal(hold, [3] * learner.population + [1] * learner.checks)


@pytest.mark.more
def test_the_next_proposal_does_not_depend_on_the_update() -> None:
    problem = prepared(psyco.make(Echo, horizon=8), MOST, **SMALL, hold=3)
    learner: Any = problem.learner
    start = initial_state(problem).state.inner
    state, _ = train(learner, problem.sampler, jax.random.key(0), start, first=0, generations=3)
    ahead = learner.propose_ahead(jax.random.key(8), state)
    after, _ = train(learner, problem.sampler, jax.random.key(0), state, first=3, generations=1)
    later = learner.propose(jax.random.key(8), after)
    np.testing.assert_array_equal(ahead.theta, later.theta)
    np.testing.assert_array_equal(ahead.std, later.std)
    np.testing.assert_array_equal(ahead.hold, later.hold)
    assert (np.asarray(learner.deployed(after)) != np.asarray(later.theta[0])).any()
    assert not np.asarray(later.std[learner.population :]).any()


@pytest.mark.more
def test_the_number_of_workers_does_not_show() -> None:
    options = {"critic_hidden": 8, "batch_size": 16}
    settings = psyco.Settings(learner="sac", options=options, max_episodes=20, hidden=8, verify_every=0, candidates=1)
    made = [
        psyco.synthesize(
            psyco.make(Walk, horizon=25),
            "P>=0.5 [ G (abs(obs[0]) <= 2.5) ] & C>=0.9",
            episodes=24,
            settings=settings,
            execution=psyco.Execution(workers=workers),
        ).policy.to_bytes()
        for workers in (1, 2)
    ]
    assert made[0] == made[1]


def test_generations_before_a_failing_episode_are_yielded_first() -> None:
    """Episodes are played during the update before them; each environment fails in its fourth."""
    problem = prepared(psyco.make(lambda: Echo(fails=4), horizon=8), MOST, **SMALL)
    start, numbers = initial_state(problem).state, []

    def listen() -> None:
        for state, _ in run_generations(
            problem.wrapped_learner, problem.sampler, jax.random.key(0), start, first=0, generations=10
        ):
            numbers.append(int(state.generation))

    with pytest.raises(EpisodeError, match="no more"):
        listen()
    assert numbers == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"population": -2}, "population must be a whole number of at least 1"),
        ({"batch_size": -1}, "batch_size must be a whole number of at least 1"),
        ({"buffer_size": 0}, "buffer_size must be a whole number of at least 1"),
        ({"learning_rate": -1.0}, "learning_rate must be a number above 0"),
        ({"discount": 1.5}, "discount must be a number above 0 and of at most 1"),
        ({"belief_window": 0.5}, "belief_window"),
        ({"network": Network(3, 2)}, "learned biases"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RunError, match=words):
        bind(SAC, **(ONE | options))


def test_its_sizes_follow_the_task() -> None:
    network = Network(3, 2, 8, "learned")
    with pytest.raises(RunError, match="SAC needs the maximum number of steps"):
        make_learner("sac", psyco.parse("Rmax=? [ C ];"), network=network, actions=BOX)
    made: Any = make_learner("sac", psyco.parse("P>=0.5 [ G count(x > 0) <= 3 ]"), network=network, actions=BOX,
                             horizon=10, episode_budget=1000)  # fmt: skip
    assert made.known_task.counters == 1
    assert made.buffer_size == 11_000
    assert made.updates_per_step == 2.0
    assert bind(SAC, **ONE, episode_budget=10**9).buffer_size < 2**27 // 4
    assert bind(SAC, **ONE, episode_budget=10**9).updates_per_step == pytest.approx(0.1)
    assert empty_stats(2).rows == 0


@pytest.mark.parametrize("hidden", [5, *(pytest.param(each, marks=pytest.mark.more) for each in ((6, 4), (7, 7, 3)))])
def test_it_trains_the_network_that_acts(hidden: object) -> None:
    """Square layers included, where a transposed weight has the right shape."""
    network = Network(3, 2, hidden, "learned")  # type: ignore[arg-type]
    theta = network.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (20, 3))
    acting = jax.vmap(lambda row: network.scores(theta, row))(x)
    np.testing.assert_allclose(_scores(network, theta, x), acting, rtol=1e-5, atol=1e-6)


@pytest.mark.more
def test_a_run_that_is_interrupted_anywhere_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """The replay buffer is part of the checkpoint: a resumed run samples the same steps."""
    small: Any = {
        "learner": "sac", "hidden": 8, "options": {"critic_hidden": 16, "batch_size": 32}, "episodes": 24,
        "candidates": 2, "selection_episodes": 4, "max_episodes": 10, "verify_every": 9, "checkpoint_every": 0.0,
    }  # fmt: skip
    domain = psyco.make("tests.environments:Walk", horizon=8)

    def start(folder: Path, *callbacks: psyco.Callback) -> psyco.Run:
        return psyco.start(
            domain, "P>=0.5 [ G (abs(obs[0]) <= 2.5) ] & C>=0.9", folder, **flat(callbacks=callbacks, **small)
        )

    whole = start(tmp_path / "whole")
    for after in (1, 4, 7):

        def stop(problem: Problem, metrics: Any, after: int = after) -> None:
            if metrics["generation"][-1] >= after:
                raise KeyboardInterrupt

        folder = tmp_path / f"after{after}"
        with pytest.raises(KeyboardInterrupt):
            start(folder, psyco.Callback(on_metrics=stop))
        resumed = psyco.resume(folder, trust=["tests.environments:Walk"])
        for name in ("policy.safetensors", "metrics.csv"):
            assert (resumed.folder / name).read_bytes() == (whole.folder / name).read_bytes(), (after, name)
