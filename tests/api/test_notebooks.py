"""In a notebook: things show themselves as HTML with nothing unescaped, and learning as a line that replaces itself."""

import io
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import psyco
from psyco._src.api.synthesize import _with_default
from psyco._src.runs.train import RunProgress
from psyco._src.studies.aggregate import to_pandas
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


class Kernel:
    """What `IPython.get_ipython` returns in a notebook; in a terminal it has no kernel."""

    kernel: Any = object()


def test_a_notebook_shows_progress_without_being_asked(monkeypatch) -> None:
    ipython = SimpleNamespace(get_ipython=Kernel)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert len(_with_default(None)) == 1 and _with_default([]) == [], "an empty list turns it off"
    monkeypatch.setattr(Kernel, "kernel", None)
    assert _with_default(None) == [], "a terminal with IPython asked for nothing"
    monkeypatch.setattr(ipython, "get_ipython", lambda: None)
    assert _with_default(None) == []
    monkeypatch.delitem(sys.modules, "IPython")
    assert _with_default(None) == [], "nor did a script"


@pytest.mark.more
def test_learning_shows_a_line_that_replaces_itself(capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=Kernel))
    psyco.synthesize(
        psyco.make("particle-dance", horizon=5),
        "P>=0.5 [ G distance >= 0.01 ]",
        episodes=110,
        settings=psyco.Settings(selection_episodes=10, max_episodes=60),
    )
    first, *learning, last = capsys.readouterr().out.split("\r")
    last, *others = last.split("\n")
    assert first == "" and all(" learning: " in line and "\n" not in line for line in learning)
    assert last.startswith("█" * 20 + " learning: 110 of 110 episodes  return -") and "satisfied" in last
    assert [line.split()[1] for line in others[:2]] == ["selecting:", "certifying:"] and others[-1] == ""


def test_progress_says_what_learning_starts_from() -> None:
    out = io.StringIO()
    callback = psyco.progress(out)
    callback.on_progress(RunProgress("cloning", 0, 200, "updates"))
    callback.on_progress(RunProgress("cloning", 200, 200, "updates"))
    callback.on_start(SimpleNamespace(origin="the weights of sb3:sac.zip"))
    shown = out.getvalue()
    assert shown.count("cloning: ") == 2 and shown.endswith("\nlearning starts from the weights of sb3:sac.zip\n")


def test_a_plot_is_a_picture_in_a_notebook() -> None:
    metrics = psyco.Metrics({"episodes": np.arange(3), "return": np.arange(3.0)})
    assert metrics.plot("return")._repr_png_().startswith(b"\x89PNG")


def test_a_data_frame_without_pandas_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for table in (psyco.Metrics({"generation": np.arange(3)}).to_pandas, lambda: to_pandas([])):
        with pytest.raises(psyco.RunError, match=r'a DataFrame needs pandas installed: pip install "psyco\[pandas\]"'):
            table()


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
