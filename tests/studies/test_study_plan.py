"""Study plans: files become cells; invalid plans are refused before the first run, with key and allowed values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psyco
from psyco._src.runs.config import read_config
from psyco._src.studies.study_plan import StudyPlan, check_plan, content_hash, make_plan, read_plan

EASY = "P>=0.02 [ G (!caught | collisions <= 9) ] & C>=0.9"
HARD = "P>=0.5 [ G (!caught | collisions <= 9) ] & C>=0.9"
BASE: dict[str, Any] = {"seeds": 2, "requirement": EASY, "domain": {"name": "obstacle-run"}}


def planned(**content: Any) -> StudyPlan:
    return make_plan(BASE | content)


def test_a_grid_is_all_combinations_with_every_seed() -> None:
    plan = make_plan(
        {
            "seeds": "3:5",
            "domain": {"name": "obstacle-run"},
            "settings": {"episodes": 100},
            "grid": {
                "requirement": [EASY, {"name": "hard", "text": HARD}],
                "learner": ["snes", {"name": "safe-es", "sigma": 0.5}],
                "hidden": [8, 16],
                "domain": {"horizon": [6, 7]},
            },
        }
    )
    assert len(plan.cells) == 2 * 2 * 2 * 2 * 2 == len({cell.name for cell in plan.cells})
    assert {cell.seed for cell in plan.cells} == {3, 4}
    assert all(cell.config.settings.episodes == 100 for cell in plan.cells)
    assert plan.methods == [
        "snes, hidden=8",
        "snes, hidden=16",
        "safe-es, hidden=8, sigma=0.5",
        "safe-es, hidden=16, sigma=0.5",
    ]
    assert "hard, horizon=7" in plan.tasks
    last = next(cell for cell in plan.cells if cell.method.startswith("safe-es"))
    assert last.config.settings.options == {"sigma": 0.5}
    assert last.config.parameters["horizon"] in (6, 7)


def test_listed_cells_change_shared_values_and_add_to_the_grid() -> None:
    plan = planned(
        settings={"hidden": 8},
        grid={"learner": ["snes", "ppo"]},
        cells=[{"label": "wide", "hidden": 64}, {"learner": {"name": "snes", "sigma": 0.3}}],
    )
    assert [cell.config.settings.hidden for cell in plan.cells[::2]] == [8, 8, 64, 8]
    assert plan.methods[2] == "wide" and len(plan.methods) == 4


def test_a_cell_is_named_by_its_content_only() -> None:
    first = planned(settings={"episodes": 100}, learner={"name": "snes", "sigma": 0.5, "learning_rate": 0.1})
    other = planned(title="x", learner={"name": "snes", "learning_rate": 0.1, "sigma": 0.5}, settings={"episodes": 100})
    spaced = make_plan(
        first.content | {"requirement": "P >= 0.02 [ G ( !caught | collisions<=9 ) ]\n & C>=0.9", "seeds": [1, 0]}
    )
    names = {cell.name for cell in first.cells}
    assert names == {cell.name for cell in other.cells} == {cell.name for cell in spaced.cells}
    longer = planned(settings={"episodes": 101}, learner={"name": "snes", "sigma": 0.5, "learning_rate": 0.1})
    assert not names & {cell.name for cell in longer.cells}
    assert all(cell.name.startswith("obstacle-run-snes-seed") for cell in first.cells)
    assert len({cell.compile_key for cell in first.cells}) == 1


def test_a_plan_survives_a_round_trip_through_its_file(tmp_path: Path) -> None:
    plan = planned(title='A "question"', grid={"learner": ["snes", {"name": "ppo"}], "hidden": [8, 16]})
    file = tmp_path / "study.toml"
    file.write_text(plan.to_toml())
    assert read_plan(file) == plan == read_plan(tmp_path)
    more = read_plan(file, seeds="5")
    assert len(more.cells) == 5 * len(plan.methods)
    assert {cell.name for cell in plan.cells} < {cell.name for cell in more.cells}


def test_a_cell_is_the_configuration_that_a_run_would_have() -> None:
    cell = planned(settings={"episodes": 44}).cells[1]
    text = f'requirement = "{EASY}"\n[domain]\nname = "obstacle-run"\n[settings]\nepisodes = 44\nseed = 1\n'
    assert cell.config == read_config(text, "a file")
    assert content_hash(cell.config)[:12] in cell.name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"seeds": None}, "seeds is missing"),
        ({"seeds": 0}, "at least 1"),
        ({"seeds": "5:3"}, "at least 1"),
        ({"seeds": True}, "takes a number of seeds"),
        ({"seeds": [1, 1]}, "twice"),
        ({"seeds": [-1]}, "a seed is a whole number"),
        ({"seeds": "many"}, "takes a number of seeds"),
        ({"titel": "x"}, "unknown key 'titel' .did you mean 'title'"),
        ({"title": 3}, "it must be text"),
        ({"domain": "obstacle-run"}, r"it must be a table, \[domain\]"),
        ({"settings": {"seed": 3}}, "give seeds = 5"),
        ({"grid": {"seed": [1, 2]}}, "give seeds = 5"),
        ({"grid": [1]}, r"it must be a table, \[grid\]"),
        ({"cells": {}}, "must be a list of tables"),
        ({"grid": {"hidden": 8}}, "must be a list of values"),
        ({"grid": {"hidden": []}}, "is empty"),
        ({"grid": {"hidden": [8, 8]}}, "twice"),
        ({"grid": {"hiden": [8]}}, "did you mean 'hidden'"),
        ({"grid": {"requirement": [EASY]}}, r"is given in \[grid\] and outside of it"),
        (
            {"settings": {"hidden": 3}, "grid": {"hidden": [8]}},
            r"settings.hidden is given in \[grid\] and outside",
        ),
        ({"grid": {"domain": ["particle-dance"]}}, r"domain is given in \[grid\] and outside"),
        ({"grid": {"learner": ["snse"]}}, "did you mean 'snes'"),
        ({"grid": {"learner": [3]}}, "it must be a name, or a table"),
        ({"grid": {"learner": [{"name": "snes", "sigmo": 1.0}]}}, "did you mean 'sigma'"),
        ({"grid": {"learner": {"sigma": ["a"]}}}, "it must be a number"),
        ({"cells": [{}, {}]}, "the same run is asked for twice"),
        ({"grid": {"hidden": [32]}, "cells": [{"hidden": 32}]}, "the same run is asked for twice"),
        ({"cells": [{"label": "a", "hidden": 3}, {"label": "a", "hidden": 4}]}, "are both called"),
        (
            {"learner": {"sigma": 0.1}, "grid": {"learner": [{"name": "snes", "sigma": 0.2}]}},
            r"learner.sigma is given in \[grid\] and outside of it",
        ),
        (
            {"grid": {"learner": [{"name": "snes", "sigma": 0.2}], "learner.sigma": [0.3]}},
            r"learner.sigma is given in \[grid\] and again in a table of learner",
        ),
        (
            {"learner": {"name": "snes"}, "grid": {"learner.sigma": [1, 1.0]}},
            "the same run is asked for twice: .*sigma=1, seed 0 and .*sigma=1.0, seed 0",
        ),
        (
            {"requirement": None, "grid": {"requirement": [{"name": "all tasks", "text": EASY}, HARD]}},
            "a task cannot be called 'all tasks'",
        ),
        ({"cells": [{"label": 3}]}, "it must be text"),
        ({"cells": [{"seeds": 0}]}, r"\[\[cells\]\] number 1: seeds = 0 are 0 seeds"),
        ({"seeds": None, "cells": [{"seeds": 2}, {"hidden": 8}]}, "seeds is missing"),
        ({"cells": [{"seeds": 9_000}, {"hidden": 8, "seeds": 9_000}]}, "18,000 runs"),
        ({"cells": [{"requirement": {"text": EASY}}]}, r"number 1: requirement = .* it must be text, or"),
        ({"requirement": "P>=2 [ G caught ]"}, "2"),
        (
            {"grid": {"hidden": list(range(1, 200)), "attempts": list(range(1, 200))}},
            "more than 10,000 combinations",
        ),
        ({"seeds": 6000, "grid": {"hidden": [8, 16]}}, "at most 10,000; split it"),
    ],
)
def test_invalid_content_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(psyco.RunError, match=message):
        make_plan({k: v for k, v in (BASE | content).items() if v is not None})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"requirement": "P>=0.5 [ G (distanze >= 1) ]"}, "unknown signal 'distanze'"),
        ({"domain": {"name": "obstacle-rum"}}, "did you mean 'obstacle-run'"),
        ({"domain": {"name": "obstacle-run", "grib": 3}}, "did you mean 'grid'"),
        ({"domain": {"name": "os:system"}}, "name it yourself: --trust os:system"),
        ({"learner": {"name": "snes", "calibration": "sofd"}}, "sofd"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_before_the_first_run(
    content: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(psyco.RunError, match=message):
        check_plan(planned(**content))
    file = tmp_path / "study.toml"
    file.write_text(planned(**content).to_toml())
    with pytest.raises(psyco.RunError, match=message):
        psyco.study(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(psyco.RunError, match=r"not empty and not a study \(thesis.tex"):
        psyco.study(BASE, tmp_path)
    with pytest.raises(psyco.RunError, match="is not the folder of a study"):
        psyco.open_study(tmp_path)
    with pytest.raises(psyco.RunError, match="needs a folder"):
        psyco.study(BASE)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_listed_cell_may_have_its_own_seeds(tmp_path: Path) -> None:
    plan = planned(cells=[{"learner": "snes"}, {"learner": "ppo", "seeds": "4:7"}])
    assert [(cell.method, cell.seed) for cell in plan.cells] == [
        ("snes", 0), ("snes", 1), ("ppo", 4), ("ppo", 5), ("ppo", 6),
    ]  # fmt: skip
    (tmp_path / "study.toml").write_text(plan.to_toml())
    assert read_plan(tmp_path) == plan
    same = read_plan(tmp_path, seeds="3")  # replaces the seeds of all cells
    assert [cell.seed for cell in same.cells] == [0, 1, 2, 0, 1, 2]
    own = make_plan({k: v for k, v in BASE.items() if k != "seeds"} | {"cells": [{"seeds": [3]}]})
    assert [cell.seed for cell in own.cells] == [3]


def test_ranges_and_numpy_integers_are_accepted(tmp_path: Path) -> None:
    plan = make_plan(BASE | {"seeds": range(3, 5), "grid": {"hidden": [8, 9, np.int64(11)]}})
    same = make_plan(BASE | {"seeds": [3, 4], "grid": {"hidden": [8, 9, 11]}})
    (tmp_path / "study.toml").write_text(plan.to_toml())
    assert read_plan(tmp_path) == plan == same
    assert len(read_plan(tmp_path, seeds=np.int64(4)).cells) == 4 * 3
    with pytest.raises(psyco.RunError, match="at least 1, at most 10,000"):
        make_plan(BASE | {"seeds": range(10**9)})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda out: psyco.study(None, out),
            "a study is a file, a folder, or the content of such a file .*, got None",
        ),
        (lambda out: psyco.study([BASE], out), "a study is a file, a folder, or the content of such a file"),
        (
            lambda out: psyco.study(BASE, out, workers="2"),
            "workers must be a whole number of at least 1, got '2'",
        ),
        (
            lambda out: psyco.study(BASE, out, workers=1.5),
            "workers must be a whole number of at least 1, got 1.5",
        ),
    ],
)
def test_invalid_arguments_are_refused(call: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(psyco.RunError, match=message):
        call(tmp_path / "out")


def test_a_requirement_is_parsed_once_however_many_cells_have_it() -> None:
    from psyco._src.logic import parser

    requirement = "P>=0.02 [ G (!caught | collisions <= 8) ] & C>=0.9"
    before = parser._parse.cache_info().misses
    plan = planned(requirement=requirement, seeds=50, grid={"hidden": [8, 16]})
    assert len({cell.name for cell in plan.cells}) == 100
    assert parser._parse.cache_info().misses == before + 1
