"""The configuration of a run: complete data, and a file that `psyco synthesize --config` accepts.

    requirement = "P>=0.85 [ G (distance >= 0.1 | collisions <= 1) ] & C>=0.98"
    [domain]      name and parameters
    [learner]     name and options
    [settings]    episodes or steps, seed, ...: the fields of `Settings`
    [tracking]    to = ["tensorboard"]

A hand-written file needs a domain and a requirement only. Reading it makes no domain and imports no code that it names.
The execution of a run (workers, a cluster) is not part of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from psyco._src.core import files
from psyco._src.core.errors import PsycoError, RunError, suggest
from psyco._src.core.files import from_toml, read_text
from psyco._src.core.options import KINDS, Declaration, declared
from psyco._src.envs.registry import DomainDescription
from psyco._src.learners.learner_registry import AUTO_LEARNER, LEARNERS, learner_options
from psyco._src.logic.parser import parse
from psyco._src.runs.settings import Settings, check_one_budget
from psyco._src.runs.tracking import TRACKERS

if TYPE_CHECKING:
    from psyco._src.runs.problem import Problem

HEADER = "# The configuration of a PSyCo run; `psyco synthesize --config FILE` repeats it.\n"
SEAL = "# sha256 "  # of the lines above it; it distinguishes a damaged file from an intact one

SETTINGS = {f.name for f in dataclasses.fields(Settings)} - {"learner", "options"}
TABLES = ("requirement", "domain", "learner", "settings", "tracking")


@dataclass(frozen=True)
class Config:
    """The complete description of a run."""

    domain: str
    requirement: str
    parameters: dict[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    tracking: tuple[str, ...] = ()

    @property
    def description(self) -> DomainDescription:
        """The domain as data."""
        return DomainDescription(self.domain, self.parameters)

    def complete(self, problem: Problem) -> Config:
        """Write out formulas about agents, and every default, so that versions with other defaults repeat the run."""
        return dataclasses.replace(
            self,
            requirement=problem.requirement.text if self._is_written_out(problem) else self.requirement,
            parameters=dict(problem.description.parameters),
            settings=problem.settings,
        )

    def _is_written_out(self, problem: Problem) -> bool:
        written = problem.requirement.text.strip()
        return bool(written) and written != self.requirement.strip()

    @property
    def identity(self) -> str:
        """Hash of everything that determines the state after a generation; the budget is not part of it."""
        settings = dataclasses.asdict(self.settings)
        del settings["episodes"], settings["steps"], settings["stop_after"]
        # A configuration that is read from its file has lost the options that are None.
        content = [self.domain, self.parameters, self.requirement, _without_none(settings)]
        return files.json_digest(content)

    def to_toml(self) -> str:
        """Return the configuration as text with a checksum, which `is_sealed` verifies."""
        settings = {f.name: getattr(self.settings, f.name) for f in dataclasses.fields(Settings)}
        tables = {
            "requirement": self.requirement,
            "domain": {"name": self.domain, **self.parameters},
            "learner": {"name": self.settings.learner, **self.settings.options},
            "settings": {name: value for name, value in settings.items() if name in SETTINGS},
            "tracking": {"to": list(self.tracking)},
        }
        try:
            text = HEADER + tomli_w.dumps(_without_none(tables), multiline_strings=True)
        except TypeError as error:
            raise RunError(
                f"this run cannot be written to a file: {error}; run folders hold numbers and text only"
            ) from None
        return f"{text}{SEAL}{files.digest(text.encode())}\n"


def is_sealed(text: str) -> bool:
    """Return whether a configuration is exactly the output of `to_toml`."""
    above, seal, checksum = text.rpartition(SEAL)
    return bool(seal) and checksum == files.digest(above.encode()) + "\n"


def load_config(path: Path) -> Config:
    """Read and check a configuration file."""
    return read_config(read_text(path, "configuration"), str(path))


def read_config(text: str, source: str) -> Config:
    """Check a configuration; errors name the key, its value and the allowed values."""
    content = from_toml(text, source)
    try:
        return config_of(content)
    except PsycoError as error:
        raise RunError(f"{source}: {error}") from None


def config_of(content: Mapping[str, Any]) -> Config:
    """Check the content of a configuration file."""
    _check_keys("", content, TABLES)
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
    _check_kinds("learner", learner, known)

    _check_keys("settings.", settings, sorted(SETTINGS), homes={"learner": known})
    _check_kinds("settings", settings, declared(Settings))
    if settings.get("episodes") and settings.get("steps"):
        check_one_budget(episodes=settings["episodes"], steps=settings["steps"])
    _check_keys("tracking.", tracking, ["to"])
    trackers = tracking.get("to", [])
    if not isinstance(trackers, list):
        raise RunError(f'tracking.to = {trackers!r} is not allowed: it must be a list, as in ["tensorboard"]')
    for tracker in trackers:
        _check_choice("tracking.to", tracker, TRACKERS)
    return Config(
        domain=domain["name"],
        requirement=content["requirement"],
        parameters=parameters,
        settings=Settings(
            learner=name,
            options={key: _frozen(value) for key, value in learner.items()},
            **{key: _frozen(value) for key, value in settings.items()},
        ),
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


def _check_kinds(table: str, given: Mapping[str, Any], known: Mapping[str, Declaration]) -> None:
    """Raise an error for a value of another type than declared; ranges are checked when the value is used."""
    for key, value in given.items():
        kind = known[key].kind if key in known else None
        if kind is not None and type(value) not in ((int, float) if kind is float else (kind,)):
            raise RunError(f"{table}.{key} = {value!r} is not allowed: it must be {KINDS[kind][1]}")


def _frozen(value: Any) -> Any:
    """Convert lists to tuples, recursively: static arguments of compiled functions must be hashable."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _without_none(value: Any) -> Any:
    """Leave out None, which TOML lacks; a missing value is None again when read."""
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return value
