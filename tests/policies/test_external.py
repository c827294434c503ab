"""Policies of others: loaded, asked, verified like our own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest

import psyco
from psyco._src.policies.external import as_policy, open_policy
from psyco._src.policies.loaders import sb3_algorithm
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from tests.environments import Mixed, Walk, to_the_left
from tests.making import with_execution

pytestmark = pytest.mark.slow  # needs extras

REQUIREMENT = "P>=0.5 [ G (abs(obs[0]) <= 2.9) ] & C>=0.9"


def verified(policy: object, **options: object) -> tuple[object, float]:
    domain = psyco.make(Walk, horizon=20)
    certificate = psyco.verify(policy, domain, REQUIREMENT, **with_execution(max_episodes=100, **options))  # type: ignore[arg-type]
    return certificate.findings[0].satisfied, certificate.mean_return


def test_a_function_is_verified_as_the_loop_that_calls_it() -> None:
    satisfied, mean = verified(to_the_left)
    assert verified("python:tests.environments:to_the_left") == (satisfied, mean)
    assert verified(lambda obs: int(obs[0] < 0)) == (satisfied, mean)
    assert verified(lambda obs: 1) != (satisfied, mean)


@pytest.mark.extra("torch", "onnx")
def test_an_onnx_file_a_pytorch_module_and_the_policy_itself_agree(tmp_path: Path) -> None:
    import onnx
    import torch

    domain = psyco.make(Walk, horizon=20)
    network = network_for(domain)
    policy = policy_for(domain, network, np.random.default_rng(3).normal(0, 0.5, network.size))
    psyco.export(policy, tmp_path / "p.onnx")
    w1, w2 = network.unflatten(policy.theta)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2 = torch.nn.Parameter(torch.tensor(w1)), torch.nn.Parameter(torch.tensor(w2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ self.w1 + 1.0) @ self.w2.T + 1.0  # scores: the larger one is the action

    torch.jit.script(Net()).save(str(tmp_path / "p.pt"))
    expected = verified(policy)
    assert verified(str(tmp_path / "p.onnx")) == expected
    assert verified(str(tmp_path / "p.pt"), trust=[str(tmp_path / "p.pt")]) == expected
    assert verified(Net()) == expected
    model = onnx.load(tmp_path / "p.onnx")
    for rows in (1, 7):  # a file may fix how many observations it takes
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = rows
        onnx.save(model, tmp_path / "fixed.onnx")
        assert verified(str(tmp_path / "fixed.onnx")) == expected
    assert verified(str(tmp_path / "p.onnx"), workers=2) == expected


@pytest.mark.extra("onnx")
def test_an_onnx_input_that_is_no_batch_is_refused(tmp_path: Path) -> None:
    import onnx

    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "flat.onnx")
    with pytest.raises(psyco.RunError, match=r"an input of shape \[2\]; .* \[n, size\]"):
        verified(str(tmp_path / "flat.onnx"))


@pytest.mark.extra("torch")
def test_a_module_is_verified_as_it_is_now_and_left_as_it_is() -> None:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.9))
    policy = as_policy(module)
    expected = verified(policy)
    assert module.training
    assert verified(cloudpickle.loads(cloudpickle.dumps(policy))) == expected  # as a worker sees it
    again = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.9))
    again.load_state_dict(module.state_dict())
    assert as_policy(again).digest == policy.digest
    with torch.no_grad():
        module[0].weight.mul_(-1.0)
    assert verified(policy) == expected != verified(module)
    assert as_policy(module).digest != policy.digest


@pytest.fixture(scope="module")
def trained() -> Iterator[Any]:
    """A model of Stable-Baselines3 that has learned a little under VecNormalize."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: gymnasium.wrappers.TimeLimit(Walk(), 20)]))
    model = sb3.PPO("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu")
    model.learn(16)
    env.obs_rms.mean[:], env.obs_rms.var[:] = (1.0, 10.0), (0.01, 1e-4)  # so that they matter
    yield model
    env.close()


