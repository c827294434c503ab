"""The configuration of a run: exact, complete, and a file that `psyco synthesize --config` takes.

    requirement = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"
    [domain]      name, and its parameters
    [learner]     name, and its hyperparameters
    [settings]    episodes or steps, seed, ...: the fields of `Settings`
    [tracking]    to = ["tensorboard"]

A file by hand needs no more than a domain and a requirement. It is data: reading it makes no domain and imports
nothing that it names. How a run is computed (workers, a cluster) is no part of it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from psyco._src.core import atomic_io
from psyco._src.envs.registry import DomainDescription, describe
from psyco._src.core.checks import KINDS
from psyco._src.core.errors import PsycoError, RunError, suggest
from psyco._src.learners.learner_registry import AUTO_LEARNER, LEARNERS, learner_options
from psyco._src.core.safe_io import from_toml, read_text
from psyco._src.runs.tracking import TRACKERS
from psyco._src.logic.parser import parse
from psyco._src.runs.settings import Settings, check_one_budget

if TYPE_CHECKING:
    from psyco._src.runs.problem import Problem

HEADER = "# The configuration of a PSyCo run; `psyco synthesize --config FILE` repeats it.\n"
SEAL = "# sha256 "  # of the lines above it: tells a damaged file from an intact one

SETTINGS = {f.name: f for f in dataclasses.fields(Settings) if f.name not in ("learner", "options")}
TABLES = ("requirement", "domain", "learner", "settings", "tracking")
FORMER = ("execution",)  # a table that earlier versions wrote; what it says is not taken from a file any more


@dataclass(frozen=True)
class Config:
    """What is run, and how."""

    domain: str
    requirement: str
    parameters: dict[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    tracking: tuple[str, ...] = ()

    @property
    def description(self) -> DomainDescription:
        """The domain, as data."""
        return DomainDescription(self.domain, self.parameters)

    def complete(self, problem: Problem) -> Config:
        """The same with every default written out, so that later versions with other defaults repeat it."""
        options = {name: getattr(problem.learner, name) for name in learner_options(problem.settings.learner)}
        return dataclasses.replace(
            self,
            parameters=dict(describe(problem.domain).parameters),
            settings=dataclasses.replace(problem.settings, options=options),
        )

    @property
    def identity(self) -> str:
        """Hash of all that determines where learning stands after a generation; how long it goes on is not part."""
        settings = dataclasses.asdict(self.settings)
        del settings["episodes"], settings["steps"]
        if not settings["start_from"]:  # there were runs before one could start from a policy
            del settings["start_from"]
        what = [self.domain, self.parameters, self.requirement, settings]
        return atomic_io.digest(json.dumps(what, sort_keys=True, default=str).encode())

    def to_toml(self) -> str:
        """The configuration as text, sealed: `is_sealed` tells whether somebody has changed it since."""
        settings = {name: getattr(self.settings, name) for name in SETTINGS}
        tables = {
            "requirement": self.requirement,
            "domain": {"name": self.domain, **self.parameters},
            "learner": {"name": self.settings.learner, **self.settings.options},
            "settings": settings,
            "tracking": {"to": list(self.tracking)},
        }
        try:
            text = HEADER + tomli_w.dumps(_without_none(tables), multiline_strings=True)
        except TypeError as error:
            raise RunError(
                f"this run can't be written down: {error}; run folders hold numbers and text only"
            ) from None
        return f"{text}{SEAL}{atomic_io.digest(text.encode())}\n"


def is_sealed(text: str) -> bool:
    """Whether a configuration is exactly as it was written by `to_toml`."""
    above, seal, checksum = text.rpartition(SEAL)
    return bool(seal) and checksum == atomic_io.digest(above.encode()) + "\n"


def load_config(path: Path) -> Config:
    """Read a configuration file, checked."""
    return read_config(read_text(path, "configuration"), str(path))


def read_config(text: str, source: str) -> Config:
    """A checked configuration; errors name the key, its value and what is allowed there."""
    content = from_toml(text, source)
    try:
        return config_of(content)
    except PsycoError as error:
        raise RunError(f"{source}: {error}") from None


def config_of(content: Mapping[str, Any]) -> Config:
    """The same of what such a file holds."""
    _check_keys("", [key for key in content if key not in FORMER], TABLES)
    domain = _table(content, "domain")
    learner = _table(content, "learner")
    settings = _table(content, "settings")
    tracking = _table(content, "tracking")
    for table, values in {"requirement": content, "domain.name": domain}.items():
        name = table.rpartition(".")[2]
        if not isinstance(values.get(name), str):
            raise RunError(f"{table} = {values.get(name, '(missing)')!r} is not allowed: it must be text")
    parse(content["requirement"])
    parameters = {name: _frozen(value) for name, value in domain.items() if name != "name"}

    name = learner.pop("name", Settings().learner)
    _check_choice("learner.name", name, (AUTO_LEARNER, *LEARNERS))
    known = learner_options(name)
    _check_keys("learner.", learner, known)
    _check_types("learner", learner, known)

    _check_keys("settings.", settings, SETTINGS, homes={"learner": known})
    # How many hidden units is one number or several; Settings says which.
    _check_types("settings", settings, {f.name: f.default for f in SETTINGS.values() if f.name != "hidden"})
    if settings.get("episodes") and settings.get("steps"):
        check_one_budget(episodes=settings["episodes"], steps=settings["steps"])
    _check_keys("tracking.", tracking, ["to"])
    trackers = tracking.get("to", [])
    if not isinstance(trackers, list):
        raise RunError(f'tracking.to = {trackers!r} is not allowed: it must be a list, as in ["tensorboard"]')
    for tracker in trackers:
        _check_choice("tracking.to", tracker, TRACKERS)
    options = {key: _frozen(value) for key, value in learner.items()}
    settings = {key: _frozen(value) for key, value in settings.items()}
    return Config(
        domain=domain["name"],
        requirement=content["requirement"],
        parameters=parameters,
        settings=Settings(learner=name, options=options, **settings),
        tracking=tuple(trackers),
    )


def _table(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name, {})
    if not isinstance(value, dict):
        raise RunError(f"{name} = {value!r} is not allowed: it must be a table, [{name}]")
    return dict(value)


def _check_keys(
    table: str, given: Iterable[str], known: Iterable[str], homes: Mapping[str, Iterable[str]] | None = None
) -> None:
    for key in given:
        if key not in (names := list(known)):
            home = next((home for home, keys in (homes or {}).items() if key in keys), None)
            hint = f" (it belongs to [{home}])" if home else suggest(key, names)
            raise RunError(f"unknown key {table + key!r}{hint}; allowed are: {', '.join(names)}")


def _check_choice(key: str, value: Any, known: Iterable[str]) -> None:
    if value not in (names := list(known)):
        hint = suggest(value, names) if isinstance(value, str) else ""
        raise RunError(f"{key} = {value!r} is not allowed{hint}; allowed are: {', '.join(names)}")


def _check_types(table: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """A value must be of the kind that the default is of; a whole number is a number."""
    for key, value in given.items():
        kind = type(defaults.get(key))
        fits = type(value) in ((int, float) if kind is float else (kind,))
        if kind in KINDS and not fits:
            raise RunError(f"{table}.{key} = {value!r} is not allowed: it must be {KINDS[kind]}")


def _frozen(value: Any) -> Any:
    """Lists as tuples, all the way down: what compiles must be hashable."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _without_none(value: Any) -> Any:
    """TOML has no None: what is None is left out, and is None again when read."""
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return value
