"""A budget in steps: the end of learning, its schedules, and its messages."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.core.errors import RunError
from psyco._src.learners.base import LearningBudget
from psyco._src.learners.candidate_buffer import CandidateBuffer
from psyco._src.learners.learner_registry import make_learner
from psyco._src.learners.loop import train
from psyco._src.learners.safe_es import SafeES
from psyco._src.policies.network import network_for
from psyco._src.rollout.episodes import Episodes
from psyco._src.runs.config import read_config
from psyco._src.runs.settings import Settings
from tests.making import flat

REQUIREMENT = "P>=0.8 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.9"
SMALL: dict[str, Any] = {
    "parameters": {"horizon": 5}, "hidden": 4, "options": {"population": 6, "checks": 2}, "verify_every": 40,
    "verify_episodes": 10, "max_episodes": 60, "selection_episodes": 5,
}  # fmt: skip


class Uneven:
    """Episodes whose length is known beforehand: 1 to 7 steps, by their key."""

    def __init__(self, compiled: bool) -> None:
        self.compiled = compiled

    def __call__(self, theta, keys) -> Episodes:
        length = 1 + (jax.random.key_data(keys)[:, -1] % 7).astype(jnp.int32)
        cost = jnp.abs(theta[:, :1])
        return Episodes(-jnp.sum(theta**2, axis=1), cost, cost < 0.5, length)


class Even(Uneven):
    """Episodes of five steps."""

    def __init__(self) -> None:
        super().__init__(compiled=True)

    def __call__(self, theta, keys) -> Episodes:
        return super().__call__(theta, keys)._replace(length=jnp.full(len(keys), 5, jnp.int32))


@pytest.mark.parametrize("compiled", [True, False])
def test_learning_ends_with_the_first_generation_at_whose_end_the_steps_are_spent(compiled: bool) -> None:
    learner = make_learner(
        SafeES(population=6, checks=2), psyco.parse(REQUIREMENT), episode_budget=100, step_budget=300
    )
    buffer, key = CandidateBuffer(learner, 3, 13, 300), jax.random.key(2)
    start = buffer.init(jnp.ones(3))
    state, rows = train(buffer, Uneven(compiled), key, start, first=0, generations=50, steps=300)
    spent = np.cumsum(rows.episodes.length.sum(axis=1))
    assert spent[-1] >= 300 > spent[-2]
    assert state.steps == state.inner.steps == spent[-1]
    # The last candidate is the current policy; the others are kept after each fifteenth of the budget.
    over = spent // (300 // 15)
    expected = [g + 1 for g in range(len(spent)) if over[g] > (over[g - 1] if g else 0)]
    found = [generation for generation, _ in buffer.kept(state)]
    assert found == [len(spent), *(g for g in reversed(expected) if g < len(spent))][:3]


@pytest.mark.more
def test_with_episodes_of_one_length_a_budget_in_steps_equals_one_in_episodes() -> None:
    ends = []
    for steps in (0, 160 * 5):
        learner = make_learner(
            SafeES(population=6, checks=2),
            psyco.parse(REQUIREMENT),
            episode_budget=160,
            step_budget=steps or None,
        )
        buffer = CandidateBuffer(learner, 3, 20, steps)
        start = buffer.init(jnp.ones(3))
        state, _ = train(buffer, Even(), jax.random.key(2), start, first=0, generations=20, steps=steps or None)
        ends.append([np.asarray(theta) for _, theta in buffer.kept(state)])
    np.testing.assert_allclose(*ends, rtol=1e-5)
    assert not np.allclose(ends[0][0], 1.0)


def test_the_fraction_of_learning_is_counted_in_the_unit_of_the_budget() -> None:
    count = jnp.int32
    assert LearningBudget(40).fraction(count(10), count(999)) == 0.25
    assert LearningBudget(40, 1000).fraction(count(10), count(500)) == 0.5
    assert LearningBudget(40, 1000).fraction(count(90), count(1010)) == 1.0
    for name in ("safe-es", "ppo"):
        domain = psyco.make("particle-dance")
        network = network_for(domain)
        learner = make_learner(
            name, psyco.parse(REQUIREMENT), network=network, actions=domain.actions, horizon=domain.horizon,
            episode_budget=100, step_budget=5000,
        )  # fmt: skip
        state = learner.init(jnp.zeros(network.size))
        assert learner.progress(state._replace(steps=jnp.int32(1250))) == 0.25


@pytest.mark.more
def test_a_run_of_steps_says_how_far_it_is_goes_on_and_can_be_made_longer(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def interrupt(problem: Any, at: Any) -> None:
        if at.generation == 10:
            raise Stop

    whole = psyco.start("particle-dance", REQUIREMENT, tmp_path / "whole", **flat(steps=700, **SMALL))
    assert (whole.steps, whole.progress, whole.episodes) == (720, 1.0, 144)
    assert whole.config is not None and whole.config.settings.steps == 700
    assert "720 of 700 steps" in psyco.report(whole).read_text()
    with pytest.raises(Stop):
        psyco.start(
            "particle-dance",
            REQUIREMENT,
            tmp_path / "cut",
            **flat(steps=700, callbacks=[psyco.Callback(on_checkpoint=interrupt)], **SMALL, checkpoint_every=0),
        )
    cut = psyco.open_run(tmp_path / "cut")
    assert cut.steps == 400 and cut.progress == pytest.approx(400 / 700)
    again = psyco.resume(tmp_path / "cut")
    for name in ("metrics.csv", "policy.safetensors"):
        assert (again.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    with pytest.raises(RunError, match="the budget of this run is in steps: give --steps"):
        psyco.resume(whole, episodes="+100")
    with pytest.raises(RunError, match="has 700 steps already"):
        psyco.resume(whole, steps=500)
    for bad in ("1.5e0", "-3", "e3", "1e3x"):
        with pytest.raises(RunError, match="takes a total such as 100000 or 1e5, or an addition"):
            psyco.resume(whole, steps=bad)
    longer = psyco.resume(whole, steps="+3e2")
    assert longer.steps == 1000 and longer.config is not None and longer.config.settings.budget == "1,000 steps"
    assert json.loads((longer.folder / "looks.json").read_text())["entries"]


def test_one_budget_of_two_must_be_meant(cli: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"either episodes \(100\) or steps \(3,000\)"):
        psyco.synthesize("particle-dance", REQUIREMENT, episodes=100, steps=3000)
    with pytest.raises(RunError, match="either episodes"):
        Settings(episodes=100, steps=3000)
    with pytest.raises(RunError, match="either episodes"):
        read_config(
            f"requirement = '{REQUIREMENT}'\n[domain]\nname='particle-dance'\n[settings]\nepisodes=60000\nsteps=5",
            "a file",
        )
    for bad in ("3x", "0", "-1", "1.5", "1e12", "nan"):
        done = cli("synthesize", "particle-dance", "--require", REQUIREMENT, "--steps", bad)
        assert done.status == 2, bad
        assert "3e6" in done.err
    done = cli("synthesize", "particle-dance", "--require", REQUIREMENT, "--steps", "3e6", "--episodes", "7")
    assert done.status == 2 and "either episodes (7) or steps (3,000,000)" in done.err
    assert Settings(steps=3e6).steps == 3_000_000  # type: ignore[arg-type]
