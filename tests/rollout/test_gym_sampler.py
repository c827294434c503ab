"""Episodes in a host loop: what they are, that they don't see each other, and what happens when they go wrong."""

import dataclasses

import jax
import numpy as np
import pytest

import psyco
from psyco._src.core.errors import EpisodeError
from psyco._src.envs.gym_env import GymDomain
from psyco._src.logic.batch_monitor import compile_monitor
from psyco._src.logic.parser import parse, parse_formula
from psyco._src.logic.trace_check import check_path
from psyco._src.policies.network import Network, network_for
from psyco._src.policies.serialization import load_policy, policy_for
from psyco._src.rollout.episodes import Episodes, Stream, episode_keys, episode_seeds, stream_key
from psyco._src.rollout.gym_sampler import Chunk, EpisodeRunner, GymSampler, Job, in_process_backend
from psyco._src.rollout.obs_normalization import with_obs_normalization
from psyco._src.rollout.sampler import make_sampler
from psyco._src.runs.train import current_policy
from tests.environments import Mixed, Sparing, Walk
from tests.making import flat, learned, prepared

FORMULA = "G (abs(obs[0]) <= 2 | info.cost = 0)"


def sampler_for(domain: GymDomain, formula: str, **network: object) -> GymSampler:
    made = network_for(domain, **network)  # type: ignore[arg-type]
    return GymSampler(Job(domain, made, compile_monitor([parse_formula(formula)])), in_process_backend())


def random_theta(sampler: GymSampler, count: int) -> np.ndarray:
    size = sampler.job.network.size  # type: ignore[union-attr]
    return np.random.default_rng(0).normal(0, 0.5, (count, size)).astype(np.float32)


def assert_same(a: Episodes, b: Episodes) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("bias", ["one", "learned"])
def test_an_episode_is_what_a_plain_loop_gives(bias: str) -> None:
    domain = psyco.make(Walk, horizon=30)
    sampler = sampler_for(domain, FORMULA, bias=bias)
    theta, seeds = random_theta(sampler, 12), list(range(1, 13))
    episodes = sampler.run(theta, seeds)
    for i, seed in enumerate(seeds):
        policy = policy_for(domain, sampler.job.network, theta[i])
        env = Walk()
        observation, info = env.reset(seed=seed)
        path, cost, total = [observation], [0.0], 0.0
        for _ in range(30):
            observation, reward, terminated, _, info = env.step(int(policy(observation)))
            path.append(observation)
            cost.append(info["cost"])
            total += reward
            if terminated:
                break
        padding = [(0, 31 - len(path)), (0, 0)]
        judged = check_path(
            FORMULA, {"obs": np.pad(path, padding, "edge"), "info.cost": np.pad(cost, padding[0], "edge")}
        )
        assert episodes.returns[i] == total
        assert episodes.length[i] == len(path) - 1
        assert episodes.satisfied[i, 0] == judged.satisfied
        assert episodes.cost[i, 0] == judged.cost
    assert 0 < episodes.satisfied.mean() < 1  # both cases were there


@pytest.mark.parametrize("shape", [(4, 2, 32), (17, 6, 32), (3, 1, 7), (376, 17, 64)])
def test_a_network_gives_the_same_bits_in_any_company(shape: tuple[int, int, int]) -> None:
    inputs, outputs, hidden = shape
    network = Network(inputs, outputs, hidden, shift=(0.5,) * inputs, scale=(2.0,) * inputs)
    domain = psyco.make("CartPole-v1")
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(64, network.size)).astype(np.float32)
    x = rng.normal(size=(64, inputs)).astype(np.float32)
    together = network.vectorize(domain, theta).scores(x)
    for rows in ([0], [63], [5, 9, 33], list(range(31)), list(rng.permutation(64))):
        alone = network.vectorize(domain, theta).take(np.array(rows)).scores(x[rows])
        np.testing.assert_array_equal(alone, together[rows])


