"""Many runs: studies, Pareto fronts and hyperparameter search."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from psyco._src.api.coerce import verb
from psyco._src.core.errors import RunError
from psyco._src.core.options import changed
from psyco._src.logic.requirement import AnyRequirement, as_requirement
from psyco._src.runs.settings import Settings
from psyco._src.studies.pareto import (
    ParetoFront,
    ParetoSpec,
    default_pareto_folder,
    make_pareto_spec,
    run_pareto,
)
from psyco._src.studies.search_config import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_RERUN_SEEDS,
    DEFAULT_TRIALS,
    DEFAULT_VALIDATION_SEEDS,
    SearchConfig,
    make_search,
)
from psyco._src.studies.study_folder import Study, default_folder, read_study, run_study
from psyco._src.studies.study_plan import StudyPlan, make_plan, read_plan
from psyco._src.studies.study_progress import StudyProgress
from psyco._src.studies.tuning import Tuning, default_tuning_folder, run_tuning


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
    """Run a grid or a list of runs over seeds, and aggregate them into tables with intervals and one page.

    Every cell is a run in its own folder, named by content. Calling it again, also after an interruption, computes only
    the missing cells. A cell that fails does not stop the others.

    Args:
        plan: a study file (docs/studies.md), the folder of a study, or the content of such a file as a dictionary.
        folder: the study's folder; default: that of the plan, or `studies/` and the name of the file.
        seeds: seeds instead of those of the plan: a number, `"10:20"`, or a list.
        workers: number of runs at the same time, one process each; default: one per core.
        ray: address of a Ray cluster to run on, or "local".
        trust: code (`module:name`) that a file names and that may be imported; a dictionary is trusted.
        on_progress: called after every event of a run, and about twice a second.

    Returns:
        The study with its outcomes and tables; its folder has the tables and the page.
    """
    planned = as_plan(plan, seeds=seeds)
    where = default_folder(plan) if folder is None else Path(folder)
    named = [*trust, *planned.code] if isinstance(plan, Mapping) else trust
    return run_study(planned, where, workers=workers, ray=ray, trust=named, on_progress=on_progress)


@verb
def open_study(folder: str | Path) -> Study:
    """Read a study from its folder, also while it runs, without changing it or importing code that it names.

    Args:
        folder: the study's folder.
    """
    return read_study(Path(folder))


def as_plan(plan: str | Path | Mapping[str, Any], *, seeds: Any = None) -> StudyPlan:
    """Return the plan of a file, a folder or a dictionary."""
    if isinstance(plan, Mapping):
        return make_plan(plan, seeds=seeds)
    if not isinstance(plan, str | Path):
        raise RunError(f"a study is a file, a folder, or the content of such a file as a dictionary, got {plan!r}")
    return read_plan(Path(plan), seeds=seeds)


@verb
def pareto_front(
    domain: str,
    formula: str,
    folder: str | Path | None = None,
    *,
    p: str | float | Sequence[float] | None = None,
    points: int | None = None,
    vary: str | None = None,
    seeds: int = 5,
    seed: int = 0,
    confidence: float = 0.95,
    parameters: Mapping[str, Any] | None = None,
    learner: Any = None,
    settings: Settings | Mapping[str, Any] | None = None,
    workers: int | None = None,
    ray: str | None = None,
    trust: Collection[str] = (),
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
) -> ParetoFront:
    """Learn for several required probabilities, certify every policy, and compare return with certified probability.

    All certificates hold together with `confidence`: each of m is issued at 1 - (1 - confidence)/m. On finite domains
    the exact front is shown too. Every run is a cell of a study: calling it again continues after an interruption.

    Args:
        domain: name of the domain.
        formula: the path formula, as in `G (distance >= 0.1 | collisions <= 1)`.
        folder: the folder; default: below `studies/`, the same for the same front.
        p: required probabilities: a range such as `"0.5:0.99"` (the default) or a list; with `vary` one value, 0.9.
        points: number of points, evenly spread over the range; default: 8, with `vary` over whole numbers all of them.
        vary: a parameter of the formula and its range, as in `"n=0:5"`; the formula contains it as a word.
        seeds: runs per point.
        seed: first seed.
        confidence: joint confidence of all certificates.
        parameters: parameters of the domain.
        learner: name or options object, as in `synthesize`.
        settings: other settings of every run.
        workers: number of runs at the same time, one process each; default: one per core.
        ray: address of a Ray cluster to run on, or "local".
        trust: code (`module:name`) that may be imported besides that of the domain.
        on_progress: called after every event of a run, and about twice a second.

    Returns:
        The front with its points and its study; its folder has the tables and the page.
    """
    asked = as_pareto(
        domain, formula, p=p, points=points, vary=vary, seeds=seeds, seed=seed, confidence=confidence,
        parameters=parameters, learner=learner, settings=settings,
    )  # fmt: skip
    where = default_pareto_folder(asked) if folder is None else Path(folder)
    named = [*trust, *asked.plan.code]
    return run_pareto(asked, where, workers=workers, ray=ray, trust=named, on_progress=on_progress)


@verb
def tune(
    domain: str,
    requirement: AnyRequirement | None = None,
    folder: str | Path | None = None,
    *,
    trials: int = DEFAULT_TRIALS,
    over: Sequence[str] | Mapping[str, str] | None = None,
    seed: int = 0,
    batch_size: int = DEFAULT_BATCH_SIZE,
    rerun_seeds: int = DEFAULT_RERUN_SEEDS,
    validation_seeds: int = DEFAULT_VALIDATION_SEEDS,
    parameters: Mapping[str, Any] | None = None,
    learner: Any = None,
    settings: Settings | Mapping[str, Any] | None = None,
    workers: int | None = None,
    ray: str | None = None,
    trust: Collection[str] = (),
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
    on_message: Callable[[str], None] = lambda message: None,
) -> Tuning:
    """Search the options of a learner for the best certified return, and compare the best with the defaults.

    Every trial is a run; trials below the median of earlier ones are pruned at half or three quarters of learning. The
    best three are run again, and the best of these is compared with the defaults at equal budget. Each stage uses fresh
    seeds. Calling it again continues after an interruption; with more trials it computes only those.

    Args:
        domain: name of the domain.
        requirement: the requirement as text, as a file name, or parsed.
        folder: the folder; default: below `studies/`, the same for the same search.
        trials: number of trials; the first has the default options.
        over: options to search, with ranges or values where they differ from the declared ones, as in
            `["learning_rate", "sigma=0.05:0.5", "population=10,20"]`; default: all options with a declared range.
        seed: seed of the search, and first seed of its runs.
        batch_size: number of trials that are proposed together and run in parallel. The outcome depends on it.
        rerun_seeds: further runs of each of the best three trials.
        validation_seeds: runs of the best options and of the defaults in the final comparison.
        parameters: parameters of the domain.
        learner: name or options object; options that are not searched keep its values. Default: "safe-es".
        settings: other settings of every run.
        workers: number of runs at the same time, one process each; default: one per core.
        ray: address of a Ray cluster to run on, or "local".
        trust: code (`module:name`) that may be imported besides that of the domain.
        on_progress: called after every event of a run, and about twice a second.
        on_message: called with a sentence after every round of trials.

    Returns:
        The search; its folder has `config.toml`, `trials.csv` and its page.
    """
    search = as_search(
        domain, requirement, trials=trials, over=over, seed=seed, batch_size=batch_size,
        rerun_seeds=rerun_seeds, validation_seeds=validation_seeds,
        parameters=parameters, learner=learner, settings=settings,
    )  # fmt: skip
    where = default_tuning_folder(search) if folder is None else Path(folder)
    named = [*trust, *search.boundary_plan().code]
    return run_tuning(
        search, where, workers=workers, ray=ray, trust=named, on_progress=on_progress, on_message=on_message
    )


def as_pareto(
    domain: str,
    formula: str,
    *,
    learner: Any = None,
    settings: Settings | Mapping[str, Any] | None = None,
    **asked: Any,
) -> ParetoSpec:
    """Return the description of a front; the arguments are those of `pareto_front`."""
    return make_pareto_spec(domain, formula, **_run_settings(learner, settings), **asked)


def as_search(
    domain: str,
    requirement: AnyRequirement | None,
    *,
    learner: Any = None,
    settings: Settings | Mapping[str, Any] | None = None,
    **asked: Any,
) -> SearchConfig:
    """Return the description of a search; the arguments are those of `tune`."""
    parsed = None if not requirement else as_requirement(requirement)
    text = None if parsed is None else parsed.text.strip() or str(parsed)
    return make_search(domain, text, **_run_settings(learner, settings), **asked)


def _run_settings(learner: Any, settings: Settings | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the learner's name, its options and the other settings, as a study file has them."""
    given = changed(settings) if isinstance(settings, Settings) else dict(settings or {})
    options = settings.options if isinstance(settings, Settings) else given.pop("options", {})
    name = given.pop("learner", None)
    if learner is not None:
        made = Settings(learner=learner)
        name, options = made.learner, made.options
    return {"learner": name, "learner_options": options or None, "settings": given or None}
