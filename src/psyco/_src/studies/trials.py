"""The search of a tuning: Optuna's TPE sampler proposes trials in rounds, each trial is run as a cell of a study.

Optuna's study is kept in memory only. A trial is a run in a folder that is named by its content, and the sampler is a
function of its seed and of the sequence of proposals and results; so a resumed search proposes the same trials again
and reuses the runs that have finished. Optuna's persistent storage would not do: it does not contain the random state
of the sampler, without which a resumed search takes another course.

Trials are proposed in rounds of a fixed size and their results reported in order, so that the number of workers does
not change the result.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from psyco._src.core.errors import RunError
from psyco._src.core.options import NumberRange, OptionChoice
from psyco._src.learners.learner_registry import learner_options
from psyco._src.studies.collect import CellOutcome, Row, collect
from psyco._src.studies.objective import (
    CHECKPOINTS,
    PruningThreshold,
    Score,
    checkpoint_scores,
    median_threshold,
    pruned_at,
    score_certificate,
)
from psyco._src.studies.runner import CELLS, execute, make_folder
from psyco._src.studies.search_config import DEFAULTS, SearchConfig
from psyco._src.studies.workers import LOG, WorkerTeam, available_cores

STARTUP_TRIALS = 10  # sampled at random before TPE follows the results
DIGITS = 4  # of a proposed number


@dataclass(frozen=True)
class Trial:
    """One set of options and the outcome of its run."""

    number: int
    options: dict[str, Any]  # that differ from the defaults; trial 0 has none
    outcome: CellOutcome
    score: Score | None  # None: pruned or failed
    checkpoint_scores: tuple[Score | None, ...]
    pruned_at: float | None  # fraction of learning after which it was pruned

    @property
    def state(self) -> str:
        """One of "finished", "pruned", "failed"."""
        if self.pruned_at is not None:
            return "pruned"
        return "finished" if self.score is not None else "failed"

    @property
    def label(self) -> str:
        """Name in tables and messages."""
        return f"trial {self.number}" if self.number else DEFAULTS

    @property
    def rank(self) -> tuple[float, int]:
        """Sort key: the best score first, of equal scores the earlier trial."""
        assert self.score is not None
        return -self.score.value, self.number

    @property
    def row(self) -> Row:
        """Row of the table; the certificate is that of a single run, and optimistic for a selected trial."""
        certificate = self.outcome.certificate if self.score is not None else None
        return {
            "trial": self.number,
            "state": self.state,
            "seed": self.outcome.cell.seed,
            "verdict": certificate.verdict.name if certificate else None,
            "return": certificate.mean_return if certificate else None,
            "distance": -self.score.number if self.score is not None and not self.score.certified else None,
            "pruned_at": self.pruned_at,
            "episodes": self.outcome.run.episodes if self.outcome.run else 0,
            **self.options,
            "cell": self.outcome.cell.name,
        }


def import_optuna() -> Any:
    """Return the module Optuna; raise RunError with the command that installs it."""
    try:
        import optuna
    except ImportError:
        raise RunError('tuning needs Optuna: pip install "psyco[tune]"') from None
    return optuna


class TrialSampler:
    """Proposes options with Optuna.

    Args:
        search: configuration of the search.
        defaults: values of the searched options in trial 0; those within their ranges are enqueued in Optuna.
    """

    def __init__(self, search: SearchConfig, defaults: Mapping[str, Any]) -> None:
        self.optuna = import_optuna()
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
        options = learner_options(search.learner)
        self.space = {name: self._distribution(values, options[name].kind) for name, values in search.ranges.items()}
        self.defaults = {name: value for name, value in defaults.items() if value in search.ranges[name]}
        self.open: dict[int, Any] = {}  # Optuna's trials without a result, by our number
        with warnings.catch_warnings():
            # constant_liar is experimental: it counts open trials as bad ones.
            warnings.simplefilter("ignore", self.optuna.exceptions.ExperimentalWarning)
            sampler = self.optuna.samplers.TPESampler(
                seed=search.seed, n_startup_trials=STARTUP_TRIALS, constant_liar=True
            )
        self.study = self.optuna.create_study(direction="maximize", sampler=sampler)

    def ask(self, number: int) -> dict[str, Any]:
        """Return the options of a trial, with numbers of DIGITS digits; trial 0 is the defaults."""
        if number == 0:
            return {}
        self.open[number] = self.study.ask(self.space)
        return {
            name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
            for name, value in self.open[number].params.items()
        }

    def tell(self, number: int, score: Score | None, scores: Sequence[Score | None], *, pruned: bool) -> None:
        """Record the result of a trial.

        Args:
            number: of the trial.
            score: of the finished run; None: pruned or failed.
            scores: at the checkpoints of learning.
            pruned: whether it was pruned.
        """
        if number == 0:
            if score is not None:
                space = {name: self.space[name] for name in self.defaults}
                self.study.add_trial(
                    self.optuna.trial.create_trial(params=self.defaults, distributions=space, value=score.value)
                )
            return
        trial, states = self.open.pop(number), self.optuna.trial.TrialState
        for fraction, checkpoint_score in zip(CHECKPOINTS, scores, strict=True):
            if checkpoint_score is not None:
                trial.report(checkpoint_score.value, step=round(100 * fraction))
        if score is not None:
            self.study.tell(trial, score.value)
        else:
            self.study.tell(trial, state=states.PRUNED if pruned else states.FAIL)

    def _distribution(self, values: NumberRange | OptionChoice, kind: type | None) -> Any:
        distributions = self.optuna.distributions
        if isinstance(values, OptionChoice):
            return distributions.CategoricalDistribution(values.values)
        if kind is int:
            return distributions.IntDistribution(int(values.low), int(values.high), log=values.log)
        return distributions.FloatDistribution(values.low, values.high, log=values.log)


def run_search(
    search: SearchConfig,
    sampler: TrialSampler,
    folder: Path,
    execution: Mapping[str, Any],
    on_message: Callable[[str], None],
) -> list[Trial]:
    """Run all trials, round by round.

    Args:
        search: configuration of the search.
        sampler: proposes the trials.
        folder: of their runs.
        execution: keyword arguments of `execute`.
        on_message: called with a sentence after every round.
    """
    trials: list[Trial] = []
    with _worker_team(folder, execution) as team:
        for first in range(0, search.trials, search.batch_size):
            numbers = range(first, min(first + search.batch_size, search.trials))
            options = [sampler.ask(number) for number in numbers]
            threshold = median_threshold([t.checkpoint_scores for t in trials if t.score is not None])
            cells = [
                dataclasses.replace(search.trial_cell(number, own), pruning=threshold)
                for number, own in zip(numbers, options, strict=True)
            ]
            errors = execute(cells, folder, **execution, team=team)
            outcomes = collect(cells, folder / CELLS, partial(_error_of, errors))
            for number, own, outcome in zip(numbers, options, outcomes, strict=True):
                trial = _make_trial(number, own, outcome, folder / CELLS / outcome.cell.name, threshold)
                sampler.tell(number, trial.score, trial.checkpoint_scores, pruned=trial.pruned_at is not None)
                trials.append(trial)
            on_message(_summarize(trials, search.trials))
    return trials


def _error_of(errors: Mapping[str, str], name: str) -> str:
    return errors.get(name, "")


def _make_trial(
    number: int, options: dict[str, Any], outcome: CellOutcome, folder: Path, threshold: PruningThreshold
) -> Trial:
    score = score_certificate(outcome.certificate, outcome.requirement)
    scores = checkpoint_scores(folder, outcome.requirement, outcome.cell.config.settings)
    return Trial(number, options, outcome, score, scores, pruned_at(folder, threshold) if score is None else None)


def _summarize(trials: Sequence[Trial], total: int) -> str:
    finished = [trial for trial in trials if trial.score is not None]
    pruned = sum(trial.pruned_at is not None for trial in trials)
    text = f"{len(trials)} of {total} trials" + f", {pruned} pruned" * bool(pruned)
    if not finished:
        return text
    best = min(finished, key=lambda trial: trial.rank)
    row = best.row
    certified = row["distance"] is None
    result = f"return {row['return']:.2f}" if certified else f"not certified, {row['distance']:.3f} away"
    return f"{text}; best so far: {best.label}, {result}"


@contextmanager
def _worker_team(folder: Path, execution: Mapping[str, Any]) -> Iterator[WorkerTeam | None]:
    """Keep worker processes for all rounds, since each has to import and to compile; None on a cluster."""
    if execution["ray"] is not None:
        yield None
        return
    make_folder(folder)
    with WorkerTeam(execution["workers"] or available_cores(), folder / LOG) as team:
        yield team