@pytest.mark.extra("stable_baselines3")
def test_a_model_in_memory_acts_by_its_predict_on_what_its_vecnormalize_makes_of_observations(
    trained: Any, tmp_path: Path
) -> None:
    statistics = trained.get_vec_normalize_env()

    def by_hand(observation: Any) -> Any:
        return trained.predict(statistics.normalize_obs(observation), deterministic=True)[0]

    before = statistics.obs_rms.mean.copy(), statistics.obs_rms.count
    expected = verified(by_hand)
    assert verified(trained) == expected
    assert (statistics.obs_rms.mean == before[0]).all() and statistics.obs_rms.count == before[1]
    trained.save(tmp_path / "model.zip")
    alone = type(trained).load(tmp_path / "model.zip", device="cpu")  # it has lost its environment
    assert verified((alone, statistics)) == verified((alone.policy, statistics)) == expected
    file = f"sb3:{tmp_path / 'model.zip'}"
    assert verified(alone) == verified(file, trust=[file]) != expected


@pytest.mark.extra("stable_baselines3")
def test_a_model_in_memory_is_known_by_its_tensors_and_statistics(trained: Any) -> None:
    statistics = trained.get_vec_normalize_env()
    policy = as_policy(trained)
    travelled = cloudpickle.loads(cloudpickle.dumps(policy))
    assert travelled.digest == policy.digest == as_policy((trained.policy, statistics)).digest
    assert as_policy(trained.policy).digest != policy.digest
    expected = verified(policy)
    assert verified(travelled) == expected
    statistics.obs_rms.mean[0] += 3.0
    try:
        assert verified(policy) == expected  # what is to be verified was fixed before
        assert as_policy(trained).digest != policy.digest
    finally:
        statistics.obs_rms.mean[0] -= 3.0


class Predictor:
    def __init__(self, memory: Any = None) -> None:
        self.memory = memory

    def predict(self, observation: Any, deterministic: bool = False) -> Any:
        assert deterministic
        return to_the_left(observation), self.memory


def test_whatever_predicts_is_a_policy_unless_it_has_a_memory() -> None:
    assert verified(Predictor()) == verified(to_the_left)
    with pytest.raises(psyco.RunError, match="Predictor returns a memory"):
        verified(Predictor(memory=np.zeros(3)))


@pytest.mark.parametrize("pair", [(Predictor(), None), (1, 2, 3)])
def test_a_pair_that_is_none_is_refused(pair: Any) -> None:
    with pytest.raises(psyco.RunError, match="a pair is"):
        as_policy(pair)


@pytest.mark.extra("stable_baselines3")
@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "DQN", "SAC", "TD3", "DDPG"])
def test_the_algorithm_of_an_sb3_file_is_found(algorithm: str, tmp_path: Path) -> None:
    import stable_baselines3 as sb3

    discrete = algorithm in ("PPO", "A2C", "DQN")
    path = tmp_path / "model.zip"
    environment = "CartPole-v1" if discrete else "Pendulum-v1"
    small = {} if algorithm in ("PPO", "A2C") else {"buffer_size": 10}
    model = getattr(sb3, algorithm)("MlpPolicy", environment, device="cpu", **small)
    model.save(path)
    assert sb3_algorithm(path.read_bytes(), path).upper() == algorithm
    env = gymnasium.make(environment)
    observation, _ = env.reset(seed=1)
    expected = model.predict(observation, deterministic=True)[0]
    domain, policy = psyco.make(environment, horizon=15), open_policy(f"sb3:{path}", trust=[str(path)])
    act = policy.network.vectorize(domain, np.zeros((1, 0), np.float32), [1])
    np.testing.assert_allclose(act(observation[None], [observation])[0], expected, rtol=1e-4)
    certificate = psyco.verify(policy, domain, "P>=0.5 [ G (step <= 15) ]", max_episodes=10)
    assert certificate.verdict is psyco.Verdict.SATISFIED or certificate.episodes == 10


def test_a_foreign_policy_acts_in_a_compiled_domain_too() -> None:
    domain = psyco.make("obstacle-run")

    def home(observation: np.ndarray) -> int:
        return 3 if observation[0] > 0 else 4  # left, then down, to the target

    certificate = psyco.verify(home, domain, "P>=0.9 [ F target ] & C>=0.9", max_episodes=60)
    assert certificate.verdict is psyco.Verdict.SATISFIED
    assert certificate.mean_return >= -8


