"""The configuration of a tuning: which options of a learner are searched, in which ranges; every trial is one run.

The three stages have disjoint seeds, so that no set of options is evaluated on the seeds that selected it: the search,
reruns of the best trials, and the validation of the tuned options against the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w

from psyco._src.core import files
from psyco._src.core.checks import check_count, check_seed
from psyco._src.core.errors import RunError, check_has, check_known
from psyco._src.core.options import NumberRange, OptionChoice, Ranges, read_range
from psyco._src.learners.learner_registry import LEARNERS, TUNED_BY_DEFAULT, learner_options, learner_ranges
from psyco._src.studies.study_plan import Cell, StudyPlan, make_plan

DEFAULT_TRIALS, DEFAULT_BATCH_SIZE, DEFAULT_RERUN_SEEDS, DEFAULT_VALIDATION_SEEDS = 50, 4, 3, 10
SEED_STRIDE = 10_000  # between the first seeds of two stages, so that more trials change no other seed
MAX_STAGE_SEEDS = 200  # of reruns and of the validation
MAX_SEED = 2**31 - 1 - 4 * SEED_STRIDE
DEFAULTS, TUNED = "defaults", "tuned"  # names of the two methods in the validation


@dataclass(frozen=True)
class SearchConfig:
    """The configuration of a tuning."""

    content: dict[str, Any]  # shared by all runs, as in config.toml
    ranges: Ranges  # of the searched options
    trials: int
    batch_size: int  # trials that are proposed together
    rerun_seeds: int  # further runs of each of the best trials
    validation_seeds: int  # runs of the tuned options, and of the defaults
    seed: int

    @property
    def learner(self) -> str:
        """Name of the tuned learner."""
        return str(self.content["learner"]["name"])

    @property
    def requirement(self) -> str:
        """Text of the requirement."""
        return str(self.content["requirement"])

    @property
    def title(self) -> str:
        """Title of the page."""
        return f"Tuning {self.learner} on {self.content['domain']['name']}"

    @property
    def digest(self) -> str:
        """Hash of the search, without the number of trials: a longer search continues a shorter one."""
        content = [self.content, self.range_texts, self.batch_size, self.seed]
        return files.json_digest(content)

    @property
    def range_texts(self) -> dict[str, str]:
        """Ranges as text, by option."""
        return {name: str(values) for name, values in self.ranges.items()}

    @property
    def unused_seed(self) -> int:
        """A seed that no run of this tuning has."""
        return self.seed + 3 * SEED_STRIDE

    def trial_cell(self, number: int, options: Mapping[str, Any]) -> Cell:
        """Return the run of a trial; without options it is that of the defaults."""
        return self._plan([self.seed + number], {f"trial {number}": options}).cells[0]

    def rerun_plan(self, options_by_name: Mapping[str, Mapping[str, Any]]) -> StudyPlan:
        """Return the study that runs the best trials again."""
        seeds = [self.seed + SEED_STRIDE + k for k in range(self.rerun_seeds)]
        return self._plan(seeds, options_by_name, "Reruns of the best trials")

    def validation_plan(self, options: Mapping[str, Any]) -> StudyPlan:
        """Return the study that compares tuned options with the defaults at the same budget."""
        seeds = [self.seed + 2 * SEED_STRIDE + k for k in range(self.validation_seeds)]
        return self._plan(seeds, {TUNED: options, DEFAULTS: {}}, "The tuned options against the defaults")

    def boundary_plan(self) -> StudyPlan:
        """Return the defaults and the ends of every range, to check them before the first run."""
        variants: dict[str, Mapping[str, Any]] = {DEFAULTS: {}}
        for name, values in self.ranges.items():
            ends = values.values if isinstance(values, OptionChoice) else (values.low, values.high)
            kind = learner_options(self.learner)[name].kind or str
            variants |= {f"{name}={value}": {name: kind(value)} for value in ends}
        return self._plan([self.seed], variants)

    def to_toml(self) -> str:
        """Return the configuration as the text of a file."""
        names = ("trials", "batch_size", "rerun_seeds", "validation_seeds", "seed")
        content = {name: getattr(self, name) for name in names} | self.content | {"ranges": self.range_texts}
        try:
            return "# The configuration of `psyco tune`.\n" + tomli_w.dumps(content, multiline_strings=True)
        except TypeError as error:
            raise RunError(f"this tuning cannot be written as TOML: {error}; use numbers and text only") from None

    def _plan(
        self, seeds: Sequence[int], options_by_label: Mapping[str, Mapping[str, Any]], title: str = ""
    ) -> StudyPlan:
        cells = [
            {"label": label, **({"learner": dict(options)} if options else {})}
            for label, options in options_by_label.items()
        ]
        content = {"seeds": list(seeds), **self.content, "cells": cells}
        return make_plan(({"title": title} if title else {}) | content, source="the tuning")


def make_search(
    domain: str,
    requirement: str | None,
    *,
    trials: int = DEFAULT_TRIALS,
    batch_size: int = DEFAULT_BATCH_SIZE,
    rerun_seeds: int = DEFAULT_RERUN_SEEDS,
    validation_seeds: int = DEFAULT_VALIDATION_SEEDS,
    seed: int = 0,
    over: Sequence[str] | Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    learner: str | None = None,
    learner_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> SearchConfig:
    """Return a checked configuration; the arguments are those of `psyco.tune`."""
    if not isinstance(domain, str):
        raise RunError(f"tuning takes the name of a domain, as in 'particle-dance', got {domain!r}")
    if not requirement:
        raise RunError(
            "tuning needs a requirement, since it searches for the largest certified return: "
            "--require 'P>=0.9 [ G ... ] & C>=0.98', as text or file"
        )
    tables = {"parameters": parameters, "learner_options": learner_options, "settings": settings}
    for name, table in tables.items():
        if table is not None and not isinstance(table, Mapping):
            raise RunError(f"{name} must be a dictionary, got {table!r:.100}")
    if check_count("trials", trials, 0) < 2:
        raise RunError(
            f"trials must be at least 2, got {trials}: the first trial is the defaults, the others are searched"
        )
    if trials > SEED_STRIDE:
        raise RunError(f"trials must be at most {SEED_STRIDE:,}, got {trials:,}")
    if check_seed(seed) > MAX_SEED:
        raise RunError(f"a tuning uses further seeds after the first: give at most {MAX_SEED}, got {seed}")
    if "seed" in (settings or {}):
        raise RunError("settings.seed = ... is not allowed: a tuning chooses its seeds, from seed=0 on")
    name, fixed = learner or TUNED_BY_DEFAULT, dict(learner_options or {})
    # "auto" is refused: its options are those of the learner that it will choose.
    check_known("learner to tune", name, LEARNERS)
    content = {
        "requirement": requirement,
        "domain": {**(parameters or {}), "name": domain},
        "learner": {**fixed, "name": name},
        "settings": dict(settings or {}),
    }
    stages = {"rerun_seeds": rerun_seeds, "validation_seeds": validation_seeds}
    for stage, count in stages.items():
        if check_count(stage, count) > MAX_STAGE_SEEDS:
            raise RunError(f"{stage} must be at most {MAX_STAGE_SEEDS}, got {count:,}")
    search = SearchConfig(
        content={key: value for key, value in content.items() if value},
        ranges=_search_space(name, fixed, over),
        trials=trials,
        batch_size=check_count("batch_size", batch_size),
        rerun_seeds=rerun_seeds,
        validation_seeds=validation_seeds,
        seed=seed,
    )
    search.trial_cell(0, {})  # checks domain, requirement, options and settings as data
    return search


def _search_space(learner: str, fixed: Mapping[str, Any], over: Any) -> dict[str, NumberRange | OptionChoice]:
    """Return the options to search: those that the learner declares, or the named ones with their ranges."""
    options, declared = learner_options(learner), learner_ranges(learner)
    if over is None:
        space = {name: values for name, values in declared.items() if name not in fixed}
        if not space:
            raise RunError(
                f"nothing is left to tune of {learner}: name an option and its range, as in learning_rate=0.001:0.1"
            )
        return space
    if not isinstance(over, Mapping | list | tuple):
        raise RunError(f"over must be a list of options or a dictionary with their ranges, got {over!r:.100}")
    named = over if isinstance(over, Mapping) else dict(str(text).partition("=")[::2] for text in over)
    check_has(learner, "option", named, options)
    if not named:
        raise RunError("over names no option; leave it out for the options that the learner declares")
    space = {}
    for name, text in named.items():
        if name in fixed:
            raise RunError(f"{name} is given and tuned; give it once")
        if text:
            space[name] = read_range(str(text), options[name])
        elif name in declared:
            space[name] = declared[name]
        else:
            raise RunError(
                f"{learner} declares no range for {name}: give one, as in {name}=0.01:0.3 or {name}=10,20,40"
            )
    return space
