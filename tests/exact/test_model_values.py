"""Exact answers on models, against closed forms."""

import math
from pathlib import Path

import pytest

import psyco
from psyco._src.envs.model_file import model_domain
from psyco._src.exact import model_values
from psyco._src.exact.model_properties import model_properties

EXAMPLES = Path(__file__).parents[2] / "examples"
DICE, COURIER = str(EXAMPLES / "dice.prism"), str(EXAMPLES / "courier.prism")
pytestmark = pytest.mark.extra("stormpy")


def test_a_chain_is_answered_without_a_policy() -> None:
    asked = 'P=? [ F d=6 ]; R{"flips"}=? [ F "done" ]; P=? [ F<=3 "done" ]; P=? [ !(F d=6) ]; R{s}=? [ I=1 ]'
    found = psyco.exact(DICE, requirement=asked)
    assert found.answers == pytest.approx((1 / 6, 11 / 3, 0.75, 5 / 6, 1.5))
    assert found.verdict.name == "ANSWERED"
    assert psyco.exact(DICE, requirement="P>=0.17 [ F d=6 ]").verdict.name == "VIOLATED"


def test_a_horizon_ends_episodes() -> None:
    asked = 'P=? [ F "done" ]; P=? [ G !"done" ]; R{"flips"}=? [ F "done" ]; R{"flips"}=? [ C ]'
    found = psyco.exact(DICE, requirement=asked, parameters={"horizon": 3})
    assert found.answers == pytest.approx((0.75, 0.25, 3.0, 3.0))


def test_a_policy_is_answered_on_the_states_that_it_reaches() -> None:
    asked = 'P>=0.7 [ F "delivered" ]; R{"time"}=? [ F ("delivered" | wet) ]; Pmax=? [ F "delivered" ]'
    found = psyco.exact(lambda observation: 0, COURIER, asked, parameters={"N": 4})  # always the bridge
    assert found.value.probabilities == pytest.approx((0.81,))
    assert found.answers == pytest.approx((1.9, 1.0))
    assert found.nodes == 5  # at 0, 2, 4, and wet at 0 and 2
    road = psyco.exact(lambda observation: 1, COURIER, asked, parameters={"N": 4})
    assert road.value.probabilities == pytest.approx((1.0,))
    assert road.answers[0] == pytest.approx(4.0)


def test_optima_over_all_policies_and_under_a_constraint() -> None:
    found = psyco.optimum(COURIER, 'Rmin=? [ C ]; P>=0.9 [ F "delivered" ]', parameters={"N": 4})
    assert found[0][1:] == pytest.approx((0.81, 1.0))
    # The bridge first, then the road: 0.9 * 3 + 0.1 * 1 steps.
    assert found[1].smallest == pytest.approx(2.8, abs=2e-4)
    assert "up to an error of 0.0002" in found[1].text
    asked = 'R{"time"}=? [ F ("delivered" | wet) ]'
    assert psyco.optimum(COURIER, asked, parameters={"N": 4})[0][1:] == pytest.approx((1.9, 4.0))


def test_optima_are_not_computed_by_the_exact_methods_that_may_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    # Storm's policy iteration did not end on `consensus.2` with K=2, which has 272 states.
    import stormpy

    monkeypatch.setattr(stormpy.environments, "exact", lambda: pytest.fail("exact methods"))
    (found,) = psyco.optimum(COURIER, 'P=? [ F "delivered" ]', parameters={"N": 6})
    assert found[1:] == pytest.approx((0.9**3, 1.0), rel=1e-10)


def test_properties_of_the_file_mean_its_own_labels_and_variables_where_names_are_taken(tmp_path: Path) -> None:
    text = WALK.replace("x", "step") + 'label "end" = step=1;\n'
    model = write(tmp_path, text, '"a": P=? [ F<=1 "end" ];\n"b": P=? [ F<=9 step=1 & !"end" ];\n')
    found = {each.name: each for each in model_properties(model_domain(model))}
    assert [each.requirement for each in found.values()] == [
        "P=? [ true U<=1 label.end ]", "P=? [ true U<=9 ((var.step = 1) & (!label.end)) ]"
    ]  # fmt: skip
    assert psyco.exact(model, requirement=found["a"].requirement).answers == (0.5,)
    assert psyco.exact(model, requirement=found["b"].requirement).answers == (0.0,)
    listed = {each.name: each.message for each in psyco.check(model)}
    assert listed["variables"].startswith("var.step (")
    assert "label.end" in listed["labels"]


