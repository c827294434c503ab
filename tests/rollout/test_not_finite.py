"""NaN compares as false, so a formula could hold by it: an episode that meets NaN or infinity is an error."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psyco
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from tests.making import learned, prepared

# Each of these held in 54 of 54 episodes of a domain that went NaN in half of them.
FOOLED = ("P>=0.9 [ G !fallen ]", "P>=0.9 [ G !(position < 0) ]", "P<=0.1 [ F position < 0 ]")

FAULTS = {"obs": "nan", "reward": "inf", "position": "-inf"}  # one of each in `make test`, all pairs in `make test-all`


@dataclasses.dataclass(frozen=True)
class Torn:
    """A walk that is torn at step 3 of about half of the episodes, where `fault` says."""

    fault: str = "position"
    worth: float = float("nan")
    horizon: int = 6
    ends: bool = False  # the episode ends where it would be torn

    name: ClassVar[str] = "torn"
    actions: ClassVar[psyco.Continuous] = psyco.Continuous((-0.5,), (0.5,))
    observation_size: ClassVar[int] = 1

    def reset(self, key: Any) -> Any:
        return jnp.float32(1.0), jax.random.bernoulli(key), jnp.int32(0)

    def step(self, key: Any, state: Any, action: Any) -> Any:
        position, bad, t = state
        torn = self._torn(bad, t + 1, "reward")
        done = bad & (t + 1 >= 2) if self.ends else False
        return (position + 0.01 * action[0], bad, t + 1), jnp.where(torn, self.worth, 1.0), done

    def observe(self, state: Any) -> Any:
        return self._worth(state, "obs", state[0])[None]

    def signals(self, state: Any) -> dict[str, Any]:
        position = self._worth(state, "position", state[0])
        return {"position": position, "fallen": position < 0, "spare": self._worth(state, "spare", state[0])}

    def _torn(self, bad: Any, t: Any, fault: str) -> Any:
        return bad & (t >= 3) & (self.fault == fault)

    def _worth(self, state: Any, fault: str, value: Any) -> Any:
        return jnp.where(self._torn(state[1], state[2], fault), self.worth, value)


def some_policy(domain):
    network = network_for(domain)
    return policy_for(domain, network, np.full(network.size, 0.1, np.float32))


@pytest.mark.parametrize("requirement", FOOLED)
@pytest.mark.more
def test_nan_in_half_of_the_episodes_does_not_count_as_safe(requirement):
    with pytest.raises(psyco.EpisodeError, match=r"torn, episode with seed \d+, at step 3: position is nan, which"):
        psyco.verify(some_policy(Torn()), Torn(), requirement + " & C>=0.95")


@pytest.mark.parametrize(
    ("fault", "worth"),
    [
        pytest.param(fault, worth, marks=() if FAULTS[fault] == worth else pytest.mark.more)
        for fault in FAULTS
        for worth in FAULTS.values()
    ],
)
def test_whatever_is_not_finite_is_named(fault, worth):
    domain = Torn(fault, float(worth))
    with pytest.raises(psyco.EpisodeError, match="torn, episode with seed") as found:
        psyco.verify(some_policy(domain), domain, "P>=0.5 [ G position > 0 ] & C>=0.9")
    assert found.value.problem.startswith(f"{fault} is")
    assert found.value.step == 3


def test_a_signal_that_nobody_asks_for_shows_what_else_is_wrong():
    with pytest.raises(psyco.EpisodeError, match="spare is nan"):
        psyco.verify(some_policy(Torn()), Torn("spare"), "P>=0.5 [ G position > 0 ] & C>=0.9")


def test_what_would_come_after_the_end_is_not_looked_at():
    domain = Torn("position", ends=True)
    certificate = psyco.verify(some_policy(domain), domain, "P>=0.5 [ G position > 0 ] & C>=0.9")
    assert certificate.verdict is psyco.Verdict.SATISFIED


@pytest.mark.parametrize(
    "learner", ["snes", *(pytest.param(name, marks=pytest.mark.more) for name in ("safe-es", "ppo"))]
)
@pytest.mark.more
def test_learning_stops_too(learner):
    problem = prepared(Torn("reward"), "P>=0.5 [ G position > 0 ] & C>=0.9", learner=learner, episodes=100)
    with pytest.raises(psyco.EpisodeError, match=r"torn, episode with seed \d+, at step 3: (reward|return) is nan"):
        learned(problem)


@pytest.mark.more
def test_a_generation_later_than_the_first_is_found_as_well():
    """The state that led there is found again."""

    @dataclasses.dataclass(frozen=True)
    class Rare(Torn):
        def reset(self, key: Any) -> Any:
            return jnp.float32(1.0), jax.random.uniform(key) < 0.003, jnp.int32(0)

    problem = prepared(Rare("reward"), "P>=0.5 [ G position > 0 ] & C>=0.9", learner="snes", episodes=1500)
    with pytest.raises(psyco.EpisodeError, match=r"at step 3: (reward|return) is nan"):
        learned(problem)


def test_a_policy_of_nan_is_found():
    with pytest.raises(psyco.PsycoError, match=r"nan|finite"):
        psyco.verify(lambda observation: np.array([np.nan]), Torn("none"), "P>=0.5 [ G position > 0 ] & C>=0.9")


@pytest.mark.parametrize("worth", [np.nan, np.inf])
def test_a_nonfinite_action_of_an_external_policy_is_an_error(worth):
    domain = psyco.make("MountainCarContinuous-v0", horizon=5)
    with pytest.raises(psyco.EpisodeError, match="which is not finite"):
        psyco.verify(
            lambda observation: np.array([worth], np.float32),
            domain,
            "P>=0.9 [ G !(action[0] > 0.5) ] & C>=0.9",
        )
