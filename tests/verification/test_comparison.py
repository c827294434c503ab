"""Two policies compared: verdicts are right, wrong ones are as rare as stated, and every comparison is counted."""

import json
from typing import Any

import gymnasium
import numpy as np
import pytest

import psyco
from benchmarks.pairs import behaviour, stops
from psyco._src.policies.external import as_policy
from psyco._src.verification import comparison
from psyco._src.verification.base import ACCEPT, CONTINUE, MeanTask
from psyco._src.verification.betting import Betting
from psyco._src.verification.ledger import Ledger

pytestmark = pytest.mark.slow  # plays episodes

SUCCESS = "P>=0.5 [ F (obs[0] >= 2) ] & C>=0.95"


class Coin(gymnasium.Env[Any, Any]):
    """One step: the first observation is a number between 0 and 1, action 1 leads to success, 0 to failure."""

    observation_space = gymnasium.spaces.Box(-1.0, 2.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.array([self.np_random.random()], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([2.0 if action else -1.0], np.float32), float(action), True, False, {}


def succeeding(share: float) -> Any:
    """Return a policy that succeeds in this share of episodes."""
    return lambda observation: int(observation[0] < share)


@pytest.fixture(scope="module")
def coin() -> Any:
    return psyco.make(Coin, horizon=2)


@pytest.mark.parametrize(
    ("new", "old", "margin", "verdict"),
    [
        (0.9, 0.5, 0.05, "NOT_WORSE"),  # which was the question: it does not go on until it is shown to be better
        (0.5, 0.9, 0.05, "WORSE"),
        (0.8, 0.8, 0.05, "NOT_WORSE"),
        (0.9, 0.5, 0.0, "BETTER"),
        (0.8, 0.8, 0.0, "UNDECIDED"),
        (0.75, 0.8, 0.3, "NOT_WORSE"),  # worse, and allowed to be
    ],
)
def test_verdicts(coin: Any, new: float, old: float, margin: float, verdict: str) -> None:
    found = psyco.compare_policies(succeeding(new), succeeding(old), coin, SUCCESS, margin=margin, max_episodes=300)
    assert found.verdict.name == verdict
    success, reward = found.measures
    assert reward.measure == "pairs won by return"
    assert (success.wins, success.losses) == (reward.wins, reward.losses)  # the reward is the success
    assert success.lower <= new - old <= success.upper
    if new >= old:
        assert success.losses == 0  # the seeds are common, so the better policy succeeds where the other does
    assert json.loads(found.to_json())["verdict"] == verdict


def test_an_upper_bound_is_better_met_by_less(coin: Any) -> None:
    failing = "P<=0.5 [ F (obs[0] >= 2) ]; Rmin=? [ C ]"
    found = psyco.compare_policies(succeeding(0.2), succeeding(0.8), coin, failing, margin=0.0, max_episodes=300)
    assert [each.verdict.name for each in found.measures] == ["BETTER", "BETTER"]


def test_a_wrong_better_is_as_rare_as_stated() -> None:
    """By exact computation, for any share of ties; the computation stops where the test does."""
    accept = stops(200, 0.05)
    for decided in (0.1, 0.5, 1.0):
        wrong, _ = behaviour(200, decided / 2, decided / 2, accept)
        assert 0.0 < wrong <= 0.05
    rng = np.random.default_rng(0)
    test = Betting(MeanTask(-1.0, 1.0, 0.0, false_accept=0.05, false_reject=1e-300))
    for _ in range(50):
        signs = rng.choice([-1.0, 0.0, 1.0], 200, p=[0.15, 0.4, 0.45])
        _, used, decision = test.feed(test.init(), signs)
        wins, losses = np.cumsum(signs > 0), np.cumsum(signs < 0)
        first = np.flatnonzero(accept[wins, losses])
        assert (decision, used) == ((ACCEPT, first[0] + 1) if len(first) else (CONTINUE, 200))


def test_the_result_does_not_depend_on_batches(coin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def compared() -> Any:
        return psyco.compare_policies(succeeding(0.7), succeeding(0.5), coin, SUCCESS, max_episodes=200, issued="x")

    whole = compared()
    monkeypatch.setattr(comparison, "HOST_BATCH", 7)
    assert compared() == whole


def test_comparisons_with_one_policy_share_one_error(coin: Any) -> None:
    """Whatever margin and bound: with others it is another try."""
    account = Ledger()
    new = old = as_policy(succeeding(0.8))
    looks = []
    for margin, bound in ((0.05, "0.5"), (0.1, "0.6")):
        asked = psyco.parse(SUCCESS.replace("0.5", bound))
        looks.append(
            comparison.compare_policies(
                new, old, coin, asked, margin=margin, confidence=0.95, max_episodes=20, ledger=account
            )
        )
    assert [look.share for look in looks] == [pytest.approx(1 / 2), pytest.approx(1 / 6)]
    assert [look.seed_block for look in looks] == [0, 1]
    assert [entry.look.episodes for entry in account.entries] == [look.pairs for look in looks]


def test_an_expected_value_is_compared_by_its_mean(coin: Any) -> None:
    """A new policy that wins most pairs by a little, and loses the others by much, is worse."""
    cost = "R{reward}<=0.5 [ C ] within [0,1] & C>=0.95"
    found = psyco.compare_policies(succeeding(0.6), succeeding(0.2), coin, cost, margin=0.05, max_episodes=300)
    assert [each.verdict.name for each in found.measures[:1]] == ["WORSE"]
    assert found.measures[0].difference == pytest.approx(found.measures[0].old_mean - found.measures[0].new_mean)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"margin": 1.5}, "a margin is at least 0 and below 1"),
        ({"margin": -0.1}, "a margin is at least 0 and below 1"),
        ({"confidence": 1.0}, "a confidence lies between 0 and 1"),
        ({"requirement": "P in [0.2,0.6] [ F (obs[0] >= 2) ]"}, "bounds both sides"),
        ({"max_episodes": 0}, "max_episodes"),
        ({"margin": "a"}, "a margin is at least 0"),
        ({"confidence": "a"}, "a confidence lies between"),
        ({"requirement": "P=? [ F (obs[0] >= 2) ]"}, "is a question"),
        ({"requirement": "R{reward}<=0.5 [ S ]"}, "bounds a rate"),
        ({"requirement": "P>=0.5 [ G info.kost <= 0 ]"}, "info.kost"),
        ({"requirement": "R{reward}<=0.2 [ C ] within [0,0.5]"}, "outside of its range|within"),
    ],
)
def test_bad_arguments(coin: Any, changes: dict[str, Any], message: str) -> None:
    arguments = {"requirement": SUCCESS} | changes
    with pytest.raises(psyco.PsycoError, match=message):
        psyco.compare_policies(succeeding(0.8), succeeding(0.8), coin, **arguments)


class Drifting(Coin):
    """Success becomes impossible after some episodes of one object: its episodes are no function of their seeds."""

    played = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.played += 1
        return super().step(action and self.played < 3)


def test_episodes_that_do_not_repeat_are_an_error() -> None:
    drifting = psyco.make(Drifting, horizon=2)
    with pytest.raises(psyco.PsycoError, match="was not the same when it was played again"):
        psyco.compare_policies(succeeding(0.9), succeeding(0.9), drifting, SUCCESS, max_episodes=300)