def test_aggregates_stay_when_an_episode_has_ended() -> None:
    """Judged as the recording, which ends with the episode; half of the walks end before the horizon."""
    formula = 'F ("end" & count(info.cost > 0) <= 2 & sum(abs(obs[0])) >= 9 & mean(obs[0]) < most(obs[0]) / 2)'
    domain = psyco.make(Walk, horizon=30)
    sampler = sampler_for(domain, formula)
    theta, seeds = random_theta(sampler, 20), list(range(1, 21))
    episodes = sampler.run(theta, seeds)
    played = EpisodeRunner().rollout(sampler.job, Chunk(theta, seeds), frozenset({"obs", "info.cost"}))
    for i, n in enumerate(played.length):
        path = {name: values[i, : n + 1] for name, values in played.signals.items()}
        assert episodes.satisfied[i, 0] == check_path(formula, path).satisfied
    assert 0 < episodes.satisfied.mean() < 1
    assert (played.length < 30).any()


def test_the_company_of_an_episode_does_not_matter() -> None:
    domain = psyco.make(Walk, horizon=30)
    whole = sampler_for(domain, FORMULA)
    theta, seeds = random_theta(whole, 20), list(range(1, 21))
    expected = whole.run(theta, seeds)
    for workers in (2, 3, 20):
        assert_same(dataclasses.replace(whole, workers=workers).run(theta, seeds), expected)
    backwards = whole.run(theta[::-1], seeds[::-1])
    assert_same(jax.tree.map(lambda column: column[::-1], backwards), expected)


def test_signals_are_those_of_the_environment_and_stay_at_the_end() -> None:
    domain = psyco.make(Walk, horizon=25, signals={"square": lambda obs, info: obs[0] ** 2})
    job = Job(domain, network_for(domain), compile_monitor([]))
    theta = np.random.default_rng(0).normal(0, 0.5, (6, network_for(domain).size)).astype(np.float32)
    played = EpisodeRunner().rollout(job, Chunk(theta, [1, 2, 3, 4, 5, 6]), None)
    s = played.signals
    assert played.length.min() < 25  # the walk asserts that nobody steps it beyond its end
    for i, n in enumerate(played.length):
        assert s["step"][i].tolist() == [*range(n + 1), *[n] * (25 - n)]
        assert s["return"][i, -1] == played.returns[i] == n
        assert s["terminated"][i].tolist() == [False] * n + [n < 25 or abs(s["obs"][i, n, 0]) >= 3] * (26 - n)
        assert s["truncated"][i, :n].sum() == 0
        assert s["truncated"][i, n] != s["terminated"][i, n]
    np.testing.assert_allclose(s["square"], s["obs"][..., 0] ** 2, rtol=1e-6)
    assert (s["info.cost"][:, 0] == 0).all()  # there is no cost at the reset
    np.testing.assert_array_equal(s["info.cost"][:, 1:], s["obs"][:, 1:, 0] > 1)
    # the action that led to a state; the first state shows the first action
    np.testing.assert_array_equal(s["action"][:, 0], s["action"][:, 1])


def test_nested_and_vector_information_can_be_named() -> None:
    domain = psyco.make(Mixed, actions="box", horizon=4)
    sampler = sampler_for(domain, 'G (info.action[0] >= -0.3 & action[1] <= 0.4) & X G "info.inside"')
    assert sampler.run(random_theta(sampler, 3), [1, 2, 3]).satisfied.all()
    deep = sampler_for(
        psyco.make(Walk, horizon=4), "X G (info.deep.x = info.deep.x & abs(info.deep.x - obs[0]) < 0.001)"
    )
    assert deep.run(random_theta(deep, 3), [1, 3, 5]).satisfied.all()


def test_it_is_told_in_which_part_of_the_states_a_key_is_missing() -> None:
    sampler = sampler_for(psyco.make(Sparing, horizon=6), "G (info.deep.x < 9 & info.cost <= 1 & obs[0] < 9)")
    chunk = Chunk(random_theta(sampler, 12), list(range(1, 13)))
    absent = np.asarray(EpisodeRunner()(sampler.job, chunk).missing_info)
    played = EpisodeRunner().rollout(sampler.job, chunk, frozenset({"obs"}))
    for parts, obs, length in zip(absent, played.signals["obs"], played.length, strict=True):
        lacking = [t == 0 or x <= 1 for t, x in enumerate(obs[: length + 1, 0])]
        assert parts == pytest.approx([sum(lacking) / len(lacking)] * 2)
    assert 0 < (absent == 1).mean() < 1 and ((absent > 0) & (absent < 1)).any()


