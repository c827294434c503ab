"""Many runs that answer one question together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from psyco._src.api.argument_check import verb
from psyco._src.core.errors import RunError
from psyco._src.studies.study_folder import Study, default_folder, read_study, run_study
from psyco._src.studies.study_plan import StudyPlan, make_plan, read_plan
from psyco._src.studies.study_progress import StudyProgress


@verb
def study(
    plan: str | Path | Mapping[str, Any],
    folder: str | Path | None = None,
    *,
    seeds: int | str | Sequence[int] | None = None,
    workers: int | None = None,
    ray: str | None = None,
    trust: Collection[str] = (),
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
) -> Study:
    """Run a grid or a list of runs on all cores or a cluster, and answer with intervals: tables and one page.

    Every cell is a run in a folder of its own, named by content. The same again, also after an interruption at any
    moment, computes only what is missing; with more seeds or cells, those alone. A cell that fails stops no other.

    Args:
        plan: a file, see docs/studies.md, the folder of a study, or what such a file holds as a dictionary.
        folder: of the study; by default that of the plan, or `studies/` and the name of the file.
        seeds: instead of those of the plan: how many, `"10:20"`, or a list.
        workers: runs at the same time, each in a process of its own; by default one for each core.
        ray: the address of a Ray cluster to run on instead, or "local".
        trust: code (`module:name`) that a file names and that may be imported; what a dictionary names is trusted.
        on_progress: called when something has happened, and about twice a second.

    Returns:
        The study, with its outcomes and answers; its tables and its page are in its folder.
    """
    planned = as_plan(plan, seeds=seeds)
    where = default_folder(plan) if folder is None else Path(folder)
    named = [*trust, *planned.code] if isinstance(plan, Mapping) else trust
    return run_study(planned, where, workers=workers, ray=ray, trust=named, on_progress=on_progress)


@verb
def open_study(folder: str | Path) -> Study:
    """A study as it stands in its folder, also while it runs; nothing is made, imported or changed for that.

    Args:
        folder: of the study.
    """
    return read_study(Path(folder))


def as_plan(plan: str | Path | Mapping[str, Any], *, seeds: Any = None) -> StudyPlan:
    """The plan that a file, a folder or a dictionary describes."""
    if isinstance(plan, Mapping):
        return make_plan(plan, seeds=seeds)
    if not isinstance(plan, str | Path):
        raise RunError(
            f"a study is a file, a folder, or a dictionary with what such a file holds, got {plan!r}"
        )
    return read_plan(Path(plan), seeds=seeds)
