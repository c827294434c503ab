"""What a page may ask for: a domain, parameters, a requirement, a budget; everything else is refused.

Nothing in a request can import code or read a file: a name with a module in it, and a model file, must have been named
on the command line (`--trust`), or lie in the folder of the studio if it is a model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from psyco._src.core.errors import DomainError, RunError
from psyco._src.envs.registry import DomainDescription, check_trust, is_model_name

DOMAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,199}")
PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
REFUSED_PARAMETERS = ("wrappers", "signals", "vary", "adversary")  # they name code, files or whole families
MAX_REQUIREMENT = 5000  # characters
MAX_PARAMETERS = 20
EPISODES = (100, 2_000_000)
CERTIFICATE_EPISODES = (10, 1_000_000)  # at most


class DomainOrder(NamedTuple):
    """A domain that a page asks for."""

    name: str
    parameters: dict[str, Any]


def read_domain(request: Mapping[str, Any], folder: Path, trust: Collection[str]) -> DomainOrder:
    """Return the domain of a request, checked."""
    name = request.get("domain", "")
    if not isinstance(name, str) or not DOMAIN_NAME.fullmatch(name) or ".." in name:
        raise DomainError("choose a domain, such as particle-dance or CartPole-v1")
    given = request.get("parameters", {})
    if not isinstance(given, dict) or len(given) > MAX_PARAMETERS:
        raise DomainError(f"parameters are at most {MAX_PARAMETERS} names with a value each")
    parameters = {key: _value(key, value) for key, value in given.items()}
    allowed = set(trust)
    if is_model_name(name) and name not in allowed:
        name = str(_model_in(folder, name))
        allowed.add(name)
    check_trust(DomainDescription(name, parameters), allowed)
    return DomainOrder(name, parameters)


def _value(name: Any, value: Any) -> Any:
    if not isinstance(name, str) or not PARAMETER_NAME.fullmatch(name) or name in REFUSED_PARAMETERS:
        raise DomainError(f"the studio sets no parameter {name!r:.80}; use psyco synthesize --set")
    if isinstance(value, bool | int | float) or (isinstance(value, str) and PLAIN_VALUE.fullmatch(value)):
        return value
    raise DomainError(f"the parameter {name} is a number, true, false or a word")


def _model_in(folder: Path, name: str) -> Path:
    """Return the path of a model that lies directly in the folder of the studio."""
    path = folder / Path(name).name
    if os.path.realpath(path) != os.path.join(os.path.realpath(folder), path.name) or not path.is_file():
        raise DomainError(
            f"there is no model {path.name} in {folder}; put it there, or name it: psyco studio --trust FILE"
        )
    return path


def read_requirement(request: Mapping[str, Any]) -> str:
    """Return the text of a requirement; whether it can be parsed is another question."""
    text = request.get("requirement", "")
    if not isinstance(text, str) or len(text) > MAX_REQUIREMENT or "\0" in text:
        raise RunError(f"a requirement is a text of at most {MAX_REQUIREMENT:,} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RunError("the requirement has characters that are no text") from None
    return text


def read_whole(request: Mapping[str, Any], name: str, low: int, high: int, default: int) -> int:
    """Return a whole number of a request."""
    value = request.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high or value != int(value):
        raise RunError(f"{name} is a whole number from {low:,} to {high:,}")
    return int(value)


def read_fraction(request: Mapping[str, Any], name: str, default: float) -> float:
    """Return a number between 0 and 1 of a request, both excluded."""
    value = request.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < 1.0:
        raise RunError(f"{name} is a number between 0 and 1")
    return float(value)


def read_run_name(request: Mapping[str, Any], folder: Path, domain: str, taken: Collection[str] = ()) -> str:
    """Return the name of a new run folder: the given one, or one that is free and not `taken` by a job."""
    name = request.get("name") or ""
    if name:
        if not isinstance(name, str) or not RUN_NAME.fullmatch(name):
            raise RunError("the name of a run has letters, digits, - and _, at most 64 of them")
        if name in taken or os.path.lexists(folder / name):
            raise RunError(f"{name} exists already; choose another name")
        return name
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(domain).stem if is_model_name(domain) else domain).strip("-")[:40]
    number = 1
    while (name := f"{stem or 'run'}-{number}") in taken or os.path.lexists(folder / name):
        number += 1
    return name


def as_arguments(order: DomainOrder, trust: Collection[str]) -> list[str]:
    """Return the domain as arguments of a command."""
    found = [order.name]
    for name, value in order.parameters.items():
        found += ["--set", f"{name}={value}"]
    for name in trust:
        found += ["--trust", name]
    return found
