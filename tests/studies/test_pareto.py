"""Pareto fronts: the plan, the joint confidence of all certificates, points, exact front and page."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psyco
from psyco._src.exact.solver import constrained_optimum, exact_pareto_front
from psyco._src.studies.pareto import ParetoFront, _mark_dominated, knee, make_pareto_spec
from psyco._src.studies.pareto_page import pareto_page
from psyco._src.studies.study_folder import Study
from tests.studies.test_aggregate import Result, outcome
from tests.studies.test_study_folder import WALK, here

__all__ = ["here"]  # a fixture

FORMULA = "G (distance >= 0.1 | collisions <= n)"
DANCE = FORMULA.replace("n)", "1)")
SMALL = {
    "episodes": 24, "verify_every": 12, "verify_episodes": 10, "max_episodes": 60, "selection_episodes": 2,
    "candidates": 2, "normalization": "none", "hidden": 4,
}  # fmt: skip


# ---- the plan ----------------------------------------------------------------------------------------------------


def test_the_permitted_error_is_shared_by_all_certificates() -> None:
    asked = make_pareto_spec("particle-dance", DANCE, p="0.5:0.99", points=8, seeds=5, confidence=0.95)
    assert len(asked.plan.cells) == 40
    for cell in asked.plan.cells:
        (constraint,) = psyco.parse(cell.config.requirement).constraints
        assert 40 * (1.0 - constraint.confidence) <= 0.05 + 1e-12
        assert constraint.confidence == asked.confidence_each == 0.99875
    assert asked.values[0] == 0.5 and asked.values[-1] == 0.99 and asked.required == asked.values
    assert "40 certificates" in asked.joint_guarantee and "0.99875" in asked.joint_guarantee
    for runs in (3, 7, 997):  # rounded up
        odd = make_pareto_spec("particle-dance", DANCE, p=[0.1 + 0.8 * k / runs for k in range(runs)], seeds=1)
        assert runs * (1.0 - odd.confidence_each) <= 0.05 + 1e-12


def test_seeds_start_at_the_given_one() -> None:
    asked = make_pareto_spec("particle-dance", DANCE, p=[0.5, 0.9], seeds=3, seed=7)
    assert [cell.seed for cell in asked.plan.cells] == [7, 8, 9] * 2
    assert asked.plan.tasks == ["p 0.5", "p 0.9"]


def test_a_parameter_is_replaced_as_a_word() -> None:
    asked = make_pareto_spec("particle-dance", "G (distance >= n | info.n <= 1 | nn < n)", vary="n=0:3", p=0.8)
    assert asked.values == (0, 1, 2, 3) and asked.required == (0.8,) * 4
    assert asked.formulas[2] == "G (distance >= 2 | info.n <= 1 | nn < 2)"
    assert make_pareto_spec("x", FORMULA, vary="n=0:1", points=3).values == (0, 0.5, 1)
    negative = make_pareto_spec("x", "G (obs[0] >= low)", vary="low=-1:0").formulas[0]
    assert psyco.parse_formula(negative) == psyco.parse_formula("G (obs[0] >= -1)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": "0.9:0.5"}, "smaller end comes first"),
        ({"p": "0.5"}, "a range of required probabilities"),
        ({"p": "a:b"}, "a range of required probabilities"),
        ({"p": "0.5:1"}, "between 0 and 1"),
        ({"p": "0:0.5"}, "between 0 and 1"),
        ({"p": "0.5:nan"}, "smaller end"),
        ({"p": [0.5]}, "at least 2 points"),
        ({"p": "0.5:0.500001", "points": 9}, "too narrow"),
        ({"points": 1}, "points must be a whole number of at least 2"),
        ({"points": 201}, "2 to 200"),
        ({"seeds": 0}, "seeds must be a whole number of at least 1"),
        ({"confidence": 1.0}, "confidence must lie between 0 and 1"),
        ({"vary": "m=0:5"}, "there is no 'm' in the formula"),
        ({"vary": "collision=0:5"}, "there is no 'collision'"),
        ({"vary": "n"}, "as in n=0:5"),
        ({"vary": "n=5:0"}, "smaller end comes first"),
        ({"vary": "n=0:9999"}, "2 to 200"),
        ({"vary": "n=0:5", "p": "0.5:0.9"}, "a single one, as in 0.9"),
        ({"formula": "G (distance >= "}, r"\^"),
        ({"formula": "G (distance >= n", "vary": "n=0:5"}, r"with n = 0: [^^]*\^"),
        ({"settings": {"method": "bayes"}}, "issued by anytime"),
        ({"settings": {"seed": 3}}, "settings.seed"),
        ({"settings": {"episode": 3}}, "did you mean 'episodes'"),
        ({"learner": "sness"}, "did you mean 'snes'"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    formula = change.pop("formula", FORMULA)
    with pytest.raises(psyco.PsycoError, match=message):
        make_pareto_spec("particle-dance", formula, **change)


def test_a_signal_is_no_parameter(tmp_path: Path) -> None:
    with pytest.raises(psyco.RunError, match="'collisions' is a signal of particle-dance"):
        psyco.pareto_front("particle-dance", FORMULA.replace("<= n", "<= 1"), tmp_path / "f", vary="collisions=0:2")
    with pytest.raises(psyco.PsycoError, match="did you mean 'particle-dance'"):
        psyco.pareto_front("particle-dans", DANCE, tmp_path / "f")
    assert not (tmp_path / "f").exists()


# ---- the result --------------------------------------------------------------------------------------------------


def test_dominated_points_and_the_knee() -> None:
    points = [(0.5, 10.0), (0.6, 9.8), (0.7, 9.0), (0.65, 8.0), (0.9, 0.0), (float("nan"), 1.0)]
    rows: list[dict[str, Any]] = [{"certified": p, "return": r, "dominated": None, "knee": None} for p, r in points]
    _mark_dominated(rows)
    assert [row["dominated"] for row in rows] == [0, 0, 0, 1, 0, None]
    assert [row["knee"] for row in rows] == [0, 0, 1, 0, 0, None]
    assert knee([(0.5, 1.0), (0.7, 0.5), (0.9, 0.0)]) is None  # a straight line has none
    assert knee([(0.5, 1.0), (0.9, 0.0)]) is None


def test_the_exact_front_is_that_of_the_linear_program() -> None:
    domain = psyco.make("obstacle-run", grid=3, horizon=5)
    formula = "G (!caught | collisions <= 0)"
    corners = exact_pareto_front(domain, psyco.parse_formula(formula))
    assert len(corners) > 3 and corners == sorted(corners)
    front = ParetoFront(make_pareto_spec("obstacle-run", formula), Study(Path("x"), None, ()), tuple(corners))  # type: ignore[arg-type]
    for p in (0.1, 0.5 * (corners[0][0] + corners[-1][0]), corners[-1][0] - 1e-9):
        best = constrained_optimum(domain, f"P>={p} [ {formula} ]")
        assert best is not None
        assert front.exact_return(p) == pytest.approx(best.expected_return, abs=1e-3)
        if p > corners[0][0]:
            assert front.exact_probability(best.expected_return) == pytest.approx(p, abs=1e-3)
    assert constrained_optimum(domain, f"P>={corners[-1][0] + 1e-6} [ {formula} ]") is None
    assert front.exact_return(1.0) != front.exact_return(1.0)  # infeasible


@pytest.mark.more
def test_a_whole_front_its_table_page_and_again(cli, here: None, tmp_path: Path) -> None:
    words = [f"{name}={value}" for name, value in SMALL.items() if name != "episodes"]
    command = (
        "pareto", WALK, "--formula", "G (obs[0] <= 9)", "--p", "0.1:0.6", "--points", 3, "--seeds", 2, "--horizon", 9,
        "--episodes", 24, "--option", "population=4", "--out", tmp_path / "f", "--workers", 1,
        *(each for word in words for each in ("--setting", word)),
    )  # fmt: skip
    done = cli(*command)
    assert done.status == 0, done.err
    assert "6 certificates" in done.out and "0.991666667" in done.out
    rows = list(csv.DictReader(io.StringIO((tmp_path / "f" / "pareto.csv").read_text())))
    assert [row["required"] for row in rows] == ["0.1", "0.35", "0.6"]
    for row in rows:
        assert row["runs"] == row["finished"] == "2"
        if row["satisfied"] == "2":
            assert float(row["certified"]) >= float(row["required"])
    page = (tmp_path / "f" / "pareto.html").read_text()
    assert "hold together with confidence 0.95" in page and 'class="marker' in page and "NaN" not in page
    before = {path: path.read_bytes() for path in (tmp_path / "f").glob("*.csv")}
    again = cli(*command, "--json")
    assert again.status == 0 and {path: path.read_bytes() for path in before} == before
    found = json.loads(again.out)
    assert found["confidence_each"] == 0.991666667 and len(found["points"]) == 3 and len(found["runs"]) == 6
    assert psyco.open_study(tmp_path / "f").complete


def test_a_failed_run_of_a_point_certifies_nothing_and_ranks_below_all_others() -> None:
    asked = make_pareto_spec("particle-dance", DANCE, p=[0.5, 0.9], seeds=5)
    results: list[Result] = [*[(True, 1.0 + k) for k in range(4)], "failed", (True, 1.0), *["failed"] * 4]
    outcomes = tuple(map(outcome, asked.plan.cells, results))
    good, bad = ParetoFront(asked, Study(Path("x"), asked.plan, outcomes)).points
    assert (good["satisfied"], good["ended"], good["finished"], good["certified_min"]) == (4, 5, 4, 0.0)
    assert good["return"] == pytest.approx(2.0) and good["return_lower"] < 1.0  # the failed one is trimmed
    assert (bad["satisfied"], bad["ended"], bad["certified"]) == (1, 5, 0.0)
    assert np.isnan(bad["return"]) and bad["dominated"] is None


def test_a_front_without_an_exact_solution_says_so_and_shows_the_learned_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exact solution fails for many states or a formula about actions, and only after learning."""
    monkeypatch.setattr("psyco._src.studies.runner.WorkerTeam", Nobody)
    (tmp_path / "front").mkdir()
    (tmp_path / "front" / "study.toml").write_text("")
    (tmp_path / "front" / "pareto_exact.csv").write_text("of another front")
    front = psyco.pareto_front("obstacle-run", "G (action <= 3 | !caught)", tmp_path / "front", p=[0.5, 0.9], seeds=1)
    (note,) = front.notes
    assert note.startswith("there is no exact front: a formula that names `action` has no optimum")
    assert not front.exact and "exact_return" not in front.points[0]
    assert note.partition("`")[0] in front.page.read_text() and json.loads(front.to_json())["notes"] == [note]
    assert (tmp_path / "front" / "pareto.csv").exists() and not (tmp_path / "front" / "pareto_exact.csv").exists()


def test_the_page_says_that_estimates_may_lie_above_the_exact_front() -> None:
    asked = make_pareto_spec("particle-dance", DANCE, p=[0.5, 0.9], seeds=1)
    without = ParetoFront(asked, Study(Path("front"), asked.plan, ()))
    exact = replace(without, exact=((0.5, -4.0), (0.9, -5.0)))
    assert "by luck one may lie above it" in " ".join(pareto_page(exact).split())
    assert "by luck" not in pareto_page(without)


class Nobody:
    """A worker team that runs no cell."""

    def __init__(self, workers: int, log: Path) -> None:
        pass

    def __enter__(self) -> "Nobody":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, *_: object) -> None:
        pass
