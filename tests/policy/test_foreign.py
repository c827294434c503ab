"""Policies of others: loaded, asked, verified like our own."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

import psyco
from psyco._src.policy.file import policy_for
from psyco._src.policy.foreign import _sb3_algorithm, as_policy, open_policy
from psyco._src.policy.network import network_for
from tests.environments import Mixed, Walk, to_the_left

REQUIREMENT = "P>=0.5 [ G (abs(obs[0]) <= 2.9) ] & C>=0.9"


def verified(policy: object, **options: object) -> tuple[object, float]:
    domain = psyco.make(Walk, horizon=20)
    certificate = psyco.verify(policy, domain, REQUIREMENT, max_episodes=100, **options)  # type: ignore[arg-type]
    return certificate.findings[0].satisfied, certificate.mean_return


def test_a_function_is_verified_as_the_loop_that_calls_it() -> None:
    satisfied, mean = verified(to_the_left)
    assert verified("python:tests.environments:to_the_left") == (satisfied, mean)
    assert verified(lambda obs: int(obs[0] < 0)) == (satisfied, mean)
    assert verified(lambda obs: 1) != (satisfied, mean)


def test_an_onnx_file_a_torchscript_module_and_the_policy_itself_agree(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    domain = psyco.make(Walk, horizon=20)
    network = network_for(domain)
    policy = policy_for(domain, network, np.random.default_rng(3).normal(0, 0.5, network.size))
    psyco.export_onnx(policy, tmp_path / "p.onnx")
    w1, w2 = network.parts(policy.theta)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2 = torch.nn.Parameter(torch.tensor(w1)), torch.nn.Parameter(torch.tensor(w2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ self.w1 + 1.0) @ self.w2.T + 1.0  # scores: the larger one is the action

    torch.jit.script(Net()).save(str(tmp_path / "p.pt"))
    expected = verified(policy)
    assert verified(str(tmp_path / "p.onnx")) == expected
    assert verified(str(tmp_path / "p.pt")) == expected
    assert verified(str(tmp_path / "p.onnx"), workers=2) == expected


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "DQN", "SAC", "TD3", "DDPG"])
def test_the_algorithm_of_an_sb3_file_is_found(algorithm: str, tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    discrete = algorithm in ("PPO", "A2C", "DQN")
    path = tmp_path / "model.zip"
    environment = "CartPole-v1" if discrete else "Pendulum-v1"
    small = {} if algorithm in ("PPO", "A2C") else {"buffer_size": 10}
    model = getattr(sb3, algorithm)("MlpPolicy", environment, device="cpu", **small)
    model.save(path)
    assert _sb3_algorithm(path).upper() == algorithm
    env = gymnasium.make(environment)
    observation, _ = env.reset(seed=1)
    expected = model.predict(observation, deterministic=True)[0]
    domain = psyco.make(environment, horizon=15)
    chosen = open_policy(f"sb3:{path}")._decide(observation[None], [observation], domain.actions)[0]
    np.testing.assert_allclose(chosen, expected, rtol=1e-4)
    certificate = psyco.verify(f"sb3:{path}", domain, "P>=0.5 [ G (step <= 15) ]", max_episodes=10)
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
    with pytest.raises(psyco.RunError, match="the policy failed: ValueError: the policy python:"):
        psyco.verify(lambda obs: action, psyco.make("obstacle-run"), "P>=0.9 [ F target ]", max_episodes=2)


def test_numbers_are_held_to_the_action_range_of_a_compiled_domain() -> None:
    domain = psyco.make("particle-dance")
    high = domain.actions.high
    returns = [
        psyco.verify(
            lambda obs, a=a: np.array(a), domain, "P>=0.9 [ G step <= 99 ]", max_episodes=5
        ).mean_return
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


def test_actions_of_a_network_that_leave_their_range_are_clipped(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Wild(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full((x.shape[0], 2), 100.0)

    torch.jit.script(Wild()).save(str(tmp_path / "wild.pt"))
    domain = psyco.make(Mixed, actions="box", horizon=3)
    certificate = psyco.verify(
        str(tmp_path / "wild.pt"), domain, "P>=0.5 [ X G info.inside ]", max_episodes=20
    )
    assert certificate.findings[0].violated == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("python:tests.environments:nobody", "has no 'nobody'"),
        ("python:no.such:thing", "cannot import"),
        ("python:os:sep", "no function"),
        ("missing.onnx", "cannot read"),
        ("sb3:missing.zip", "cannot read"),
        ("missing.safetensors", "no policy file"),
    ],
)
def test_what_is_no_policy_is_said(name: str, message: str) -> None:
    with pytest.raises(psyco.RunError, match=message):
        open_policy(name)


@pytest.mark.parametrize("name", ["broken.onnx", "broken.pt", "sb3:broken.zip"])
def test_a_broken_file_is_said(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("onnxruntime", "torch", "stable_baselines3"):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    Path(name.removeprefix("sb3:")).write_bytes(b"nonsense")
    with pytest.raises(psyco.RunError, match="broken") as caught:
        verified(name)
    assert not isinstance(caught.value, psyco.EpisodeError)  # it is said before any episode


def test_what_cannot_be_called_is_no_policy() -> None:
    with pytest.raises(psyco.RunError, match="42 is no policy"):
        as_policy(42)  # type: ignore[arg-type]
