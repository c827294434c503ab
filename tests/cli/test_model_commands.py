"""PRISM and JANI files on the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
DICE, COURIER = EXAMPLES / "dice.prism", EXAMPLES / "courier.prism"
pytestmark = pytest.mark.extra("stormpy")


def test_a_chain_is_listed_verified_replayed_and_answered(cli: Callable[..., Any], tmp_path: Path) -> None:
    code, out, err = cli("check", DICE)
    assert code == 0, err
    assert 'flips        R{"flips"}=? [ F "done" ]: accepted' in out
    asked = ("--require", "P=? [ F d=6 ]", "--json")
    code, out, err = cli("verify", DICE, *asked, "--max-episodes", "500")
    assert code == 0, err
    (answer,) = json.loads(out)["answers"]
    assert any("the return is the sum up to there" in note for note in json.loads(out)["notes"])
    assert answer["lower"] < 1 / 6 < answer["upper"]  # fails by luck in less than 5% of the seeds; this one is fixed
    file = tmp_path / "certificate.json"
    file.write_text(out)
    code, out, err = cli("verify", "--replay", file, DICE)
    assert (code, "everything matches" in out) == (0, True), err
    code, out, err = cli("exact", DICE, *asked)
    assert json.loads(out)["answers"] == pytest.approx([1 / 6])


def test_optima_of_a_decision_process(cli: Callable[..., Any]) -> None:
    code, out, err = cli("exact", COURIER, "--set", "N=4", "--optimum", "--require", 'P=? [ F "delivered" ]', "--json")
    assert code == 0, err
    (found,) = json.loads(out)
    assert (found["smallest"], found["largest"]) == pytest.approx((0.81, 1.0))


def test_infinite_values_are_strings_in_json(cli: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "model.prism"
    module = "module m\n x:[0..1] init 0;\n [] x=0 -> true;\n [] x=1 -> true;\nendmodule\n"
    file.write_text(f'dtmc\n{module}rewards "n"\n x=0 : 1;\nendrewards\n')
    code, out, err = cli("exact", file, "--require", 'R{"n"}=? [ C ]', "--json")
    assert (code, json.loads(out, parse_constant=pytest.fail)["answers"]) == (0, ["Infinity"]), err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check", COURIER), "its constants N have no values; give them, as in --set N=3"),
        (("verify", COURIER, "--set", "N=3", "--require", "P=? [ F wet ]"), "is a decision process"),
        (("verify", DICE, "--require", 'P=? [ F "finished" ]'), 'unknown label "finished"'),
        (("verify", DICE, "--require", "P=? [ F s=8 ]", "--set", "max_states=5"), "give a horizon (--horizon N)"),
        (("synthesize", COURIER, "--set", "N=3", "--require", "P>=0.9 [ F at=3 ]"), "needs a horizon"),
        (
            ("synthesize", DICE, "--require", "P>=0.1 [ F d=6 ]"),
            "is a Markov chain, in which there is nothing to learn",
        ),
        (("exact", DICE, "--require", "P=? [ F d=6 ]", "--storm"), "leave out --storm and --export"),
        (("exact", DICE, "--optimum"), "--optimum needs a property"),
    ],
)
def test_bad_input_ends_with_a_sentence_and_status_2(
    cli: Callable[..., Any], arguments: tuple[Any, ...], words: str
) -> None:
    code, _, err = cli(*arguments)
    assert (code, words in " ".join(err.split())) == (2, True), err
