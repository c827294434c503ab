"""The paper's repetitions are a study: on all cores or a cluster, each a run like any other, none computed twice.

A repetition counts only for the versions and the sources that it was computed with, so the study's folder is named by
these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from psyco._src.core import atomic_io
from psyco._src.core.errors import RunError
from psyco._src.core.versions import versions
from psyco._src.learners.metrics import Metrics
from psyco._src.paper.experiments import Experiment
from psyco._src.policies.serialization import Policy
from psyco._src.runs.config import Config
from psyco._src.studies.collect import CellOutcome
from psyco._src.studies.study_folder import run_study
from psyco._src.studies.study_plan import StudyPlan, make_plan
from psyco._src.studies.study_progress import FINISHED, StudyProgress

PACKAGE = Path(__file__).parents[1]
# The rooms that decide how a run goes; the others may change without making a kept run outdated.
DECISIVE = ("core", "logic", "envs", "policies", "rollout", "learners", "verification", "runs")


class Repetition(NamedTuple):
    """A finished repetition."""

    metrics: Metrics  # one row per generation
    policy: Policy  # that learning ended with
    seconds: float  # that it took


class Completion(NamedTuple):
    """How far all runs together are."""

    runs: int  # finished
    all_runs: int
    episodes: int  # of learning, done
    all_episodes: int


class RepetitionSet(NamedTuple):
    """All repetitions, and where they came from."""

    repetitions: dict[
        str, dict[str, list[Repetition]]
    ]  # by experiment and variant, in the order of the seeds
    folder: Path  # of the study
    runs: int  # how many different ones there are
    computed: int  # of these, now; the others were there
    seconds: float  # that they took, all together


def gather(
    experiments: Sequence[Experiment],
    folder: Path,
    on_progress: Callable[[Completion], None] = lambda progress: None,
    *,
    workers: int | None = None,
    ray: str | None = None,
) -> RepetitionSet:
    """All repetitions of these experiments; what an earlier command has finished in `folder` is kept.

    Args:
        experiments: what is run; a variant that two of them have is run once.
        folder: that holds the study, under a name for versions and sources.
        on_progress: called when something has happened, and about twice a second.
        workers: runs at the same time; default: one for each core.
        ray: the address of a Ray cluster to run on instead, or "local".
    """
    kept: set[str] = set()

    def tell(progress: StudyProgress) -> None:
        kept.update(name for name, standing in progress.cells.items() if standing.kept)
        on_progress(_completion(progress))

    place = folder / computed_with()
    study = run_study(planned(experiments), place, workers=workers, ray=ray, on_progress=tell)
    for name, error in study.failed.items():
        raise RunError(f"{name}: {error}")
    found = {_key(o.cell.config): Repetition(o.metrics, _policy(o), o.times.seconds) for o in study.outcomes}
    repetitions = {
        e.name: {
            label: [found[e.domain, e.requirement(variant), variant.calibration, seed] for seed in e.seeds]
            for label, variant in e.variants.items()
        }
        for e in experiments
    }
    seconds = sum(run.seconds for run in found.values())
    return RepetitionSet(repetitions, place, len(found), len(found) - len(kept), seconds)


def planned(experiments: Sequence[Experiment]) -> StudyPlan:
    """The study of these experiments: each different variant is a cell, with as many seeds as any of them asks for."""
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for e in experiments:
        for variant in e.variants.values():
            cell = cells.setdefault((e.domain, variant, e.episodes), e.cell(variant))
            cell["seeds"] = max(cell["seeds"], e.repetitions)
    return make_plan({"title": "The paper's evaluation", "cells": list(cells.values())})


def computed_with() -> str:
    """Versions and our own sources in one word, so that no run of other code is taken for one of this code."""
    return atomic_io.digest(json.dumps([versions(), _code()], sort_keys=True).encode())[:12]


@cache
def _code() -> str:
    files = [
        path for room in DECISIVE for path in (PACKAGE / room).rglob("*") if path.suffix in (".py", ".lark")
    ]
    parts = [
        path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() for path in sorted(files)
    ]
    return atomic_io.digest(b"\0".join(parts))


def _key(config: Config) -> tuple[str, str, Any, int]:
    """What tells repetitions of the paper apart."""
    settings = config.settings
    return config.domain, config.requirement, settings.options["calibration"], settings.seed


def _policy(outcome: CellOutcome) -> Policy:
    assert outcome.run is not None  # it has finished
    assert outcome.run.policy is not None
    return outcome.run.policy


def _completion(progress: StudyProgress) -> Completion:
    done = [s.total if s.state == FINISHED else min(s.done, s.total) for s in progress.cells.values()]
    return Completion(
        progress.count(FINISHED), len(done), sum(done), sum(s.total for s in progress.cells.values())
    )
