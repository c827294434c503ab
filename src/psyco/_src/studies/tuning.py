"""Tuning: search the options of a learner, rerun the best trials, validate the winner against the defaults.

    tuning.toml          the configuration
    search/cells/NAME/   the run of every trial, also of pruned ones
    rerun/, validation/  two studies with their tables and pages
    trials.csv           one row per trial
    config.toml          the recommended configuration, for `psyco synthesize --config`
    tuning.html          the page

Each stage has its own seeds; a repeated call reuses all finished runs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from psyco._src.core import files
from psyco._src.core.errors import RunError
from psyco._src.core.wording import plural
from psyco._src.envs.registry import TRUST_NOTHING, make_from_description
from psyco._src.logic.parser import parse
from psyco._src.runs.config import Config
from psyco._src.runs.problem import prepare
from psyco._src.studies.aggregate import missing_evidence, to_csv, to_html, to_json_rows
from psyco._src.studies.collect import Row
from psyco._src.studies.runner import locked_folder
from psyco._src.studies.search_config import DEFAULTS, TUNED, SearchConfig
from psyco._src.studies.statistics import iqm
from psyco._src.studies.study_folder import PARENT, Study, check_target, run_study
from psyco._src.studies.study_plan import check_plan
from psyco._src.studies.study_progress import StudyProgress
from psyco._src.studies.trials import Trial, TrialSampler, import_optuna, run_search

CONFIG_FILE, TRIALS_FILE, RESULT_FILE, PAGE = "tuning.toml", "trials.csv", "config.toml", "tuning.html"
SEARCH, RERUN, VALIDATION = "search", "rerun", "validation"  # folders
RERUN_TRIALS = 3  # the best trials, which are run again
METHODS = {TUNED: "the tuned options", DEFAULTS: "the defaults"}  # names in sentences


@dataclass(frozen=True, repr=False)
class Tuning:
    """The result of a tuning."""

    search: SearchConfig
    folder: Path
    trials: tuple[Trial, ...]
    rerun: Study  # of the best trials
    winner: Trial  # of the rerun
    validation: Study | None  # the winner against the defaults; None if the defaults won
    defaults: dict[str, Any]  # values of the searched options

    def __repr__(self) -> str:
        return f"<Tuning {self.folder}: {len(self.trials)} trials; {self.verdict}>"

    def _repr_html_(self) -> str:
        """Return the verdict and the trials for notebooks."""
        return to_html(repr(self), [trial.row for trial in self.trials])

    @property
    def page(self) -> Path:
        """Path of the HTML page."""
        return self.folder / PAGE

    @property
    def config(self) -> Path:
        """Path of the recommended configuration."""
        return self.folder / RESULT_FILE

    @cached_property
    def comparison(self) -> Row | None:
        """Probability that a tuned run beats one of the defaults, with its interval; None without a comparison."""
        rows = [] if self.validation is None else self.validation.tables.comparisons
        return next((row for row in rows if (row["method"], row["other"]) == (TUNED, DEFAULTS)), None)

    @property
    def outcome(self) -> str:
        """Result of the validation: "better", "inconclusive" or "worse"; "unchanged" if the defaults won the rerun."""
        if self.winner.number == 0:
            return "unchanged"
        if self.comparison is None:
            return "inconclusive"
        better, worse = self.comparison["better_certified_lower"] > 0.5, self.comparison["better_certified_upper"] < 0.5
        return "better" if better else "worse" if worse else "inconclusive"

    @property
    def options(self) -> dict[str, Any]:
        """Recommended options: the winner's if they did better in the validation, else none."""
        ahead = self.comparison is not None and self.comparison["better_certified"] > 0.5
        return self.winner.options if ahead else {}

    @property
    def verdict(self) -> str:
        """Whether tuning helped, in a sentence."""
        if self.outcome == "unchanged":
            return "No trial did better than the defaults when it was run again, so the defaults stay"
        if self.validation is None or self.comparison is None:
            return "It is not known whether the tuned options beat the defaults: validation runs are missing"
        chance, low, high = (self.comparison[f"better_certified{side}"] for side in ("", "_lower", "_upper"))
        result = {
            "better": "The tuned options beat the defaults",
            "worse": "The tuned options are worse than the defaults, so the defaults stay",
            "inconclusive": "The tuned options are not shown to beat the defaults"
            + ("" if self.options else ", so the defaults stay"),
        }[self.outcome]
        remarks = [missing_evidence(self.comparison, "better_certified")]
        for method, name in METHODS.items():
            failed = sum(o.cell.method == method and not o.finished for o in self.validation.outcomes)
            remarks.append(f"{failed} runs with {name} failed and count as the worst" * bool(failed))
        sentence = (
            f"{result}: on {self.search.validation_seeds} fresh seeds each, at equal budget, a tuned run beats one of "
            f"the defaults with probability {chance:.2f} ({low:.2f} to {high:.2f}), a certificate first"
        )
        return "; ".join([sentence, *filter(None, remarks)])

    @property
    def failed(self) -> dict[str, str]:
        """Errors of failed runs, by label."""
        failed = {f"trial {t.number}": t.outcome.error for t in self.trials if t.state == "failed"}
        return failed | self.rerun.failed | (self.validation.failed if self.validation else {})

    @property
    def episodes(self) -> int:
        """Training episodes of all runs."""
        outcomes = [*(trial.outcome for trial in self.trials), *self.rerun.outcomes]
        outcomes += self.validation.outcomes if self.validation else ()
        return sum(outcome.run.episodes for outcome in outcomes if outcome.run)

    def to_json(self) -> str:
        """Return the result as JSON."""
        content = {
            "tuning": str(self.folder),
            "outcome": self.outcome,
            "verdict": self.verdict,
            "options": self.options,
            "defaults": self.defaults,
            "ranges": self.search.range_texts,
            "winner": self.winner.number,
            "comparison": None if self.comparison is None else to_json_rows([self.comparison])[0],
            "validation": [] if self.validation is None else to_json_rows(self.validation.tables.summary),
            "rerun": to_json_rows(self.rerun.tables.summary),
            "trials": to_json_rows([trial.row for trial in self.trials]),
            "episodes": self.episodes,
            "failed": self.failed,
            "config": str(self.config),
            "page": str(self.page),
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"


def run_tuning(
    search: SearchConfig,
    folder: Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    trust: Collection[str] = TRUST_NOTHING,
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
    on_message: Callable[[str], None] = lambda message: None,
) -> Tuning:
    """Run a tuning; a repeated call, also after an interruption, runs only the missing cells.

    Args:
        search: configuration of the search.
        folder: of the tuning; one with other content is refused.
        workers: number of processes; default: one per core.
        ray: address of a Ray cluster to use instead, or "local".
        trust: code that the domain may import.
        on_progress: called after every change of a run, and about twice a second.
        on_message: called with a sentence after every round and stage.
    """
    import_optuna()
    check_target(folder, CONFIG_FILE)
    check_plan(search.boundary_plan(), trust)
    defaults = _resolve_defaults(search, trust)
    execution: dict[str, Any] = {"workers": workers, "ray": ray, "trust": trust, "on_progress": on_progress}
    with locked_folder(folder):
        return _run_stages(search, folder, defaults, execution, on_message)


def _run_stages(
    search: SearchConfig,
    folder: Path,
    defaults: dict[str, Any],
    execution: dict[str, Any],
    on_message: Callable[[str], None],
) -> Tuning:
    """Run search, rerun and validation; the caller holds the lock of the folder."""
    files.write(folder / CONFIG_FILE, search.to_toml().encode())
    trials = run_search(search, TrialSampler(search, defaults), folder / SEARCH, execution, on_message)
    finished = [trial for trial in trials if trial.score is not None]
    best = sorted(finished, key=lambda trial: trial.rank)[:RERUN_TRIALS]
    if not best:
        why = next((t.outcome.error for t in trials if t.outcome.error), "none has a certificate")
        raise RunError(f"no trial has finished: {why}")
    on_message(f"further runs of {plural(len(best), 'trial')}: {search.rerun_seeds} each")
    rerun = run_study(search.rerun_plan({t.label: t.options for t in best}), folder / RERUN, **execution)
    winner = max(best, key=lambda trial: _rerun_result(rerun, trial))
    validation = None
    if winner.number:
        on_message(f"{winner.label} against the defaults, {search.validation_seeds} fresh seeds each")
        validation = run_study(search.validation_plan(winner.options), folder / VALIDATION, **execution)
    tuning = Tuning(search, folder, tuple(trials), rerun, winner, validation, defaults)
    files.write(folder / TRIALS_FILE, to_csv([trial.row for trial in trials]).encode())
    files.write(tuning.config, _recommended_config(tuning).to_toml().encode())
    from psyco._src.studies.tuning_page import tuning_page

    files.write(tuning.page, tuning_page(tuning).encode())
    return tuning


def default_tuning_folder(search: SearchConfig) -> Path:
    """Return the folder of a tuning, which does not depend on the number of trials."""
    words = search.trial_cell(0, {}).name.rpartition("-seed")[0]
    return PARENT / f"tune-{words}-{search.digest[:8]}"


def _rerun_result(rerun: Study, trial: Trial) -> tuple[int, float, int]:
    """Return the sort key of a trial in the rerun: certified runs first, then the return; failed runs rank lowest."""
    outcomes = [outcome for outcome in rerun.outcomes if outcome.cell.method == trial.label]
    mean = float(iqm(np.array([outcome.score for outcome in outcomes])))
    return sum(outcome.certified for outcome in outcomes), mean, -trial.number


def _resolve_defaults(search: SearchConfig, trust: Collection[str]) -> dict[str, Any]:
    """Return the default values of the searched options for this domain and budget."""
    config = search.trial_cell(0, {}).config
    settings = dataclasses.replace(config.settings, normalization="none")  # sampled normalization samples episodes
    problem = prepare(make_from_description(config.description, trust), parse(config.requirement), settings)
    return {name: problem.settings.options[name] for name in search.ranges}


def _recommended_config(tuning: Tuning) -> Config:
    """Return the configuration of the recommended options with every default written out, and an unused seed."""
    label = (TUNED if tuning.options else DEFAULTS) if tuning.validation else tuning.winner.label
    study = tuning.validation or tuning.rerun
    runs = [outcome.run for outcome in study.outcomes if outcome.cell.method == label and outcome.run]
    complete = next((run.config for run in runs if run.config is not None), None)
    config = complete or tuning.search.trial_cell(0, tuning.options).config
    settings = dataclasses.replace(config.settings, seed=tuning.search.unused_seed)
    return dataclasses.replace(config, settings=settings)
