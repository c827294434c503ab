"""Safe reading of files of unknown origin.

Pipes, devices, links that lead out of a run's folder, oversized files and deeply nested JSON or TOML are refused at
once, with an error that names the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from psyco._src.core.errors import MissingFileError, RunError

MB = 2**20
SIZE_LIMITS = {  # bytes of a file of each kind; also listed in docs/security.md
    "key": MB,
    "requirement": MB,
    "configuration": MB,
    "table of parameters": 16 * MB,
    "certificate": 16 * MB,
    "description of a run": 16 * MB,
    "sample episodes": 16 * MB,
    "progress": MB,
    "played episodes": 128 * MB,
    "state of a watch": 16 * MB,
    "risk": 16 * MB,
    "model": 64 * MB,
    "table of metrics": 256 * MB,
    "checkpoint": 1024 * MB,
    "policy": 1024 * MB,
    "recording": 1024 * MB,
}
MAX_JSON_DEPTH = 300  # nested objects and lists; the tree of the deepest requirement has about 200
MAX_TOML_DEPTH = 20
# Keys with 50 dots or more: Python's parser takes quadratic time for them.
_DEEP_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){50,}+""")
INT_LIMIT = 2**63  # integers must fit 64 bits

_FILE_TYPES = {
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
    """Return the whole content of a regular file.

    Args:
        path: of the file.
        kind: one of `SIZE_LIMITS`.
        inside: folder of the run; the path must not lead out of it through a link.
        growing: the file may grow while it is read; the content at the start of reading is returned.
        limit: largest size in bytes, if not that of the kind.

    Raises:
        MissingFileError: if there is no such file.
        RunError: if it cannot be read.
    """
    limit = SIZE_LIMITS[kind] if limit is None else limit
    cannot = f"cannot read the {kind} {path}"
    try:
        if inside is not None and leads_outside(path, inside):
            raise RunError(f"{cannot}: it is a link out of {inside}; put a copy of the file in its place")
        with open(path, "rb", opener=_open_at_once) as file:
            status = _check_regular(file.fileno(), cannot)
            if status.st_size > limit:
                raise RunError(f"{cannot}: it has {status.st_size:,} bytes, and at most {limit:,} are read")
            data = file.read(status.st_size + 1)  # bounded, even if the file grows while it is read
    except FileNotFoundError:
        raise MissingFileError(f"{cannot}: there is no file of that name") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        raise RunError(f"{cannot}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) < status.st_size or (len(data) > status.st_size and not growing):
        raise RunError(f"{cannot}: it changed while it was read; try again when no program writes to it")
    return data[: status.st_size]


def read_part(path: str | Path, kind: str, start: int, size: int) -> bytes:
    """Return at most `size` bytes from offset `start` of a file that may be growing; empty beyond its end."""
    cannot = f"cannot read the {kind} {path}"
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            _check_regular(file.fileno(), cannot)
            file.seek(start)
            return file.read(size)
    except FileNotFoundError:
        raise MissingFileError(f"{cannot}: there is no file of that name") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{cannot}: {getattr(error, 'strerror', None) or error}") from None


def read_text(path: str | Path, kind: str, *, inside: Path | None = None, growing: bool = False) -> str:
    """Return the text of a UTF-8 file; arguments and errors are those of `read_bytes`."""
    data = read_bytes(path, kind, inside=inside, growing=growing)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise RunError(f"cannot read the {kind} {path}: it is not a text file in UTF-8") from None


def from_json(text: str | bytes, origin: str) -> Any:
    """Return the content of a JSON text with finite numbers, limited depth and no key twice in an object.

    Raises:
        RunError: names the text `origin`.
    """
    try:
        return _checked(json.loads(text, object_pairs_hook=_without_duplicates), MAX_JSON_DEPTH)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{origin} is damaged, or no JSON file: {_reason(error)}") from None


def check_limits(content: Any, origin: str) -> Any:
    """Return parsed content after the checks of `from_json`."""
    try:
        return _checked(content, MAX_JSON_DEPTH)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{origin} is damaged: {_reason(error)}") from None


def from_toml(text: str, origin: str) -> dict[str, Any]:
    """Return the content of a TOML text, with the checks and errors of `from_json`."""
    import tomllib  # here, because a deployed policy does not load it

    try:
        if _DEEP_KEY.search(text):
            raise RecursionError
        return _checked(tomllib.loads(text), MAX_TOML_DEPTH)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{origin} is not a TOML file: {_reason(error)}") from None


def leads_outside(path: str | Path, folder: Path) -> bool:
    """Return whether a path leads out of a folder through a link."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def check_folder(folder: Path, *, exclude: tuple[str, ...] = ()) -> None:
    """Raise RunError if a folder holds links that lead out of it, pipes or devices: writing would reach those.

    Args:
        folder: of a run.
        exclude: names of subfolders that other programs write, with links of their own.
    """
    for path in _entries(folder, exclude):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) and leads_outside(path, folder):
            raise RunError(f"{path} is a link out of {folder}; nothing is written there. Remove it first")
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            raise RunError(f"{path} is {_FILE_TYPES.get(stat.S_IFMT(mode), 'not a regular file')}; remove it first")


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for the writer of a pipe; Windows has no such pipes."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_regular(descriptor: int, cannot: str) -> os.stat_result:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        file_type = _FILE_TYPES.get(stat.S_IFMT(status.st_mode), "not a regular file")
        raise RunError(f"{cannot}: it is {file_type}; give the name of a file")
    return status


def _entries(folder: Path, exclude: tuple[str, ...]) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):  # `walk` does not follow links
        yield from (Path(parent, name) for name in (*folders, *files))
        folders[:] = [name for name in folders if name not in exclude]


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs; two parsers may disagree about which of two equal keys counts."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r:.100} appears twice in an object")
    return content


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _checked(value: Any, depth: int) -> Any:
    """Return the value after a check of its depth and numbers, without recursion: later code may recurse safely."""
    level = [value]
    for _ in range(depth):
        level = [item for container in level for item in _values(container)]
        for item in level:
            if isinstance(item, float) and not math.isfinite(item):
                raise ValueError(f"{item} is not a finite number")
            if isinstance(item, int) and abs(item) >= INT_LIMIT:
                raise ValueError("a whole number is too large")
        if not level:
            return value
    raise RecursionError


def _values(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()


# Atomic, durable file writes: after a crash a file holds either its old or its new content.


RUN_FILE_SUFFIXES = (".toml", ".props", ".csv", ".safetensors", ".json", ".ckpt")
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")


def write(path: Path, data: bytes) -> None:
    """Replace a file in one step: temporary file, fsync, rename, fsync of the folder.

    A kill or a power cut at any moment leaves either the old content or the new one. The name of the temporary file is
    random, so several processes may write the same file: the last one to finish determines its content.
    """
    if not path.name or os.path.isdir(path):
        raise RunError(f"cannot write {str(path)!r}: it is a folder; give the name of a file")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:  # "x": an existing file or link of that name is an error
            file.write(data)
            sync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # on a full or read-only disk, removal may fail too
            temporary.unlink()
        raise write_error(path, error) from None
    except ValueError as error:
        raise RunError(f"cannot write {str(path)!r}: {error}") from None


def target_of(name: str) -> str | None:
    """Return the name of the file that a temporary file of `write` was to replace; None for another file."""
    found = _TEMPORARY.fullmatch(name)
    return found[1] if found else None


def remove_leftovers(folder: Path, *, exclude: Collection[str] = ()) -> None:
    """Remove the temporary files that killed processes left in a folder; the caller holds its lock.

    Args:
        folder: of a run or of a study.
        exclude: names of files that other programs write without the lock.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            if (target := target_of(path.name)) is not None and target not in exclude:
                path.unlink(missing_ok=True)


def sync(descriptor: int) -> None:
    """Wait until the written data has reached the disk."""
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable, where the system can."""
    if os.name == "nt":  # Windows has no descriptors of folders, and its renames are journalled
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def write_error(path: Path, error: OSError) -> RunError:
    """Return the error for a failed write; for a file of a run it names the command that resumes the run."""
    problem = f"cannot write {path}: {error.strerror or error}; its previous content is intact"
    is_run_file = path.suffix in RUN_FILE_SUFFIXES and any(
        os.path.exists(folder / "config.toml") for folder in (path.parent, path.parent.parent)
    )
    remedy = ". Free disk space or fix the permissions, then continue with `psyco resume`"
    return RunError(problem + remedy * is_run_file)


def digest(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def json_digest(content: Any) -> str:
    """Return the SHA-256 of plain data as JSON, whatever the order of its keys; other objects count by their text."""
    return digest(json.dumps(content, sort_keys=True, default=str).encode())
