import re
from pathlib import Path

import pytest

import psyco
from psyco._src.logic.parser import parse, parse_formula
from psyco._src.logic.trace_check import check_path, path_value

DOCS = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```prism\n(.*?)```", DOCS, re.DOTALL)

UNBOUNDED = (Path(__file__).parents[2] / "docs" / "unbounded.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_parse_and_print(text):
    requirement = parse(text)
    assert requirement.constraints or requirement.questions
    assert parse(str(requirement)) == requirement


GROUPINGS = [pair for pair in re.findall(r"`([^`\n]+)` is `([^`\n]+)`", DOCS) if re.search(r"\b[abx]\b", pair[0])]


@pytest.mark.parametrize(("text", "meaning"), GROUPINGS)
def test_equivalent_spellings_in_the_docs_parse_to_one_tree(text, meaning):
    assert parse_formula(text) == parse_formula(meaning)


def test_examples_and_equivalences_are_found_in_the_docs():
    assert len(EXAMPLES) == 5
    assert len(GROUPINGS) >= 7


def test_the_recorded_path_of_the_docs():
    formula, values, result = re.search(r'check_path\("(.*?)", \{"distance": \[(.*?)\]\}\) +# (.*)', DOCS).groups()
    assert str(check_path(formula, {"distance": [float(each) for each in values.split(",")]})) == result


@pytest.mark.parametrize("text", re.findall(r"\| `([PRS][^`]+ \])` \|", UNBOUNDED))
def test_properties_in_unbounded_md_parse(text):
    assert str(parse(text).constraints[0]).startswith(text)


OPERATORS = (Path(__file__).parents[2] / "docs" / "reference" / "operators.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"\| `([^`]+)` \| `(\w+ = [^`]+)` \| (\S+) \|$|\| `([^`]+)` \| `(\w+ = [^`]+)` \| (\w+), (\d+) \|$",
    OPERATORS,
    re.M,
)


def on_path(text):
    """`a = 0 1; b = 1 1` as signals; a and b are Boolean, and `x = 0,1 0,2` are two vectors."""
    named = (part.split(" = ") for part in text.split("; "))
    return {
        name: [
            v == "1" if name in "ab" else [float(x) for x in v.split(",")] if "," in v else float(v)
            for v in values.split()
        ]
        for name, values in named
    }


@pytest.mark.parametrize(("example", "path", "holds", "cost"), [row[3:] for row in ROWS if row[3]])
def test_every_operator_does_what_its_example_says(example, path, holds, cost):
    found = check_path(example.replace("\\|", "|"), on_path(path))
    assert (found.satisfied, found.cost) == (holds == "yes", float(cost))


@pytest.mark.parametrize(("example", "path", "value"), [row[:3] for row in ROWS if row[0]])
def test_every_question_does_what_its_example_says(example, path, value):
    assert path_value(example, on_path(path)) == float(value)


JUDGED = re.findall(r"\| `([^`]+)` \| `([01 ]+)` × (\d+) \| ([A-Z]+) \|$", OPERATORS, re.M)


@pytest.mark.parametrize(("example", "outcomes", "times", "verdict"), JUDGED)
def test_every_bound_does_what_its_example_says(example, outcomes, times, verdict):
    outcomes = [float(v) for v in outcomes.split()] * int(times)
    assert psyco.verify_outcomes(outcomes, example).verdict.name == verdict


def test_no_operator_of_the_grammar_is_left_out():
    grammar = (Path(__file__).parents[2] / "src/psyco/_src/logic/grammar.lark").read_text(encoding="utf-8")
    words = "abs min max count sum mean least most true false X F G U W R ! & | => <=> = != < <= > >= + - * /"
    for terminal in ("FUNCTION", "AGGREGATE", "TRUTH"):
        listed = re.search(rf"^{terminal}\.1: /\((.*?)\)", grammar, re.M)[1].split("|")
        assert set(listed) <= set(words.split()), f"{terminal} knows more than this test"
    first_column = " ".join(re.findall(r"^\| (.*?) \| ", OPERATORS.replace("\\|", "∨"), re.M)).replace("∨", "|")
    for word in words.split():
        beside = r"\w" if word.isalpha() else "<>=!"
        assert re.search(rf"(?<![{beside}]){re.escape(word)}(?![{beside}])", first_column), word
    for question in re.search(r"^ASK_PATH.*/\[(\w+)\]", grammar, re.M)[1] + "R":
        assert re.search(rf"`{question}(\{{x\}})?=\?", first_column), question
    assert (len(ROWS), len(JUDGED)) == (46, 6)
