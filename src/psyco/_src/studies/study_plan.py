"""What a study runs: a file, or the same content as a dictionary, becomes cells; each is the configuration of a run.

    title = "What does a stricter requirement cost?"
    seeds = 5                                    # 0 to 4; or a list, or "10:20"

    [domain]                                     # as in config.toml of a run: what all cells share
    name = "particle-dance"
    [settings]
    episodes = 20_000

    [grid]                                       # all combinations of these, with every seed
    requirement = ["P>=0.8 [ ... ]", { name = "strict", text = "P>=0.95 [ ... ]" }]
    learner = ["snes", { name = "safe-es", sigma = 0.2 }]
    hidden = [16, 32]                            # a setting
    domain.horizon = [50, 100]                   # a parameter of the domain; so with learner.OPTION

    [[cells]]                                    # a list instead of a grid, or beside it: single combinations
    label = "wide"
    hidden = 128
    seeds = 20                                   # its own, instead of those above

Settings, options and parameters are those of a run, whatever there is: this file knows none of them by name. Like
config.toml a study is data: reading it makes no domain, and imports nothing that it names.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import tomli_w

from psyco._src.core import atomic_io
from psyco._src.core.checks import check_seed
from psyco._src.core.errors import PsycoError, RunError, suggest
from psyco._src.core.safe_io import from_toml, read_text
from psyco._src.envs.base import Domain
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.registry import needed_code, remake
from psyco._src.envs.trust import NOBODY
from psyco._src.learners.learner_registry import AUTO_LEARNER
from psyco._src.logic.parser import parse
from psyco._src.runs.config import SETTINGS, Config, config_of
from psyco._src.runs.problem import prepare
from psyco._src.runs.settings import Settings
from psyco._src.studies.pruning import PruningThreshold

STUDY = "study.toml"  # the plan, in the study's folder
TABLES = ("domain", "learner", "settings")
KEYS = ("title", "seeds", "requirement", *TABLES, "grid", "cells")
MOST_CELLS = 10_000
ALL_TASKS = "all tasks"  # what tables call them together
LONGEST_LABEL = 60  # characters of a requirement that has no name


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    `task` says what is to be done (the domain and the requirement), `method` how (the learner and everything else);
    cells that have both in common differ in their seeds alone.
    """

    config: Config
    task: str
    method: str
    bar: PruningThreshold | None = None  # below which it ends before its time

    @property
    def seed(self) -> int:
        """Of its run."""
        return self.config.settings.seed

    @cached_property
    def name(self) -> str:
        """Of its folder: readable words, and a hash of all that its result is a function of."""
        words = f"{self.config.domain}-{self.config.settings.learner}-seed{self.seed}"
        return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', words).strip('-.')[:80]}-{content_hash(self.config)[:12]}"

    @cached_property
    def kind(self) -> str:
        """What it has in common with the same cell at other seeds, so that compiled code serves them all."""
        return content_hash(replace(self.config, settings=replace(self.config.settings, seed=0)))

    @property
    def called(self) -> str:
        """A name for it in sentences."""
        return f"{self.task}, {self.method}, seed {self.seed}"


@dataclass(frozen=True)
class StudyPlan:
    """A study before it runs."""

    title: str
    cells: tuple[Cell, ...]
    content: dict[str, Any]  # what it was made of, as the file has it

    @property
    def tasks(self) -> list[str]:
        """In the order of the file."""
        return list(dict.fromkeys(cell.task for cell in self.cells))

    @property
    def methods(self) -> list[str]:
        """In the order of the file."""
        return list(dict.fromkeys(cell.method for cell in self.cells))

    @property
    def code(self) -> list[str]:
        """The `module:name` that its domains would import."""
        return sorted({code for cell in self.cells for code in needed_code(cell.config.description)})

    def to_toml(self) -> str:
        """The study as a file."""
        try:
            return "# A study of PSyCo; `psyco study` goes on with it.\n" + tomli_w.dumps(
                self.content, multiline_strings=True
            )
        except TypeError as error:
            raise RunError(
                f"this study can't be written down: {error}; it holds numbers and text only"
            ) from None


