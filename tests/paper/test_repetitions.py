"""The paper's repetitions as a study: what it holds, what it is computed with, and what is said when a run fails."""

from pathlib import Path

import pytest

import psyco
from psyco._src.paper import repetitions as runs
from psyco._src.paper.experiments import CALIBRATION, EXPERIMENTS, OBSTACLE_RUN, PARTICLE_DANCE
from psyco._src.paper.repetitions import DECISIVE, PACKAGE, computed_with, gather, planned
from psyco._src.studies.study_plan import make_plan, read_plan
from psyco._src.studies.study_progress import StudyProgress

TINY = OBSTACLE_RUN.resized(episodes=40, repetitions=2)


def test_a_variant_that_two_experiments_have_is_run_once_as_often_as_either_asks_for() -> None:
    plan = planned([PARTICLE_DANCE, CALIBRATION, OBSTACLE_RUN])
    counts = {
        (task, method): sum((cell.task, cell.method) == (task, method) for cell in plan.cells)
        for task in plan.tasks
        for method in plan.methods
    }
    assert counts["particle-dance, n_max = 1", "SNES"] == 12  # five for the one, twelve for the other
    assert counts["particle-dance, n_max = 1", "maximum likelihood"] == 12
    assert counts["particle-dance, n_max = 1", "unconstrained"] == 5
    assert len(plan.cells) == 5 + 5 + 12 + 12 + 3 * 5 == sum(counts.values())


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_more_repetitions_are_more_cells_of_the_same_study(experiment) -> None:
    before = {cell.name for cell in planned([experiment]).cells}
    more = planned([experiment.resized(repetitions=60)])
    assert before < {cell.name for cell in more.cells}
    assert len(more.cells) == 60 * len(experiment.variants)
    assert make_plan(more.content) == more


def test_runs_of_other_versions_or_other_sources_are_another_study(monkeypatch) -> None:
    here = computed_with()
    assert here == computed_with()
    monkeypatch.setattr(runs, "versions", lambda: {"jax": "0.0.1"})
    other = computed_with()
    monkeypatch.setattr(runs, "_code", lambda: "other sources")
    assert len({here, other, computed_with()}) == 3


def test_the_rooms_that_decide_how_a_run_goes_are_there() -> None:
    assert [room for room in DECISIVE if not (PACKAGE / room).is_dir()] == []


class Failing:
    """A team whose second cell fails; the others are left as they are."""

    def __init__(self, workers: int, log: Path) -> None:
        pass

    def __enter__(self) -> "Failing":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, cells, folder: Path, progress: StudyProgress, trust) -> None:
        progress.ended(cells[1].name, "the disk is full")


def test_a_run_that_fails_is_named_and_its_study_stays(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("psyco._src.studies.runner.Team", Failing)
    seen = []
    with pytest.raises(psyco.RunError, match="n_max = 1, unconstrained, seed 1: the disk is full"):
        gather([TINY], tmp_path, seen.append)
    assert seen[0] == (0, 6, 0, 240)
    assert read_plan(tmp_path / computed_with()) == planned([TINY])
