"""`make test` and `make test-all` together run every test once."""

import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MARKS = ("slow", "more", "extra", "browser", "full")


def selections(target: str) -> list[str]:
    """The expressions that a target of the Makefile selects tests with."""
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    return re.findall(r'-m "?([^"\n]+)"?', recipe[1].replace("-m pytest", ""))


@pytest.mark.parametrize("marks", [m for n in range(6) for m in itertools.combinations(MARKS, n)], ids=" ".join)
def test_every_test_belongs_to_one_of_both(marks: tuple[str, ...]) -> None:
    chosen = [each for target in ("test", "test-all") for each in selections(target)]
    assert len(chosen) == 3
    assert sum(eval(each, {name: name in marks for name in MARKS}) for each in chosen) == 1


def test_what_needs_an_extra_says_so_with_its_mark() -> None:
    """A skip in the test itself would leave it out of both."""
    skipping = [path for path in (ROOT / "tests").rglob("*.py") if "pytest.import" + "orskip" in path.read_text()]
    assert skipping == []
