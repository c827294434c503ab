"""The bridge to Stable-Baselines3: what it pays, how λ moves, and that its algorithms run with it."""

import itertools

import cloudpickle
import gymnasium
import numpy as np
import pytest
from scipy import stats

import psyco
from psyco._src.core.errors import RequirementError, RunError
from psyco._src.learners.base import LearningTask
from psyco._src.learners.lagrangian import LambdaController
from psyco._src.logic.batch_monitor import BatchMonitor
from psyco._src.policies.external import as_policy
from psyco._src.rollout.episodes import Episodes
from psyco.sb3 import GENERATIONS, Bridge, SharedLambda
from tests.environments import Walk

pytestmark = pytest.mark.slow  # needs an extra

REQUIRE = "P>=0.5 [ G (abs(obs[0]) <= 0.15) ] & C>=0.9"


class Left:
    """A stand-in for a model: always pushes to the left."""

    def predict(self, observation, state, episode_start, deterministic):
        assert deterministic and episode_start == (state is None)
        return 0, state or "a memory"


@pytest.fixture(scope="module")
def cartpole():
    return psyco.make("CartPole-v1", horizon=20)


def play(env, seed=0):
    env.reset(seed=seed)
    paid, done = [], False
    while not done:
        _, reward, terminated, truncated, info = env.step(0)
        paid.append(reward)
        done = terminated or truncated
    return paid, info["psyco"]


SHAPES = [
    REQUIRE,
    "P>=0.5 [ F<=3 (obs[0] < -0.01) ] & C>=0.9",
    "P<=0.5 [ F (obs[0] < -0.05) ] & C>=0.9",
    "P>=0.5 [ (G<=12 abs(obs[0]) <= 0.1) & G (abs(obs[2]) > 0.1 => F<=2 abs(obs[2]) < 0.1) ] & C>=0.9",
    'P>=0.5 [ G !("end" & step < 15) ] & C>=0.9',
    "P>=0.5 [ G (count(obs[0] < -0.01) <= 3 & mean(obs[2]) < 0.02) ] & C>=0.9",
    "R{obs[0] < -0.01}<=3 [ C ] & C>=0.9",
    "S>=0.5 [ obs[0] < -0.01 ] & C>=0.9",
]


@pytest.mark.parametrize("require", SHAPES)
def test_the_reward_of_an_episode_is_its_return_and_cost_weighed_by_lambda(cartpole, require: str) -> None:
    bridge = Bridge(cartpole, require, cost_scale=3.0)
    env = bridge.env()
    paid, verdict = play(env)
    assert sum(paid) == pytest.approx(verdict["return"])  # λ is 1 at first
    for lam in (0.0, 0.25):
        bridge.shared.set([lam] * len(bridge.shared.weights))
        paid, verdict = play(env)
        assert sum(paid) == pytest.approx(lam * verdict["return"] - (1 - lam) * 3.0 * verdict["cost"][0])
        if require.startswith("P"):
            assert (verdict["cost"][0] == 0) == verdict["satisfied"][0]


def test_an_excess_costs_in_the_unit_of_its_value_and_moves_lambda(cartpole) -> None:
    bridge = Bridge(cartpole, "R{obs[0] < -0.01}<=3 [ C ] & C>=0.9; S>=0.5 [ obs[0] < -0.01 ]", curriculum=0.0)
    _, verdict = play(bridge.env())
    total, length = verdict["cost"][0] + 3.0, verdict["return"]  # CartPole pays 1 for each step
    assert total == round(total) > 3
    assert verdict["cost"][1] == pytest.approx(0.5 * length - total, abs=1e-5)
    assert bridge.check(Left())["lambda"] < 1.0
    assert bridge.shared.c_sat.shape == (2,)


def test_a_step_is_judged_by_its_own_state_and_an_episode_once(cartpole, monkeypatch) -> None:
    seen = {"states": 0, "paths": 0}

    def count(name, key, size):
        original = getattr(BatchMonitor, name)

        def counted(self, signals, end, *rest, **more):
            seen[key] += size(end)
            return original(self, signals, end, *rest, **more)

        monkeypatch.setattr(BatchMonitor, name, counted)

    count("known_step_costs", "states", len)
    count("__call__", "paths", lambda end: 1)
    env = Bridge(cartpole, REQUIRE).env()
    steps = len(play(env)[0])
    assert seen == {"states": steps, "paths": 1}, "the last of the steps + 1 states is left to the path"


