"""The peers' side of the benchmark: the environment is the domain, and costs are the requirement's."""

from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from benchmarks.peers import ppolag
from benchmarks.peers.__main__ import Peer, others, outcome
from benchmarks.peers.dance import Dance
from benchmarks.peers.page import peers_page
from benchmarks.peers.penalty import Penalty
from benchmarks.peers.tasks import TASKS, Unavailable
from psyco._src.envs.particle_dance import DanceState


def test_the_environment_does_what_the_domain_does() -> None:
    """Step by step, with the same pushes, to the rounding of the domain's float32."""
    env, domain = Dance(), psyco.make("particle-dance")
    observation, info = env.reset(seed=3)
    rest = jnp.zeros(2)
    state = DanceState(jnp.asarray(env.agent), jnp.asarray(env.particle), rest, rest, jnp.int32(0))
    pushes = SimpleNamespace(drawn=[], plain=env.np_random)

    def uniform(low: float, high: float, size: int) -> np.ndarray:
        pushes.drawn.append(pushes.plain.uniform(low, high, size))
        return pushes.drawn[-1]

    env._np_random = SimpleNamespace(uniform=uniform)  # type: ignore[assignment]
    for k in range(50):
        # Towards the particle, so that they collide, and sometimes with more than is allowed.
        action = np.clip(env.particle - env.agent, -0.1, 0.1) * (3.0 if k % 2 else 1.0)
        observation, reward, terminated, truncated, info = env.step(action)
        state, wanted, _ = domain.step(jnp.asarray(pushes.drawn[-1]), state, jnp.clip(action, -0.1, 0.1))
        np.testing.assert_allclose(observation, domain.observe(state), atol=1e-5)
        assert reward == pytest.approx(float(wanted), abs=1e-5) == -info["distance"]
        assert info["collisions"] == int(state.collisions) and not terminated and truncated == (k == 49)
    assert info["collisions"] > 1


def test_an_episode_costs_where_it_breaks_the_requirement() -> None:
    formula = psyco.parse(TASKS["dance"].require).constraints[0].formula  # type: ignore[union-attr]
    for seed in range(20):
        env = Penalty(Dance(), 10.0)
        _, info = env.reset(seed=seed)
        seen = [info]
        for _ in range(50):
            inner = env.unwrapped
            _, reward, *_, info = env.step(np.clip(inner.particle - inner.agent, -0.1, 0.1))  # type: ignore[attr-defined]
            assert reward == pytest.approx(-info["distance"] - 10.0 * info["cost"])
            seen.append(info)
        path = {f"info.{name}": [each[name] for each in seen] for name in ("distance", "collisions")}
        assert psyco.check_path(formula, path).satisfied == (sum(each["cost"] for each in seen) == 0)


def test_a_policy_of_plain_arrays_is_the_network_that_was_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = [rng.normal(size=(5, 3)), rng.normal(size=(2, 5))]
    b = [rng.normal(size=5), rng.normal(size=2)]
    np.savez(
        tmp_path / "p.npz", w0=w[0], w1=w[1], b0=b[0], b1=b[1], mean=np.full(3, 0.5), std=np.full(3, 2.0),
        low=np.full(2, -0.1), high=np.full(2, 0.3), seconds=1.0,
    )  # fmt: skip
    x = np.array([0.5, 1.5, -100.0])
    seen = np.array([0.0, 0.5, -5.0])  # standard, and not farther away than 5
    wanted = np.clip(w[1] @ np.tanh(w[0] @ seen + b[0]) + b[1], -1, 1)
    np.testing.assert_allclose(ppolag.act(tmp_path / "p.npz")(x), 0.1 + 0.2 * wanted, rtol=1e-5)


@pytest.mark.more
def test_a_peer_is_computed_once_and_verified_like_anybody(tmp_path: Path) -> None:
    learned: list[Path] = []

    def learn(folder: Path) -> float:
        learned.append(folder)
        return 3.0

    def load(folder: Path) -> object:
        return lambda observation: np.full(2, 0.1, np.float32)

    peer = Peer("dance", "corner", 0, 100, learn, load)
    row = outcome(peer, tmp_path)
    again = outcome(peer, tmp_path)
    assert again | {"seconds": row["seconds"]} == row and len(learned) == 1
    assert row["verdict"] == "SATISFIED" and row["certified"] >= 0.85
    assert row["return"] < -50 and row["seconds"] > row["learning_seconds"] == 3.0
    page = peers_page([row, row | {"method": "a <peer>", "seed": 1}], {"dance": TASKS["dance"].require})
    assert "a &lt;peer&gt;" in page and "<peer>" not in page and page.count("<svg") == 2


def test_an_omnisafe_that_is_not_there_is_said_with_what_to_do(tmp_path: Path) -> None:
    import sys

    (peer,) = [p for p in others("dance", [0], 100, Path(sys.executable), 100) if "PPOLag" in p.method]
    folder = peer.folder(tmp_path)
    folder.mkdir(parents=True)
    with pytest.raises(Unavailable, match=r"OmniSafe cannot be imported .*python3\.10 -m venv omnisafe"):
        peer.learn(folder)