def content_hash(config: Config) -> str:
    """What a run is a function of, in one word.

    What is false, 0 or nothing is left out, so that settings may be added later without another name for every run.
    Options are numbers of ours, for which 1 and 1.0 are the same; what a domain makes of them is not known.
    """
    settings = {name: value for name, value in asdict(config.settings).items() if value}
    if "options" in settings:
        settings["options"] = {name: _whole(value) for name, value in settings["options"].items()}
    what = [config.domain, config.parameters, str(parse(config.requirement)), settings]
    return atomic_io.digest(json.dumps(what, sort_keys=True, default=str).encode())


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_plan(path: Path, *, seeds: Any = None) -> StudyPlan:
    """The study of a file, checked as far as that goes without making a domain.

    Args:
        path: of the file, or of a study's folder, which holds one.
        seeds: instead of those of the file, for every cell.
    """
    file = path / STUDY if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise RunError(f"{path} is not the folder of a study: it has no {STUDY}")
    return make_plan(from_toml(read_text(file, "configuration"), str(file)), source=str(file), seeds=seeds)


def make_plan(content: Mapping[str, Any], *, source: str = "the study", seeds: Any = None) -> StudyPlan:
    """The study that a dictionary describes; errors name the key, and what is allowed there.

    Args:
        content: as the file has it.
        source: what errors call it.
        seeds: instead of those of the content, for every cell.
    """
    whole = _plain(dict(content))
    try:
        if seeds is not None:
            whole["seeds"] = _plain(seeds)
            for each in _listed(whole.get("cells", [])):
                each.pop("seeds", None)
        return _planned(whole)
    except PsycoError as error:
        raise RunError(f"{source}: {error}") from None


def _plain(content: Any) -> Any:
    """A copy in what a file can hold: whole numbers of NumPy and ranges are as good as ours."""
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple | range):
        return [_plain(value) for value in content[: MOST_CELLS + 1]]
    if isinstance(content, Integral) and not isinstance(content, bool):
        return int(content)
    return copy.deepcopy(content)


def check_plan(plan: StudyPlan, trust: Collection[str] = NOBODY) -> None:
    """Refuse a study one of whose cells cannot start: its domain, requirement, learner or settings don't fit.

    Every domain is made once; no episode is played.
    """
    domains: dict[str, Domain] = {}
    checked: set[str] = set()
    for cell in plan.cells:
        if cell.kind in checked:
            continue
        checked.add(cell.kind)
        config = cell.config
        key = json.dumps(config.description, sort_keys=True, default=str)
        try:
            if key not in domains:
                domains[key] = remake(config.description, trust)
            # Sampled scaling and the choice of a learner play episodes, which checking need not.
            settings = replace(config.settings, scaling="none")
            if settings.learner == AUTO_LEARNER and isinstance(domains[key], GymDomain):
                settings = replace(settings, learner="ppo")
            prepare(domains[key], parse(config.requirement), settings)
        except PsycoError as error:
            raise RunError(f"{cell.task}, {cell.method}: {error}") from None


# ---- from the content to cells -----------------------------------------------------------------------------------


def _planned(content: dict[str, Any]) -> StudyPlan:
    _check_keys("", content, KEYS)
    title = content.get("title", "")
    if not isinstance(title, str):
        raise RunError(f"title = {title!r} is not allowed: it must be text")
    seeds = _seeds(content["seeds"]) if "seeds" in content else None
    base = {key: content[key] for key in ("requirement", *TABLES) if key in content}
    for name in TABLES:
        if not isinstance(base.get(name, {}), dict):
            raise RunError(f"{name} = {base[name]!r} is not allowed: it must be a table, [{name}]")
    if "seed" in base.get("settings", {}):
        raise RunError("settings.seed = ... is not allowed: a study says seeds = 5, or a list of them")
    variants = list(_variants(base, content.get("grid", {}), content.get("cells", [])))
    runs = sum(len(variant.seeds or seeds or _seeds(None)) for variant in variants)
    if runs > MOST_CELLS:
        raise RunError(
            f"{len(variants):,} combinations with their seeds are {runs:,} runs, "
            f"and a study has at most {MOST_CELLS:,}; split it"
        )
    cells = []
    for variant, (task, method) in zip(variants, _names(variants), strict=True):
        for seed in variant.seeds or seeds or ():
            settings = {**variant.content.get("settings", {}), "seed": seed}
            try:
                config = config_of({**variant.content, "settings": settings})
            except PsycoError as error:
                raise RunError(f"{f'{method}: ' if len(variants) > 1 else ''}{error}") from None
            cells.append(Cell(config, task, method))
    _check_different(cells)
    return StudyPlan(title, tuple(cells), content)


