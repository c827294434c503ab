"""Missing keys of `info`: an error or a note in the certificate, never silently safe."""

import dataclasses

import numpy as np
import pytest

import psyco
from psyco._src.core.errors import RequirementError
from psyco._src.logic.ast import SignalInfo
from psyco._src.logic.parser import parse
from psyco._src.policies.external import as_policy
from psyco._src.runs.problem import check_spelling, prepare
from psyco._src.verification.episode_stream import check_info_keys
from psyco._src.verification.recertify import replay
from tests.environments import Walk, to_the_left
from tests.making import make_settings

WALK = psyco.make(Walk, horizon=6)
REQUIRE = parse("P>=0.5 [ G (info.cost <= 1 | info.b > 2) ]; P>=0.5 [ F info.a ]; P>=0.5 [ G step < 9 ]")


def verified(formula, domain=WALK):
    return psyco.verify(to_the_left, domain, f"P>=0.5 [ {formula} ] & C>=0.9", max_episodes=40)


@pytest.mark.filterwarnings("ignore:info.costs did not appear")
@pytest.mark.parametrize("formula", ["G (info.costs <= 0)", "G !info.costs", "G (step < 9 | info.costs > 0)"])
def test_a_misspelt_key_is_an_error_with_its_place_and_a_suggestion(formula):
    with pytest.raises(RequirementError) as refused:
        verified(formula)
    assert refused.value.column == f"P>=0.5 [ {formula}".index("info.costs") + 1
    assert "reported info.costs in none of the" in str(refused.value)
    assert "(did you mean 'info.cost'?)" in str(refused.value)
    assert "keys seen when it was tried out: info.cost, info.deep" in str(refused.value)


def test_a_key_that_some_states_lack_is_named_in_the_certificate():
    certificate = verified("G (info.cost <= 1)")  # the reset does not report it
    n = certificate.episodes
    where = f"in some states of {n} of the {n} episodes"
    note = f"info.cost was missing {where}; where it is missing it counts as 0, or false."
    assert certificate.verdict.name == "SATISFIED"
    assert [each for each in certificate.notes if "missing" in each] == [note]
    assert note in str(certificate)


def test_what_is_in_every_state_needs_no_note():
    everywhere = psyco.make(Walk, horizon=6, signals={"height": lambda obs, info: obs[0]})
    assert "missing" not in "".join(verified("G (height < 99 & obs[0] < 99)", everywhere).notes)


def test_episodes_and_states_without_a_key_are_counted_apart():
    absent = np.array([[1, 0, 0.5], [1, 0, 0], [0.2, 0, 0.1], [0, 0, 0]], np.float32)  # of a, b and cost
    ends = "of the 4 episodes; where it is missing it counts as 0, or false."
    assert check_info_keys(REQUIRE, WALK, absent) == [
        f"info.a was missing in all states of 2 and some states of 1 {ends}",
        f"info.cost was missing in some states of 2 {ends}",
    ]
    assert check_info_keys(REQUIRE, WALK, None) == []
    absent[:, 1] = 1
    with pytest.raises(RequirementError, match=r"reported info\.b in none of the 4 episodes"):
        check_info_keys(REQUIRE, WALK, absent)


def test_answers_say_which_keys_all_their_episodes_missed():
    asked = "P>=0.5 [ G step < 9 ] & C>=0.9; R{info.cost}=? [ C ] within [-99,99]"
    certificate = psyco.verify(to_the_left, WALK, asked, max_episodes=70)
    assert certificate.episodes < certificate.answers[0].episodes == 70
    assert any("missing in some states of 70 of the 70 episodes" in note for note in certificate.notes)
    assert replay(certificate.to_json(), as_policy(to_the_left), domain=WALK).matches


@pytest.mark.filterwarnings("ignore:info")
def test_a_misspelt_key_is_found_before_learning():
    learned = []
    callback = psyco.Callback(on_metrics=lambda problem, metrics: learned.append(metrics))
    with pytest.raises(RequirementError, match=r"did you mean 'info\.cost'\?"):
        psyco.synthesize(
            WALK, "P>=0.5 [ G info.cots <= 0 ] & C>=0.9", episodes=8, learner="safe-es", callbacks=[callback]
        )
    assert not learned


@pytest.mark.filterwarnings("ignore:info")
@pytest.mark.parametrize("key", ["info.cost", "info.else"])
def test_a_key_that_episodes_report_or_that_resembles_no_other_is_not_called_misspelt(key):
    """The first is unknown when the domain is made, as if it were reported seldom."""
    known = {name: info for name, info in WALK.table.items() if name != "info.cost"} | {"info.costs": SignalInfo()}
    domain = dataclasses.replace(WALK, table=known)
    settings = make_settings(episodes=8, learner="safe-es")
    check_spelling(prepare(domain, parse(f"P>=0.5 [ G {key} <= 0 ] & C>=0.9"), settings))