def test_optima_need_no_policy() -> None:
    asked = 'Pmax=? [ F "delivered" ]; Pmin=? [ F "delivered" ]; R{"time"}min=? [ F ("delivered" | wet) ]'
    found = psyco.exact(COURIER, requirement=asked, parameters={"N": 4})
    assert found.answers == pytest.approx((1.0, 0.81, 1.9))
    assert math.isnan(found.value.expected_return)  # there is no policy
    with pytest.raises(psyco.RunError, match="give the policy first"):
        psyco.exact(COURIER, requirement=f'{asked}; P=? [ F "delivered" ]', parameters={"N": 4})
    with pytest.raises(psyco.RequirementError, match="asks for the best of all controllers"):
        psyco.verify(COURIER, requirement=asked, parameters={"N": 4})


def test_what_storm_does_not_answer_is_refused_in_words() -> None:
    for asked, words in (
        ("P=? [ F return >= 3 ]", "over variables and labels"),
        ('R{"flips"}=? [ S ]', "does not compute"),
        ('P=? [ G F "done" ]', "nested operators"),
        ('P=? [ F "finished" ]', "unknown label"),
    ):
        with pytest.raises(psyco.PsycoError, match=words):
            psyco.exact(DICE, requirement=asked, parameters={"horizon": 5})
    with pytest.raises(psyco.RunError, match="is a decision process, with up to 2 choices"):
        psyco.exact(COURIER, requirement='P=? [ F "delivered" ]', parameters={"N": 3})


def test_properties_of_the_file_are_listed_with_what_becomes_of_them() -> None:
    messages = {each.name: each.message for each in psyco.check(DICE)}
    assert "P=? [ F (d = 6) ]: accepted" in messages["six"]
    assert "13 states, 13 choices, 20 branches" in messages["model"]
    messages = {each.name: each.message for each in psyco.check(COURIER, parameters={"N": 3})}
    shown, _, words = messages["safest"].partition(": answered exactly")
    assert words
    assert psyco.exact(COURIER, requirement=shown, parameters={"N": 3}).answers == pytest.approx((1.0,))
    assert "0 to 1" in messages["actions"]


WALK = """dtmc
module m
 x:[0..4] init 0;
 [] x<4 -> 0.5:(x'=x+1)+0.5:(x'=0);
 [] x=4 -> true;
endmodule
rewards "n"
 x<4 : 1;
endrewards
"""
CHOICE = """mdp
module m
 x:[0..3] init 0;
 [a] x=0 -> 0.5:(x'=1)+0.5:(x'=2);
 [b] x=0 -> (x'=3);
 [c] x=0 -> (x'=0);
 [d] x>0 -> true;
endmodule
rewards "n"
 [c] true : 1;
 [a] true : 2;
endrewards
"""


def write(folder: Path, text: str, properties: str = "") -> str:
    file = folder / "model.prism"
    file.write_text(text)
    if properties:
        file.with_suffix(".props").write_text(properties)
    return str(file)


def test_episodes_end_where_until_holds(tmp_path: Path) -> None:
    model, given = write(tmp_path, WALK), {"until": "x=1"}
    asked = 'P=? [ F x=2 ]; P=? [ F<=1 x=1 ]; R{"n"}=? [ C ]; R{x}=? [ I=9 ]'
    found = psyco.exact(model, requirement=asked, parameters=given)
    assert found.answers == pytest.approx((0.0, 0.5, 2.0, 1 - 0.5**9))
    assert found.nodes == 2
    free = psyco.optimum(write(tmp_path, CHOICE), "P=? [ F x=2 ]", parameters={"until": "x=1"})
    assert free[0].largest == pytest.approx(0.5)
    with pytest.raises(psyco.RequirementError, match="until holds in the initial state"):
        psyco.exact(write(tmp_path, WALK), requirement=asked, parameters={"until": "x=0"})


def test_nothing_is_counted_after_the_end_of_an_episode(tmp_path: Path) -> None:
    model = write(tmp_path, "dtmc\nmodule m\n x:[0..2] init 0;\n [] x<2 -> (x'=x+1);\n [] x=2 -> true;\nendmodule\n")
    found = psyco.exact(model, requirement="R{x}=? [ C ]; R{x=2}=? [ C<=9 ]; R{true}=? [ C<=9 ]")
    assert found.answers == pytest.approx((3.0, 1.0, 2.0))


