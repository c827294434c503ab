"""Optuna behind two verbs: what to try next, and what became of it. Nothing of it is kept on disk.

Its sampler is a function of its seed and of what it was asked and told, in that order; so whoever repeats both is given
the same proposals again.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from psyco._src.core.errors import RunError
from psyco._src.learners.learner_registry import learner_options
from psyco._src.learners.search_space import NumberRange, OptionChoice
from psyco._src.studies.objective import Score
from psyco._src.studies.pruning import PARTS
from psyco._src.studies.search_config import SearchConfig

STARTUP = 10  # trials before what is proposed follows what was found
DIGITS = 4  # of a number that is proposed


def check_optuna() -> Any:
    """Optuna itself, or how to install it."""
    try:
        import optuna
    except ImportError:
        raise RunError('tuning needs Optuna: pip install "psyco[tune]"') from None
    return optuna


class OptunaSampler:
    """Options to try, one set after the other.

    Args:
        search: what is tried.
        defaults: of the options that are; trial 0 is told with those that lie in their ranges.
    """

    def __init__(self, search: SearchConfig, defaults: Mapping[str, Any]) -> None:
        self.optuna = check_optuna()
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
        kinds = learner_options(search.learner)
        self.space = {name: self._distribution(each, kinds[name]) for name, each in search.ranges.items()}
        self.defaults = {name: value for name, value in defaults.items() if value in search.ranges[name]}
        self.open: dict[int, Any] = {}  # trials of Optuna that nobody has told yet, by our number
        with (
            warnings.catch_warnings()
        ):  # that trials which are still open count as bad ones is called experimental
            warnings.simplefilter("ignore", self.optuna.exceptions.ExperimentalWarning)
            sampler = self.optuna.samplers.TPESampler(
                seed=search.seed, n_startup_trials=STARTUP, constant_liar=True
            )
        self.study = self.optuna.create_study(direction="maximize", sampler=sampler)

    def ask(self, number: int) -> dict[str, Any]:
        """The options of a trial; the first is the defaults, and has none."""
        if number == 0:
            return {}
        self.open[number] = self.study.ask(self.space)
        return {name: _short(value) for name, value in self.open[number].params.items()}

    def tell(self, number: int, score: Score | None, points: Sequence[Score | None], *, pruned: bool) -> None:
        """What became of a trial.

        Args:
            number: of the trial.
            score: its own; None: it was ended early, or failed.
            points: what it had shown at some points of learning.
            pruned: it was ended early.
        """
        if number == 0:
            if score is not None:
                space = {name: self.space[name] for name in self.defaults}
                self.study.add_trial(
                    self.optuna.trial.create_trial(
                        params=self.defaults, distributions=space, value=score.value
                    )
                )
            return
        trial, states = self.open.pop(number), self.optuna.trial.TrialState
        for part, seen in zip(PARTS, points, strict=True):
            if seen is not None:
                trial.report(seen.value, step=round(100 * part))
        if score is not None:
            self.study.tell(trial, score.value)
        else:
            self.study.tell(trial, state=states.PRUNED if pruned else states.FAIL)

    def _distribution(self, each: NumberRange | OptionChoice, default: Any) -> Any:
        kinds = self.optuna.distributions
        if isinstance(each, OptionChoice):
            return kinds.CategoricalDistribution(each.values)
        if isinstance(default, int):
            return kinds.IntDistribution(int(each.low), int(each.high), log=each.log)
        return kinds.FloatDistribution(each.low, each.high, log=each.log)


def _short(value: Any) -> Any:
    """Numbers that people can read, and write down."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
