"""Tuning: search a learner's options, run the best ones again, judge the winner against the defaults on fresh seeds.

    tuning.toml          what was asked for
    search/cells/NAME/   the run of every trial, also of those that were ended early
    finals/, judged/     two studies, each with tables and a page of its own
    trials.csv           one row per trial
    config.toml          the outcome, for `psyco synthesize --config`
    tuning.html          all of it to look at

Optuna proposes and is told; what it was told is not kept, since a trial is a run in a folder named by content: the same
tuning proposes the same trials again, and those that are there are not computed twice. Trials are proposed in rounds of
a fixed size and told in their order, so that the number of workers changes nothing.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from psyco._src.core import atomic_io
from psyco._src.core.errors import RunError
from psyco._src.envs.registry import remake
from psyco._src.envs.trust import NOBODY
from psyco._src.logic.parser import parse
from psyco._src.runs.config import Config
from psyco._src.runs.problem import prepare
from psyco._src.studies.aggregate import plain, to_csv, to_html
from psyco._src.studies.collect import CellOutcome, Row, collect
from psyco._src.studies.objective import Score, score_of
from psyco._src.studies.optuna_sampler import OptunaSampler, check_optuna
from psyco._src.studies.pruning import PruningThreshold, pruned_at, raised, reached
from psyco._src.studies.runner import CELLS, execute
from psyco._src.studies.search_config import DEFAULTS, FINALISTS, TUNED, SearchConfig
from psyco._src.studies.statistics import iqm, luck
from psyco._src.studies.study_folder import PARENT, Study, check_place, run_study
from psyco._src.studies.study_plan import check_plan
from psyco._src.studies.study_progress import StudyProgress
from psyco._src.studies.workers import LOG, WorkerTeam, cores

TUNING, TRIALS, CONFIG, PAGE = "tuning.toml", "trials.csv", "config.toml", "tuning.html"
SEARCH, FINAL, JUDGED = "search", "finals", "judged"  # folders
LUCK = 0.025  # what is as unlikely as that by luck counts as shown


@dataclass(frozen=True)
class Trial:
    """One set of options, and what became of its run."""

    number: int
    options: dict[str, Any]  # that differ from the defaults; number 0 has none
    outcome: CellOutcome
    score: Score | None  # None: it was ended early, or failed
    points: tuple[Score | None, ...]  # what it had shown at some points of learning
    pruned: float | None  # the part of learning after which it was ended

    @property
    def state(self) -> str:
        """What became of it, in a word."""
        if self.pruned is not None:
            return "ended early"
        return "finished" if self.score is not None else "failed"

    @property
    def called(self) -> str:
        """In tables of studies."""
        return f"trial {self.number}" if self.number else DEFAULTS

    @property
    def row(self) -> Row:
        """For the table; whatever was certified is an estimate of one run, lucky where it was chosen for that."""
        certificate = self.outcome.run.certificate if self.score is not None and self.outcome.run else None
        return {
            "trial": self.number,
            "state": self.state,
            "seed": self.outcome.cell.seed,
            "verdict": certificate.verdict.name if certificate else None,
            "return": certificate.mean_return if certificate else None,
            "distance": -self.score.number if self.score is not None and not self.score.certified else None,
            "ended_at": self.pruned,
            "episodes": self.outcome.run.episodes if self.outcome.run else 0,
            **self.options,
            "cell": self.outcome.cell.name,
        }


@dataclass(frozen=True, repr=False)
class Tuning:
    """A tuning that has come to its end, as it stands in its folder."""

    search: SearchConfig
    folder: Path
    trials: tuple[Trial, ...]
    finals: Study  # the best trials again
    winner: Trial  # of these
    judged: Study | None  # it against the defaults; None where it is the defaults
    defaults: dict[str, Any]  # of the options that were tried

    def __repr__(self) -> str:
        return f"<Tuning {self.folder}: {len(self.trials)} trials; {self.verdict}>"

    def _repr_html_(self) -> str:
        """The verdict and the trials, for notebooks."""
        return to_html(repr(self), [trial.row for trial in self.trials])

    @property
    def page(self) -> Path:
        """Where its page is."""
        return self.folder / PAGE

    @property
    def config(self) -> Path:
        """Where the configuration is that came out."""
        return self.folder / CONFIG

    @cached_property
    def better(self) -> Row | None:
        """How likely a tuned run beats one of the defaults, with its interval; None where that was not compared."""
        rows = [] if self.judged is None else self.judged.answers.comparisons
        return next((row for row in rows if (row["method"], row["other"]) == (TUNED, DEFAULTS)), None)

    @cached_property
    def by_luck(self) -> tuple[float, float]:
        """The chances that tuned runs rank so high, and so low, if the options made no difference."""
        tuned, defaults = (
            [
                (o.certified, o.score)
                for o in self.judged.outcomes
                if o.cell.method == name and math.isfinite(o.score)
            ]
            if self.judged
            else []
            for name in (TUNED, DEFAULTS)
        )
        return (luck(tuned, defaults), luck(defaults, tuned)) if tuned and defaults else (1.0, 1.0)

    @property
    def outcome(self) -> str:
        """Of the judging: "better", "open", "worse", or "same" where no trial did better than the defaults."""
        if self.winner.number == 0:
            return "same"
        high, low = self.by_luck
        return "better" if high <= LUCK else "worse" if low <= LUCK else "open"

    @property
    def options(self) -> dict[str, Any]:
        """What is recommended: the winner's options if they did better on the fresh seeds, else none."""
        ahead = self.better is not None and self.better["better_certified"] > 0.5
        return self.winner.options if ahead else {}

    @property
    def verdict(self) -> str:
        """Whether tuning helped, in a sentence."""
        if self.outcome == "same":
            return "No trial did better than the defaults when it was run again, so the defaults stay"
        if self.better is None:
            return (
                "It is not known whether the tuned options beat the defaults: runs that should judge failed"
            )
        chance, low, high = (self.better[f"better_certified{side}"] for side in ("", "_lower", "_upper"))
        seen = self.by_luck[self.outcome == "worse"]
        told = {
            "better": "The tuned options beat the defaults",
            "worse": "The tuned options are worse than the defaults, so the defaults stay",
            "open": "The tuned options are not shown to beat the defaults"
            + ("" if self.options else ", so the defaults stay"),
        }[self.outcome]
        return (
            f"{told}: on {self.search.judges} fresh seeds each, at equal budget, a tuned run beats one of the defaults "
            f"with probability {chance:.2f} ({low:.2f} to {high:.2f}), a certificate first; by luck alone runs "
            f"rank {'so low' if self.outcome == 'worse' else 'so high'} with probability {seen:.2g}"
        )

    @property
    def failed(self) -> dict[str, str]:
        """The errors of runs that failed, by what they are called."""
        own = {f"trial {t.number}": t.outcome.error for t in self.trials if t.state == "failed"}
        return own | self.finals.failed | (self.judged.failed if self.judged else {})

    @property
    def episodes(self) -> int:
        """Training episodes of all runs."""
        outcomes = [*(trial.outcome for trial in self.trials), *self.finals.outcomes]
        outcomes += self.judged.outcomes if self.judged else ()
        return sum(outcome.run.episodes for outcome in outcomes if outcome.run)

    def to_json(self) -> str:
        """Everything as JSON."""
        content = {
            "tuning": str(self.folder),
            "outcome": self.outcome,
            "verdict": self.verdict,
            "options": self.options,
            "defaults": self.defaults,
            "ranges": self.search.texts,
            "winner": self.winner.number,
            "better": None if self.better is None else _plain(self.better),
            "by_luck": self.by_luck[0],
            "judged": [] if self.judged is None else [_plain(row) for row in self.judged.answers.summary],
            "finals": [_plain(row) for row in self.finals.answers.summary],
            "trials": [_plain(trial.row) for trial in self.trials],
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
    trust: Collection[str] = NOBODY,
    on_progress: Callable[[StudyProgress], None] = lambda progress: None,
    on_news: Callable[[str], None] = lambda news: None,
) -> Tuning:
    """Bring a tuning to its end; the same again, also after an interruption, computes only what is missing.

    Args:
        search: what is tried.
        folder: of the tuning; one that holds something else is refused.
        workers: processes at the same time; default: one for each core.
        ray: the address of a Ray cluster to use instead, or "local".
        trust: the code that the domain may name.
        on_progress: called when something has happened to a run, and about twice a second.
        on_news: called with a sentence when a stage has come to its end.
    """
    check_optuna()
    text = search.to_toml()
    check_place(folder, TUNING)
    check_plan(search.ends(), trust)
    defaults = _defaults(search, trust)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror}") from None
    atomic_io.write(folder / TUNING, text.encode())
    how: dict[str, Any] = {"workers": workers, "ray": ray, "trust": trust, "on_progress": on_progress}
    trials = _searched(search, OptunaSampler(search, defaults), folder / SEARCH, how, on_news)
    best = sorted((t for t in trials if t.score is not None), key=_rank)[:FINALISTS]
    if not best:
        why = next((t.outcome.error for t in trials if t.outcome.error), "none has a certificate")
        raise RunError(f"no trial has come to its end: {why}")
    on_news(f"{len(best)} trials run again, {search.finals} times each")
    finals = run_study(search.final({t.called: t.options for t in best}), folder / FINAL, **how)
    winner = max(best, key=lambda trial: _standing(finals, trial))
    judged = None
    if winner.number:
        on_news(f"{winner.called} against the defaults, {search.judges} fresh seeds each")
        judged = run_study(search.judged(winner.options), folder / JUDGED, **how)
    tuning = Tuning(search, folder, tuple(trials), finals, winner, judged, defaults)
    atomic_io.write(folder / TRIALS, to_csv([trial.row for trial in trials]).encode())
    atomic_io.write(folder / CONFIG, _config(tuning).to_toml().encode())
    from psyco._src.studies.tuning_page import tune_page

    atomic_io.write(tuning.page, tune_page(tuning).encode())
    return tuning


