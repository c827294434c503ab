import re
from pathlib import Path

import pytest

from psyco.spec import check_path, parse, parse_formula

DOCS = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```prism\n(.*?)```", DOCS, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_parse_and_print(text):
    requirement = parse(text)
    assert requirement.constraints
    assert parse(str(requirement)) == requirement


def test_there_are_examples():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize(("text", "meaning"), re.findall(r"`([^`\n]+)` is `([^`\n]+)`", DOCS))
def test_what_the_docs_say_about_grouping_and_meaning(text, meaning):
    """Every "`this` is `that`" of the page: one tree, or, where it explains an operator, one value everywhere."""
    if not re.search("[φψ]", text + meaning) and re.search("[abx]", meaning):
        assert parse_formula(text) == parse_formula(meaning)


def test_the_recorded_path_of_the_docs():
    assert (
        'check_path("G distance >= 0.1", {"distance": [0.3, 0.05, 0.2]})    # PathCheck(satisfied=False, cost=1.0)'
        in DOCS
    )
    assert (
        str(check_path("G distance >= 0.1", {"distance": [0.3, 0.05, 0.2]}))
        == "PathCheck(satisfied=False, cost=1.0)"
    )
