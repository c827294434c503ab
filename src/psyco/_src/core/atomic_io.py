"""Files that are whole or not there at all, whatever happens while they are written."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from psyco._src.core.errors import RunError


def write(path: Path, data: bytes) -> None:
    """Replace a file in one step: temporary file, fsync, rename, fsync of the folder.

    A kill or a power cut at any moment leaves either the old content or the new one.
    """
    if not path.name or os.path.isdir(path):
        raise RunError(f"cannot write {str(path)!r}: it is a folder; give the name of a file")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if os.path.lexists(temporary):  # left by a kill, or by a stranger as a link to a file of ours
            temporary.unlink()
        with temporary.open("xb") as file:
            file.write(data)
            sync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # where nothing can be written, nothing can be removed
            if os.path.lexists(temporary):
                temporary.unlink()
        raise failed(path, error) from None
    except ValueError as error:
        raise RunError(f"cannot write {str(path)!r}: {error}") from None


def sync(descriptor: int) -> None:
    """Wait until what was written has reached the disk."""
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


def failed(path: Path, error: OSError) -> RunError:
    """What to say when a file can't be written; a run can go on later."""
    problem = f"cannot write {path}: {error.strerror or error}; what was there before is intact"
    of_a_run = path.suffix in (".toml", ".props", ".csv", ".safetensors", ".json", ".ckpt") and any(
        os.path.exists(folder / "config.toml") for folder in (path.parent, path.parent.parent)
    )
    return RunError(problem + ". Make room or mend it, then go on with `psyco resume`" * of_a_run)


def digest(data: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
