"""A watched environment: `info["psyco"]` says what verification would say, and the environment stays as it is."""

from typing import Any

import gymnasium
import numpy as np
import pytest

import psyco
from psyco import Outlook
from psyco._src.logic.runtime_monitor import replay_episode
from psyco._src.rollout.episodes import Stream, episode_keys, episode_seeds, stream_key
from tests.environments import Walk, height, to_the_left

REQUIREMENT = """
P>=0.9 [ G (info.cost <= 0 | obs[1] < 4) ];
P>=0.5 [ F<=6 (terminated & return > 3) ];
P<=0.5 [ F (count(action = 0) >= 4 & obs[0] < 0) ];
P>=0.9 [ G<=3 height <= 3 ];
R{reward}>=1 [ C ];
"""
HORIZON, EPISODES = 12, 8


def watched(env: Any, seed: int) -> list[psyco.Status]:
    observation, info = env.reset(seed=seed)
    statuses = [info["psyco"]]
    while not statuses[-1].over:
        observation, _, terminated, truncated, info = env.step(to_the_left(observation))
        statuses.append(info["psyco"])
        assert statuses[-1].over or not (terminated or truncated)
    return statuses


def test_it_says_what_recorded_episodes_say() -> None:
    domain = psyco.make(Walk, horizon=HORIZON, signals={"height": height})
    env = psyco.MonitorWrapper(domain.make_env(), REQUIREMENT, signals={"height": height})  # type: ignore[attr-defined]
    assert env.monitor.horizon == HORIZON
    monitor = psyco.Monitor(REQUIREMENT, horizon=HORIZON)
    seeds = episode_seeds(episode_keys(stream_key(0, Stream.RECORD), 0, EPISODES))
    found = [watched(env, seed)[-1].constraints for seed in seeds]
    recorded = [replay_episode(monitor, psyco.record(to_the_left, domain, episode=i)) for i in range(EPISODES)]
    shown = [[(c.outlook, c.decided, c.value) for c in constraints] for constraints in found]
    assert shown == [[(c.outlook, c.decided, c.value) for c in constraints] for constraints in recorded]
    assert {outlook for episode in shown for outlook, *_ in episode} == set(Outlook)


def test_every_state_has_a_status() -> None:
    env = psyco.MonitorWrapper(Walk(), "P>=0.9 [ G obs[0] < 2 ]", horizon=HORIZON)
    assert [each.step for each in watched(env, 3)] == list(range(len(watched(env, 3))))


def test_where_actions_matter_the_first_state_waits_for_the_first_action() -> None:
    env = psyco.MonitorWrapper(Walk(), "P>=0.9 [ G count(action = 1) <= 1 ]", horizon=HORIZON)
    assert env.reset(seed=0)[1]["psyco"].step == -1
    status = env.step(1)[-1]["psyco"]  # the first state shows the first action
    assert status.step == 1 and status.outlook is Outlook.VIOLATED and status.aggregates == {"count(action = 1)": 2}


def test_a_key_that_info_does_not_have_is_0() -> None:
    formula = "G (info.nothing <= 0 & info.deep.x < 99 & !info.never & info.none[2] < 1)"
    env = psyco.MonitorWrapper(Walk(), f"P>=0.9 [ {formula} ]", horizon=2)
    assert watched(env, 0)[-1].outlook is Outlook.SATISFIED


def test_what_the_environment_gives_is_left_alone() -> None:
    bare, env = Walk(), psyco.MonitorWrapper(Walk(), "P>=0.9 [ G obs[0] < 2 ]", horizon=HORIZON)
    np.testing.assert_array_equal(bare.reset(seed=1)[0], env.reset(seed=1)[0])
    theirs, ours = bare.step(1), env.step(1)
    np.testing.assert_array_equal(theirs[0], ours[0])
    assert theirs[1:4] == ours[1:4] and theirs[4] == {k: v for k, v in ours[4].items() if k != "psyco"}


def test_a_signal_that_there_is_none_of_is_named() -> None:
    with pytest.raises(psyco.RequirementError, match="unknown signal 'speed'"):
        psyco.MonitorWrapper(gymnasium.make("CartPole-v1"), "P>=0.9 [ G speed < 2 ]")
    with pytest.raises(psyco.DomainError, match="cannot be called 'obs'"):
        psyco.MonitorWrapper(Walk(), "P>=0.9 [ G obs[0] < 2 ]", signals={"obs": height})
