"""Families of Gymnasium environments: arguments, attributes, model fields, and options of reset."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import psyco
from psyco._src.envs.family import host_values
from psyco._src.envs.gym_family import GymFamily, member_number


class Field:
    """A part of an environment with a vector."""

    def __init__(self) -> None:
        self.gravity = np.array([0.0, 0.0, -10.0])


class Cart(gymnasium.Env[Any, Any]):
    """A cart that moves by its parameters; it reports them."""

    observation_space: Any = spaces.Box(-1e6, 1e6, (2,))
    action_space: Any = spaces.Discrete(2)

    def __init__(self, mass: float = 1.0, width: int = 2, fails_above: float = 100.0, rare: bool = False) -> None:
        if mass > fails_above:
            raise ValueError("too heavy")
        self.mass, self.friction, self.rare, self.model = mass, 0.5, rare, Field()
        self.observation_space = spaces.Box(-1e6, 1e6, (int(width),))
        self.wind = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.wind = (options or {}).get("wind", 0.0)
        self.noisy = float(self.np_random.normal())
        return self._observe(), self._info()

    def step(self, action: Any) -> Any:
        return self._observe(), 1.0, False, False, self._info()

    def _observe(self) -> Any:
        return np.full(self.observation_space.shape, self.mass, np.float32)

    def _info(self) -> dict[str, Any]:
        own = {"mass": self.mass, "friction": self.friction, "wind": self.wind, "pull": self.model.gravity[2]}
        return own | {"noise": self.noisy} | ({"late": 1.0} if self.rare and self.mass > 1.5 else {})


def cart(**given: Any) -> psyco.GymDomain:
    made = psyco.make(Cart, horizon=3, **given)
    assert isinstance(made, psyco.GymDomain)
    return made


EVERYTHING = {
    "mass": (1.0, 2.0),
    "unwrapped.friction*": (0.5, 1.5),
    "model.gravity[2]": "-12..-8",
    "options.wind": "1,2",
}


def test_every_kind_of_parameter_is_set_as_the_seed_says() -> None:
    family = psyco.vary(cart(), EVERYTHING)
    assert isinstance(family, GymFamily)
    env = family.make_env()
    seen = set()
    for seed in (7, 7 << 32 | 5, 8):
        _, info = env.reset(seed=seed)
        drawn = host_values(family.distributions, member_number(seed))
        found = [info["mass"], info["friction"] / 0.5, info["pull"], info["wind"]]
        np.testing.assert_allclose(found, drawn)
        seen.add((*found[:1], info["noise"]))
    assert len({mass for mass, _ in seen}) == 2  # seeds 7 and 7 << 32 | 5 are one member
    assert len(seen) == 3  # in three episodes


def test_attributes_that_belong_together_take_the_same_factor() -> None:
    together = {"unwrapped.length*,unwrapped.polemass_length*": (0.6, 1.6), "unwrapped.gravity": (8, 12)}
    env = psyco.vary(psyco.make("CartPole-v1"), together).make_env()  # type: ignore[attr-defined]
    lengths = []
    for seed in range(20):
        env.reset(seed=seed)
        pole = env.unwrapped
        np.testing.assert_allclose(pole.polemass_length, pole.masspole * pole.length)
        lengths.append(pole.length)
    assert 0.3 < min(lengths) < 0.4
    assert 0.7 < max(lengths) < 0.8


def test_a_policy_observes_the_parameters_where_it_is_asked_to() -> None:
    family = psyco.vary(cart(), EVERYTHING, observe_parameters=True)
    assert family.observation_size == 6
    env = family.make_env()  # type: ignore[attr-defined]
    for seed in (7, 8):
        first, _ = env.reset(seed=seed)
        drawn = host_values(family.distributions, member_number(seed))  # type: ignore[attr-defined]
        for observation in (first, env.step(0)[0]):
            assert env.observation_space.contains(observation)
            np.testing.assert_allclose(observation, [drawn[0], drawn[0], *drawn], rtol=1e-6)
    again = psyco.make(Cart, **family.parameters)  # type: ignore[attr-defined]
    assert again.parameters == family.parameters  # type: ignore[attr-defined]

    # The formula is about the wind, and holds with the first of its two values: in half of the episodes.
    found = psyco.verify(lambda observation: int(observation[5] > 1.5), family, "P>=0.3 [ G obs[5] < 1.5 ] & C>=0.9")
    assert 0.3 < found.findings[0].share < 0.8
    assert "whose parameters the policy observes" in str(found)


class Rooms(Cart):
    """A cart in one of four rooms."""

    observation_space: Any = spaces.Discrete(4)

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Discrete(4)

    def _observe(self) -> Any:
        return 2


def test_parameters_follow_observations_of_other_spaces() -> None:
    family = psyco.vary(psyco.make(Rooms, horizon=3), {"unwrapped.friction": (0.5, 1.5)}, observe_parameters=True)
    assert family.observation_size == 5
    assert family.table["obs"].size == 5  # type: ignore[attr-defined]
    observation, _ = family.make_env().reset(seed=3)  # type: ignore[attr-defined]
    flat = family.flatten(observation)  # type: ignore[attr-defined]
    np.testing.assert_allclose(flat[:4], [0, 0, 1, 0])
    np.testing.assert_allclose(flat[4], host_values(family.distributions, 3)[0], rtol=1e-6)  # type: ignore[attr-defined]


def test_a_family_is_made_again_and_verified() -> None:
    family = psyco.vary(cart(), {"mass": (1.0, 2.0)})
    again = psyco.make(Cart, **family.parameters)  # type: ignore[attr-defined]
    assert again.parameters == family.parameters  # type: ignore[attr-defined]
    requirement = "P>=0.3 [ G obs[0] <= 1.6 ] & C>=0.9"
    found = psyco.verify(still, family, requirement)
    assert 0.4 < found.findings[0].share < 0.9
    assert psyco.replay(found, still, domain=family).matches


def still(observation: Any) -> int:
    return 0


def test_counterexamples_name_the_parameters_of_their_environment() -> None:
    family = psyco.vary(cart(), {"mass": (1.0, 2.0), "options.wind": "1,2"})
    certificate = psyco.verify(still, family, "P>=0.9 [ G obs[0] <= 1.6 ] & C>=0.9")
    found = psyco.counterexamples(still, certificate=certificate, domain=family, worst=2, film=False)
    for each in found:
        assert each.violates
        np.testing.assert_allclose(each.environment["mass"], each.signals["obs"][0, 0], rtol=1e-6)
        assert each.environment["mass"] > 1.6
        assert f"in the environment with mass={each.environment['mass']:.6g}, options.wind=" in str(found)
        assert f"<dt>mass</dt><dd>{each.environment['mass']:.6g}</dd>" in re.sub(r"\s*\n\s*", "", found._repr_html_())
        assert each.to_json()["environment"] == each.environment
    alone = psyco.verify(still, cart(), "P>=0.9 [ G obs[0] <= 0.6 ] & C>=0.9")
    (first, *_) = psyco.counterexamples(still, certificate=alone, domain=cart(), worst=1, film=False)
    assert first.environment is None


def test_two_levels_on_the_host() -> None:
    # 90% of the masses are below 1.9, where the formula always holds; the others never satisfy it.
    family = psyco.vary(cart(), {"unwrapped.mass": (1.0, 2.0)})
    found = psyco.verify(still, family, "P>=0.9 in 60% of environments [ G obs[0] <= 1.9 ] & C>=0.9")
    (finding,) = found.findings
    assert found.verdict is psyco.Verdict.SATISFIED
    assert finding.good + finding.bad == finding.environments
    assert all(each.parameters["unwrapped.mass"] > 1.9 for each in finding.worst)
    assert psyco.replay(found, still, domain=family).matches
    bad = psyco.verify(still, family, "P>=0.9 in 95% of environments [ G obs[0] <= 1.5 ] & C>=0.9")
    assert bad.verdict is psyco.Verdict.VIOLATED
    assert psyco.replay(bad, still, domain=family).matches


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "argument": ({"mas": (1, 2)}, "no argument 'mas' \\(did you mean 'mass'"),
    "attribute": ({"unwrapped.mas": (1, 2)}, "there is no 'mas' in unwrapped \\(did you mean 'mass'"),
    "option": ({"options.": (1, 2)}, "names no option of reset"),
    "model": ({"model.gravty[2]": (1, 2)}, "there is no 'gravty\\[2\\]' in unwrapped.model"),
    "vector": ({"model.gravity": (1, 2)}, "has 3 entries: name one"),
    "position": ({"model.gravity[5]": (1, 2)}, "cannot be made with model.gravity\\[5\\]=1.5: IndexError"),
    "space": ({"width": "2,3"}, "width=3 changes the observation space"),
    "overwritten": ({"unwrapped.wind": (1, 2)}, "unwrapped.wind was set to 1.5, and is 0.0"),
    "cannot be made": ({"mass": (1, 200)}, "mass=100.5.*ValueError: too heavy"),
    "horizon": ({"horizon": (1, 2)}, "horizon cannot vary"),
    "factor": ({"mass*": (1, 2)}, "a factor on mass needs its value: --set mass"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_an_error_before_anything_runs(given: dict[str, Any], message: str) -> None:
    with pytest.raises(psyco.DomainError, match=message):
        psyco.vary(cart(), given)


def test_a_member_that_cannot_be_made_later_is_named() -> None:
    family = psyco.vary(cart(fails_above=2.0), {"mass": [1.0] * 30 + [3.0] + [1.0] * 50})
    with pytest.raises(psyco.PsycoError, match="too heavy: the member of the family with mass=3"):
        psyco.verify(still, family, "P>=0.99 [ G obs[0] <= 1.9 ] & C>=0.99")


def test_a_signal_of_some_members_only_is_refused() -> None:
    family = psyco.vary(cart(rare=True), {"mass": (1.0, 2.0)})
    with pytest.raises(psyco.RequirementError, match=r"info.late only with some of its parameters"):
        psyco.verify(still, family, "P>=0.5 [ G info.late <= 2 ]")
