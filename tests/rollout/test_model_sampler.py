"""Episodes of models without a horizon."""

from pathlib import Path

import numpy as np
import pytest

import psyco
from psyco._src.logic.parser import parse
from psyco._src.policies.network import Network
from psyco._src.rollout.episodes import Stream, episode_keys, stream_key
from psyco._src.rollout.model_sampler import ModelSampler
from psyco._src.rollout.sampler import make_sampler

DICE = str(Path(__file__).parents[2] / "examples" / "dice.prism")


def sample(text: str, count: int = 4000) -> tuple[ModelSampler, psyco.Domain]:
    requirement = parse(text)
    domain = psyco.make(DICE).for_requirement(requirement)
    sampler = make_sampler(domain, Network(domain.observation_size, 1, 1), requirement)
    assert isinstance(sampler, ModelSampler)
    keys = episode_keys(stream_key(0, Stream.VERIFY), 0, count)
    return sampler(np.zeros(sampler.network.size), keys), sampler.paths(np.zeros(sampler.network.size), keys)


@pytest.mark.extra("stormpy")
def test_shares_and_means_are_those_of_a_fair_die() -> None:
    """Bernstein's inequality: each of the four fails by luck with a probability below 1e-6."""
    episodes, paths = sample(
        'P=? [ F d=6 ]; R{"flips"}=? [ F "done" ]; P=? [ F<=3 "done" ]; P=? [ G s<7 ]; R{step}=? [ I=2 ]'
    )
    six, flips, early, never, second = np.asarray(episodes.value, float).mean(axis=0)
    assert abs(six - 1 / 6) < 0.03
    assert abs(flips - 11 / 3) < 0.15
    assert abs(early - 0.75) < 0.04
    assert (never, second) == (0.0, 2.0)
    assert paths.length.min() >= 3
    assert episodes.length.max() == paths.states.shape[1] - 1


@pytest.mark.extra("stormpy")
def test_an_episode_depends_on_its_key_alone_and_ends_where_it_is_decided() -> None:
    few, short = sample("P=? [ F d=6 ]", 50)
    many, long = sample("P=? [ F d=6 ]", 300)
    np.testing.assert_array_equal(few.length, many.length[:50])
    np.testing.assert_array_equal(np.asarray(few.value), np.asarray(many.value)[:50])
    # An episode ends with a six, or where none can be thrown any more.
    last = long.states[np.arange(300), long.length]
    assert set(np.unique(psyco.make(DICE).tables.variables["s"][last])) <= {1, 5, 7}
    assert short.states.shape[0] == 50


@pytest.mark.extra("stormpy")
def test_a_policy_from_elsewhere_needs_a_horizon() -> None:
    """Its sampler cuts episodes there, and what is cut would count as decided."""
    courier = psyco.make(str(Path(DICE).with_name("courier.prism")), N=3)
    with pytest.raises(psyco.PsycoError, match="--horizon"):
        psyco.verify(lambda obs: 0, courier, 'P>=0.5 [ F "delivered" ] & C>=0.9')


@pytest.mark.extra("stormpy")
def test_returns_are_known_where_episodes_are_played_to_their_ends() -> None:
    chain = psyco.make(DICE)
    whole = ('P=? [ F "done" ]', "P=? [ F d=6 ]; R=? [ C ]", "P=? [ F return>3 ]")
    assert [chain.for_requirement(parse(text)).return_notes for text in whole] == [()] * 3
    for text in ("P=? [ F d=6 ]", "P=? [ F<=2 d=6 ]", "R=? [ C<=1 ]"):
        assert "the return is the sum up to there" in chain.for_requirement(parse(text)).return_notes[0]


@pytest.mark.extra("stormpy")
@pytest.mark.parametrize("others", [1, 300], ids=["one word per step", "two words per step"])
def test_long_paths_are_whole_and_their_lengths_geometric(tmp_path: Path, others: int) -> None:
    """A step ends an episode with 0.01. By Bernstein, each share fails by luck with a probability below 1e-6."""
    branches = " + ".join(f"{0.99 / others} : (s'={i})" for i in range(others)) + f" + 0.01 : (s'={others})"
    file = tmp_path / "long.prism"
    commands = f"[] s<{others} -> {branches};\n  [] s={others} -> true;"
    file.write_text(f"dtmc\nmodule m\n  s : [0..{others}] init 0;\n  {commands}\nendmodule\n")
    requirement = parse(f"P=? [ F s={others} ]")
    domain = psyco.make(str(file)).for_requirement(requirement)
    assert domain.tables.alias.words == (1 if others == 1 else 2)
    sampler = make_sampler(domain, Network(domain.observation_size, 1, 1), requirement)
    keys, theta = episode_keys(stream_key(0, Stream.VERIFY), 0, 3000), np.zeros(sampler.network.size)
    path = sampler.paths(theta, keys)
    s = domain.tables.variables["s"][path.states]
    assert s.shape == (3000, path.length.max() + 1) and path.length.max() > 300
    np.testing.assert_array_equal(s == others, np.arange(s.shape[1]) >= path.length[:, None])
    for steps in (1, 33, 100, 200):
        assert abs(np.mean(path.length > steps) - 0.99**steps) < 0.05
    middle = s[:, 1:][s[:, 1:] < others]
    assert abs(middle.mean() - (others - 1) / 2) < 2
    np.testing.assert_array_equal(sampler.paths(theta, keys[1500:1510]).length, path.length[1500:1510])
