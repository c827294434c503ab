"""Code of strangers is a guest in this process: what it does to the things that all share is put right again."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from multiprocessing import parent_process
from typing import Any, NoReturn

from psyco._src.core.errors import told

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0  # for environments to close

_place: str | None = None  # the working folder that guests chose; they find it again


@contextmanager
def as_guest() -> Iterator[None]:
    """Run a stranger's code: the working folder, Ctrl-C and standard output stay ours, and so does the process.

    What it prints goes to standard error, since results go to standard output. What it raises to end the process
    (`sys.exit`, a panic of Rust code) becomes an ordinary error, and so does `os._exit`: else its exit status would be
    taken for a verdict.
    """
    try:
        with _things_of_all():
            yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RuntimeError(f"it tried to end the process ({told(error)})") from error


def close(*envs: Any) -> None:
    """Close environments; those that fail or hang cost one warning, and never a result."""
    over = time.monotonic() + CLOSE_SECONDS
    problems = []
    for env in envs:
        try:
            with as_guest(), _at_most(max(0.1, over - time.monotonic())):
                env.close()
        except Exception as error:
            problems.append(f"{type(env.unwrapped).__name__}: {told(error)}")
    if problems:
        logger.warning("%d of %d environments do not close: %s", len(problems), len(envs), problems[0])


@contextmanager
def _things_of_all() -> Iterator[None]:
    global _place
    if threading.current_thread() is not threading.main_thread():
        yield  # other threads share them as well, and cannot set signal handlers
        return
    home = _here()
    leave = os._exit
    os._exit = partial(_stay, os.getpid(), leave)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    _enter(_place or home)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os._exit = leave
        _place = _here()
        _enter(home)
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _stay(ours: int, leave: Callable[[int], NoReturn], status: int) -> NoReturn:
    """`os._exit` for guests: they may end what they have forked, and a worker, which is watched; never the program."""
    in_program = os.getpid() == ours and parent_process() is None
    if in_program and threading.current_thread() is threading.main_thread():
        raise SystemExit(status)
    leave(status)


def _here() -> str | None:
    with suppress(OSError):  # somebody has removed it
        return os.getcwd()
    return None


def _enter(folder: str | None) -> None:
    with suppress(OSError):
        if folder is not None and folder != _here():
            os.chdir(folder)


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer, where that is possible: in the main thread, and not on Windows."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"no answer within {seconds:.1f} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)