@pytest.mark.parametrize("action", [7, -1, 0.5, None, [0, 1], float("nan")])
def test_a_choice_that_a_compiled_domain_does_not_have_is_refused(action: object) -> None:
    with pytest.raises(psyco.RunError, match="at step 0: the policy failed: ValueError: the policy python:"):
        psyco.verify(lambda obs: action, psyco.make("obstacle-run"), "P>=0.9 [ F target ]", max_episodes=2)


def test_numbers_are_held_to_the_action_range_of_a_compiled_domain() -> None:
    domain = psyco.make("particle-dance")
    high = domain.actions.high
    returns = [
        psyco.verify(lambda obs, a=a: np.array(a), domain, "P>=0.9 [ G step <= 99 ]", max_episodes=5).mean_return
        for a in (high, [100.0] * len(high))
    ]
    assert returns[0] == returns[1]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda obs: [0, 1], "the environment takes one number"),
        (lambda obs: 1 / 0, "ZeroDivisionError"),
        (lambda obs: None, "gives the action None"),
    ],
)
def test_a_policy_that_fails_is_named_with_its_episode(policy: object, message: str) -> None:
    with pytest.raises(psyco.EpisodeError, match=message):
        verified(policy)


@pytest.mark.extra("torch")
def test_a_policy_computes_with_one_thread_and_leaves_the_others_to_the_caller() -> None:
    import torch

    before, threads = torch.get_num_threads(), set()

    def act(observation: Any) -> int:
        threads.add(torch.get_num_threads())
        return int(observation[0] < 0)

    torch.set_num_threads(2)
    try:
        assert verified(act) == verified(to_the_left)
        assert (threads, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.extra("torch")
def test_actions_of_a_network_that_leave_their_range_are_clipped(tmp_path: Path) -> None:
    import torch

    class Wild(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full((x.shape[0], 2), 100.0)

    file = str(tmp_path / "wild.pt")
    torch.jit.script(Wild()).save(file)
    domain = psyco.make(Mixed, actions="box", horizon=3)
    certificate = psyco.verify(file, domain, "P>=0.5 [ X G info.inside ]", max_episodes=20, trust=[file])
    assert certificate.findings[0].violated == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("python:tests.environments:nobody", "has no 'nobody'"),
        ("python:no.such:thing", "cannot import"),
        ("python:os:sep", "'/' is not a policy"),
        pytest.param("missing.onnx", "cannot read", marks=pytest.mark.extra("onnx")),
        ("sb3:missing.zip", "cannot read"),
        ("missing.safetensors", "there is no file"),
    ],
)
def test_what_is_no_policy_is_said(name: str, message: str) -> None:
    with pytest.raises(psyco.RunError, match=message):
        open_policy(name)


@pytest.mark.extra("onnxruntime", "torch", "stable_baselines3")
@pytest.mark.parametrize("name", ["broken.onnx", "broken.pt", "sb3:broken.zip"])
def test_a_broken_file_is_said(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name.removeprefix("sb3:")).write_bytes(b"nonsense")
    with pytest.raises(psyco.RunError, match="broken") as caught:
        verified(name, trust=[name])
    assert not isinstance(caught.value, psyco.EpisodeError)  # it is said before any episode


@pytest.mark.extra("stable_baselines3")
def test_files_of_others_are_named_with_a_remedy(trained: Any, tmp_path: Path) -> None:
    import torch

    trained.save(tmp_path / "model.zip")
    with pytest.raises(psyco.RunError, match=r"model.zip is a model of Stable-Baselines3; write sb3:.*model.zip"):
        verified(str(tmp_path / "model.zip"))
    for name in ("net.pth", "net.bin"):  # with a suffix of PyTorch, and without
        torch.save(trained.policy.state_dict(), tmp_path / name)
        with pytest.raises(psyco.RunError, match=r"is a state_dict .* torch.nn.Module"):
            verified(str(tmp_path / name))
    for name in ("policy.pkl", "policy.pickle"):
        (tmp_path / name).write_bytes(cloudpickle.dumps(to_the_left))
        with pytest.raises(psyco.RunError, match=r"is a pickle, .* load it in Python"):
            verified(str(tmp_path / name))


def test_what_cannot_be_called_is_no_policy() -> None:
    with pytest.raises(psyco.RunError, match="42 is not a policy"):
        as_policy(42)  # type: ignore[arg-type]
