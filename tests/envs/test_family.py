"""Families of compiled domains: parameters that are drawn for every episode."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import psyco
from psyco._src.envs.actions import Continuous, Discrete
from psyco._src.envs.family import (
    MEMBERS,
    Family,
    corner_members,
    member_parameters,
    member_values,
    read_distribution,
    read_measured,
)
from psyco._src.envs.registry import describe, make_from_description, required_trust
from psyco._src.envs.variants import describe_family, is_family
from psyco._src.policies.c_export import c_files
from psyco._src.policies.network import network_for
from psyco._src.policies.serialization import policy_for
from psyco._src.rollout.episodes import environment_seeds, episode_keys, member_keys, member_numbers
from psyco._src.rollout.jax_sampler import advance, initial_state, start


@dataclass(frozen=True)
class Slope:
    """A ball on a slope: what it does is a function of its parameters."""

    horizon: int = 5
    steepness: float = 1.0
    power: float = 0.5
    steps: int = 3
    label: str = "slope"
    unused: float = 1.0
    fixed: float = 1.0

    name: ClassVar[str] = "slope"
    observation_size: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.steepness <= 0:
            raise psyco.DomainError(f"a slope needs a steepness above 0, got {self.steepness}")

    @property
    def actions(self) -> Continuous:
        return Continuous((-self.power,), (2.0 * self.power,))

    def reset(self, key: jax.Array) -> jax.Array:
        return jax.random.uniform(key) * (1.0 if self.fixed > 0 else 2.0)

    def draw(self, key: jax.Array) -> jax.Array:
        return self.steepness * jax.random.uniform(key, (self.horizon,))

    def step(self, drawn: jax.Array, state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, bool]:
        return state + drawn + action[0] + self.steps, -state, False

    def observe(self, state: jax.Array) -> jax.Array:
        return jnp.stack([state, state * self.steepness])

    def signals(self, state: jax.Array) -> dict[str, jax.Array]:
        return {"height": state, "scaled": state * self.steepness}


def episode(domain: Any, key: jax.Array, action: list[float]) -> list[float]:
    state, draws = start(domain, key)
    now = initial_state(state, jnp.array(action))
    heights = [float(domain.signals(now.state)["height"])]
    for t in range(domain.horizon):
        now = advance(domain, now, jax.tree.map(lambda x, t=t: x[t], draws), jnp.array(action))
        heights.append(float(domain.signals(now.state)["height"]))
    return heights


def test_an_episode_is_that_of_the_domain_with_the_parameters_of_its_member() -> None:
    family = psyco.vary(Slope(), steepness=(0.5, 2.0), power="0.3..0.7", steps=(2, 4))
    for key in episode_keys(jax.random.key(3), 0, 3):
        values = member_parameters(family, member_numbers(key[None])[0])
        member = dataclasses.replace(Slope(), **values | {"steps": int(values["steps"])})
        # An action of 1/4 of the range of the family is 1/4 of the range of the member.
        quarter = [-0.5 + 0.25 * 1.5]
        own = [-member.power + 0.25 * 3.0 * member.power]
        np.testing.assert_allclose(episode(family, key, quarter), episode(member, key, own), rtol=1e-5)


def test_members_follow_their_distributions() -> None:
    # Three Kolmogorov-Smirnov tests at 1e-4 each, and one of counts: fails by luck once in 2,500 seeds.
    given = {"a": "2..5", "b": "normal(1,0.5)", "c": "1,2,4", "d,e": "1,10;2,20"}
    distributions = tuple(read_distribution(name, text) for name, text in given.items())
    numbers = jnp.asarray(np.arange(3000) * 7919 % MEMBERS, jnp.uint32)
    a, b, c, d, e = np.asarray(jax.vmap(lambda number: member_values(distributions, number))(numbers), float).T
    assert stats.kstest(a, stats.uniform(2, 3).cdf).pvalue > 1e-4
    assert stats.kstest(b, stats.norm(1, 0.5).cdf).pvalue > 1e-4
    assert stats.chisquare([(c == x).sum() for x in (1, 2, 4)]).pvalue > 1e-4
    assert set(c) == {1.0, 2.0, 4.0}
    np.testing.assert_array_equal(e, 10 * d)  # measured together
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.08


@pytest.mark.parametrize("values", ["0.5..0.7", "normal(0.6,0.02)"])
def test_parameters_can_take_the_same_number(values: str) -> None:
    family = psyco.vary(Slope(), {"steepness*,power": values}, observe_parameters=True)
    found = [member_parameters(family, number) for number in range(20)]
    assert all(each["steepness*"] == each["power"] for each in found)
    assert len({each["power"] for each in found}) == 20
    assert describe(family).parameters["vary"] == {"steepness*,power": values}
    shift, scale = family.observation_scaling  # type: ignore[attr-defined]
    assert shift[-2:] == (0.6, 0.6)
    assert scale[-2] == scale[-1] > 0
    state, _ = start(family, episode_keys(jax.random.key(3), 0, 1)[0])
    own = family._at(state.values)  # type: ignore[attr-defined]
    np.testing.assert_allclose(own.steepness, Slope().steepness * own.power, rtol=1e-6)


def test_whole_numbers_can_be_the_same_too() -> None:
    family = psyco.vary(Slope(), {"steepness,steps": (2, 4)})
    found = {tuple(member_parameters(family, number).values()) for number in range(40)}
    assert found == {(2.0, 2.0), (3.0, 3.0), (4.0, 4.0)}


def test_the_member_of_an_episode_is_chosen_by_its_key() -> None:
    family = psyco.vary(Slope(), steepness=(0.5, 2.0))
    number = np.array([5, 5, 9])
    keys = member_keys(jax.random.key(0), jnp.array(number), jnp.array([0, 1, 0]))
    assert member_numbers(keys) == number.tolist()
    assert len(set(environment_seeds(family, keys))) == 3
    assert [seed >> 32 for seed in environment_seeds(family, keys)] == number.tolist()
    states = [start(family, key)[0] for key in keys]
    assert states[0].values == states[1].values != states[2].values
    assert states[0].inner != states[1].inner


def test_a_family_is_made_again_from_its_description() -> None:
    family = psyco.vary(psyco.make("particle-dance"), {"max_speed*": (0.7, 1.3)}, d_min=[0.1, 0.11])
    description = describe(family)
    assert description.parameters["vary"] == {"max_speed*": "0.7..1.3", "d_min": "0.1,0.11"}
    assert not required_trust(description)
    assert make_from_description(description) == family
    assert hash(family) == hash(make_from_description(description))
    assert psyco.make("particle-dance", vary={}) == psyco.make("particle-dance")
    assert describe_family({"a": "1..2", "b": ",".join("1" * 100)}) == "a 1..2, b from 100 values"
    long = {"a": (1 / 30000, 2 / 3), "b": f"normal({1 / 3},{1 / 15})"}
    texts = {name: read_distribution(name, value).text for name, value in long.items()}
    assert describe_family(texts) == "a 3.33333e-05..0.666667, b normal(0.333333,0.0666667)"


def test_a_policy_observes_the_parameters_where_it_is_asked_to() -> None:
    given = {"steepness,power": [[1.0, 0.4], [2.0, 0.8]], "steps": (2, 4), "unused*": "normal(1,0.5)"}
    with pytest.raises(psyco.DomainError, match="nothing in an episode depends on it"):
        psyco.vary(Slope(), given, observe_parameters=True)  # to be observed is no effect
    del given["unused*"]
    plain, family = psyco.vary(Slope(), given), psyco.vary(Slope(), given, observe_parameters=True)
    assert (plain.observation_size, family.observation_size) == (2, 5)
    for key in episode_keys(jax.random.key(3), 0, 3):
        state, _ = start(family, key)
        values = member_parameters(family, member_numbers(key[None])[0])
        own, after = np.split(np.asarray(family.observe(state)), [2])
        np.testing.assert_array_equal(own, plain.observe(start(plain, key)[0]))
        np.testing.assert_allclose(after, [values["steepness"], values["power"], values["steps"]])
    network = network_for(family)
    assert network.shift == (0.0, 0.0, 1.5, 0.6, 3.0)  # of the inputs; parameters from -1 to 1
    assert network.scale == (1.0, 1.0, 0.5, 0.2, 1.0)
    assert network_for(plain).scale == ()


def test_an_observing_policy_needs_the_same_parameters_in_the_same_order() -> None:
    domain = psyco.make("particle-dance")
    family = psyco.vary(domain, max_speed=(0.08, 0.12), d_min=(0.1, 0.12), observe_parameters=True)
    assert make_from_description(describe(family)) == family
    assert describe(family).parameters["observe_parameters"] is True
    network = network_for(family)
    policy = policy_for(family, network, network.init(jax.random.key(0)))
    policy.check(psyco.vary(domain, max_speed=(0.05, 0.2), d_min="normal(0.1,0.01)", observe_parameters=True))
    for other in (
        domain,
        psyco.vary(domain, max_speed=(0.08, 0.12), d_min=(0.1, 0.12)),
        psyco.vary(domain, d_min=(0.1, 0.12), max_speed=(0.08, 0.12), observe_parameters=True),
    ):
        with pytest.raises(psyco.RunError, match="observes the parameters max_speed, d_min of its environment"):
            policy.check(other)
    assert "the last ones are parameters of the environment: max_speed, d_min */" in c_files(policy)["psyco_policy.h"]
    with pytest.raises(psyco.DomainError, match="nothing varies in particle-dance"):
        psyco.make("particle-dance", observe_parameters=True)
    with pytest.raises(psyco.DomainError, match="True or False, got 'yes'"):
        psyco.vary(domain, max_speed=(0.08, 0.12), observe_parameters="yes")  # type: ignore[arg-type]


@pytest.mark.slow
def test_counterexamples_name_the_parameters_of_their_environment() -> None:
    family = psyco.vary(Slope(), steepness=(0.5, 2.0))
    certificate = psyco.verify(lambda _: [0.0], family, "P>=0.9 [ G height <= 18 ] & C>=0.9")
    found = certificate.counterexamples(lambda _: [0.0], domain=family, worst=2)
    for each in found:
        drawn = each.signals["scaled"][-1] / each.signals["height"][-1]
        np.testing.assert_allclose(each.environment["steepness"], drawn, rtol=1e-5)


def test_whole_numbers_and_ranges_of_signals() -> None:
    family = psyco.vary(psyco.make("obstacle-run"), grid=(4, 6))
    assert isinstance(family, Family)
    assert {member_parameters(family, number)["grid"] for number in range(20)} == {4.0, 5.0, 6.0}
    assert family.ranges["agent"] == (0.0, 5.0)
    assert family.counters == ("collisions",)


@pytest.mark.slow
@pytest.mark.more
def test_learning_and_verification_take_a_family() -> None:
    family = psyco.vary(psyco.make("obstacle-run", horizon=10), grid=[4, 5])
    requirement = "P>=0.3 [ G (!caught | collisions <= 1) ] & C>=0.9"
    result = psyco.synthesize(family, requirement, episodes=200, learner="snes")
    assert result.certificate.parameters["vary"] == {"grid": "4,5"}
    assert "drawn from the family grid 4,5" in result.certificate.guarantee.statement
    assert psyco.replay(result.certificate, result.policy).matches
    alone = psyco.verify(result.policy, requirement=requirement, parameters={"vary": {}})
    assert "vary" not in alone.parameters
    assert "family" not in alone.guarantee.statement


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "empty range": ({"steepness": (2, 1)}, "range 2..1 is empty"),
    "no range": ({"steepness": (1, 1)}, "range 1..1 is empty"),
    "unknown": ({"steepnes": (1, 2)}, "did you mean 'steepness'"),
    "text parameter": ({"label": (1, 2)}, "no parameter that can vary 'label'"),
    "horizon": ({"horizon": (3, 5)}, "horizon cannot vary"),
    "cannot be made": ({"steepness": (-1, 1)}, "cannot be made with steepness=.*above 0"),
    "not a number": ({"steepness": [1.0, float("nan")]}, "nan is not a finite number"),
    "one value": ({"steepness": [1.0]}, "has 1 value; a fixed value is set with --set"),
    "not a number, an array": ({"steepness": (np.array(1.0), 2.0)}, r"array\(1\.\) is not a finite number"),
    "not a number, a row": ({"steepness": (1.0, 2j)}, "2j is not a finite number"),
    "words": ({"steepness": "some"}, "write a range"),
    "not whole": ({"steps": "1.5,2"}, "steps is a whole number"),
    "nothing": ({}, "needs a parameter that varies"),
    "no effect": ({"unused": (1, 2)}, "nothing in an episode depends on it"),
    "no effect, second": (
        {"steepness": (1, 2), "unused": (1, 2)},
        "unused of slope cannot vary: nothing in an episode",
    ),
    "plain code": ({"fixed": (1, 2)}, "needs a fixed number there"),
    "last of a list": ({"steepness": [1.0] * 40 + [-1.0]}, "cannot be made with steepness=-1"),
    "not whole, second": ({"steepness,steps": [[1, 4.4], [1, 4.6]]}, "steps is a whole number"),
    "width": ({"steepness": "normal(1,0)"}, "standard deviation above 0"),
    "twice together": ({"steepness,steepness*": (1, 2)}, "steepness is varied twice"),
    "a name too few": ({"steepness,": (1, 2)}, "names no parameters"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_an_error_before_anything_runs(given: dict[str, Any], message: str) -> None:
    with pytest.raises(psyco.DomainError, match=message):
        psyco.vary(Slope(), given)


def test_both_ends_of_every_parameter_are_made() -> None:
    distributions = [read_distribution(name, (1.0, 2.0)) for name in "abcdef"]
    members = corner_members(distributions)
    assert (members.min(axis=0) == 1.0).all()
    assert (members.max(axis=0) == 2.0).all()
    four = corner_members(distributions[:4])
    assert len({tuple(corner) for corner in four[1:]}) == 16


def test_a_parameter_may_change_the_range_of_actions_alone() -> None:
    family = psyco.vary(Slope(), power=(0.3, 0.7))
    assert np.asarray(family.action_ends)[:, 0, 0].tolist() == [-1.0, 2.0]  # type: ignore[attr-defined]


def test_a_float_given_as_a_whole_number_stays_a_float() -> None:
    family = psyco.vary(Slope(steepness=2), steepness=(0.5, 3.2))
    assert family.distributions[0].kind == "uniform"  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Weighed(Slope):
    """A domain whose constructor computes an attribute."""

    inverse: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inverse", 1.0 / self.steepness)


@dataclass(frozen=True)
class Hidden(Slope):
    """A domain whose constructor sets an attribute that is no field."""

    inverse: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "inverse", 1.0 / self.steepness)


@pytest.mark.parametrize("made", [Weighed, Hidden])
def test_attributes_that_a_constructor_computes_are_not_taken_over(made: Any) -> None:
    with pytest.raises(psyco.DomainError, match="its constructor computes inverse from its parameters"):
        psyco.vary(made(), steepness=(2.0, 4.0))


@dataclass(frozen=True)
class Wrapped(Slope):
    """A domain with fields that have the names of a family's."""

    base: Any = Slope()
    distributions: tuple[str, ...] = ("normal",)


