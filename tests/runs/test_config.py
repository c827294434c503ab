"""Configuration files: complete, exact, and strict with what a hand wrote."""

import dataclasses

import pytest

from psyco._src.core.errors import PsycoError, RunError
from psyco._src.runs.config import Config, is_sealed, read_config
from psyco._src.runs.session import build_problem
from tests.runs.small import CONFIG, REQUIREMENT

BASE = f"""
requirement = '{REQUIREMENT}'
[domain]
name = "particle-dance"
"""


def test_a_domain_and_a_requirement_are_enough() -> None:
    assert read_config(BASE, "my.toml") == Config("particle-dance", REQUIREMENT)


def test_a_written_configuration_is_complete_and_reads_back_equal() -> None:
    complete = CONFIG.complete(build_problem(CONFIG))
    text = complete.to_toml()
    assert read_config(text, "x") == complete
    assert complete.parameters["d_min"] == 0.1, "defaults of the domain are written out"
    assert complete.settings.options["sigma"] == 0.1, "and those of the learner"


def test_hidden_layers_are_a_number_or_a_list() -> None:
    for written, layers in {"32": 32, "[32]": 32, "[64, 64]": (64, 64)}.items():
        config = read_config(f"{BASE}[settings]\nhidden = {written}", "my.toml")
        assert config.settings.hidden == layers
        assert read_config(config.to_toml(), "x") == config


def test_a_seal_tells_a_changed_file() -> None:
    text = CONFIG.to_toml()
    assert is_sealed(text)
    assert not is_sealed(text.replace("1500", "1600"))
    assert not is_sealed(text[:-1])
    assert not is_sealed("")


def test_the_identity_depends_on_everything_but_the_length() -> None:
    def changed(**settings: object) -> str:
        return dataclasses.replace(CONFIG, settings=dataclasses.replace(CONFIG.settings, **settings)).identity

    assert changed(episodes=9000) == CONFIG.identity
    assert changed(seed=5) != CONFIG.identity
    assert changed(options={"population": 12}) != CONFIG.identity
    assert dataclasses.replace(CONFIG, parameters={"horizon": 6}).identity != CONFIG.identity
    # A file has no None: a run that is resumed has lost such options, and must find its checkpoints.
    assert changed(options=dict(CONFIG.settings.options) | {"sequence_length": None}) == CONFIG.identity


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("requirement = \n", ["not a TOML file", "line 1"]),
        ('[domain]\nname = "particle-dance"', ["requirement", "(missing)", "must be text"]),
        (f"requirement = '{REQUIREMENT}'", ["domain.name", "(missing)"]),
        (BASE + "[setings]\nseed = 1", ["'setings'", "did you mean 'settings'", "allowed are"]),
        (BASE + "[settings]\nepisode = 1", ["'settings.episode'", "did you mean 'episodes'"]),
        (BASE + "[settings]\npopulation = 20", ["'settings.population'", "belongs to [learner]"]),
        (BASE + "[settings]\nepisodes = 'many'", ["settings.episodes = 'many'", "a whole number"]),
        (BASE + "[settings]\nepisodes = 0", ["episodes", "at least 1", "got 0"]),
        (BASE + "[settings]\nhidden = [64, 0]", ["hidden", "at least 1", "as in 64,64", "(64, 0)"]),
        (BASE + "[settings]\nseed = true", ["settings.seed = True", "a whole number"]),
        (BASE + "[learner]\nname = 'snse'", ["learner.name = 'snse'", "did you mean 'snes'"]),
        (BASE + "[learner]\nlearning_rat = 0.1", ["'learner.learning_rat'", "did you mean 'learning_rate'"]),
        (BASE + "[learner]\nlearning_rate = '0.1'", ["learner.learning_rate = '0.1'", "a number"]),
        (BASE + "[tracking]\nto = ['tensorbord']", ["'tensorbord'", "did you mean 'tensorboard'"]),
        (BASE.replace(">=0.85", ">=1.85"), ["my.toml", "1.85"]),
        ("settings = 3\n" + BASE, ["settings = 3", "must be a table"]),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_key_its_value_and_what_is_allowed(text: str, words: list[str]) -> None:
    with pytest.raises(RunError) as error:
        read_config(text, "my.toml")
    for word in ["my.toml", *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BASE + "horizn = 3", ["horizn", "did you mean 'horizon'"]),
        (BASE + "horizon = 3.5", ["horizon", "3.5", "whole number"]),
        (BASE.replace("particle-dance", "particle-danse"), ["particle-danse", "did you mean 'particle-dance'"]),
    ],
)  # fmt: skip
def test_a_mistake_about_the_domain_is_named_when_it_is_made_and_not_before(text: str, words: list[str]) -> None:
    config = read_config(text, "my.toml")
    with pytest.raises(PsycoError) as error:
        build_problem(config)
    for word in words:
        assert word in str(error.value)


def test_a_file_does_not_determine_how_a_run_is_computed() -> None:
    with pytest.raises(RunError, match="unknown key 'execution'"):
        read_config(BASE + "[execution]\nworkers = 4\nray = 'ray://somewhere:10001'", "my.toml")
