"""`psyco studio`: from a sentence to a certified policy in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psyco._src.cli.common import Trust, trusted


def studio(
    folder: Annotated[Path, typer.Argument(help="Folder with runs; new ones are made here.")] = Path("runs"),
    trust: Trust = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 0,
    at_once: Annotated[
        int, typer.Option("--jobs", min=1, max=64, help="Number of runs that learn at the same time; others wait.")
    ] = 1,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Open the studio in the browser: write a requirement, plan, play, learn, and look at runs.

    It is served to this machine only, at an address with a secret in it. Runs are processes of their own, which go on
    when the studio is closed. No text in a page can import code: name it here with --trust.

    Example: `psyco studio runs --trust my_env:Courier`
    """
    from psyco._src.studio.serve import serve_studio

    serve_studio(
        folder,
        trust=trusted(trust, None),
        port=port,
        at_once=at_once,
        open_browser=open_browser,
        # Flushed, so that a parent process can read the address.
        announce=lambda address: print(f"studio: {address}  (Ctrl-C ends it; runs go on)", flush=True),
    )
