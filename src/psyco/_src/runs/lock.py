"""A lock, so that at most one process works on a run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from psyco._src.core.errors import RunError

LOCK = ".lock"
PATIENCE = 0.25  # seconds: `is_locked` of another process holds the lock for an instant
NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # refuses to open the target of a link


def lock(folder: Path, *, patience: float = PATIENCE) -> AbstractContextManager[None]:
    """Lock a folder until the block ends; the system releases the lock when the process dies.

    Args:
        folder: to lock.
        patience: seconds to wait for another process.
    """
    return lock_file(folder / LOCK, folder, patience=patience)


@contextmanager
def lock_file(path: Path, what: Path, *, patience: float = PATIENCE) -> Iterator[None]:
    """Lock a file until the block ends; `what` names the locked object in error messages."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644)
    except OSError as error:
        raise RunError(f"cannot write in {path.parent}: {error.strerror}") from None
    try:
        if not _acquire_soon(descriptor, patience):
            holder = os.read(descriptor, 64).decode(errors="replace").strip()
            raise RunError(
                f"{what} is in use by another process{f' ({holder})' * bool(holder)}; "
                "wait until it ends, or stop it first"
            )
        # The holder is written for the message above only, so a full disk is no error.
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()}\n".encode())
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a process is working in this folder."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | NO_LINK)
    except (OSError, ValueError):
        return False
    try:
        return not _acquire(descriptor)
    finally:
        os.close(descriptor)


def _acquire_soon(descriptor: int, patience: float) -> bool:
    """Acquire the lock, with attempts for some seconds."""
    for _ in range(round(patience / 0.05)):
        if _acquire(descriptor):
            return True
        time.sleep(0.05)
    return False


def _acquire(descriptor: int) -> bool:
    """Acquire the lock without waiting; closing the descriptor releases it."""
    try:
        try:
            import fcntl
        except ImportError:  # Windows
            import msvcrt

            # Far behind the text, since such a lock also prevents reading the bytes it covers.
            os.lseek(descriptor, 1 << 20, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
