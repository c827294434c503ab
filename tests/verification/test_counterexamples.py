"""Counterexamples: certificates note their violating episodes, which are played again, ranked and explained."""

import dataclasses
import json
import re

import numpy as np
import pytest

import psyco
from psyco._src.core.errors import RunError
from psyco._src.rollout.episodes import Episodes
from psyco._src.verification import counterexamples as module
from psyco._src.verification.base import Counts, Verdict
from psyco._src.verification.certificate import Certificate
from psyco._src.verification.counterexamples_html import counterexamples_html
from psyco._src.verification.episode_notes import MAX_CLOSEST, MAX_LISTED, note_episodes
from psyco._src.verification.recertify import replay
from psyco._src.verification.tally import Tally
from tests.environments import Careless, Walk
from tests.verification.test_certificate import DOMAIN, SAFE, forged, policy

UNSAFE = f"P>=0.95 [ {SAFE} ] & C>=0.98"
WALK = "P>=0.3 [ G (abs(obs[0]) <= 2 & count(info.cost > 0) <= 6) ] & C>=0.9"


@pytest.fixture(scope="module")
def certificate():
    return psyco.verify(policy(), DOMAIN, UNSAFE, seed=5, method="fixed", max_episodes=60)


def walk(kind=Walk, **options):
    return psyco.make(kind, horizon=20, **options)


def right(observation):
    return 1


# ---- notes of the certificate ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_certificate_notes_exactly_its_violating_episodes(certificate):
    (notes,), (finding,) = certificate.episode_notes, certificate.findings
    assert len(notes.violating_episodes) == finding.violated > 0
    found = psyco.counterexamples(policy(), certificate=certificate, worst=100, film=False)
    assert [each.violates for each in found] == [True] * finding.violated + [False] * (len(found) - finding.violated)
    assert {each.episode for each in found if each.violates} == set(notes.violating_episodes)


def test_unwanted_formulas_violate_where_they_hold():
    (notes,) = note_episodes(psyco.parse("P<=0.5 [ F x > 1 ]"), [np.array([True, False, True])], [tally(2, 1)])
    assert notes.violating_episodes == [0, 2]


def episodes(satisfied, cost, shaping=None):
    satisfied = np.array(satisfied)[:, None]
    cost = np.array(cost, np.float32)[:, None]
    steps = np.full(len(cost), 3, np.int32)
    return Episodes(cost[:, 0], cost, satisfied, steps, shaping_cost=None if shaping is None else cost)


def tally(satisfied, violated):
    return Tally(Counts(satisfied, violated), Verdict.UNDECIDED)


def test_notes_are_ranked_by_the_shaping_cost_and_sampled_beyond_a_thousand():
    requirement = psyco.parse("P>=0.5 [ G (count(x > 1) <= 2) ]")
    held = np.array([True, False, True, False, True])
    played = episodes(held, [0.5, 1.5, 1.0, 2.5, 0.0], shaping=True)
    (notes,) = note_episodes(requirement, [held], [tally(3, 2)], played)
    assert notes.violating_episodes == [3, 1]
    assert notes.closest_episodes == [2, 0, 4]
    # Only episodes that the test has consumed count.
    (first,) = note_episodes(requirement, [held], [tally(2, 1)], played)
    assert (first.violating_episodes, first.closest_episodes) == ([1], [2, 0])
    # Without a measure of closeness none is listed.
    (plain,) = note_episodes(psyco.parse("P>=0.5 [ G x <= 2 ]"), [held], [tally(3, 2)], episodes(held, [0, 1, 0, 9, 0]))
    assert (plain.violating_episodes, plain.closest_episodes) == ([3, 1], [])
    many = np.zeros(5000, bool)
    costs = np.arange(5000)[::-1]
    (sampled,) = note_episodes(requirement, [many], [tally(0, 5000)], episodes(many, costs, shaping=True))
    assert len(sampled.violating_episodes) == MAX_LISTED
    assert sampled.violating_episodes[0] == 0 and sampled.violating_episodes == sorted(sampled.violating_episodes)


def test_of_an_expected_value_the_worst_values_are_noted():
    values = np.array([1.0, 9.0, 3.0, 7.0])
    for text, worst in (("R{x}<=5 [ C ]", [1, 3, 2, 0]), ("R{x}>=5 [ C ]", [0, 2, 3, 1])):
        (notes,) = note_episodes(psyco.parse(f"{text} within [0,10]"), [values], [tally(0, 4)])
        assert (notes.violating, notes.closest_episodes[:MAX_CLOSEST]) == ("", worst)
    (rate,) = note_episodes(psyco.parse("R{x}<=0.5 [ S ] within [0,1]"), [np.array([[4.0, 10], [3, 4]])], [tally(0, 2)])
    assert rate.closest_episodes == [1, 0]


