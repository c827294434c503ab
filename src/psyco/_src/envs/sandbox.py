"""Isolation of environment code, and of other code of users, inside this process.

Such code may change process-wide state (working folder, signal handlers, standard output) or try to end the process;
`sandboxed` restores the state and turns an exit into an error. `deduplicate_output` shows repeated prints once.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from multiprocessing import parent_process
from typing import IO, Any, NoReturn

from psyco._src.core.errors import format_exception

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT = 5.0  # seconds for all environments of a call to close

_sandbox_folder: str | None = None  # working folder that sandboxed code chose; restored for the next call
_printed_lines: set[str] = set()


# ---- process state ----------------------------------------------------------------------------------------------


@contextmanager
def sandboxed() -> Iterator[None]:
    """Run foreign code, then restore the working folder, signal handlers and standard output.

    Its prints go to standard error, since results go to standard output. An attempt to end the process (`sys.exit`,
    `os._exit`, a Rust panic) becomes a RuntimeError: its exit status would be mistaken for a verdict.
    """
    try:
        with _protect_process_state():
            yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RuntimeError(f"it tried to end the process ({format_exception(error)})") from error


def close_envs(*envs: Any) -> None:
    """Close environments; failures and timeouts cost one warning in all, never a result."""
    deadline = time.monotonic() + CLOSE_TIMEOUT
    problems = []
    for env in envs:
        try:
            with sandboxed(), _timeout(max(0.1, deadline - time.monotonic())):
                env.close()
        except Exception as error:
            problems.append(f"{type(env.unwrapped).__name__}: {format_exception(error)}")
    if problems:
        logger.warning("%d of %d environments do not close: %s", len(problems), len(envs), problems[0])


@contextmanager
def _protect_process_state() -> Iterator[None]:
    global _sandbox_folder
    if threading.current_thread() is not threading.main_thread():
        yield  # other threads cannot set signal handlers, and share the rest with the main thread
        return
    folder = _working_folder()
    real_exit = os._exit
    os._exit = partial(_exit_from_sandbox, os.getpid(), real_exit)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    _change_folder(_sandbox_folder or folder)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os._exit = real_exit
        _sandbox_folder = _working_folder()
        _change_folder(folder)
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _exit_from_sandbox(main_pid: int, real_exit: Callable[[int], NoReturn], status: int) -> NoReturn:
    """Replace `os._exit`: sandboxed code may end its forks and a worker process, which is supervised, but not us."""
    in_main_process = os.getpid() == main_pid and parent_process() is None
    if in_main_process and threading.current_thread() is threading.main_thread():
        raise SystemExit(status)
    real_exit(status)


def _working_folder() -> str | None:
    with suppress(OSError):  # the folder may have been removed
        return os.getcwd()
    return None


def _change_folder(folder: str | None) -> None:
    with suppress(OSError):
        if folder is not None and folder != _working_folder():
            os.chdir(folder)


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after `seconds`; only in the main thread, and not on Windows."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"no answer within {seconds:.1f} s")

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous or signal.SIG_DFL)


# ---- output -----------------------------------------------------------------------------------------------------


def printed_lines() -> frozenset[str]:
    """Return the lines that `deduplicate_output` has shown so far, for worker processes."""
    return frozenset(_printed_lines)


def mark_printed(lines: Iterable[str]) -> None:
    """Treat these lines as already shown."""
    _printed_lines.update(lines)


@contextmanager
def deduplicate_output() -> Iterator[None]:
    """Show prints on standard error, from C code too, except for lines shown before.

    Simulators print the same lines whenever an environment is made.
    """
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        yield  # the streams are shared with the other threads' prints
        return
    with _anonymous_file() as capture:
        try:
            with _redirect_streams(capture):
                yield
        finally:
            capture.seek(0)
            new = [line for line in capture.read().splitlines() if line.strip() and line not in _printed_lines]
            _printed_lines.update(new)
            for line in dict.fromkeys(new):
                print(line, file=sys.stderr, flush=True)


def _anonymous_file() -> IO[str]:
    """Return a temporary file without a name, in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("psyco"), "w+", errors="replace")
    return tempfile.TemporaryFile("w+", errors="replace")


@contextmanager
def _redirect_streams(capture: IO[str]) -> Iterator[None]:
    """Redirect standard output and error to a file, for Python and for C code."""
    _flush_streams()
    with ExitStack() as undo:
        for number in (1, 2):
            with suppress(OSError):  # it may be closed
                original = os.dup(number)
                undo.callback(os.close, original)
                undo.callback(os.dup2, original, number)
                os.dup2(capture.fileno(), number)
        undo.callback(_flush_streams)
        undo.callback(capture.flush)
        undo.enter_context(redirect_stdout(capture))
        undo.enter_context(redirect_stderr(capture))
        yield


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be None, or a replacement by other code
            stream.flush()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)