def test_G_costs_in_the_step_that_violates_it(cartpole) -> None:
    bridge = Bridge(cartpole, "P>=0.5 [ G (step != 3) ] & C>=0.9")
    bridge.shared.set([0.0] * len(bridge.shared.weights))
    paid, _ = play(bridge.env())
    assert [-cost for cost in paid] == [0, 0, 1, *[0] * (len(paid) - 3)]


def test_a_count_costs_step_by_step(cartpole) -> None:
    bridge = Bridge(cartpole, "P>=0.5 [ G (step != 3 & step != 5 | count(step = 3 | step = 5) <= 1) ] & C>=0.9")
    bridge.shared.set([0.0] * len(bridge.shared.weights))
    env = bridge.env()
    for _ in range(2):  # the next episode counts from 0
        paid, _ = play(env)
        assert [-cost for cost in paid] == [0, 0, 0, 0, 1, *[0] * (len(paid) - 5)]


def test_a_required_return_costs_in_proportion_to_the_missing_return(cartpole) -> None:
    """A stand-in that pushes left falls after about ten steps, each worth 1; nothing is known before that."""
    bridge = Bridge(cartpole, 'P>=0.5 [ F ("end" & return >= 20) ] & C>=0.9')
    bridge.shared.set([0.0] * len(bridge.shared.weights))
    paid, seen = play(bridge.env())
    assert paid[:-1] == [0.0] * (len(paid) - 1)
    assert not seen["satisfied"][0]
    assert -paid[-1] == pytest.approx(seen["cost"][0]) == pytest.approx(1.0 + (20 - len(paid)) / 20)


@pytest.mark.extra("stable_baselines3")
def test_checks_are_rare_where_episodes_are_long(cartpole) -> None:
    """A check of 5 episodes of about 9 steps: five times as many steps are learned from before the next one."""
    from stable_baselines3 import PPO

    bridge = Bridge(cartpole, REQUIRE, check_every=10, check_episodes=5)
    seen: list[tuple[int, int]] = []  # steps of learning and of the check
    check = bridge.check
    model = PPO("MlpPolicy", bridge.env(), n_steps=64, batch_size=64, seed=0)

    def counted(model, progress):
        found = check(model, progress)
        seen.append((model.num_timesteps, bridge._check_steps))
        return found

    bridge.check = counted  # type: ignore[method-assign]
    model.learn(1500, callback=bridge.callback())
    assert len(seen) >= 3
    for (before, took), (now, _) in itertools.pairwise(seen):
        assert now - before >= 5 * took > 5 * 10
    assert bridge._training_episodes == len(model.get_env().envs[0].get_episode_rewards())


def test_a_constraint_that_all_checks_violate_with_equal_cost_does_not_silence_the_return() -> None:
    """After 20 of them λ is at least 0.5; one episode with another cost ends that."""
    rule = LambdaController(LearningTask(p_req=(0.9,), c_req=(0.9,)), GENERATIONS, 0.3, 0.0, 0.5, 10.0)
    shared = SharedLambda(rule)

    def checks(*costs: float) -> Episodes:
        paid = np.array(costs, np.float32)[:, None]
        return Episodes(np.zeros(len(costs)), paid, paid == 0, np.full(len(costs), 9, np.int32))  # type: ignore[arg-type]

    found = []
    for _ in range(5):
        shared.observe(checks(1, 1, 1, 1, 1), 0.5)
        found.append(shared.lam)
    assert found[2] < 0.2 and found[3:] == [0.5, 0.5]
    shared.observe(checks(1, 2, 1, 1, 1), 0.5)
    assert shared.lam < 0.2


def test_a_certificate_takes_what_it_needs_or_a_third_of_what_was_learned_from(cartpole) -> None:
    bridge = Bridge(cartpole, "P>=0.9 [ G (abs(obs[0]) <= 1) ] & C>=0.95")
    assert bridge._max_episodes == 485  # what it takes with a chance of 0.9
    for learned, room in ((300, 485), (3000, 1000), (10**6, 10_000)):
        bridge._training_episodes = learned
        assert bridge._max_episodes == room


