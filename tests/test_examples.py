"""The examples end in a SATISFIED certificate; that about deployment goes the whole way."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.reports.test_run_page import HANGING_OVER, OVERLAPPING, open_page

EXAMPLES = Path(__file__).parents[1] / "examples"


def said_by(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.extra("stable_baselines3") if name.startswith("sb3") else ())
        for name in sorted(path.stem for path in EXAMPLES.glob("*.py"))
        if name != "deployment"
    ],
)
def test_the_example_ends_in_a_satisfied_certificate(name: str, tmp_path: Path) -> None:
    said = said_by(name, tmp_path)
    assert said.startswith("SATISFIED"), said
    if name == "cartpole":
        shown = next(line for line in said.splitlines() if line.strip().startswith("return"))
        assert float(shown.split()[1]) >= 400


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the example about deployment says, and its folder."""
    folder = tmp_path_factory.mktemp("deployed")
    return said_by("deployment", folder), folder / "deployment"


@pytest.mark.full
def test_a_policy_goes_the_whole_way(deployed: tuple[str, Path]) -> None:
    said, folder = deployed
    assert said.startswith("SATISFIED")
    assert said.count("SATISFIED: ") == 2  # the policy, and in the end the guard
    first, second = map(int, re.findall(r"ALARM after (\d+) episodes", said))
    assert first == second > 500  # in Python as on the command line; nothing had changed before
    assert re.search(r"The fallback acted in \d+ of \d+ episodes, and in \d", said)
    assert sorted(path.name for path in (folder / "c").iterdir()) == [
        "psyco_policy.c",
        "psyco_policy.h",
        "psyco_test.c",
    ]


@pytest.mark.full
@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 390])
def test_its_page_shows_the_alarm(deployed: tuple[str, Path], browser: Any, width: int) -> None:
    url = (deployed[1] / "watch.html").as_uri()
    with open_page(browser, url, viewport={"width": width, "height": 800}) as page:
        assert page.locator(".verdict .badge").first.inner_text() == "ALARM"
        assert page.locator(".chart .event.lost").count() == 1
        for figure in page.locator(".chart").all():
            assert not figure.evaluate(OVERLAPPING)
            assert not figure.evaluate(HANGING_OVER)
        assert page.evaluate("document.documentElement.scrollWidth") == width
