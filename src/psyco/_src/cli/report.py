"""`psyco report`: a page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import psyco
from psyco._src.cli.common import remark, say


def report(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    out: Annotated[
        Path | None, typer.Option(help="The page; default: report.html in the run's folder.")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Show the page live while the run goes on.")] = False,
    host: Annotated[str, typer.Option(help="With --serve: the address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --serve: 0 takes a free one.")] = 0,
) -> None:
    """Write one self-contained HTML page about a run, or serve it live.

    Looking at a run makes no environment and runs no code that the run names.

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
    from psyco._src.pages.serve import RunServer

    server = RunServer(run, host, port)
    if not server.loopback:
        remark(
            f"note: {host} can be reached from other machines. Only who has the address below, with its random part, "
            "can read the page; on its way it is not encrypted"
        )
    # Flushed at once, so that a program that started this one can read the address.
    print(f"live page: {server.url}  (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
