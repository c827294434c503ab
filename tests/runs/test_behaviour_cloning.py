"""Learning starts from external policies and demonstrations: what is read, what is cloned, what a run keeps of it."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psyco
from psyco._src.api.coerce import as_start
from psyco._src.policies.external import as_policy
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import load_policy, policy_for
from psyco._src.runs.behaviour_cloning import (
    Demonstrations,
    clone,
    from_signals,
    limit_scores,
    play_demonstrations,
    read_demonstrations,
)
from psyco._src.runs.config import load_config
from tests.environments import Mixed, Slide, Walk, to_the_left
from tests.making import flat

REQUIREMENT = "P>=0.5 [ G (abs(obs[0]) <= 2) ] & C>=0.9"
SMALL = {
    "episodes": 44, "verify_every": 22, "verify_episodes": 5, "selection_episodes": 5, "max_episodes": 20,
    "candidates": 2, "attempts": 1,
}  # fmt: skip


def walk(horizon: int = 15) -> Any:
    return psyco.make(Walk, horizon=horizon)


def recorded(count: int = 3) -> list[dict[str, Any]]:
    return [psyco.record(to_the_left, walk(), episode=i) for i in range(count)]


def csv_traces(paths: list[dict[str, Any]]) -> str:
    lines = ["episode,obs[0],obs[1],action"]
    lines += [f"{i},{x!r},{t!r},{a:g}" for i, path in enumerate(paths) for (x, t), a in rows(path)]
    return "\n".join(lines) + "\n"


def json_traces(paths: list[dict[str, Any]]) -> str:
    lines = [{"episode": i, "obs": x, "action": a} for i, path in enumerate(paths) for x, a in rows(path)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def rows(path: dict[str, Any]) -> Any:
    return zip(path["obs"].tolist(), path["action"].tolist(), strict=True)


# ---- what is read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", [walk(), Slide()], ids=["gymnasium", "compiled"])
def test_an_action_stands_beside_the_observation_for_which_it_was_taken(domain: Any) -> None:
    demonstrations = play_demonstrations(as_policy(to_the_left), domain, seed=0)
    expected = [to_the_left(observation) for observation in demonstrations.observations]
    np.testing.assert_array_equal(demonstrations.actions[:, 0], expected)
    assert 0 < np.mean(expected) < 1 and demonstrations.episodes == 100


@pytest.mark.parametrize(("suffix", "write"), [(".csv", csv_traces), (".jsonl", json_traces)])
def test_traces_are_read_as_they_were_recorded(tmp_path: Path, suffix: str, write: Any) -> None:
    paths = recorded()
    (tmp_path / f"traces{suffix}").write_text(write(paths))
    read = read_demonstrations(tmp_path / f"traces{suffix}", walk())
    kept = read_demonstrations(paths, walk())
    assert read is not None and kept is not None and read.episodes == kept.episodes == 3
    np.testing.assert_array_equal(read.observations, kept.observations)
    np.testing.assert_array_equal(read.actions, kept.actions)
    assert len(read.actions) == sum(len(path["action"]) - 1 for path in paths)


@pytest.mark.extra("minari", "h5py")
@pytest.mark.parametrize("domain", [walk(), psyco.make(Mixed, actions="discrete", horizon=6)], ids=["box", "dict"])
def test_a_minari_dataset_is_read_from_its_folder_and_from_memory(tmp_path: Path, domain: Any) -> None:
    import minari
    from minari import DataCollector

    env = DataCollector(domain.make_env())
    flattened, actions = [], []
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        env.action_space.seed(seed)
        over = False
        while not over:
            flattened.append(domain.flatten(observation))
            actions.append(env.action_space.sample())
            observation, _, terminated, truncated, _ = env.step(actions[-1])
            over = terminated or truncated
    folder = tmp_path / "own" / "test-v0"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        dataset = env.create_dataset("own/test-v0")
    for source in (folder, str(folder / "data"), dataset):
        read = read_demonstrations(source, domain)
        assert read is not None and read.episodes == 3
        np.testing.assert_array_equal(read.observations, np.array(flattened, np.float32))
        np.testing.assert_array_equal(read.actions[:, 0], actions)
    few = dataset.filter_episodes(lambda episode: episode.id == 1)
    assert read_demonstrations(few, domain).episodes == 1
    assert isinstance(dataset, minari.MinariDataset)

    other = psyco.make(Mixed, observations="tuple", horizon=6) if domain.observation_size == 2 else walk()
    with pytest.raises(psyco.RunError, match=f"does not fit {re.escape(other.name)}: "):
        read_demonstrations(dataset, other)

    about = folder / "data" / "metadata.json"
    content = json.loads(about.read_text())
    del content["observation_space"]
    about.write_text(json.dumps(content))
    with pytest.raises(psyco.RunError, match="has no observation_space"):
        read_demonstrations(folder, domain)  # Minari would make the environment that the file names
    about.write_text("{")
    with pytest.raises(psyco.RunError, match="Minari cannot read"):
        read_demonstrations(folder, domain)


def test_what_does_not_fit_is_refused_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = recorded()
    with pytest.raises(psyco.RunError, match="observations of 2 numbers and actions of 1; CartPole-v1 has 4 and 1"):
        from_signals(paths, "walks.csv", psyco.make("CartPole-v1"))
    with pytest.raises(psyco.RunError, match=r"has no step to learn from"):
        from_signals([{"obs": np.zeros((1, 2)), "action": np.zeros(1)}], "walks.csv", walk())
    with pytest.raises(psyco.RunError, match=r"the list of episodes has no step to learn from"):
        read_demonstrations([], walk())
    with pytest.raises(psyco.RunError, match="has no signal 'action'"):
        from_signals([{"obs": np.zeros((3, 2))}], "walks.csv", walk())
    with pytest.raises(psyco.RunError, match="3 rows of obs, 2 of action"):
        from_signals([{"obs": np.zeros((3, 2)), "action": np.zeros(2)}], "walks.csv", walk())
    with pytest.raises(psyco.RunError, match="not finite"):
        from_signals([{"obs": np.full((3, 2), np.nan), "action": np.zeros(3)}], "walks.csv", walk())
    wrong = from_signals([{"obs": np.zeros((3, 2)), "action": np.full(3, 7)}], "walks.csv", walk())
    with pytest.raises(psyco.RunError, match=r"walks.csv has the action 7, which is not in Discrete\(n=2\)"):
        clone(wrong, walk(), hidden=4, seed=0)
    (tmp_path / "traces.csv").write_text("episode,obs[0],obs[1]\na,1,2\n")
    with pytest.raises(psyco.RunError, match=r"traces.csv has no column 'action'.*; it has: obs"):
        read_demonstrations(tmp_path / "traces.csv", walk())
    (tmp_path / "traces.csv").write_text("")
    with pytest.raises(psyco.RunError, match=r"traces\.csv is empty"):
        read_demonstrations(tmp_path / "traces.csv", walk())
    (tmp_path / "metadata.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "minari.dataset.minari_storage", None)
    with pytest.raises(psyco.RunError, match=r'a Minari dataset and needs .* pip install "psyco\[minari\]"'):
        read_demonstrations(tmp_path, walk())


# ---- what is cloned ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "actions",
    ["box", *(pytest.param(kind, marks=pytest.mark.more) for kind in ("discrete", "multi", "binary", "whole"))],
)
def test_a_clone_acts_as_its_demonstrations_do(actions: str) -> None:
    """The demonstrated actions are linear in the observation; a clone is compared on observations it has not seen."""
    domain = psyco.make(Mixed, observations="tuple", actions=actions, horizon=6)
    weights = np.random.default_rng(1).normal(size=(3, domain.actions.outputs))

    def demonstrated(seed: int) -> tuple[Any, Any]:
        x = np.random.default_rng(seed).normal(size=(3000, 3)).astype(np.float32)
        scores = (x @ weights).astype(np.float32)
        chosen = np.stack(domain.to_env_actions(domain.actions.decode(np.clip(scores, -1, 1))))
        return x, np.asarray(chosen, np.float64).reshape(len(x), -1)

    x, chosen = demonstrated(0)
    policy = clone(Demonstrations("a rule", 1, x, chosen), domain, hidden=32, seed=0)
    x, chosen = demonstrated(2)
    answers = np.stack(domain.to_env_actions(policy(x))).reshape(chosen.shape)
    if isinstance(domain.actions, psyco.Continuous) and actions != "whole":
        assert np.abs(answers - chosen).mean() < 0.03 * np.ptp(chosen)
        assert "of the range of an action" in policy.origin
    else:
        assert (answers == chosen).mean() > 0.93
    assert policy.origin.startswith("behaviour cloning of a rule (1 episode, 3,000 steps; ")


def test_a_clone_is_a_function_of_the_seed_and_shows_its_progress() -> None:
    demonstrations = play_demonstrations(as_policy(to_the_left), walk(), seed=0)
    seen: list[tuple[int, int]] = []
    first = clone(demonstrations, walk(), hidden=4, seed=1, report=lambda *now: seen.append(now))
    assert first.to_bytes() == clone(demonstrations, walk(), hidden=4, seed=1).to_bytes()
    assert not np.array_equal(first.theta, clone(demonstrations, walk(), hidden=4, seed=2).theta)
    scores = first.network.numpy_scores(first.theta[None])(demonstrations.observations)
    assert np.percentile(np.abs(scores), 99) < 2.0, "far beyond 1.5 ppo would do nothing but pull them back"
    assert seen[0] == (0, 2000) and seen[-1] == (2000, 2000) and seen == sorted(seen)


@pytest.mark.parametrize("actions", ["discrete", "multi", "binary"])
def test_scores_are_limited_without_another_action(actions: str) -> None:
    domain = psyco.make(Mixed, observations="tuple", actions=actions, horizon=6)
    network = network_for(domain, hidden=(8, 8), bias="learned")
    theta = 10 * np.random.default_rng(0).normal(size=network.size).astype(np.float32)
    policy = policy_for(domain, network, theta)
    x = np.random.default_rng(1).normal(size=(1000, 3)).astype(np.float32)
    limited = limit_scores(policy, x)
    np.testing.assert_array_equal(limited(x), policy(x))
    before, after = (p.network.numpy_scores(p.theta[None])(x) for p in (policy, limited))
    assert np.percentile(np.abs(before), 50) > 100 and np.percentile(np.abs(after), 99) <= 1.001
    assert limit_scores(limited, x).theta == pytest.approx(limited.theta, rel=1e-4, abs=1e-6)


# ---- what a run keeps -------------------------------------------------------------------------------------------


@pytest.mark.more
def test_a_run_starts_from_a_clone_says_so_and_goes_on_to_the_same_bytes(cli, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("traces.csv").write_text(csv_traces(recorded(20)))
    small = [word for name, value in SMALL.items() for word in ("--option", f"{name}={value}") if name != "episodes"]
    command = ["synthesize", "PsycoTestWalk-v0", "--horizon", "15", "--require", REQUIREMENT, *small, "--hidden", "4"]
    done = cli(*command, "--episodes", "44", "--learner", "safe-es", "--from", "traces.csv", "--out", "first")
    assert done.status in (0, 1, 3), done.err
    words = "learning starts from behaviour cloning of traces.csv (20 episodes, "
    assert words in " ".join(done.err.split())
    assert words in Path("first/run.log").read_text()
    start = load_policy("first/start.safetensors")
    assert load_config(Path("first/config.toml")).settings.start_from == f"sha256:{start.digest}"
    assert start.origin.startswith("behaviour cloning of traces.csv") and start.network.layers == (4,)
    observations = np.array([[-1.5, 3.0], [1.5, 3.0]])
    assert start(observations).tolist() == [to_the_left(x) for x in observations]

    Path("traces.csv").unlink()
    done = cli("synthesize", "--config", "first/config.toml", "--episodes", "22", "--out", "second")
    assert words in " ".join(done.err.split()), "the policy to start from lies beside the configuration"
    assert cli("resume", "second", "--episodes", "44").status in (0, 1, 3)
    for name in ("start.safetensors", "policy.safetensors"):
        assert (Path("second") / name).read_bytes() == (Path("first") / name).read_bytes()


@pytest.mark.parametrize("hidden", [(5, 4), pytest.param(None, marks=pytest.mark.more)])
def test_any_policy_can_be_imitated(hidden: Any) -> None:
    """Also a Python function; and a clone has the hidden layers that the settings ask for."""
    started: list[psyco.Policy] = []
    callback = psyco.Callback(on_start=started.append, should_stop=lambda: True)
    settings = {**SMALL, "learner": "safe-es"} | ({} if hidden is None else {"hidden": hidden})
    psyco.synthesize(walk(), REQUIREMENT, start_from=to_the_left, callbacks=[callback], **flat(**settings))
    (policy,) = started
    assert policy.network.layers == (hidden or (64, 64))
    assert policy.origin.startswith("behaviour cloning of python:tests.environments:to_the_left (100 episodes")


# ---- Stable-Baselines3 ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.extra("stable_baselines3")
def test_learning_starts_from_a_saved_model(cli, tmp_path: Path, monkeypatch) -> None:
    """Layers with relu by their weights, with tanh by behaviour cloning; a file that can run code needs trust."""
    from stable_baselines3 import PPO
    from torch import nn

    monkeypatch.chdir(tmp_path)
    env = walk().make_env()
    relu = {"net_arch": [8], "activation_fn": nn.ReLU}
    PPO("MlpPolicy", env, seed=0, device="cpu", policy_kwargs=relu).save("relu.zip")
    model = PPO("MlpPolicy", env, seed=0, device="cpu", n_steps=512)
    model.learn(2048)
    model.save("ppo.zip")
    small = [word for name, value in SMALL.items() for word in ("--option", f"{name}={value}") if name != "episodes"]
    command = [
        "synthesize",
        "PsycoTestWalk-v0",
        "--horizon",
        "15",
        "--require",
        REQUIREMENT,
        *small,
        "--episodes",
        "22",
    ]
    done = cli(*command, "--from", "sb3:relu.zip")
    assert done.status == 2 and "can run code" in done.err and "--trust sb3:relu.zip" in " ".join(done.err.split())
    done = cli(*command, "--from", "sb3:sacc:relu.zip", "--trust", "sb3:sacc:relu.zip")
    assert done.status == 2 and "has no algorithm 'sacc'" in " ".join(done.err.split())

    done = cli(*command, "--from", "sb3:relu.zip", "--trust", "sb3:relu.zip", "--out", "weights")
    assert "learning starts from the weights of sb3:relu.zip" in " ".join(done.err.split())
    x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    theirs, _ = PPO.load("relu.zip").predict(x, deterministic=True)
    np.testing.assert_array_equal(load_policy("weights/start.safetensors")(x), theirs)

    def start(name: str, **settings: Any) -> psyco.Policy:
        found = as_start(name, walk(), psyco.Settings(**settings), psyco.Execution(), trust=[name])
        assert found is not None
        return found

    smaller = start("sb3:relu.zip", hidden=4)
    assert smaller.network.hidden == 4 and smaller.origin.startswith("behaviour cloning of sb3:relu.zip (100 episodes")
    cloned = start("sb3:ppo.zip")
    assert cloned.network.hidden == (64, 64) and cloned.origin.startswith("behaviour cloning of sb3:ppo.zip")
    played = play_demonstrations(as_policy(model), walk(), seed=99)  # which the clone has not seen
    assert np.mean(cloned(played.observations) == played.actions[:, 0]) > 0.95
