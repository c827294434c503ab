"""The plan of a study: a TOML file, or a dictionary with the same content, becomes cells. A cell configures one run.

    title = "What does a stricter requirement cost?"
    seeds = 5                                    # 0 to 4; or a list, or "10:20"

    [domain]                                     # shared by all cells, as in config.toml of a run
    name = "particle-dance"
    [settings]
    episodes = 20_000

    [grid]                                       # all combinations, each with every seed
    requirement = ["P>=0.8 [ ... ]", { name = "strict", text = "P>=0.95 [ ... ]" }]
    learner = ["snes", { name = "safe-es", sigma = 0.2 }]
    hidden = [16, 32]                            # a setting
    domain.horizon = [50, 100]                   # a parameter of the domain; likewise learner.OPTION

    [[cells]]                                    # single combinations, instead of a grid or in addition to it
    label = "wide"
    hidden = 128
    seeds = 20                                   # replaces the seeds above

The settings and options are those that a run declares; none is named here. Like config.toml a study is data: reading
it makes no domain and imports no code.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any

import tomli_w

from psyco._src.core import files
from psyco._src.core.checks import check_seed
from psyco._src.core.errors import PsycoError, RunError, suggest
from psyco._src.core.files import from_toml, read_text
from psyco._src.envs.base import Domain
from psyco._src.envs.gym_env import GymDomain
from psyco._src.envs.registry import TRUST_NOTHING, make_from_description, required_trust
from psyco._src.learners.learner_registry import AUTO_LEARNER
from psyco._src.logic.parser import parse
from psyco._src.runs.config import SETTINGS, Config, config_of
from psyco._src.runs.problem import prepare
from psyco._src.runs.settings import Settings
from psyco._src.studies.objective import PruningThreshold

PLAN_FILE = "study.toml"  # in the folder of a study
TABLES = ("domain", "learner", "settings")
KEYS = ("title", "seeds", "requirement", *TABLES, "grid", "cells")
MAX_CELLS = 10_000
ALL_TASKS = "all tasks"  # the name of the aggregate over tasks in tables
MAX_LABEL_LENGTH = 60  # characters of a requirement without a name


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    `task` names the domain and the requirement, `method` the learner and its settings. Cells that share both differ in
    their seeds only.
    """

    config: Config
    task: str
    method: str
    pruning: PruningThreshold | None = None  # a run below it is stopped early

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.config.settings.seed

    @cached_property
    def name(self) -> str:
        """Name of the folder: readable words and a hash of everything that determines the result."""
        words = f"{self.config.domain}-{self.config.settings.learner}-seed{self.seed}"
        return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', words).strip('-.')[:80]}-{content_hash(self.config)[:12]}"

    @cached_property
    def compile_key(self) -> str:
        """Hash of everything but the seed: cells with the same key share compiled code."""
        return content_hash(replace(self.config, settings=replace(self.config.settings, seed=0)))

    @property
    def label(self) -> str:
        """Name of the cell in messages."""
        return f"{self.task}, {self.method}, seed {self.seed}"


@dataclass(frozen=True)
class StudyPlan:
    """The cells of a study."""

    title: str
    cells: tuple[Cell, ...]
    content: dict[str, Any]  # of the file

    @property
    def tasks(self) -> list[str]:
        """Distinct tasks in the order of the file."""
        return list(dict.fromkeys(cell.task for cell in self.cells))

    @property
    def methods(self) -> list[str]:
        """Distinct methods in the order of the file."""
        return list(dict.fromkeys(cell.method for cell in self.cells))

    @property
    def code(self) -> list[str]:
        """The `module:name` of all code that the domains import, and the files that their parameters may name."""
        return sorted({code for cell in self.cells for code in required_trust(cell.config.description)})

    def to_toml(self) -> str:
        """Return the plan as the text of a file."""
        try:
            text = tomli_w.dumps(self.content, multiline_strings=True)
        except TypeError as error:
            raise RunError(f"this study cannot be written as TOML: {error}; use numbers and text only") from None
        return f"# A study of PSyCo; `psyco study` continues it.\n{text}"


def content_hash(config: Config) -> str:
    """Return a hash of everything that determines the result of a run.

    Values that are false, 0 or empty are left out, so that a new setting does not rename every run. The options 1 and
    1.0 of a learner are equal; parameters of a domain are not converted, since the domain may distinguish them.
    """
    settings = {name: value for name, value in vars(config.settings).items() if value}
    if "options" in settings:
        settings["options"] = {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in settings["options"].items()
        }
    content = [config.domain, config.parameters, _canonical_requirement(config.requirement), settings]
    return files.json_digest(content)


@lru_cache(maxsize=1024)
def _canonical_requirement(text: str) -> str:
    """Return the text of a parsed requirement; all seeds of a study share it."""
    return str(parse(text))


