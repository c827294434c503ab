"""How every file is read: a plain file of a size that its kind may have, whoever put it there.

A pipe, a device, a link that leads out of a run's folder, a file that goes on for ever, JSON nested a thousand deep:
each is refused at once, with a sentence that names the file.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from psyco._src.core.errors import MissingFileError, RunError

MB = 2**20
LIMITS = {  # bytes of a file of each kind; docs/security.md says so, too
    "key": MB,
    "requirement": MB,
    "configuration": MB,
    "certificate": 16 * MB,
    "description of a run": 16 * MB,
    "sample episodes": 16 * MB,
    "played episodes": 128 * MB,
    "state of a watch": 16 * MB,
    "risk": 16 * MB,
    "table of metrics": 256 * MB,
    "checkpoint": 1024 * MB,
    "policy": 1024 * MB,
    "recording": 1024 * MB,
}
JSON_DEPTH = 300  # objects and lists inside each other; the tree of the deepest requirement has about 200
TOML_DEPTH = 20
# Dotted keys far beyond TOML_DEPTH, for which Python's parser takes quadratic time; no text has so many dots.
_DEEP_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){50,}+""")
LARGEST_WHOLE = 2**63  # what a file says is counted in 64 bits

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_bytes(
    path: str | Path,
    kind: str,
    *,
    inside: Path | None = None,
    growing: bool = False,
    limit: int | None = None,
) -> bytes:
    """The whole content of a file; RunError says what is wrong with it, MissingFileError that there is none.

    Args:
        path: of the file.
        kind: what it should be, one of `LIMITS`.
        inside: the folder of the run that it belongs to; a link must not lead out of that.
        growing: somebody may append to it meanwhile; what was there at first is read.
        limit: bytes, if not those of its kind.
    """
    limit = LIMITS[kind] if limit is None else limit
    cannot = f"cannot read the {kind} {path}"
    try:
        if inside is not None and leads_out(path, inside):
            raise RunError(f"{cannot}: it is a link out of {inside}; put a copy of the file in its place")
        with open(path, "rb", opener=_open_at_once) as file:
            found = _check_plain(file.fileno(), cannot)
            if found.st_size > limit:
                raise RunError(f"{cannot}: it has {found.st_size:,} bytes, and at most {limit:,} are read")
            data = file.read(found.st_size + 1)  # never more, however fast it grows
    except FileNotFoundError:
        raise MissingFileError(f"{cannot}: there is no file of that name") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        raise RunError(f"{cannot}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) < found.st_size or (len(data) > found.st_size and not growing):
        raise RunError(f"{cannot}: it changed while it was read; try again when nobody writes to it")
    return data[: found.st_size]


def read_part(path: str | Path, kind: str, start: int, size: int) -> bytes:
    """At most `size` bytes from `start` on, of a file that may be growing; nothing where it ends before that."""
    cannot = f"cannot read the {kind} {path}"
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            _check_plain(file.fileno(), cannot)
            file.seek(start)
            return file.read(size)
    except FileNotFoundError:
        raise MissingFileError(f"{cannot}: there is no file of that name") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{cannot}: {getattr(error, 'strerror', None) or error}") from None


def read_text(path: str | Path, kind: str, *, inside: Path | None = None, growing: bool = False) -> str:
    """The same for a text in UTF-8."""
    data = read_bytes(path, kind, inside=inside, growing=growing)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise RunError(f"cannot read the {kind} {path}: it is not a text file in UTF-8") from None


def from_json(text: str | bytes, origin: str) -> Any:
    """What a JSON text holds: finite numbers, not too deep; RunError calls it `origin`."""
    try:
        return _checked(json.loads(text), JSON_DEPTH)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{origin} is damaged, or no JSON file: {_reason(error)}") from None


def from_toml(text: str, origin: str) -> dict[str, Any]:
    """What a TOML text holds; as `from_json`."""
    import tomllib  # a deployed policy does without

    try:
        if _DEEP_KEY.search(text):
            raise RecursionError
        return _checked(tomllib.loads(text), TOML_DEPTH)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{origin} is not a TOML file: {_reason(error)}") from None


def check_kinds(thing: Any, origin: str) -> None:
    """Refuse a dataclass with values of other kinds than its fields declare: a file may hold anything."""
    for name, kinds in _declared(type(thing)).items():  # type: ignore[arg-type]  # classes can be hashed
        if type(value := getattr(thing, name)) not in kinds:
            raise RunError(f"{origin} is damaged: its {name} is {value!r:.100}")


@cache
def _declared(kind: type) -> dict[str, list[type]]:
    unions = {n: get_args(h) if isinstance(h, UnionType) else (h,) for n, h in get_type_hints(kind).items()}
    unions = {name: (*kinds, int) if float in kinds else kinds for name, kinds in unions.items()}
    return {name: [get_origin(each) or each for each in kinds] for name, kinds in unions.items()}


def leads_out(path: str | Path, folder: Path) -> bool:
    """Whether a path that stands in a folder is a link, or goes through one, to somewhere else."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def check_folder(folder: Path, *, but: tuple[str, ...] = ()) -> None:
    """Refuse to write in a folder that holds links out of it, pipes or devices: they would be written to.

    Args:
        folder: of a run.
        but: names of folders in it that others write in, who may have links of their own.
    """
    for path in _entries(folder, but):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) and leads_out(path, folder):
            raise RunError(f"{path} is a link out of {folder}; nothing is written there. Remove it first")
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            raise RunError(f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'no file')}; remove it first")


def _open_at_once(path: str, flags: int) -> int:
    """A pipe must not keep us waiting for whoever writes into it; Windows has no such pipes."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_plain(descriptor: int, cannot: str) -> os.stat_result:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        what = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        raise RunError(f"{cannot}: it is {what}; give the name of a file")
    return found


def _entries(folder: Path, but: tuple[str, ...]) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):  # which does not follow links
        yield from (Path(parent, name) for name in (*folders, *files))
        folders[:] = [name for name in folders if name not in but]


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _checked(value: Any, depth: int) -> Any:
    """The value, level by level without recursion: whoever walks through it later may recurse."""
    level = [value]
    for _ in range(depth):
        level = [each for container in level for each in _values(container)]
        for each in level:
            if isinstance(each, float) and not math.isfinite(each):
                raise ValueError(f"{each} is no number")
            if isinstance(each, int) and abs(each) >= LARGEST_WHOLE:
                raise ValueError("a whole number is too large")
        if not level:
            return value
    raise RecursionError


def _values(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
