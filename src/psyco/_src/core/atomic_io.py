"""Atomic, durable file writes: after a crash a file holds either its old or its new content."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from psyco._src.core.errors import RunError

RUN_FILE_SUFFIXES = (".toml", ".props", ".csv", ".safetensors", ".json", ".ckpt")


def write(path: Path, data: bytes) -> None:
    """Replace a file in one step: temporary file, fsync, rename, fsync of the folder.

    A kill or a power cut at any moment leaves either the old content or the new one.
    """
    if not path.name or os.path.isdir(path):
        raise RunError(f"cannot write {str(path)!r}: it is a folder; give the name of a file")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if os.path.lexists(temporary):  # left by a kill, or a planted link to another file
            temporary.unlink()
        with temporary.open("xb") as file:
            file.write(data)
            sync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # on a full or read-only disk, removal may fail too
            if os.path.lexists(temporary):
                temporary.unlink()
        raise write_error(path, error) from None
    except ValueError as error:
        raise RunError(f"cannot write {str(path)!r}: {error}") from None


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
