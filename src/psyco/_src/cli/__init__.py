"""The command line. Only `main` is here, so that even Ctrl-C while the rest is imported ends as it should."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program; expected errors are one message and exit status 2, an interruption is 130."""
    try:
        from psyco._src.cli.app import app
        from psyco._src.errors import PsycoError

        try:
            app()
        except PsycoError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