def read_plan(path: Path, *, seeds: Any = None) -> StudyPlan:
    """Read a plan and check everything that can be checked without making a domain.

    Args:
        path: a file, or the folder of a study, which contains one.
        seeds: replaces the seeds of the file for every cell.
    """
    file = path / PLAN_FILE if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise RunError(f"{path} is not the folder of a study: it has no {PLAN_FILE}")
    text = read_text(file, "configuration", inside=path if path.is_dir() else None)
    return make_plan(from_toml(text, str(file)), source=str(file), seeds=seeds)


def make_plan(content: Mapping[str, Any], *, source: str = "the study", seeds: Any = None) -> StudyPlan:
    """Return the plan that a dictionary describes; errors name the key and the allowed values.

    Args:
        content: of the file.
        source: name of the content in errors.
        seeds: replaces the seeds of the content for every cell.
    """
    plain = _to_plain(dict(content))
    try:
        if seeds is not None:
            plain["seeds"] = _to_plain(seeds)
            for table in _cell_tables(plain.get("cells", [])):
                table.pop("seeds", None)
        return _make_plan(plain)
    except PsycoError as error:
        raise RunError(f"{source}: {error}") from None


def _to_plain(content: Any) -> Any:
    """Copy the content into types that TOML has: NumPy integers become int, ranges and tuples lists."""
    if isinstance(content, dict):
        return {key: _to_plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple | range):
        return [_to_plain(value) for value in content[: MAX_CELLS + 1]]
    if isinstance(content, Integral) and not isinstance(content, bool):
        return int(content)
    return copy.deepcopy(content)


def check_plan(plan: StudyPlan, trust: Collection[str] = TRUST_NOTHING) -> None:
    """Raise RunError if the domain, requirement, learner and settings of a cell do not fit together.

    Every distinct domain is made once; no episode is sampled.
    """
    domains: dict[str, Domain] = {}
    checked: set[str] = set()
    for cell in plan.cells:
        if cell.compile_key in checked:
            continue
        checked.add(cell.compile_key)
        config = cell.config
        key = json.dumps(config.description, sort_keys=True, default=str)
        try:
            if key not in domains:
                domains[key] = make_from_description(config.description, trust)
            # Sampled normalization and the automatic choice of a learner sample episodes; a check does without.
            settings = replace(config.settings, normalization="none")
            if settings.learner == AUTO_LEARNER and isinstance(domains[key], GymDomain):
                settings = replace(settings, learner="ppo")
            prepare(domains[key], parse(config.requirement), settings)
        except PsycoError as error:
            raise RunError(f"{cell.task}, {cell.method}: {error}") from None


# ---- from the content to cells -----------------------------------------------------------------------------------


def _make_plan(content: dict[str, Any]) -> StudyPlan:
    _check_keys("", content, KEYS)
    title = content.get("title", "")
    if not isinstance(title, str):
        raise RunError(f"title = {title!r} is not allowed: it must be text")
    seeds = _read_seeds(content["seeds"]) if "seeds" in content else None
    base = {key: content[key] for key in ("requirement", *TABLES) if key in content}
    for name in TABLES:
        if not isinstance(base.get(name, {}), dict):
            raise RunError(f"{name} = {base[name]!r} is not allowed: it must be a table, [{name}]")
    if "seed" in base.get("settings", {}):
        raise RunError("settings.seed = ... is not allowed: give seeds = 5, or a list, for the study")
    variants = list(_variants(base, content.get("grid", {}), content.get("cells", [])))
    runs = sum(len(variant.seeds or seeds or _read_seeds(None)) for variant in variants)
    if runs > MAX_CELLS:
        raise RunError(
            f"{len(variants):,} combinations with their seeds are {runs:,} runs, "
            f"and a study has at most {MAX_CELLS:,}; split it"
        )
    cells: list[Cell] = []
    for variant, (task, method) in zip(variants, _task_and_method(variants), strict=True):
        try:
            config = config_of(variant.content)
        except PsycoError as error:
            raise RunError(f"{f'{method}: ' if len(variants) > 1 else ''}{error}") from None
        for seed in variant.seeds or seeds or ():
            cells.append(Cell(replace(config, settings=replace(config.settings, seed=seed)), task, method))
    _check_distinct(cells)
    return StudyPlan(title, tuple(cells), content)