def test_a_signal_of_one_s_own_that_is_none_is_an_error() -> None:
    domain = psyco.make(Walk, horizon=6, signals={"late": lambda obs, info: None if obs[1] == 4 else obs[1]})
    sampler = sampler_for(domain, "G (late < 9)")
    with pytest.raises(EpisodeError, match="at step 4: the signal late is None"):
        sampler.run(random_theta(sampler, 3), [1, 2, 3])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "ZeroDivisionError: the simulator fell over"),
        ("nan", "not finite"),
        ("inf", "not finite"),
        ("shape", r"shape \(1,\); its space says \(2,\)"),
        ("square", r"shape \(2, 2\); its space says \(2,\)"),
        ("other space", r"shape \(3,\); its space says \(2,\)"),
        ("object", r"shape \(\); its space says \(2,\)"),
        ("objects", "an observation of object; its space says float32"),
        ("text", "an observation of <U3; its space says float32"),
        ("reward", "reward that is not a finite number"),
        ("no reward", "reward is None; Gymnasium wants a number"),
        ("rewards", r"reward is array\(\[1., 1.\]\); Gymnasium wants a number"),
        ("flag", "terminated is 'no'; Gymnasium wants a Boolean"),
        ("no info", "the signals info.cost: TypeError: .*NoneType"),
        ("info object", "the signal info.cost is <object object"),
        ("exit", r"it tried to end the process \(SystemExit: 0\)"),
        ("memory", "MemoryError: no memory for the next state"),
        ("tuple", "Gymnasium wants a tuple of 5"),
        ("info", r"info\.cost is nan, which is not a finite number"),
    ],
)
def test_a_faulty_environment_is_named_with_episode_and_step(fault: str, message: str) -> None:
    domain = psyco.make(Walk, fault=fault, at=2, horizon=10)
    sampler = sampler_for(domain, FORMULA)
    with pytest.raises(psyco.EpisodeError, match=message) as caught:
        sampler.run(random_theta(sampler, 4), [5, 7, 8, 9])
    error = caught.value
    assert (error.environment, error.seed, error.step) == ("tests.environments:Walk", 8, 2)
    assert "tests.environments:Walk, episode with seed 8, at step 2" in str(error)


@pytest.mark.parametrize("seeds", [[5, 7, 8], [8, 5, 7]])
def test_an_exception_in_the_first_step_is_not_blamed_on_what_reset_returned(seeds: list[int]) -> None:
    sampler = sampler_for(psyco.make(Walk, fault="raise", at=1, horizon=10), FORMULA)
    with pytest.raises(psyco.EpisodeError, match="at step 1: ZeroDivisionError: the simulator fell over") as caught:
        sampler.run(random_theta(sampler, 3), seeds)
    assert (caught.value.seed, caught.value.step) == (8, 1)


def test_what_was_learned_before_a_fault_is_kept(tmp_path) -> None:
    """The first generation is as in a sound environment; the fault comes later, in the middle of a segment."""

    class LateFault(Walk):
        episodes = 0

        def reset(self, **options: object) -> object:
            LateFault.episodes += 1
            if LateFault.episodes > 150 + 9:
                raise OSError("the licence has expired")
            return super().reset(**options)  # type: ignore[arg-type]

    settings = {"learner": "snes", "verify_every": 0, "normalization": "none"}
    requirement = "P>=0.9 [ F (obs[0] >= 2) ]"
    with pytest.raises(psyco.EpisodeError, match=r"in reset.*licence"):
        psyco.start(psyco.make(LateFault, horizon=10), requirement, tmp_path / "run", **flat(episodes=400, **settings))
    kept = psyco.load_policy(tmp_path / "run" / "policy.safetensors")
    # 159 resets, one of them for the trial and nine for the quick check: seven generations of 20 episodes were whole.
    problem = prepared(psyco.make(Walk, horizon=10), requirement, episodes=140, **settings)
    run = learned(problem)
    np.testing.assert_array_equal(kept.theta, current_policy(problem, run.at).theta)
    assert psyco.open_run(tmp_path / "run").metrics["return"].tolist() == pytest.approx(run.metrics["return"].tolist())


