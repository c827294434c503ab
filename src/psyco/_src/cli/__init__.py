"""The command line. Only `main` is here, so that even Ctrl-C while the rest is imported ends as it should."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


def main() -> None:
    """Run the program; expected errors are one message and exit status 2, an interruption is 130 or 143."""
    try:
        signal.signal(signal.SIGTERM, _terminate)
        from psyco._src.cli.app import app
        from psyco._src.cli.common import visible
        from psyco._src.errors import PsycoError

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
    except KeyboardInterrupt as interruption:
        print("interrupted", file=sys.stderr)
        sys.exit(status_of(interruption))


def status_of(interruption: KeyboardInterrupt) -> int:
    """The exit status that shells know: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + next(iter(interruption.args), signal.SIGINT)


def _terminate(number: int, frame: object) -> NoReturn:
    """A container, a batch system, a shutdown: what was learned is to be kept as after Ctrl-C."""
    raise KeyboardInterrupt(number)
