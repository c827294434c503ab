"""The command line. Only `main` is here, so that even Ctrl-C while the rest is imported ends as it should."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from threading import Timer
from typing import NoReturn

AGAIN = 0.5  # seconds, in which the callback is left


def main() -> None:
    """Run the program; expected errors are one message and exit status 2, an interruption is 130 or 143."""
    try:
        signal.signal(signal.SIGTERM, _terminate)
        sys.unraisablehook = _unheard
        _keep_results_apart()
        from psyco._src.cli.app import app
        from psyco._src.cli.common import visible
        from psyco._src.core.errors import PsycoError

        try:
            app()
        except PsycoError as error:
            print(f"error: {visible(str(error))}", file=sys.stderr)
            sys.exit(2)
        except OSError as error:  # what nobody nearer to the file had a better word for
            about = f"{error.filename}: " if error.filename else ""
            problem = (
                f"{about}{error.strerror or error}; check the path, its permissions and the room on the disk"
            )
            print(f"error: {visible(problem)}", file=sys.stderr)
            sys.exit(2)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(
                error
            ):  # JAX's word for it
                raise
            why = str(error).partition("\n")[0] or "no more can be had"
            remedy = "shorter episodes, a smaller population or network, or fewer workers need less"
            print(f"error: this needs more memory than there is ({visible(why)}); {remedy}", file=sys.stderr)
            sys.exit(2)
    except KeyboardInterrupt as interruption:
        print("interrupted", file=sys.stderr)
        sys.exit(status_of(interruption))


def _keep_results_apart() -> None:
    """Standard output is for results: what C code and child processes of environments print goes to standard error."""
    before = sys.__stdout__
    if before is None or sys.stdout is not before:  # there is none, or somebody catches what we say
        return
    with suppress(OSError):  # no standard error
        results = os.dup(1)
        os.dup2(2, 1)
        sys.stdout = os.fdopen(results, "w", buffering=1, encoding=before.encoding, errors=before.errors)


def status_of(interruption: KeyboardInterrupt) -> int:
    """The exit status that shells know: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + next(iter(interruption.args), signal.SIGINT)


def _unheard(what: sys.UnraisableHookArgs) -> None:
    """An interruption that comes in a callback of the garbage collector (JAX has one) is lost: it comes again."""
    if isinstance(what.exc_value, KeyboardInterrupt) and os.name == "posix":
        number = next(iter(what.exc_value.args), signal.SIGINT)
        Timer(AGAIN, os.kill, [os.getpid(), number]).start()  # not from here, where it would be lost as well
    else:
        sys.__unraisablehook__(what)


def _terminate(number: int, frame: object) -> NoReturn:
    """A container, a batch system, a shutdown: what was learned is to be kept as after Ctrl-C."""
    raise KeyboardInterrupt(number)
