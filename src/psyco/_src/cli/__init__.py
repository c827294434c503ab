"""Entry point of the command line. Only `main` is here, so that Ctrl-C during the other imports is handled."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from threading import Timer
from typing import NoReturn

RESEND_DELAY = 0.5  # seconds, after which a callback has returned


def main() -> None:
    """Run the program: an expected error is one message and exit status 2, an interruption is 130 or 143."""
    try:
        signal.signal(signal.SIGTERM, _terminate)
        sys.unraisablehook = _resend_interrupt
        _keep_results_apart()
        from psyco._src.cli.app import app
        from psyco._src.cli.common import visible
        from psyco._src.core.errors import PsycoError

        try:
            app(prog_name="psyco")  # also as `python -m psyco`: TAB completion is registered under this name
        except PsycoError as error:
            print(f"error: {visible(str(error))}", file=sys.stderr)
            sys.exit(2)
        except OSError as error:  # not handled closer to the file
            about = f"{error.filename}: " if error.filename else ""
            problem = f"{about}{error.strerror or error}; check the path, its permissions and the room on the disk"
            print(f"error: {visible(problem)}", file=sys.stderr)
            sys.exit(2)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):  # JAX's word for it
                raise
            why = str(error).partition("\n")[0] or "no memory left"
            remedy = "use shorter episodes, a smaller population or network, or fewer workers"
            print(f"error: this needs more memory than is available ({visible(why)}); {remedy}", file=sys.stderr)
            sys.exit(2)
    except KeyboardInterrupt as interruption:
        print("interrupted", file=sys.stderr)
        sys.exit(status_of(interruption))


def _keep_results_apart() -> None:
    """Reserve standard output for results: prints of C code and of environments' processes go to standard error."""
    before = sys.__stdout__
    if before is None or sys.stdout is not before:  # there is none, or it is captured
        return
    with suppress(OSError):  # there is no standard error
        results = os.dup(1)
        os.dup2(2, 1)
        sys.stdout = os.fdopen(results, "w", buffering=1, encoding=before.encoding, errors=before.errors)


def status_of(interruption: KeyboardInterrupt) -> int:
    """Return the conventional exit status: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + next(iter(interruption.args), signal.SIGINT)


def _resend_interrupt(what: sys.UnraisableHookArgs) -> None:
    """Send an interruption again that was lost in a callback of the garbage collector (JAX has one)."""
    if isinstance(what.exc_value, KeyboardInterrupt) and os.name == "posix":
        number = next(iter(what.exc_value.args), signal.SIGINT)
        Timer(RESEND_DELAY, os.kill, [os.getpid(), number]).start()  # from here it would be lost again
    else:
        sys.__unraisablehook__(what)


def _terminate(number: int, frame: object) -> NoReturn:
    """Treat SIGTERM (a container, a batch system, a shutdown) like Ctrl-C, so that the run is saved."""
    raise KeyboardInterrupt(number)