@pytest.mark.parametrize(
    "notes",
    [
        [],
        [{"violating": "0", "closest": ""}] * 2,
        [{"violating": "999999", "closest": ""}],
        [{"violating": "one", "closest": ""}],
        [{"violating": "", "closest": "0 0"}],
    ],
)
def test_notes_that_do_not_fit_are_refused(certificate, notes):
    with pytest.raises(RunError, match=r"damaged: .*episode_notes"):
        Certificate.from_json(forged(certificate, "episode_notes", to=notes), strict=False)


@pytest.mark.slow
def test_a_replay_compares_the_notes(certificate):
    assert replay(certificate.to_json(), policy()).matches
    numbers = certificate.episode_notes[0].violating.split()
    other = " ".join([*numbers[1:], str(next(i for i in range(99) if str(i) not in numbers))])
    found = replay(forged(certificate, "episode_notes", 0, "violating", to=other), policy())
    assert ["episode_notes.0.violating" in each for each in found.differences] == [True]


# ---- counterexamples ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_worst_come_first_each_with_its_reason(certificate):
    found = psyco.counterexamples(policy(), certificate=certificate, worst=3, film=False)
    assert len(found) == 3
    ranks = [(each.cost, each.margin) for each in found]
    assert ranks == sorted(ranks, reverse=True)
    for each in found:
        assert each.violates and each.explanation is not None and not each.explanation.satisfied
        assert {step for _, step in each.explanation.cells} == {each.decided}
        caught = f"caught is true at step {each.decided}"
        assert caught in each.reason and f"collisions <= 1 is false at step {each.decided}" in each.reason
        assert each.signals["caught"][each.decided] and each.signals["collisions"][each.decided] > 1
    assert f"{certificate.findings[0].violated} of {certificate.episodes} episodes violate" in str(found)
    assert [each["episode"] for each in json.loads(found.to_json())["episodes"]] == [each.episode for each in found]
    again = certificate.counterexamples(policy(), worst=3)
    assert again.to_json() == found.to_json()


@pytest.mark.slow
def test_html_escapes_and_shows_a_row_per_subformula(certificate):
    found = certificate.counterexamples(policy(), worst=1)
    evil = dataclasses.replace(found, remarks=("<script>alert(1)</script>",))
    html = counterexamples_html(evil)
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert found._repr_html_().count('class="when"') == 5 + 1  # subformulas, and the curve of collisions
    assert len(re.findall('class="(?:true|false) decides"', html)) == 2 + 2  # and two in the legend


@pytest.mark.slow
def test_without_a_violation_the_closest_calls_are_shown():
    safe = psyco.verify(right, walk(), "P>=0.3 [ G (abs(obs[0]) <= 9) ] & C>=0.9", method="fixed", max_episodes=15)
    found = safe.counterexamples(right, domain=walk(), worst=2)
    assert "None of the 15 episodes violates; these came closest" in str(found)
    assert [each.violates for each in found] == [False, False]
    extremes = [
        np.abs(each.signals["obs"][:, 0]).max() for each in safe.counterexamples(right, domain=walk(), worst=15)
    ]
    assert len(extremes) == 15 and extremes == sorted(extremes, reverse=True)
    assert found[0].margin == pytest.approx(extremes[0] / 9 - 1)


@pytest.mark.slow
def test_of_expected_values_the_worst_episodes_have_their_values():
    certificate = psyco.verify(right, walk(), "R{info.cost}<=9 [ C ] within [0,20] & C>=0.9", max_episodes=30)
    found = certificate.counterexamples(right, domain=walk(), worst=4)
    values = [each.value for each in found]
    assert len(values) == 4 and values == sorted(values, reverse=True)
    assert all(each.value == each.signals["info.cost"][1:].sum() for each in found)
    assert "these have the worst values" in str(found) and "value" in found[0].outcome
    assert '<svg viewBox="0 0 560' not in found._repr_html_(), "no timeline"


@pytest.mark.slow
@pytest.mark.parametrize(
    "actor", [right, psyco.Guard(right, lambda observation: 0, "P>=0.5 [ G (count(obs[0] > 1) <= 2) ]")]
)
def test_external_policies_and_guards_in_gymnasium(actor):
    certificate = psyco.verify(actor, walk(), WALK, seed=3, max_episodes=60)
    found = psyco.counterexamples(actor, certificate=certificate, domain=walk(), worst=2, film=False)
    assert found and all(each.violates for each in found)
    for each in found:
        state = each.signals
        assert f"at step {each.decided}" in each.reason
        assert abs(state["obs"][each.decided, 0]) > 2 or (state["info.cost"][: each.decided + 1] > 0).sum() > 6