def _read_seeds(given: Any) -> list[int]:
    hint = 'it takes a number of seeds, as in 5, a range, as in "10:20", or a list, as in [3, 4, 7]'
    if given is None:
        raise RunError(f"seeds is missing: a study needs several runs of each combination; {hint}")
    if isinstance(given, str) and re.fullmatch(r"\d{1,10}", given):
        given = int(given)  # from the command line
    if isinstance(given, str) and (bounds := re.fullmatch(r"(\d{1,10}):(\d{1,10})", given)):
        values: Sequence[Any] = range(int(bounds[1]), int(bounds[2]))
    elif isinstance(given, int) and not isinstance(given, bool):
        values = range(given)
    elif isinstance(given, list | tuple | range):
        values = given
    else:
        raise RunError(f"seeds = {given!r} is not allowed: {hint}")
    if not 0 < len(values) <= MAX_CELLS:
        raise RunError(f"seeds = {given!r} are {len(values):,} seeds; at least 1, at most {MAX_CELLS:,}")
    seeds = [check_seed(seed) for seed in values]
    if len(set(seeds)) < len(seeds):
        raise RunError(f"seeds = {given!r} is not allowed: it contains a seed twice")
    return seeds


@dataclass(frozen=True)
class _Variant:
    """A combination before it has a seed."""

    content: dict[str, Any]  # of a run's configuration
    changes: dict[str, Any]  # dotted key -> value, for the keys in which cells may differ
    requirement_name: str  # empty: none was given
    label: str = ""
    seeds: list[int] | None = None  # None: the seeds of the study


def _cell_tables(cells: Any) -> list[dict[str, Any]]:
    """Return the tables of [[cells]]."""
    if not isinstance(cells, list) or not all(isinstance(table, dict) for table in cells):
        raise RunError("cells must be a list of tables: [[cells]]")
    return cells


def _variants(base: dict[str, Any], grid: Any, cells: Any) -> Iterator[_Variant]:
    """Yield the combinations of the grid, then the single ones of [[cells]]."""
    if not isinstance(grid, dict):
        raise RunError(f"grid = {grid!r} is not allowed: it must be a table, [grid]")
    if grid or not cells:
        axes = _grid_axes(base, grid)
        for values in itertools.product(*axes.values()):
            yield _make_variant(base, dict(zip(axes, values, strict=True)))
    for number, table in enumerate(_cell_tables(cells), 1):
        own = dict(table)
        label = own.pop("label", "")
        if not isinstance(label, str):
            raise RunError(f"label = {label!r} in [[cells]] number {number} is not allowed: it must be text")
        try:
            seeds = _read_seeds(own.pop("seeds")) if "seeds" in own else None
            yield replace(_make_variant(base, dict(_flatten(own))), label=label, seeds=seeds)
        except PsycoError as error:
            raise RunError(f"[[cells]] number {number}: {error}") from None


