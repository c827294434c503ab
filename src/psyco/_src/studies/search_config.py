"""What is tuned: a learner's options, each in a range, become trials; nothing is made or run for that.

Every trial is one run. Three stages have seeds of their own, so that nobody is judged by the luck that chose him: the
search, a few further runs of the best trials, and in the end the tuned options against the defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w

from psyco._src.core import atomic_io
from psyco._src.core.checks import check_count, check_seed
from psyco._src.core.errors import RunError, check_has, check_known
from psyco._src.learners.learner_registry import LEARNERS, TUNED_BY_DEFAULT, learner_options, learner_ranges
from psyco._src.learners.search_space import NumberRange, OptionChoice, Ranges, read_range
from psyco._src.studies.study_plan import Cell, StudyPlan, make_plan

TRIALS, AT_ONCE = 50, 4
FINALISTS, FINALS = 3, 3  # trials that are run again; further runs of each
JUDGES = 10  # runs of the tuned options, and of the defaults, in the end
APART = 10_000  # between the seeds of two stages, so that more trials change no other seed
MOST_JUDGES = 200
LAST_SEED = 2**31 - 1 - 4 * APART
DEFAULTS, TUNED = "defaults", "tuned"  # what the two are called that are judged


@dataclass(frozen=True)
class SearchConfig:
    """A tuning before it runs."""

    content: dict[str, Any]  # what all runs share, as config.toml has it
    ranges: Ranges  # of the options that are tried
    trials: int
    at_once: int  # trials that are proposed together
    finals: int  # further runs of each of the best trials
    judges: int  # runs of the tuned options and of the defaults in the end
    seed: int

    @property
    def learner(self) -> str:
        """Whose options they are."""
        return str(self.content["learner"]["name"])

    @property
    def requirement(self) -> str:
        """As text."""
        return str(self.content["requirement"])

    @property
    def title(self) -> str:
        """What it is called."""
        return f"Tuning {self.learner} on {self.content['domain']['name']}"

    @property
    def digest(self) -> str:
        """The same search, also one of more trials, in one word."""
        what = [self.content, self.texts, self.at_once, self.seed]
        return atomic_io.digest(json.dumps(what, sort_keys=True, default=str).encode())

    @property
    def texts(self) -> dict[str, str]:
        """The ranges for people."""
        return {name: str(each) for name, each in self.ranges.items()}

    @property
    def fresh_seed(self) -> int:
        """One that no run of this tuning has."""
        return self.seed + 3 * APART

    def trial(self, number: int, options: Mapping[str, Any]) -> Cell:
        """The run of a trial; without options it is that of the defaults."""
        plan = self._plan([self.seed + number], [self._variant(f"trial {number}", options)])
        return plan.cells[0]

    def final(self, chosen: Mapping[str, Mapping[str, Any]]) -> StudyPlan:
        """The study of the best trials, by what they are called."""
        seeds = [self.seed + APART + k for k in range(self.finals)]
        return self._plan(
            seeds, [self._variant(name, each) for name, each in chosen.items()], "The best trials again"
        )

    def judged(self, options: Mapping[str, Any]) -> StudyPlan:
        """The study that compares tuned options with the defaults, at the same budget."""
        seeds = [self.seed + 2 * APART + k for k in range(self.judges)]
        both = [self._variant(TUNED, options), self._variant(DEFAULTS, {})]
        return self._plan(seeds, both, "The tuned options against the defaults")

    def ends(self) -> StudyPlan:
        """The defaults, and the ends or values of every range: what can be checked before anything runs."""
        variants = [self._variant(DEFAULTS, {})]
        for name, each in self.ranges.items():
            values = each.values if isinstance(each, OptionChoice) else (each.low, each.high)
            kind = type(learner_options(self.learner)[name])
            variants += [self._variant(f"{name}={value}", {name: kind(value)}) for value in values]
        return self._plan([self.seed], variants)

    def to_toml(self) -> str:
        """For the record."""
        asked = {name: getattr(self, name) for name in ("trials", "at_once", "finals", "judges", "seed")}
        return "# What `psyco tune` was asked for.\n" + tomli_w.dumps(
            {**asked, **self.content, "ranges": self.texts}, multiline_strings=True
        )

    def _variant(self, label: str, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"label": label, **({"learner": dict(options)} if options else {})}

    def _plan(self, seeds: Sequence[int], variants: list[dict[str, Any]], title: str = "") -> StudyPlan:
        named = {"title": title} if title else {}
        return make_plan(
            {**named, "seeds": list(seeds), **self.content, "cells": variants}, source="the tuning"
        )


def ask_search(
    domain: str,
    requirement: str | None,
    *,
    trials: int = TRIALS,
    at_once: int = AT_ONCE,
    finals: int = FINALS,
    judges: int = JUDGES,
    seed: int = 0,
    over: Sequence[str] | Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    learner: str | None = None,
    learner_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> SearchConfig:
    """The search that is asked for; its arguments are those of `psyco.tune`."""
    if not isinstance(domain, str):
        raise RunError(f"tuning takes the name of a domain, as in 'particle-dance', got {domain!r}")
    if not requirement:
        raise RunError(
            "tuning needs a requirement, since it looks for the best certified return: "
            "--require 'P>=0.9 [ G ... ] & C>=0.98', as text or file"
        )
    if check_count("trials", trials, 0) < 2:
        raise RunError(
            f"trials must be at least 2, got {trials}: the first is the defaults, the others are tried"
        )
    if trials > APART:
        raise RunError(f"trials must be at most {APART:,}, got {trials:,}")
    if check_seed(seed) > LAST_SEED:
        raise RunError(f"a tuning has further seeds of its own: begin at {LAST_SEED} or below, got {seed}")
    if "seed" in (settings or {}):
        raise RunError("settings.seed = ... is not allowed: a tuning has seeds of its own, from seed=0 on")
    name, fixed = learner or TUNED_BY_DEFAULT, dict(learner_options or {})
    check_known(
        "learner to tune", name, LEARNERS
    )  # "auto" is none: its options are those of whichever it chooses
    content = {
        "requirement": requirement,
        "domain": {**(parameters or {}), "name": domain},
        "learner": {**fixed, "name": name},
        "settings": dict(settings or {}),
    }
    search = SearchConfig(
        {key: value for key, value in content.items() if value},
        _ranges(name, fixed, over),
        trials,
        check_count("at_once", at_once),
        check_count("finals", finals),
        check_count("judges", judges),
        seed,
    )
    if judges > MOST_JUDGES or finals > MOST_JUDGES:
        raise RunError(f"finals and judges must be at most {MOST_JUDGES}, got {finals:,} and {judges:,}")
    search.trial(
        0, {}
    )  # says what is wrong with domain, requirement, options and settings, as far as that is data
    return search


def _ranges(learner: str, fixed: Mapping[str, Any], over: Any) -> dict[str, NumberRange | OptionChoice]:
    """The options to try: those that the learner declares, or those that are named, with the ranges that are given."""
    options, declared = learner_options(learner), learner_ranges(learner)
    if over is None:
        found = {name: each for name, each in declared.items() if name not in fixed}
        if not found:
            raise RunError(
                f"nothing is left to tune of {learner}: name an option and its range, as in alpha=0.001:0.1"
            )
        return found
    named = over if isinstance(over, Mapping) else dict(str(each).partition("=")[::2] for each in over)
    check_has(learner, "option", named, options)
    if not named:
        raise RunError("over names no option; leave it out for those that the learner declares")
    found = {}
    for name, text in named.items():
        if name in fixed:
            raise RunError(f"{name} is given and tuned; give it once")
        if not text and name not in declared:
            raise RunError(
                f"{learner} declares no range for {name}: say it, as in {name}=0.01:0.3 or {name}=10,20,40"
            )
        found[name] = (
            read_range(name, str(text), options[name], declared.get(name)) if text else declared[name]
        )
    return found