def test_an_episode_has_the_outcome_of_verification(cartpole) -> None:
    bridge = Bridge(cartpole, REQUIRE)
    env, outcomes = bridge.env(), []
    for seed in range(10):
        observations, done = [env.reset(seed=seed)[0]], False
        while not done:
            observation, _, terminated, truncated, info = env.step(seed % 2)
            observations.append(observation)
            done = terminated or truncated
        expected = psyco.check_path("G (abs(obs[0]) <= 0.15)", {"obs": np.array(observations)})
        assert bool(info["psyco"]["satisfied"][0]) == expected.satisfied
        assert info["psyco"]["cost"][0] == expected.cost
        outcomes.append(expected.satisfied)
    assert len(set(outcomes)) == 2


class Late(gymnasium.Wrapper):
    """`info` has a whole number first, then a fraction."""

    def reset(self, **arguments):
        observation, info = self.env.reset(**arguments)
        return observation, {**info, "level": 0}

    def step(self, action):
        *rest, info = self.env.step(action)
        return *rest, {**info, "level": 0.5}


@pytest.mark.filterwarnings("ignore:info.levle")
def test_a_key_of_info_that_no_episode_of_a_check_has_is_an_error() -> None:
    domain = psyco.make("CartPole-v1", horizon=20, wrappers=[Late])
    assert Bridge(domain, "P>=0.5 [ G (info.level <= 1) ]").check(Left())["satisfied"] == 1
    with pytest.raises(RequirementError, match=r"info\.levle in none of the 5 episodes .*did you mean 'info\.level'"):
        Bridge(domain, "P>=0.5 [ G (info.levle <= 1) ]").check(Left())


def test_what_is_to_be_minimised_is_paid_with_the_other_sign(cartpole) -> None:
    paid, verdict = play(Bridge(cartpole, f"Rmin=? [ C ]; {REQUIRE}").env())
    assert sum(paid) == pytest.approx(-verdict["return"])


def test_signals_keep_their_fractions() -> None:
    domain = psyco.make("CartPole-v1", horizon=5, wrappers=[Late])
    _, verdict = play(Bridge(domain, "P>=0.5 [ X G (info.level >= 0.5) ]").env())
    assert verdict["satisfied"].all()


def test_vector_actions_are_recorded() -> None:
    env = Bridge(psyco.make("Pendulum-v1", horizon=5), "P>=0.5 [ G (action[0] <= 1) ]").env()
    env.reset(seed=0)
    for _ in range(5):
        *_, info = env.step(np.array([1.5], np.float32))
    assert not info["psyco"]["satisfied"].any()


def test_an_environment_of_ones_own_ends_at_the_horizon() -> None:
    env = Bridge(psyco.make(Walk, horizon=2), "P>=0.5 [ G (abs(obs[0]) <= 9) ]").env()
    env.reset(seed=1)
    assert not env.step(0)[3]
    assert env.step(1)[3]


def test_the_weight_cannot_leave_its_process(cartpole) -> None:
    with pytest.raises(RunError, match="DummyVecEnv"):
        cloudpickle.dumps(Bridge(cartpole, REQUIRE).env)


def test_a_seed_may_come_from_numpy(cartpole) -> None:
    assert type(Bridge(cartpole, REQUIRE, seed=np.int64(3)).seed) is int


def shown(*satisfied: bool) -> Episodes:
    outcomes = np.array(satisfied)[:, None]
    return Episodes(np.zeros(len(outcomes)), np.where(outcomes, 0.0, 1.0), outcomes, np.ones(len(outcomes), int))


def test_lambda_and_belief_follow_the_checks() -> None:
    task = LearningTask(p_req=(0.8,), c_req=(0.9,))
    rule = LambdaController(task, GENERATIONS, margin=0.5, gain=0.1, belief_window=4.0, curriculum=0.5)
    shared = SharedLambda(rule)
    shared.observe(shown(True, False), progress=0.0)
    assert shared.lam == 1.0  # the target is still 0
    shared.observe(shown(False, False), progress=0.25)
    assert shared.lam == pytest.approx(1.0 - 0.1 * 0.45)
    shared.observe(shown(True, False), progress=1.0)
    assert shared.lam == pytest.approx(1.0 - 0.1 * 0.45 - 0.1 * 0.4)
    s, v = 0.75 * (0.75 * 1 + 0) + 1, 0.75 * (0.75 * 1 + 2) + 1
    assert shared.c_sat[0] == pytest.approx(stats.beta.sf(0.8, s + 1, v + 1))


def test_checks_are_deterministic_and_never_the_same_twice(cartpole) -> None:
    one, other = Bridge(cartpole, REQUIRE, seed=3), Bridge(cartpole, REQUIRE, seed=3)
    seen = [one.check(Left()) for _ in range(3)]
    assert seen == [other.check(Left()) for _ in range(3)]
    assert len({check["return"] for check in seen}) > 1