def _grid_axes(base: Mapping[str, Any], grid: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the distinct values of each dotted key of the grid."""
    axes: dict[str, list[Any]] = {}
    combinations = 1
    for key, values in _flatten(grid):
        if not isinstance(values, list | tuple | range):
            raise RunError(f"grid.{key} = {values!r} is not allowed: it must be a list of values")
        if not values:
            raise RunError(f"grid.{key} is empty, so that the study would have no run; leave it out")
        combinations *= len(values)
        if combinations > MAX_CELLS:
            raise RunError(f"the grid has more than {MAX_CELLS:,} combinations; split the study")
        distinct = {(type(value), json.dumps(value, sort_keys=True, default=str)): value for value in values}
        if len(distinct) < len(values):
            repeated = next(v for k, v in enumerate(values) if v in values[:k])
            raise RunError(f"grid.{key} has {repeated!r} twice")
        axes[key] = list(values)
    for key, values in axes.items():
        tables = [value for value in values if isinstance(value, dict) and key in TABLES]
        for name in dict.fromkeys([key, *(f"{key}.{k}" for table in tables for k in table if k != "name")]):
            if _is_given(base, name):
                raise RunError(f"{name} is given in [grid] and outside of it; give it once")
            if name != key and name in axes:
                raise RunError(f"{name} is given in [grid] and again in a table of {key}; give it once")
    return axes


def _flatten(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys: `hidden` becomes `settings.hidden`; a table `learner` without a name holds options."""
    for key, value in table.items():
        if key in ("seed", "settings.seed", "seeds"):
            raise RunError(f"{key} cannot vary in a grid: give seeds = 5, or a list, for the study")
        if key in SETTINGS:
            yield f"settings.{key}", value
        elif key in TABLES and isinstance(value, dict) and (key == "settings" or "name" not in value):
            for name, entry in value.items():
                yield from _flatten({f"{key}.{name}": entry})
        elif key in ("requirement", "domain", "learner") or key.partition(".")[0] in TABLES:
            yield key, value
        else:
            known = ["requirement", "domain", "learner", *sorted(SETTINGS)]
            raise RunError(
                f"unknown key {key!r}{suggest(key, known)}; allowed are: requirement, domain, learner, "
                f"domain.PARAMETER, learner.OPTION, and the settings {', '.join(sorted(SETTINGS - {'seed'}))}"
            )


def _is_given(base: Mapping[str, Any], key: str) -> bool:
    table, _, name = key.partition(".")
    return key in base if key == "requirement" else (name or "name") in base.get(table, {})


def _make_variant(base: dict[str, Any], changes: dict[str, Any]) -> _Variant:
    """Apply changes by dotted key to the content that all cells share."""
    content = copy.deepcopy(base)
    requirement_name = ""
    applied = dict(changes)
    for key, value in changes.items():
        table, _, name = key.partition(".")
        if key == "requirement":
            text, requirement_name = _text_and_name(value)
            content["requirement"] = applied[key] = text
        elif name:
            content.setdefault(table, {})[name] = value
        elif isinstance(value, str):
            content.setdefault(table, {})["name"] = value
        elif isinstance(value, dict) and isinstance(value.get("name"), str):
            content[table] = {**content.get(table, {}), **value}
            applied.pop(key)
            applied |= {f"{table}.{k}" if k != "name" else table: v for k, v in value.items()}
        else:
            raise RunError(f'{key} = {value!r} is not allowed: it must be a name, or a table as in {{ name = "..." }}')
    return _Variant(content, applied, requirement_name)


def _text_and_name(requirement: Any) -> tuple[str, str]:
    if isinstance(requirement, str):
        return requirement, ""
    if isinstance(requirement, dict):
        _check_keys("requirement.", requirement, ("name", "text"))
        if all(isinstance(requirement.get(key), str) for key in ("name", "text")):
            return requirement["text"], requirement["name"]
    raise RunError(
        f'requirement = {requirement!r} is not allowed: it must be text, or {{ name = "...", text = "..." }}'
    )


# ---- names of tasks and methods ----------------------------------------------------------------------------------


def _task_and_method(variants: list[_Variant]) -> Iterator[tuple[str, str]]:
    """Yield the names of task and method for every variant, made of the values in which variants differ."""
    keys = dict.fromkeys(key for variant in variants for key in variant.changes)
    varied = [
        key for key in keys
        if len({json.dumps(variant.changes.get(key), sort_keys=True, default=str) for variant in variants}) > 1
    ]  # fmt: skip
    for variant in variants:
        words = {key: _word(key, variant) for key in varied if key in variant.changes}
        task = [word for key, word in words.items() if key.partition(".")[0] in ("domain", "requirement")]
        method = [word for key, word in words.items() if key.partition(".")[0] in ("learner", "settings")]
        domain = variant.content.get("domain", {}).get("name", "?")
        if "learner" not in words:
            method = [str(variant.content.get("learner", {}).get("name", Settings().learner)), *method]
        yield ", ".join(task) or str(domain), variant.label or ", ".join(method)


def _word(key: str, variant: _Variant) -> str:
    value = variant.changes[key]
    if key == "requirement":
        return variant.requirement_name or _abbreviate(str(value))
    return str(value) if key in ("domain", "learner") else f"{key.rpartition('.')[2]}={value}"


def _abbreviate(requirement: str) -> str:
    """Return the names of the constraints if all have one, else their text, cut to MAX_LABEL_LENGTH."""
    try:
        constraints = parse(requirement).constraints
        named = [constraint.name for constraint in constraints if constraint.name]
        texts = [str(constraint).removeprefix(f'"{constraint.name}": ') for constraint in constraints]
    except PsycoError:
        named, texts = [], [requirement]
    text = ", ".join(named) if named and len(named) == len(texts) else "; ".join(texts)
    text = " ".join(text.split()) or "unconstrained"
    return text if len(text) <= MAX_LABEL_LENGTH else f"{text[: MAX_LABEL_LENGTH - 3]}..."


def _check_distinct(cells: list[Cell]) -> None:
    by_name: dict[str, Cell] = {}
    labels: set[tuple[str, str, int]] = set()
    for cell in cells:
        if cell.task == ALL_TASKS:
            raise RunError(f"a task cannot be called {ALL_TASKS!r}: tables use that name for the aggregate")
        if cell.name in by_name:
            both = " and ".join(dict.fromkeys([by_name[cell.name].label, cell.label]))
            raise RunError(f"the same run is asked for twice: {both}; leave one out")
        label = cell.task, cell.method, cell.seed
        if label in labels:
            raise RunError(
                f"two different runs are both called {cell.label}; give them different names: "
                "requirement = { name = ..., text = ... }, or label = ... in [[cells]]"
            )
        by_name[cell.name] = cell
        labels.add(label)


def _check_keys(table: str, given: Iterable[str], known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            raise RunError(f"unknown key {table + key!r}{suggest(key, known)}; allowed are: {', '.join(known)}")