def test_scaling_makes_observations_standard_and_is_part_of_the_policy_file(tmp_path) -> None:
    domain = psyco.make("Pendulum-v1", horizon=50)
    network = network_for(domain)
    key = stream_key(3, Stream.NORMALIZE)
    made = with_obs_normalization(network, domain, key)
    assert (
        made
        == with_obs_normalization(network, domain, key)
        != with_obs_normalization(network, domain, stream_key(4, Stream.NORMALIZE))
    )
    assert len(made.shift) == len(made.scale) == 3
    policy = policy_for(domain, made, np.ones(made.size))
    policy.save(tmp_path / "p")
    again = load_policy(tmp_path / "p")
    assert again.network == made
    x = np.array([0.3, -0.2, 4.0])
    by_hand = (x - made.shift) / made.scale
    raw = policy_for(domain, network, np.ones(network.size))
    np.testing.assert_allclose(again(x), raw(by_hand), rtol=1e-5)


def test_switches_are_not_scaled() -> None:
    network = with_obs_normalization(
        network_for(lake := psyco.make("FrozenLake-v1")), lake, stream_key(0, Stream.NORMALIZE)
    )
    assert set(network.shift) == {0.0}
    assert set(network.scale) == {1.0}


def test_episode_seeds_differ_and_depend_on_the_index_alone() -> None:
    key = stream_key(0, Stream.TRAIN)
    seeds = episode_seeds(episode_keys(key, 0, 1000))
    assert len(set(seeds)) == 1000
    assert episode_seeds(episode_keys(key, 990, 10)) == seeds[990:]
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_the_sampler_of_a_requirement_has_one_column_per_demand() -> None:
    domain = psyco.make(Walk, horizon=10)
    requirement = parse("P in [0.2,0.8] [ F (obs[0] >= 1) ]; P>=0.5 [ G (step <= 10) ]")
    sampler = make_sampler(domain, network_for(domain), requirement)
    theta = np.zeros((7, network_for(domain).size), np.float32)
    episodes = sampler(theta, episode_keys(jax.random.key(0), 0, 7))
    assert episodes.satisfied.shape == episodes.cost.shape == (7, 3)
    np.testing.assert_array_equal(episodes.satisfied[:, 0], ~episodes.satisfied[:, 1])
    assert not sampler.compiled


def test_workers_are_for_host_domains() -> None:
    with pytest.raises(psyco.RunError, match="compiled"):
        psyco.synthesize(
            psyco.make("particle-dance"), "P>=0.5 [ G (distance >= 0) ]", execution=psyco.Execution(workers=2)
        )


class Views(Walk):
    """Hands out one object for all time, and changes it, as simulators do."""

    def __init__(self) -> None:
        super().__init__()
        self.info = {"place": np.zeros(2)}

    def step(self, action: object) -> object:
        observation, reward, terminated, truncated, _ = super().step(action)
        self.info["place"] += 1.0
        return observation, reward, terminated, truncated, self.info


def test_what_an_environment_changes_later_is_kept_as_it_was() -> None:
    sampler = sampler_for(psyco.make(Views, horizon=4), "G (info.place[0] >= 0)")
    theta = np.zeros((2, sampler.job.network.size), np.float32)
    played = EpisodeRunner().rollout(sampler.job, Chunk(theta, [1, 3]), frozenset({"info.place"}))
    for row, length in enumerate(played.length.tolist()):
        steps = np.minimum(np.arange(5), length) * 1.0
        np.testing.assert_array_equal(played.signals["info.place"][row, :, 0] - steps, 0.0)


def test_a_long_path_is_kept_in_blocks_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    domain = psyco.make(Walk, horizon=30)
    sampler = sampler_for(domain, FORMULA)
    theta = np.random.default_rng(0).normal(0, 1, (5, sampler.job.network.size)).astype(np.float32)
    at_once = EpisodeRunner().rollout(sampler.job, Chunk(theta, [1, 3, 5, 7, 9]), None)
    monkeypatch.setattr("psyco._src.rollout.signal_recorder.BLOCK", 3)
    in_blocks = EpisodeRunner().rollout(sampler.job, Chunk(theta, [1, 3, 5, 7, 9]), None)
    assert len(set(at_once.length.tolist())) > 1
    for name, values in at_once.signals.items():
        np.testing.assert_array_equal(values, in_blocks.signals[name])
