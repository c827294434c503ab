"""What environments print while they are made, shown once: simulators say the same at every construction."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import IO

_shown: set[str] = set()  # lines


def shown() -> frozenset[str]:
    """The lines that were shown so far, for processes that are to keep them to themselves."""
    return frozenset(_shown)


def know(lines: Iterable[str]) -> None:
    """Take these lines as shown already."""
    _shown.update(lines)


@contextmanager
def shown_once() -> Iterator[None]:
    """Show on standard error what is printed inside, from C code too, except lines that were shown before."""
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        yield  # other threads print as well
        return
    with _nameless() as heard:
        try:
            with _kept(heard):
                yield
        finally:
            heard.seek(0)
            new = [line for line in heard.read().splitlines() if line.strip() and line not in _shown]
            _shown.update(new)
            for line in dict.fromkeys(new):
                print(line, file=sys.stderr, flush=True)


def _nameless() -> IO[str]:
    """A file that no folder holds; where there are such files, in memory."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("psyco"), "w+", errors="replace")
    return tempfile.TemporaryFile("w+", errors="replace")


@contextmanager
def _kept(heard: IO[str]) -> Iterator[None]:
    """Both standard streams go to a file, as Python and as C know them."""
    _flush()
    with ExitStack() as undo:
        for number in (1, 2):
            with suppress(OSError):  # it may be closed
                before = os.dup(number)
                undo.callback(os.close, before)
                undo.callback(os.dup2, before, number)
                os.dup2(heard.fileno(), number)
        undo.callback(_flush)
        undo.callback(heard.flush)
        undo.enter_context(redirect_stdout(heard))
        undo.enter_context(redirect_stderr(heard))
        yield


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # there may be none, or a stranger's
            stream.flush()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)