def test_recorded_traces(tmp_path):
    file = tmp_path / "field.csv"
    rows = [f"{name},{x},{x}" for name, path in {"a": (0, 1), "b": (5, 0), "c": (1, 9)}.items() for x in path]
    file.write_text("\n".join(["episode,x,reward", *rows]) + "\n")
    require = "P>=0.9 [ G (x <= 3 & return <= 20) ] & C>=0.9"
    certificate = psyco.verify_outcomes(file, require, traces=True)
    assert certificate.episode_notes[0].violating == "1 2"
    found = psyco.counterexamples(certificate, traces=file)
    assert [(each.episode, each.decided, each.reason) for each in found[:2]] == [
        (2, 1, "x <= 3 is false at step 1"),
        (1, 0, "x <= 3 is false at step 0"),
    ]
    assert found[0].seed is None and found[0].film is None
    with pytest.raises(RunError, match="give the file of the traces"):
        psyco.counterexamples(certificate)
    (notes,) = certificate.episode_notes
    changed = dataclasses.replace(certificate, episode_notes=(dataclasses.replace(notes, violating="0 2"),))
    with pytest.raises(RunError, match="the certificate was changed: the violating episodes"):
        psyco.counterexamples(changed, traces=file)
    file.write_text(file.read_text().replace("c,9,9", "c,0,0"))
    with pytest.raises(RunError, match="holds other episodes than the certificate"):
        psyco.counterexamples(certificate, traces=file)


def test_an_episode_that_was_cut_says_so(tmp_path):
    file = tmp_path / "cut.csv"
    file.write_text("episode,x,terminated\na,0,0\na,1,1\nb,0,0\nb,1,0\n")
    certificate = psyco.verify_outcomes(file, "P>=0.9 [ G x <= 3 ]", traces=True, cut="violated")
    first = psyco.counterexamples(certificate, traces=file)[0]
    assert (first.episode, first.violates, first.reason) == (1, True, "it has no end, so it counts as violated")


# ---- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_environment_that_does_not_repeat_its_episodes_is_an_error(certificate):
    declared = psyco.verify(right, walk(Careless, seeded=False), WALK, seed=3, max_episodes=30)
    with pytest.raises(RunError, match="does not repeat an episode under its seed"):
        declared.counterexamples(right, domain=walk(Careless, seeded=False))
    numbers = set(certificate.episode_notes[0].violating_episodes)
    innocent = next(i for i in range(certificate.episodes) if i not in numbers)
    listed = " ".join(map(str, [innocent, *sorted(numbers)[1:]]))
    changed = Certificate.from_json(forged(certificate, "episode_notes", 0, "violating", to=listed), strict=False)
    with pytest.raises(RunError, match=f"episode {innocent} of the certificate satisfies when it is played again"):
        changed.counterexamples(policy())


@pytest.mark.slow
def test_what_cannot_be_played_again_is_an_error(certificate, tmp_path):
    with pytest.raises(RunError, match="worst"):
        certificate.counterexamples(policy(), worst=0)
    with pytest.raises(RunError, match="give the policy too"):
        certificate.counterexamples()
    with pytest.raises(RunError, match="about another policy"):
        certificate.counterexamples(policy(1))
    with pytest.raises(RunError, match="leave out the traces"):
        certificate.counterexamples(policy(), traces="field.csv")
    other = dataclasses.replace(DOMAIN, horizon=DOMAIN.horizon + 1)
    with pytest.raises(RunError, match="were played in another domain"):
        certificate.counterexamples(policy(), domain=other)
    unknown = dataclasses.replace(certificate, domain="obstacle-walk")
    with pytest.raises(RunError, match=r"cannot be made: .*obstacle-walk"):
        unknown.counterexamples(policy())
    with pytest.raises(RunError, match="cannot be made"):
        dataclasses.replace(certificate, parameters={"grids": 4}).counterexamples(policy())
    with pytest.raises(RunError, match="no random stream"):
        dataclasses.replace(certificate, stream="dreams").counterexamples(policy())
    with pytest.raises(RunError, match="without a constraint"):
        dataclasses.replace(certificate, requirement="P=? [ F target ];").counterexamples(policy())
    policy().save(tmp_path / "policy.safetensors")
    with pytest.raises(RunError, match="has no certificate"):
        psyco.counterexamples(tmp_path / "policy.safetensors")
    file = tmp_path / "certificate.json"
    file.write_text(certificate.to_json())
    with pytest.raises(RunError, match="its policy is not beside it"):
        psyco.counterexamples(file)


@pytest.mark.slow
def test_few_episodes_are_played_where_each_takes_long(monkeypatch):
    certificate = psyco.verify(
        right, walk(), "P>=0.3 [ G (abs(obs[0]) <= 9) ] & C>=0.9", method="fixed", max_episodes=30
    )
    counted = []
    record = module.record_signals
    monkeypatch.setattr(module, "record_signals", lambda *args: counted.append(len(args[3])) or record(*args))
    found = certificate.counterexamples(right, domain=walk(), worst=1)
    assert counted == [module.RANKED] and len(found) == 1
    assert np.isfinite(found[0].margin)
