"""Robust learning: episodes take place more often in the environments where the constraints fail."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import psyco
from psyco._src.envs.actions import Continuous
from psyco._src.envs.family import values_of_members
from psyco._src.envs.variants import read_tail
from psyco._src.learners.loop import _loop, train
from psyco._src.learners.robust import CELLS, POOL, UNIFORM_SHARE, RobustLearner, RobustState, divide
from psyco._src.rollout.episodes import episode_keys, in_members, member_numbers
from psyco._src.runs.config import Config
from psyco._src.runs.execute import execute
from psyco._src.runs.problem import prepare
from psyco._src.runs.session import build_problem, resume_run, start_run
from psyco._src.runs.settings import Settings
from psyco._src.runs.train import Callback
from tests.runs.small import outcome

REQUIREMENT = "P>=0.5 [ G height <= 1 ] & C>=0.9"


@dataclass(frozen=True)
class Ledge:
    """A height that is a function of two parameters, whatever the policy does."""

    horizon: int = 1
    left: float = 0.5
    right: float = 0.5
    top: float = 1.0  # of the height

    name: ClassVar[str] = "ledge"
    observation_size: ClassVar[int] = 1
    actions: ClassVar[Continuous] = Continuous((-1.0,), (1.0,))

    def reset(self, key: jax.Array) -> jax.Array:
        return 0.0 * jax.random.uniform(key)

    def step(self, key: jax.Array, state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, bool]:
        return state + self.left + jnp.minimum(self.right, self.top), action[0], False

    def observe(self, state: jax.Array) -> jax.Array:
        return state[None]

    def signals(self, state: jax.Array) -> dict[str, jax.Array]:
        return {"height": state}


def family() -> Any:
    return psyco.vary(Ledge(), left=(0.0, 1.0), right="normal(0.4,0.1)")


def test_cells_have_equal_probability_and_neighbours_share_one() -> None:
    cells = divide(family())
    assert cells.shape == (CELLS, POOL // CELLS)
    assert sorted(cells.ravel()) == list(range(1, POOL + 1))
    values = values_of_members(family(), cells.ravel()).reshape(CELLS, -1, 2)
    quarters = np.quantile(values.reshape(-1, 2), [0.0, 0.25, 0.5, 0.75, 1.0], axis=0)
    # Four quarters of the first parameter, and within each of them four of the second.
    places = {int(np.searchsorted(quarters[:, 0], cell[:, 0].max() - 1e-9)) for cell in values}
    assert places == {1, 2, 3, 4}
    assert all(np.ptp(cell[:, 0]) <= 0.27 for cell in values)
    lows = sorted(cell[:, 1].max() for cell in values)
    assert lows[3] < quarters[2, 1] < lows[8]


def test_parameters_that_take_the_same_number_divide_once() -> None:
    doubled = psyco.vary(Ledge(), {"left,right": (0.0, 1.0), "top": (0.0, 2.0)})
    np.testing.assert_array_equal(divide(doubled), divide(psyco.vary(Ledge(), right=(0.0, 1.0), top=(0.0, 2.0))))


def state_with(share: np.ndarray[Any, Any], episodes: float = 1e6) -> RobustState:
    played = jnp.full(CELLS, episodes, jnp.float32)
    return RobustState(None, jnp.zeros((CELLS, 1), jnp.uint32), jnp.asarray(share, jnp.float32) * played, played)


def learner(tail: float, domain: Any = None) -> RobustLearner:
    inner = prepare(Ledge(), psyco.parse(REQUIREMENT), Settings()).learner
    return RobustLearner(inner, domain or family(), tail, 60_000)


@pytest.mark.parametrize(
    ("robust", "cells"), [("worst", 1.0), ("cvar:0.05", 1.0), ("cvar:0.25", 4.0), ("cvar:0.1", 1.6)]
)
def test_the_lowest_cells_get_all_but_the_uniform_share(robust: str, cells: float) -> None:
    tail = read_tail(robust)
    assert tail is not None
    order = np.random.default_rng(0).permutation(CELLS)  # from the worst cell to the best
    share = np.empty(CELLS)
    share[order] = np.linspace(0.1, 0.9, CELLS)
    weight = np.asarray(learner(tail).weights(jnp.zeros(CELLS), state_with(share)))
    density = np.clip(cells - np.arange(CELLS), 0.0, 1.0) / cells  # the definition of CVaR: at most 1 / tail
    np.testing.assert_allclose(weight[order], UNIFORM_SHARE / CELLS + (1 - UNIFORM_SHARE) * density, rtol=1e-5)
    assert weight.sum() == pytest.approx(1.0, abs=1e-6)


def test_equal_cells_take_turns() -> None:
    keys = jax.random.split(jax.random.key(0), 2000)
    draw = jax.vmap(
        lambda key: learner(0.0).weights(jax.random.normal(key, (CELLS,)), state_with(np.ones(CELLS), 10.0))
    )
    mean = np.asarray(draw(keys)).mean(axis=0)
    # Each cell is the lowest in 1/16 of the draws: 5 standard errors; fails by luck once in 100,000 seeds.
    assert np.abs(mean - 1 / CELLS).max() < 5 * np.sqrt(1 / CELLS / 2000)


def test_keys_of_chosen_members_keep_their_other_chance_events() -> None:
    keys = episode_keys(jax.random.key(1), 0, 3)
    moved = in_members(keys, jnp.array([5, 9, 5], jnp.uint32))
    assert member_numbers(moved) == [5, 9, 5]
    np.testing.assert_array_equal(jax.random.key_data(moved)[:, 1], jax.random.key_data(keys)[:, 1])


SETTINGS = Settings(learner="safe-es", episodes=2400, hidden=2, verify_every=0, options={"population": 20})


def test_most_episodes_take_place_where_the_constraint_fails() -> None:
    # left + right <= 1 fails in the cells with a large left, whatever the policy does.
    problem = prepare(family(), psyco.parse(REQUIREMENT), replace(SETTINGS, robust="cvar:0.25"))
    wrapped = problem.wrapped_learner
    robust = wrapped.inner
    assert isinstance(robust, RobustLearner)
    first = wrapped.init(problem.network.init(jax.random.key(0)))
    state, played = train(wrapped, problem.sampler, jax.random.key(2), first, first=0, generations=100)
    after: RobustState = state.inner
    values = values_of_members(family(), np.asarray(after.members).ravel()).reshape(CELLS, -1, 2)
    truth = (values.sum(axis=-1) <= 1.0).mean(axis=1)
    share = np.asarray(after.satisfied / after.played)
    assert np.corrcoef(share, truth)[0, 1] > 0.9
    weight = np.asarray(robust.weights(jnp.zeros(CELLS), after))
    assert truth[weight > 0.1].max() <= np.sort(truth)[4]
    # 3/4 of the episodes are in four cells that fail nearly always; of the family, 4 in 10 fail.
    late = np.asarray(played.episodes.satisfied)[50:]
    assert late.mean() < 0.25 < truth.mean()


def test_no_program_is_compiled_after_the_first_segment() -> None:
    problem = prepare(family(), psyco.parse(REQUIREMENT), replace(SETTINGS, robust="worst"))
    wrapped = problem.wrapped_learner
    state: Any = wrapped.init(problem.network.init(jax.random.key(0)))
    before = _loop._cache_size()
    for first in (0, 10, 20):
        state, _ = train(wrapped, problem.sampler, jax.random.key(2), state, first=first, generations=10)
    assert _loop._cache_size() == before + 1


def test_mean_is_the_learner_without_anything_around_it() -> None:
    problem = prepare(family(), psyco.parse(REQUIREMENT), SETTINGS)
    assert problem.wrapped_learner.inner is problem.learner
    assert (
        problem.wrapped_learner.propose(
            jax.random.key(0), problem.wrapped_learner.init(jnp.zeros(problem.network.size))
        ).member
        is None
    )


@pytest.mark.parametrize("robust", ["cvar", "cvar:0", "cvar:1", "cvar:-1", "cvar:nan", "median", "", "worst:0.1"])
def test_other_words_are_refused(robust: str) -> None:
    with pytest.raises(psyco.RunError, match=r"is not allowed: write mean, cvar:0\.1"):
        Settings(robust=robust)


def test_environments_must_be_ranked_by_something() -> None:
    with pytest.raises(psyco.RunError, match="ledge is a single environment"):
        prepare(Ledge(), psyco.parse(REQUIREMENT), replace(SETTINGS, robust="worst"))
    with pytest.raises(psyco.RunError, match="no constraint on a probability"):
        prepare(family(), psyco.parse("Rmax=? [ C ]"), replace(SETTINGS, robust="worst"))


@pytest.mark.more
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    parameters = {"horizon": 5, "vary": {"max_speed": "0.05..0.2"}, "observe_parameters": True}
    settings = Settings(
        learner="snes", episodes=600, verify_every=50, verify_episodes=20, max_episodes=50, hidden=4,
        robust="cvar:0.3", options={"population": 10},
    )  # fmt: skip
    config = Config("particle-dance", "P>=0.5 [ G distance >= 0.3 ] & C>=0.9", parameters, settings)
    with start_run(tmp_path / "whole", config, build_problem(config)) as session:
        execute(session, checkpoint_every=0)
    rows = 0

    def count(_: Any, metrics: Any) -> None:
        nonlocal rows
        rows += metrics.rows

    with start_run(tmp_path / "stopped", config, build_problem(config)) as session:
        stop = Callback(on_metrics=count, should_stop=lambda: rows >= 30)
        execute(session, callbacks=[stop], checkpoint_every=0)
    assert not (tmp_path / "stopped" / "policy.safetensors").exists()
    with resume_run(tmp_path / "stopped") as again:
        assert again is not None
        execute(again)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


class Lever(gymnasium.Env[Any, Any]):
    """An environment with a parameter that decides everything."""

    observation_space: Any = spaces.Box(-1e6, 1e6, (1,))
    action_space: Any = spaces.Discrete(2)
    weight = 0.5

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.full(1, self.weight, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.full(1, self.weight, np.float32), float(action), False, False, {}


@pytest.mark.more
def test_the_number_of_workers_changes_nothing() -> None:
    found = psyco.vary(psyco.make(Lever, horizon=2), {"unwrapped.weight": (0.0, 1.0)})
    settings = Settings(episodes=120, learner="ppo", hidden=4, robust="worst", max_episodes=50, verify_episodes=20)
    one, two = (
        psyco.synthesize(
            found, "P>=0.5 [ G obs[0] <= 0.7 ]", settings=settings, execution=psyco.Execution(workers=workers)
        )
        for workers in (1, 2)
    )
    assert one.policy.digest == two.policy.digest
    assert one.metrics.to_csv() == two.metrics.to_csv()
    # The last episodes are in the cells that fail; the check of the policy draws from the family.
    assert one.metrics["satisfied"][-3:].mean() < 0.5
    checked = one.metrics["verified_share"]
    assert 0.5 < checked[np.isfinite(checked)].mean() < 0.9