def default_tune_folder(search: SearchConfig) -> Path:
    """The same tuning has the same folder, also with more trials."""
    words = search.trial(0, {}).name.rpartition("-seed")[0]
    return PARENT / f"tune-{words}-{search.digest[:8]}"


# ---- the search --------------------------------------------------------------------------------------------------


def _searched(
    search: SearchConfig,
    proposals: OptunaSampler,
    folder: Path,
    how: dict[str, Any],
    on_news: Callable[[str], None],
) -> list[Trial]:
    """All trials, round by round."""
    trials: list[Trial] = []
    with _crew(folder, how) as team:
        for first in range(0, search.trials, search.at_once):
            numbers = range(first, min(first + search.at_once, search.trials))
            options = [proposals.ask(number) for number in numbers]
            bar = raised([trial.points for trial in trials if trial.score is not None])
            cells = [
                dataclasses.replace(search.trial(number, each), bar=bar)
                for number, each in zip(numbers, options, strict=True)
            ]
            errors = execute(cells, folder, **how, team=team)
            outcomes = collect(cells, folder / CELLS, partial(_error, errors))
            for number, each, outcome in zip(numbers, options, outcomes, strict=True):
                trial = _trial(number, each, outcome, folder / CELLS / outcome.cell.name, bar)
                proposals.tell(number, trial.score, trial.points, pruned=trial.pruned is not None)
                trials.append(trial)
            on_news(_news(trials, search.trials))
    return trials


