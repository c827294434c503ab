"""One process per run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from psyco._src.core.errors import RunError

LOCK = ".lock"
NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # what a link leads to is not ours to write to


def lock(folder: Path) -> AbstractContextManager[None]:
    """Hold the folder until the block ends; the system lets go of it when the process dies, however it dies."""
    return lock_file(folder / LOCK, folder)


@contextmanager
def lock_file(path: Path, what: Path) -> Iterator[None]:
    """The same for anything that a file of its own may stand for."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644)
    except OSError as error:
        raise RunError(f"cannot write in {path.parent}: {error.strerror}") from None
    try:
        if not _seize_soon(descriptor):
            holder = os.read(descriptor, 64).decode(errors="replace").strip()
            raise RunError(
                f"{what} is in use by another process{f' ({holder})' * bool(holder)}; "
                "wait until it ends, or stop it first"
            )
        # Who holds it is only for the message above: a full disk is no reason to stop here.
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()}\n".encode())
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a process is at work in this folder right now."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | NO_LINK)
    except (OSError, ValueError):
        return False
    try:
        return not _seize(descriptor)
    finally:
        os.close(descriptor)


def _seize_soon(descriptor: int) -> bool:
    """Take the lock; whoever only looks whether it is taken holds it for an instant."""
    for _ in range(5):
        if _seize(descriptor):
            return True
        time.sleep(0.05)
    return False


def _seize(descriptor: int) -> bool:
    """Take the lock without waiting; closing the descriptor gives it back."""
    try:
        try:
            import fcntl
        except ImportError:  # Windows
            import msvcrt

            # Far behind the text, since such a lock also keeps others from reading what it covers.
            os.lseek(descriptor, 1 << 20, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
