"""Run the repetitions of the experiments as a study, on all cores or on a cluster.

The folder of the study is named by package versions and source code, so that no run of other code is reused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from psyco._src.core import files
from psyco._src.core.errors import RunError
from psyco._src.core.provenance import package_versions
from psyco._src.learners.metrics import Metrics
from psyco._src.paper.experiments import Experiment
from psyco._src.policies.serialization import Policy
from psyco._src.runs.config import Config
from psyco._src.studies.collect import CellOutcome
from psyco._src.studies.study_folder import run_study
from psyco._src.studies.study_plan import StudyPlan, make_plan
from psyco._src.studies.study_progress import FINISHED, StudyProgress

PACKAGE = Path(__file__).parents[1]
# Packages that determine the result of a run; a change in the others does not invalidate earlier runs.
RESULT_PACKAGES = ("core", "logic", "envs", "policies", "rollout", "learners", "verification", "runs")


class Repetition(NamedTuple):
    """A finished repetition."""

    metrics: Metrics  # one row per generation
    policy: Policy  # at the end of learning
    seconds: float  # duration


class Completion(NamedTuple):
    """Progress of all runs together."""

    runs: int  # finished
    all_runs: int
    episodes: int  # of learning so far
    all_episodes: int


class RepetitionSet(NamedTuple):
    """All repetitions and their origin."""

    # Experiment -> variant -> repetitions in the order of the seeds.
    repetitions: dict[str, dict[str, list[Repetition]]]
    folder: Path  # of the study
    runs: int  # distinct runs
    computed: int  # runs that were not reused
    seconds: float  # total duration of all runs


def run_repetitions(
    experiments: Sequence[Experiment],
    folder: Path,
    on_progress: Callable[[Completion], None] = lambda progress: None,
    *,
    workers: int | None = None,
    ray: str | None = None,
) -> RepetitionSet:
    """Run all repetitions of the experiments; runs that have finished in `folder` are reused.

    Args:
        experiments: a variant that two of them share is run once.
        folder: that contains the folder of the study.
        on_progress: called after every change, and about twice a second.
        workers: number of processes; default: one per core.
        ray: address of a Ray cluster to use instead, or "local".
    """
    reused: set[str] = set()

    def report(progress: StudyProgress) -> None:
        reused.update(name for name, cell in progress.cells.items() if cell.reused)
        on_progress(_completion(progress))

    target = folder / code_version()
    study = run_study(make_study(experiments), target, workers=workers, ray=ray, on_progress=report)
    for name, error in study.failed.items():
        raise RunError(f"{name}: {error}")
    runs = {_key(o.cell.config): Repetition(o.metrics, _policy(o), o.times.seconds) for o in study.outcomes}
    repetitions = {
        e.name: {
            label: [runs[e.domain, e.requirement(variant), variant.calibration, seed] for seed in e.seeds]
            for label, variant in e.variants.items()
        }
        for e in experiments
    }
    seconds = sum(run.seconds for run in runs.values())
    return RepetitionSet(repetitions, target, len(runs), len(runs) - len(reused), seconds)


def make_study(experiments: Sequence[Experiment]) -> StudyPlan:
    """Return the study of the experiments: one cell per distinct variant, with the largest number of seeds."""
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for e in experiments:
        for variant in e.variants.values():
            cell = cells.setdefault((e.domain, variant, e.episodes), e.cell(variant))
            cell["seeds"] = max(cell["seeds"], e.repetitions)
    return make_plan({"title": "The paper's evaluation", "cells": list(cells.values())})


def code_version() -> str:
    """Return a hash of the package versions and of the source code that determines results."""
    return files.json_digest([package_versions(), _source_hash()])[:12]


@cache
def _source_hash() -> str:
    sources = [
        path for name in RESULT_PACKAGES for path in (PACKAGE / name).rglob("*") if path.suffix in (".py", ".lark")
    ]
    parts = [path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() for path in sorted(sources)]
    return files.digest(b"\0".join(parts))


def _key(config: Config) -> tuple[str, str, Any, int]:
    """Return what distinguishes repetitions."""
    settings = config.settings
    return config.domain, config.requirement, settings.options["calibration"], settings.seed


def _policy(outcome: CellOutcome) -> Policy:
    assert outcome.run is not None  # it has finished
    assert outcome.run.policy is not None
    return outcome.run.policy


def _completion(progress: StudyProgress) -> Completion:
    done = [s.total if s.state == FINISHED else min(s.done, s.total) for s in progress.cells.values()]
    return Completion(progress.count(FINISHED), len(done), sum(done), sum(s.total for s in progress.cells.values()))