def test_unsuitable_arguments_are_refused(cartpole) -> None:
    with pytest.raises(RunError, match="not a Gymnasium environment"):
        Bridge(psyco.make("obstacle-run"), REQUIRE)
    with pytest.raises(RequirementError, match="speed"):
        Bridge(cartpole, "P>=0.5 [ G speed < 1 ]")
    with pytest.raises(RunError, match="check_episodes"):
        Bridge(cartpole, REQUIRE, check_episodes=0)


def test_every_certificate_of_a_bridge_takes_fresh_episodes_and_its_share_of_one_error(monkeypatch, tmp_path) -> None:
    """Learning and certifying until one passes errs with the permitted probability at most: the shares sum to 1."""

    class Saved:
        """A model that changes with each try."""

        def save(self, path) -> None:
            path.touch()

    bridge = Bridge(psyco.make(Walk, horizon=6), "P>=0.85 [ G (obs[0] <= 1) ] & C>=0.98", seed=3)
    tries = []
    for threshold in (0.1, 0.0, 0.1, -0.1):
        own = as_policy(lambda observation, threshold=threshold: int(observation[0] < threshold))
        monkeypatch.setattr(psyco.sb3, "open_policy", lambda name, trust, own=own: own)
        tries.append(bridge.certify(Saved(), tmp_path / "model", max_episodes=40))
    assert [certificate.share for certificate in tries] == pytest.approx([1 / 2, 1 / 6, 1 / 12, 1 / 20])
    looks = tries[-1].looks
    assert [look.seed_block for look in looks] == [0, 1, 2, 3]
    assert [look.share for look in looks] == [certificate.share for certificate in tries]
    assert looks[0].satisfied != looks[2].satisfied  # the same policy, other episodes
    assert "4 looks" in str(tries[-1])
    # A bridge for another requirement, or another seed, is another account.
    other = Bridge(bridge.domain, "P>=0.5 [ G (obs[0] <= 1.5) ] & C>=0.98")
    assert other.certify(Saved(), tmp_path / "model", max_episodes=40).share == 1 / 2


@pytest.mark.extra("stable_baselines3")
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_an_algorithm_learns_with_it_and_gets_a_certificate(cartpole, algorithm: str, tmp_path) -> None:
    import stable_baselines3 as sb3

    bridge = Bridge(cartpole, "P>=0.01 [ G (abs(obs[0]) <= 0.5) ] & C>=0.9", check_episodes=2, check_every=100)
    options = {"PPO": {"n_steps": 64}, "DQN": {"learning_starts": 50}}[algorithm]
    model = getattr(sb3, algorithm)("MlpPolicy", bridge.env(), seed=0, device="cpu", **options)
    model.learn(256, callback=bridge.callback())
    assert bridge._checks == 2
    certificate = bridge.certify(model, tmp_path / "model.v1", max_episodes=200)
    assert certificate.verdict is psyco.Verdict.SATISFIED
    file = tmp_path / "model.v1.zip"
    assert certificate.policy == psyco.open_policy(f"sb3:{file}", trust=[str(file)]).digest


class Reusing(Walk):
    """A walk whose `info` is one object with the steps so far; the value at the reset is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = [0.0]

    def reset(self, **options):
        observation, _ = super().reset(**options)
        self.steps[0] = 0.0
        return observation, {"steps": self.steps}

    def step(self, action):
        *rest, _ = super().step(action)
        self.steps[0] = float(self.t)
        return *rest, {"steps": self.steps, "late": [float(self.t), 1.0, 2.0]}


def test_values_that_change_in_place_and_missing_vectors_are_judged_as_in_verification() -> None:
    domain = psyco.make(Reusing, horizon=5)
    for formula, satisfied in [
        ("info.steps[0] = 0 & X G info.steps[0] >= 1", True),
        ("G info.steps[0] >= 1", False),
        ("info.late[1] = 0 & X G info.late[1] = 1", True),
    ]:
        _, verdict = play(Bridge(domain, f"P>=0.5 [ {formula} ] & C>=0.9").env(), seed=1)
        assert verdict["satisfied"].tolist() == [satisfied]
    with pytest.raises(RequirementError, match=r"write info.steps\[0\]"):
        play(Bridge(domain, "P>=0.5 [ F info.steps >= 1 ] & C>=0.9").env(), seed=1)
