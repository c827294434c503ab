import re
from pathlib import Path

import pytest

from psyco._src.spec.parse import parse, parse_formula
from psyco._src.spec.path import check_path

DOCS = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```prism\n(.*?)```", DOCS, re.DOTALL)

UNBOUNDED = (Path(__file__).parents[2] / "docs" / "unbounded.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_parse_and_print(text):
    requirement = parse(text)
    assert requirement.constraints or requirement.questions
    assert parse(str(requirement)) == requirement


GROUPINGS = [
    pair for pair in re.findall(r"`([^`\n]+)` is `([^`\n]+)`", DOCS) if re.search(r"\b[abx]\b", pair[0])
]


@pytest.mark.parametrize(("text", "meaning"), GROUPINGS)
def test_every_this_is_that_of_the_docs_is_one_tree(text, meaning):
    assert parse_formula(text) == parse_formula(meaning)


def test_there_is_something_to_test():
    assert len(EXAMPLES) == 4
    assert len(GROUPINGS) >= 7


def test_the_recorded_path_of_the_docs():
    formula, values, result = re.search(
        r'check_path\("(.*?)", \{"distance": \[(.*?)\]\}\) +# (.*)', DOCS
    ).groups()
    assert str(check_path(formula, {"distance": [float(each) for each in values.split(",")]})) == result


@pytest.mark.slow
def test_the_example_of_systems_that_do_not_end():
    (program,) = re.findall(r"```python\n(.*?)```", UNBOUNDED, re.DOTALL)
    exec(program, {})


@pytest.mark.parametrize("text", re.findall(r"\| `([PRS][^`]+ \])` \|", UNBOUNDED))
def test_what_can_be_said_of_them_can_be_written(text):
    assert str(parse(text).constraints[0]).startswith(text)