def test_only_families_are_taken_for_families() -> None:
    assert not is_family(Wrapped())
    assert describe(Wrapped()).name.endswith(":Wrapped")
    assert is_family(psyco.vary(Wrapped(), steepness=(1, 2)))


@pytest.mark.extra("stormpy")
def test_constants_of_a_model_file_cannot_vary(tmp_path: Any) -> None:
    file = tmp_path / "coin.prism"
    file.write_text("dtmc\nconst double p;\nmodule m\n s:[0..1];\n [] s=0 -> p:(s'=1)+(1-p):(s'=0);\nendmodule\n")
    domain = psyco.make(str(file), p=0.5, horizon=5)
    with pytest.raises(psyco.DomainError, match=r"p of .* cannot vary: all transitions .* --set p="):
        psyco.vary(domain, p=(0.2, 0.9))


def test_a_family_of_a_family_or_of_a_name_is_refused() -> None:
    with pytest.raises(psyco.DomainError, match="a family already"):
        psyco.vary(psyco.vary(Slope(), steepness=(1, 2)), power=(1, 2))
    with pytest.raises(psyco.DomainError, match=r"psyco.make\('slope'\)"):
        psyco.vary("slope", steepness=(1, 2))  # type: ignore[arg-type]
    with pytest.raises(psyco.DomainError, match="varied twice"):
        psyco.vary(Slope(), {"steepness": (1, 2), "steepness*": (1, 2)})


