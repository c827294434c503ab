"""`psyco report`: an HTML page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import psyco
from psyco._src.cli.common import Host, Port, open_server, remark, say


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    out: Annotated[Path | None, typer.Option(help="File name; default: report.html in the run folder.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the page live while the run goes on.")] = False,
    host: Host = "127.0.0.1",
    port: Port = 0,
) -> None:
    """Write one self-contained HTML page about a run, or serve it live.

    This makes no environment and runs no code that the run names.

    Example: `psyco report runs/dance`
    """
    found = psyco.open_run(run)
    for problem in found.problems:
        remark(f"note: {problem}")
    if serve:
        _serve(run, host, port)
    else:
        say(f"page: {psyco.report(found, out)}")


def _serve(run: Path, host: str, port: int) -> None:
    from psyco._src.reports.run_page import LiveRun

    server = open_server(LiveRun(run), host, port)
    # Flushed, so that a parent process can read the address.
    print(f"live page: {server.url}  (Ctrl-C ends it)", flush=True)
    server.serve()
