"""Domains by name, with parameters that are checked."""

import os
from pathlib import Path

import pytest

import psyco
from psyco._src.envs import registry
from psyco._src.envs.actions import Continuous
from psyco._src.envs.base import parameters, signal_table
from psyco._src.envs.registry import DomainDescription, make_from_description, proposed_trust


@pytest.mark.parametrize("name", ["particle-dance", "obstacle-run"])
def test_every_domain_offers_the_common_signals(name):
    table = signal_table(psyco.make(name))
    assert {"distance", "collisions", "step", "reward", "return", "obs", "action", "agent"} <= set(table)


def test_parameters_replace_defaults_and_are_reported():
    domain = psyco.make("particle-dance", horizon=7, d_min=0.2)
    assert (domain.horizon, parameters(domain)["d_min"]) == (7, 0.2)
    assert psyco.make("particle-dance", horizon=7, d_min=0.2) == domain


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("particle-dancer", {}, "did you mean 'particle-dance'"),
        ("particle-dance", {"horizn": 5}, "did you mean 'horizon'"),
        ("particle-dance", {"horizon": 0}, "horizon must be a whole number of at least 1"),
        ("particle-dance", {"horizon": 2.5}, "horizon must be a whole number"),
        ("particle-dance", {"d_min": -1.0}, "d_min must be positive"),
        ("particle-dance", {"d_min": float("nan")}, "d_min must be positive"),
        ("particle-dance", {"d_min": "wide"}, "d_min must be a number"),
        ("obstacle-run", {"grid": True}, "grid must be a whole number"),
        ("particle-dance", {"horizon": 10**9}, "horizon can be at most 10,000,000"),
        ("particle-dance", {"name": "x"}, "has no parameter 'name'"),
        ("particle-dance", {"agent": 3}, "did you mean 'agents'"),
        ("CartPole-v1", {"name": "x"}, "cannot make CartPole-v1: .*'name'"),
        ("CartPole-v1", {"source": "x"}, "cannot make CartPole-v1: .*'source'"),
        ("CartPole-v1", {"wrappers": 5}, "wrappers are a list"),
        ("CartPole-v1", {"signals": 5}, "signals a dictionary"),
    ],
)
def test_what_is_wrong_is_said(name, values, message):
    with pytest.raises(psyco.DomainError, match=message):
        psyco.make(name, **values)


def refuse(**parameters):
    raise ZeroDivisionError(parameters)


def test_what_others_raise_while_a_domain_is_made_is_said(monkeypatch):
    monkeypatch.setattr(registry, "PREFIXES", {"other": lambda env, /, **parameters: refuse(**parameters)})
    with pytest.raises(psyco.DomainError, match=r"cannot make other:x with {'env': 1}: ZeroDivisionError"):
        psyco.make("other:x", env=1)
    monkeypatch.setattr(registry, "PREFIXES", {"other": lambda env, /: []})
    with pytest.raises(psyco.DomainError, match=r"cannot make other:x with {}: TypeError: unhashable type"):
        psyco.make("other:x")


@pytest.mark.parametrize("where", ["wrappers", "signals"])
@pytest.mark.parametrize("shape", [["a:b"], {"a:b": 1}, {"x": "a:b"}, {"x": ["a:b"]}, [{"a:b": 1}], "a:b"], ids=str)
def test_a_file_names_no_code_whatever_shape_its_parameters_have(where, shape):
    with pytest.raises(psyco.DomainError, match="this needs the Python code a:b, and a file must not choose"):
        make_from_description(DomainDescription("CartPole-v1", {where: shape}))


def test_the_question_for_trust_shows_every_text_among_the_parameters():
    """A long list of other parameters hides nothing: texts come first, and a cut is said."""
    many = {f"x{i}": 0.5 for i in range(2000)}
    with pytest.raises(psyco.DomainError) as asked:
        make_from_description(DomainDescription("a:B", {**many, "config": {"vehicle": "evil.Car"}}))
    assert "config = {'vehicle': 'evil.Car'}" in str(asked.value)
    assert len(str(asked.value)) < 4000 and "read the file before you trust it" in str(asked.value)
    with pytest.raises(psyco.DomainError, match=r"--trust a:B \(in Python: trust=\['a:B'\]\)$"):
        make_from_description(DomainDescription("a:B", {}))


@pytest.mark.parametrize(
    "values",
    [
        {"xml_file": "/etc/passwd"},
        {"xml_file": "../x"},
        {"xml_file": "~"},
        {"xml_file": "half_cheetah.xml"},
        {"xml_file": "plain"},
        {"model_path": "plain"},
        {"texture": "C:\\x"},
        {"x": ["http://host"]},
        {"x": {"y": ["a.b"]}},
        {"a/b": 1},
        {"x": "\0"},
        {"x": "here"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["CartPole-v1", "particle-dance", "gymnax:CartPole-v1", "no-such-v1"])
def test_a_file_names_no_other_file_in_the_parameters_of_a_known_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, values: dict[str, object]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").touch()
    with pytest.raises(psyco.DomainError, match=r"may name files, .* must not choose which files are read; .*--trust"):
        make_from_description(DomainDescription(name, {"horizon": 5, **values}))


def test_a_trusted_file_is_read_and_ordinary_words_need_no_trust(tmp_path: Path) -> None:
    described = DomainDescription("CartPole-v1", {"horizon": 5, "xml_file": "./model.xml"})
    with pytest.raises(psyco.DomainError, match="unexpected keyword argument 'xml_file'"):  # it gets there
        make_from_description(described, ["./model.xml"])
    with pytest.raises(psyco.DomainError, match=r"--trust \./model\.xml"):
        make_from_description(described, ["CartPole-v1", "model.xml"])
    lake = {"map_name": "8x8", "desc": ["SFFF", "FHFG"], "render_mode": "rgb_array", "horizon": 5}
    assert make_from_description(DomainDescription("FrozenLake-v1", lake)).horizon == 5


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("trust", [[], ["pipe"]])
def test_a_pipe_among_the_parameters_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trust: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    monkeypatch.setattr(registry, "make", lambda *_, **__: Path("pipe").read_text())
    with pytest.raises(psyco.DomainError, match=r"--trust pipe|'pipe' is a pipe"):
        make_from_description(DomainDescription("CartPole-v1", {"x": "pipe"}), trust)


@pytest.mark.parametrize(
    ("name", "values", "proposed"),
    [
        ("a:B", {"horizon": 5, "wrappers": ["c:d"], "signals": {"x": "e:f"}}, ["a:B", "c:d", "e:f"]),
        ("a:B", {"vehicle": "evil.Car"}, []),
        ("a:B", {"config": {"vehicle": "Car"}}, []),
        ("CartPole-v1", {"xml_file": "./x.xml"}, ["./x.xml"]),
        ("CartPole-v1", {"horizon": 5}, []),
    ],
)
def test_a_hint_proposes_no_trust_that_hides_a_text_of_the_file(name, values, proposed):
    assert proposed_trust(DomainDescription(name, values)) == proposed


def test_an_action_range_must_be_a_range():
    with pytest.raises(psyco.DomainError, match="low < high"):
        Continuous((0.0, 1.0), (1.0, 1.0))
    with pytest.raises(psyco.DomainError, match="finite"):
        Continuous((0.0,), (float("inf"),))