def _seeds(given: Any) -> list[int]:
    hint = 'it takes a number of seeds, as in 5, a range, as in "10:20", or a list, as in [3, 4, 7]'
    if given is None:
        raise RunError(f"seeds is missing: one run answers nothing; {hint}")
    if isinstance(given, str) and re.fullmatch(r"\d{1,10}", given):
        given = int(given)  # from the command line
    if isinstance(given, str) and (found := re.fullmatch(r"(\d{1,10}):(\d{1,10})", given)):
        first, last = map(int, found.groups())
        values: Sequence[Any] = range(first, last)
    elif isinstance(given, int) and not isinstance(given, bool):
        values = range(given)
    elif isinstance(given, list | tuple | range):
        values = given
    else:
        raise RunError(f"seeds = {given!r} is not allowed: {hint}")
    if not 0 < len(values) <= MOST_CELLS:
        raise RunError(f"seeds = {given!r} are {len(values):,} seeds; at least 1, at most {MOST_CELLS:,}")
    seeds = [check_seed(seed) for seed in values]
    if len(set(seeds)) < len(seeds):
        raise RunError(f"seeds = {given!r} is not allowed: a seed stands in it twice")
    return seeds


@dataclass(frozen=True)
class _Variant:
    """A cell before it has its seed."""

    content: dict[str, Any]  # of a run's configuration
    changed: dict[str, Any]  # dotted key -> its value, where cells may differ
    requirement: str  # its name, or nothing
    label: str = ""
    seeds: list[int] | None = None  # its own; None: those of the study


def _listed(cells: Any) -> list[dict[str, Any]]:
    """The tables of [[cells]]."""
    if not isinstance(cells, list) or not all(isinstance(each, dict) for each in cells):
        raise RunError("cells must be a list of tables: [[cells]]")
    return cells


def _variants(base: dict[str, Any], grid: Any, listed: Any) -> Iterator[_Variant]:
    if not isinstance(grid, dict):
        raise RunError(f"grid = {grid!r} is not allowed: it must be a table, [grid]")
    if grid or not listed:
        axes = dict(_axes(grid))
        for key, values in axes.items():
            for name in _keys(key, values):
                if _given(base, name):
                    raise RunError(f"{name} stands in [grid], and outside of it; give it once")
                if name != key and name in axes:
                    raise RunError(
                        f"{name} stands in [grid] on its own, and in a table of {key}; give it once"
                    )
        _check_size([len(values) for values in axes.values()])
        for chosen in itertools.product(*axes.values()):
            yield _changed(base, dict(zip(axes, chosen, strict=True)))
    for number, each in enumerate(_listed(listed), 1):
        own = dict(each)
        label = own.pop("label", "")
        if not isinstance(label, str):
            raise RunError(f"label = {label!r} in [[cells]] number {number} is not allowed: it must be text")
        try:
            seeds = _seeds(own.pop("seeds")) if "seeds" in own else None
            yield replace(_changed(base, dict(_flat(own))), label=label, seeds=seeds)
        except PsycoError as error:
            raise RunError(f"[[cells]] number {number}: {error}") from None


def _check_size(lengths: Iterable[int]) -> None:
    total = 1
    for length in lengths:
        total *= length
        if total > MOST_CELLS:
            raise RunError(f"the grid has more than {MOST_CELLS:,} combinations; split the study")