def _trial(
    number: int, options: dict[str, Any], outcome: CellOutcome, folder: Path, bar: PruningThreshold
) -> Trial:
    config = outcome.cell.config
    requirement = parse(config.requirement)
    certificate = outcome.run.certificate if outcome.finished and outcome.run else None
    score = score_of(certificate, requirement)
    pruned = pruned_at(folder, bar) if score is None else None
    return Trial(number, options, outcome, score, reached(folder, requirement, config.settings), pruned)


def _error(errors: Mapping[str, str], name: str) -> str:
    return errors.get(name, "")


def _news(trials: Sequence[Trial], of: int) -> str:
    done = [trial for trial in trials if trial.score is not None]
    early = sum(trial.pruned is not None for trial in trials)
    words = f"{len(trials)} of {of} trials" + f", {early} ended early" * bool(early)
    if not done:
        return words
    best = min(done, key=_rank)
    row = best.row
    certified = row["distance"] is None
    seen = f"return {row['return']:.2f}" if certified else f"not certified, {row['distance']:.3f} away"
    return f"{words}; best so far: {best.called}, {seen}"


def _rank(trial: Trial) -> tuple[float, int]:
    """The best first, of equals the earlier one."""
    assert trial.score is not None
    return -trial.score.value, trial.number


def _standing(finals: Study, trial: Trial) -> tuple[int, float, int]:
    """How a trial did when it was run again: certificates first, then the return."""
    own = [outcome for outcome in finals.outcomes if outcome.cell.method == trial.called]
    scores = np.array([outcome.score for outcome in own if math.isfinite(outcome.score)])
    middle = float(iqm(scores)) if len(scores) else -math.inf
    return sum(outcome.certified for outcome in own), middle, -trial.number


@contextmanager
def _crew(folder: Path, how: Mapping[str, Any]) -> Iterator[WorkerTeam | None]:
    """Processes for all rounds, since each has to import and to compile first; none where a cluster does the work."""
    if how["ray"] is not None:
        yield None
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror}") from None
    with WorkerTeam(how["workers"] or cores(), folder / LOG) as team:
        yield team


# ---- the outcome -------------------------------------------------------------------------------------------------


def _defaults(search: SearchConfig, trust: Collection[str]) -> dict[str, Any]:
    """What the options that are tried have been so far, resolved for this domain and budget."""
    config = search.trial(0, {}).config
    settings = dataclasses.replace(config.settings, scaling="none")  # sampled scaling plays episodes
    learner = prepare(remake(config.description, trust), parse(config.requirement), settings).learner
    return {name: getattr(learner, name) for name in search.ranges}


def _config(tuning: Tuning) -> Config:
    """The outcome as a run's configuration with every default written out, and a seed that nobody here has seen."""
    label = (TUNED if tuning.options else DEFAULTS) if tuning.judged else tuning.winner.called
    study = tuning.judged or tuning.finals
    runs = [outcome.run for outcome in study.outcomes if outcome.cell.method == label and outcome.run]
    written = next((run.config for run in runs if run.config is not None), None)
    found = written or tuning.search.trial(0, tuning.options).config
    settings = dataclasses.replace(found.settings, seed=tuning.search.fresh_seed)
    return dataclasses.replace(found, settings=settings)


def _plain(row: Row) -> Row:
    return {name: plain(value) for name, value in row.items()}
