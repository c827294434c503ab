"""Warm start: learning starts from the given policy with any normalization, and runs can be repeated and resumed."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

import psyco
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import Policy, load_policy, policy_for
from psyco._src.runs.config import load_config
from psyco._src.runs.problem import prepare
from psyco._src.runs.train import current_policy, initial_state
from psyco._src.runs.warm_start import with_initial_policy
from tests.environments import Walk
from tests.making import learned, make_settings

REQUIREMENT = "P>=0.5 [ G (abs(obs[0]) <= 2) ] & C>=0.9"
STRICTER = "P>=0.6 [ G (abs(obs[0]) <= 1.5) ] & C>=0.9"
SMALL = {
    "episodes": 44, "verify_every": 22, "verify_episodes": 5, "selection_episodes": 5, "max_episodes": 20,
    "candidates": 2, "attempts": 1,
}  # fmt: skip


def walk_policy(**network: object) -> Policy:
    """A policy for `Walk` that moves, and whose observations are far from standard."""
    domain = psyco.make(Walk, horizon=15)
    made = dataclasses.replace(network_for(domain, hidden=(6, 4), bias="learned"), **network)
    return policy_for(domain, made, 2 * np.asarray(made.init(jax.random.key(3))))


def started(policy: Policy, **settings: object):
    domain = psyco.make(Walk, horizon=15)
    ready = with_initial_policy(make_settings(**settings), policy)
    return prepare(domain, psyco.parse(REQUIREMENT), ready, initial_policy=policy)


@pytest.mark.parametrize("own", [{}, {"shift": (0.3, 5.0), "scale": (0.7, 4.0)}], ids=["folded", "scaled"])
@pytest.mark.parametrize("normalization", ["auto", "sampled", "none"])
def test_learning_begins_with_the_policy_that_was_given(own: dict[str, object], normalization: str) -> None:
    policy = walk_policy(**own)
    problem = started(policy, normalization=normalization, learner="safe-es", **SMALL)
    first = current_policy(problem, initial_state(problem))
    x = np.random.default_rng(0).normal([0.0, 7.0], [2.0, 4.0], (200, 2)).astype(np.float32)
    ours, theirs = (p.network.numpy_scores(p.theta[None])(x) for p in (first, policy))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert (problem.network.hidden, problem.network.bias) == ((6, 4), "learned")
    assert bool(problem.network.scale) == (bool(own) or normalization != "none")
    assert problem.plan().phases[0].episodes == (0 if own or normalization == "none" else 8)
    if own or normalization == "none":
        assert problem.network == policy.network, "no episode is played to find out what is known"


@pytest.mark.parametrize(
    "learner",
    [
        "safe-es",
        *(pytest.param(name, marks=pytest.mark.more) for name in ("ppo", "snes", "sac")),
        pytest.param("evosax", marks=[pytest.mark.more, pytest.mark.extra("evosax")]),
    ],
)
def test_every_learner_can_go_on_from_a_policy(learner: str) -> None:
    policy = walk_policy()
    problem = started(policy, learner=learner, **SMALL)
    first = initial_state(problem)
    np.testing.assert_allclose(
        policy(np.ones((1, 2))), current_policy(problem, first)(np.ones((1, 2))), rtol=1e-4, atol=1e-4
    )
    after = learned(problem).at
    assert np.isfinite(problem.wrapped_learner.deployed(after.state)).all()
    assert not np.allclose(problem.wrapped_learner.deployed(after.state), problem.wrapped_learner.deployed(first.state))


def test_settings_that_contradict_the_policy_are_refused() -> None:
    policy = walk_policy()
    with pytest.raises(psyco.RunError, match=r"hidden = 64 does not fit .* has \(6, 4\); leave it out"):
        with_initial_policy(make_settings(hidden=64), policy)
    with pytest.raises(psyco.RunError, match="bias = 'one' does not fit"):
        with_initial_policy(make_settings(bias="one"), policy)
    with pytest.raises(psyco.RunError, match=r"made for .*Walk \(2 obs.* CartPole-v1 has 4 observations"):
        psyco.synthesize("CartPole-v1", "P>=0.5 [ G (obs[0] <= 2) ]", start_from=policy, episodes=22)
    with pytest.raises(psyco.RunError, match="is not a policy"):
        psyco.synthesize("obstacle-run", "P>=0.5 [ G !caught ]", start_from=object(), episodes=22)
    with pytest.raises(psyco.RunError, match=r"sac needs learned biases, and those of the policy .* are 1"):
        with_initial_policy(make_settings(learner="sac"), walk_policy(bias="one"))
    settings = with_initial_policy(make_settings(), policy)
    with pytest.raises(psyco.RunError, match=r"starts from the policy sha256:.* missing; give .* \(--from\)"):
        prepare(psyco.make(Walk, horizon=15), psyco.parse(REQUIREMENT), settings)
    with pytest.raises(psyco.RunError, match="by its digest"):
        make_settings(start_from="runs/dance")


@pytest.mark.more
def test_a_run_keeps_what_it_started_from_repeats_and_goes_on(cli, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    dance = ["synthesize", "particle-dance", "--set", "horizon=5", "--option", "verify_every=22",
             "--max-episodes", "20", "--selection-episodes", "5", "--option", "verify_episodes=5",
             "--attempts", "1"]  # fmt: skip
    formula = "P>=0.{} [ G distance >= 0.1 ] & C>=0.9"
    cli(*dance, "--require", formula.format(3), "--episodes", "44", "--hidden", "5,4", "--out", "first")
    cli(*dance, "--require", formula.format(5), "--episodes", "66", "--from", "first", "--out", "second")
    before = load_policy(Path("first/policy.safetensors"))
    config = load_config(Path("second/config.toml"))
    assert config.settings.start_from == f"sha256:{before.digest}" and config.settings.hidden == (5, 4)
    assert Path("second/start.safetensors").read_bytes() == Path("first/policy.safetensors").read_bytes()

    done = cli("synthesize", "--config", "second/config.toml", "--out", "again")
    assert done.status in (0, 1, 3), done.err
    policy = Path("second/policy.safetensors").read_bytes()
    assert Path("again/policy.safetensors").read_bytes() == policy != before.to_bytes()

    done = cli("synthesize", "--config", "second/config.toml", "--episodes", "44", "--out", "longer")
    assert cli("resume", "longer", "--episodes", "66").status in (0, 1, 3)
    assert Path("longer/metrics.csv").read_text().splitlines()[3].startswith("2,")

    Path("longer/start.safetensors").unlink()
    done = cli("resume", "longer", "--episodes", "+22")
    assert done.status == 2 and "put its file back" in " ".join(done.err.split())
    (Path("longer") / "start.safetensors").write_bytes(policy)
    done = cli("resume", "longer", "--episodes", "+22")
    assert done.status == 2 and "was changed or damaged" in " ".join(done.err.split())


def test_normalization_of_a_policy_that_hardly_moves_keeps_observations_small() -> None:
    """A column that was 0 but once must not be blown up by its tiny spread."""
    from psyco._src.rollout.obs_normalization import MAX_NORMALIZED, standardization

    seen = np.zeros((1000, 1))
    seen[0] = 3.0
    (shift,), (scale,) = standardization(seen, MAX_NORMALIZED)
    assert (3.0 - shift) / scale == pytest.approx(10.0, rel=1e-4)
