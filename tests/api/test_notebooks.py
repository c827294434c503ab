"""In a notebook: things show themselves as HTML with nothing unescaped, and learning as a line that replaces itself."""

import io
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

import psyco
from psyco._src.studies.study_folder import Study

EVIL = '"<script>alert(1)</script>": P>=0.9 [ G a < 1 ]'


class Balanced(HTMLParser):
    """Every element that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_requirement_shows_its_goal_constraints_and_questions():
    shown = psyco.parse(f"{EVIL}; P=? [ F a > 2 ]")._repr_html_()
    Balanced(shown)
    assert "<script>" not in shown and "&lt;script&gt;" in shown
    assert [shown.count(f"<th>{kind}</th>") for kind in ("goal", "constraint", "question")] == [1, 1, 1]


def test_a_plan_shows_its_table():
    plan = psyco.plan("P>=0.9 & C>=0.9", p=[0.8, 0.95], max_episodes=100, method="anytime")
    shown = plan._repr_html_()
    Balanced(shown)
    assert shown.count("<tr>") == 3
    found = plan.characteristics[0]["anytime"]
    assert f"<td>0.95</td><td>anytime</td><td>{found.satisfied[1]:.3f}</td>" in shown


@pytest.mark.more
def test_learning_shows_a_line_that_replaces_itself():
    out = io.StringIO()
    psyco.synthesize(
        psyco.make("particle-dance", horizon=10),
        "P>=0.5 [ G distance >= 0.01 ]",
        episodes=2_000,
        callbacks=[psyco.progress(out)],
        settings=psyco.Settings(selection_episodes=10, max_episodes=100),
    )
    lines = out.getvalue().split("\r")
    assert lines[0] == "" and len(lines) >= 2
    assert lines[-1].startswith("█" * 20) and lines[-1].endswith("\n")
    assert "return" in lines[-1] and "satisfied" in lines[-1]
    assert all(not line.endswith("\n") for line in lines[:-1])


def test_help_is_grouped_by_what_one_wants_to_do(cli):
    said = cli("--help").out
    titles = ["Before you start", "Learn", "Verify", "Inspect", "After deployment", "The paper"]
    places = [said.index(f"─ {title} ─") for title in titles]
    assert places == sorted(places)


def test_a_study_shows_its_summary():
    study = Study(Path("studies/one"), None, ())
    study.__dict__["tables"] = SimpleNamespace(summary=[{"task": "<b>", "return": 1.23456, "cost": None}])
    shown = study._repr_html_()
    Balanced(shown)
    assert "<tr><td>&lt;b&gt;</td><td>1.235</td><td></td></tr>" in shown


def test_a_front_shows_its_points_and_what_all_certificates_are_worth():
    study, spec = (
        Study(Path("studies/one"), None, ()),
        SimpleNamespace(values=(0.5,), joint_guarantee="all < 1"),
    )
    front = psyco.ParetoFront(spec, study)
    front.__dict__["points"] = [{"required": 0.5, "knee": None}]
    shown = front._repr_html_()
    Balanced(shown)
    assert "all &lt; 1" in shown and "<tr><td>0.5</td><td></td></tr>" in shown