def test_a_reward_at_one_step_is_refused(tmp_path: Path) -> None:
    model = write(tmp_path, WALK, '"at": R{"n"}=? [ I=1 ];\n')
    with pytest.raises(psyco.RequirementError, match="a step's value of a reward structure"):
        psyco.exact(model, requirement='R{"n"}=? [ I=1 ]')
    assert "refused, it asks for the reward at one step" in {e.name: e.message for e in psyco.check(model)}["at"]


def test_no_steps_have_no_reward_with_a_horizon_either(tmp_path: Path) -> None:
    asked = 'R{"n"}=? [ C<=0 ]; R{"n"}=? [ C<=1 ]'
    found = psyco.exact(write(tmp_path, WALK), requirement=asked, parameters={"horizon": 3})
    assert found.answers == pytest.approx((0.0, 1.0))


def test_an_optimum_that_does_not_exist_has_its_reason(tmp_path: Path) -> None:
    model = write(tmp_path, CHOICE)
    none = psyco.optimum(model, "P>=0.9 [ F x=2 ]", parameters={"horizon": 3})[-1]
    assert math.isnan(none.smallest)
    assert "no policy meets the constraints" in none.text
    infinite = psyco.optimum(model, "P>=0.3 [ F x=2 ]")[-1]
    assert math.isnan(infinite.smallest)
    assert "some policy has an infinite return" in infinite.text


def test_constraints_that_every_policy_meets_are_left_out_of_an_optimum(tmp_path: Path) -> None:
    """Storm's values for several objectives are inaccurate where the bound is the probability of all policies."""
    text = """
        mdp
        module both
            x : [0..2] init 0;
            [slow] x=0 -> 0.875:(x'=1) + 0.125:(x'=2);
            [fast] x=0 -> 0.875:(x'=1) + 0.125:(x'=2);
        endmodule
        rewards "time" [slow] true : 3; [fast] true : 1; endrewards
    """
    for bound in ("P>=0.875", "P>=0.5", "P<=0.875"):
        *_, found = psyco.optimum(write(tmp_path, text), f"Rmax=? [ C ]; {bound} [ F x=1 ]")
        assert found.largest == pytest.approx(3.0, abs=1e-9) and "which every policy meets" in found.text
    *_, none = psyco.optimum(write(tmp_path, text), "Rmax=? [ C ]; P>=0.876 [ F x=1 ]")
    assert "no policy meets the constraints" in none.text


def test_a_value_within_the_error_of_a_large_model_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_values, "MAX_EXACT_STATES", 3)
    verdicts = [
        psyco.exact(DICE, requirement=asked).verdict.name
        for asked in ("P>=0.1666667 [ F d=6 ]", "P>=0.1667 [ F d=6 ]", "P>=0.1666 [ F d=6 ]", 'P>=1 [ F "done" ]')
    ]
    assert verdicts == ["UNDECIDED", "VIOLATED", "SATISFIED", "SATISFIED"]


def test_strict_bounds_fractions_and_unnamed_rewards_of_a_file(tmp_path: Path) -> None:
    stated = '"f": P=? [ F<2 x=1 ]; "u": P=? [ x<1 U<3 x=1 ]; "c": R{"n"}=? [ C<2 ]; "half": P>=0.5 [ F x=4 ];'
    model = write(tmp_path, WALK, f'{stated} "w": P<1/4 [ F x=4 ]; "r": R=? [ C<=2 ];\n')
    found = {each.name: each for each in model_properties(model_domain(model))}
    assert [each.refused for each in found.values()] == [""] * 6
    assert "true U<=1" in found["f"].requirement
    assert "U<=2" in found["u"].requirement
    assert "C<=1" in found["c"].requirement
    assert (found["half"].bound, found["w"].bound) == (">=0.5", "<0.25")
    model = write(tmp_path, WALK + 'rewards "two"\n x=0 : 10;\nendrewards\n', '"r": R=? [ C<=2 ];\n')
    (unnamed,) = model_properties(model_domain(model))
    assert "names none of the reward structures" in unnamed.refused
