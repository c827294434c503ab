"""The study of the repetitions: its cells, the hash of its code, and the error of a failed run."""

from pathlib import Path

import pytest

import psyco
from psyco._src.paper import repetitions as runs
from psyco._src.paper.experiments import CALIBRATION, EXPERIMENTS, OBSTACLE_RUN, PARTICLE_DANCE
from psyco._src.paper.repetitions import PACKAGE, RESULT_PACKAGES, code_version, make_study, run_repetitions
from psyco._src.studies.study_plan import make_plan, read_plan
from psyco._src.studies.study_progress import StudyProgress

TINY = OBSTACLE_RUN.resized(episodes=40, repetitions=2)


def test_a_shared_variant_is_run_once_with_the_larger_number_of_seeds() -> None:
    plan = make_study([PARTICLE_DANCE, CALIBRATION, OBSTACLE_RUN])
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
    before = {cell.name for cell in make_study([experiment]).cells}
    more = make_study([experiment.resized(repetitions=60)])
    assert before < {cell.name for cell in more.cells}
    assert len(more.cells) == 60 * len(experiment.variants)
    assert make_plan(more.content) == more


def test_other_versions_or_sources_give_another_study(monkeypatch) -> None:
    here = code_version()
    assert here == code_version()
    monkeypatch.setattr(runs, "package_versions", lambda: {"jax": "0.0.1"})
    other = code_version()
    monkeypatch.setattr(runs, "_source_hash", lambda: "other sources")
    assert len({here, other, code_version()}) == 3


def test_the_packages_that_determine_results_exist() -> None:
    assert [room for room in RESULT_PACKAGES if not (PACKAGE / room).is_dir()] == []


class Failing:
    """A worker team whose second cell fails; it runs no other."""

    def __init__(self, workers: int, log: Path) -> None:
        pass

    def __enter__(self) -> "Failing":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, cells, folder: Path, progress: StudyProgress, trust) -> None:
        progress.mark_ended(cells[1].name, "the disk is full")


def test_a_failed_run_is_reported_and_its_study_stays(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("psyco._src.studies.runner.WorkerTeam", Failing)
    seen = []
    with pytest.raises(psyco.RunError, match="n_max = 1, unconstrained, seed 1: the disk is full"):
        run_repetitions([TINY], tmp_path, seen.append)
    assert seen[0] == (0, 6, 0, 240)
    assert read_plan(tmp_path / code_version()) == make_study([TINY])