@dataclass(frozen=True)
class Rooms(Slope):
    """A domain whose parameters change what a policy sees."""

    size: int = 2
    doors: int = 2

    @property
    def observation_size(self) -> int:  # type: ignore[override]
        return self.size

    @property
    def actions(self) -> Any:
        return Discrete(self.doors)


@pytest.mark.parametrize(("name", "what"), [("size", "observations"), ("doors", "action space")])
def test_a_parameter_that_changes_a_space_is_refused(name: str, what: str) -> None:
    with pytest.raises(psyco.DomainError, match=f"changes the {what}"):
        psyco.vary(Rooms(), {name: (2, 4)})


def test_measured_parameters_come_from_a_file(tmp_path: Any) -> None:
    file = tmp_path / "measured.csv"
    file.write_text("steepness, power\n1.0,0.5\n1.5,0.4\n\n2,0.3\n")
    assert read_measured(file) == {"steepness,power": "1.0,0.5;1.5,0.4;2,0.3"}
    family = psyco.vary(Slope(), read_measured(file))
    pairs = {tuple(member_parameters(family, number).values()) for number in range(20)}
    assert {(round(a, 3), round(b, 3)) for a, b in pairs} == {(1.0, 0.5), (1.5, 0.4), (2.0, 0.3)}
    for text, message in {
        "a,b\n1,2\n3,nan\n": "row 3: b is 'nan'",
        "a,b\n1,2\n3\n": "row 3: 1 numbers, but 2 names",
        "a\n1\n": "at least two lines of numbers",
    }.items():
        file.write_text(text)
        with pytest.raises(psyco.DomainError, match=message):
            read_measured(file)


@pytest.mark.extra("gymnax")
def test_parameters_of_gymnax_vary() -> None:
    family = psyco.vary(psyco.make("gymnax:CartPole-v1"), gravity=(8, 12))
    assert make_from_description(describe(family)) == family
    first, second = (start(family, key)[0].values for key in episode_keys(jax.random.key(0), 0, 2))
    assert 8 <= float(first[0]) <= 12
    assert first != second