def _axes(grid: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """The values of each dotted key."""
    for key, values in _flat(grid):
        if not isinstance(values, list | tuple | range):
            raise RunError(f"grid.{key} = {values!r} is not allowed: it must be a list of values")
        if not values:
            raise RunError(f"grid.{key} is empty, so that there would be no run at all; leave it out")
        different: list[Any] = []
        for value in values:
            if any(value == other and type(value) is type(other) for other in different):
                raise RunError(f"grid.{key} has {value!r} twice")
            different.append(value)
        yield key, different


def _keys(key: str, values: Iterable[Any]) -> list[str]:
    """What an axis sets: its own key, and those of its tables."""
    tables = [value for value in values if isinstance(value, dict) and key in TABLES]
    return list(
        dict.fromkeys([key, *(f"{key}.{name}" for table in tables for name in table if name != "name")])
    )


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys in full: `hidden` is `settings.hidden`, and a table `learner` without a name holds options."""
    for key, value in table.items():
        if key == "seed" or key == "settings.seed" or key == "seeds":
            raise RunError(f"{key} is no axis: a study says seeds = 5 at its beginning, or a list of them")
        if key in SETTINGS:
            yield f"settings.{key}", value
        elif key in TABLES and isinstance(value, dict) and (key == "settings" or "name" not in value):
            for name, each in value.items():
                yield from _flat({f"{key}.{name}": each})
        elif key in ("requirement", "domain", "learner") or key.partition(".")[0] in TABLES:
            yield key, value
        else:
            known = ["requirement", "domain", "learner", *SETTINGS]
            raise RunError(
                f"unknown key {key!r}{suggest(key, known)}; allowed are: requirement, domain, learner, "
                f"domain.PARAMETER, learner.OPTION, and the settings {', '.join(n for n in SETTINGS if n != 'seed')}"
            )


def _given(base: Mapping[str, Any], key: str) -> bool:
    table, _, name = key.partition(".")
    return key in base if key == "requirement" else (name or "name") in base.get(table, {})


def _changed(base: dict[str, Any], changes: dict[str, Any]) -> _Variant:
    content = copy.deepcopy(base)
    requirement = ""
    changed = dict(changes)
    for key, value in changes.items():
        table, _, name = key.partition(".")
        if key == "requirement":
            text, requirement = _named(value)
            content["requirement"] = changed[key] = text
        elif name:
            content.setdefault(table, {})[name] = value
        elif isinstance(value, str):
            content.setdefault(table, {})["name"] = value
        elif isinstance(value, dict) and isinstance(value.get("name"), str):
            content[table] = {**content.get(table, {}), **value}
            changed.pop(key)
            changed |= {f"{table}.{k}" if k != "name" else table: v for k, v in value.items()}
        else:
            raise RunError(
                f'{key} = {value!r} is not allowed: it must be a name, or a table as in {{ name = "..." }}'
            )
    return _Variant(content, changed, requirement)


def _named(value: Any) -> tuple[str, str]:
    """The text of a requirement, and its name."""
    if isinstance(value, str):
        return value, ""
    if isinstance(value, dict):
        _check_keys("requirement.", value, ("name", "text"))
        if all(isinstance(value.get(key), str) for key in ("name", "text")):
            return value["text"], value["name"]
    raise RunError(
        f'requirement = {value!r} is not allowed: it must be text, or {{ name = "...", text = "..." }}'
    )


# ---- what things are called --------------------------------------------------------------------------------------


def _names(variants: list[_Variant]) -> Iterator[tuple[str, str]]:
    """Task and method of every variant, in those words in which they differ."""
    keys = dict.fromkeys(key for variant in variants for key in variant.changed)
    varied = [
        key for key in keys
        if len({json.dumps(variant.changed.get(key), sort_keys=True, default=str) for variant in variants}) > 1
    ]  # fmt: skip
    for variant in variants:
        words = {key: _word(key, variant) for key in varied if key in variant.changed}
        task = [word for key, word in words.items() if key.partition(".")[0] in ("domain", "requirement")]
        method = [word for key, word in words.items() if key.partition(".")[0] in ("learner", "settings")]
        domain = variant.content.get("domain", {}).get("name", "?")
        learner = variant.content.get("learner", {}).get("name", Settings().learner)
        if "learner" not in words:
            method = [str(learner), *method] if method else [str(learner)]
        yield ", ".join(task) or str(domain), variant.label or ", ".join(method)


def _word(key: str, variant: _Variant) -> str:
    value = variant.changed[key]
    if key == "requirement":
        return variant.requirement or _short(str(value))
    return str(value) if key in ("domain", "learner") else f"{key.rpartition('.')[2]}={value}"


def _short(requirement: str) -> str:
    """Its constraints, as far as there is room."""
    try:
        parsed = parse(requirement)
        constraints = [str(c).removeprefix(f'"{c.name}": ') for c in parsed.constraints]
        named = [c.name for c in parsed.constraints if c.name]
    except PsycoError:
        constraints, named = [requirement], []
    text = ", ".join(named) if named and len(named) == len(constraints) else "; ".join(constraints)
    text = " ".join(text.split()) or "unconstrained"
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 3]}..."


def _check_different(cells: list[Cell]) -> None:
    names: dict[str, Cell] = {}
    called: dict[tuple[str, str, int], Cell] = {}
    for cell in cells:
        if cell.task == ALL_TASKS:
            raise RunError(f"a task cannot be called {ALL_TASKS!r}, as tables call all of them together")
        if cell.name in names:
            other = names[cell.name]
            what = cell.called if cell.called == other.called else f"{other.called} and {cell.called}"
            raise RunError(f"the same run is asked for twice: {what}; leave one out")
        key = cell.task, cell.method, cell.seed
        if key in called:
            raise RunError(
                f"two different runs are both called {cell.called}; give them other names: "
                "requirement = { name = ..., text = ... }, or label = ... in [[cells]]"
            )
        names[cell.name] = called[key] = cell


def _check_keys(table: str, given: Iterable[str], known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            raise RunError(
                f"unknown key {table + key!r}{suggest(key, known)}; allowed are: {', '.join(known)}"
            )
