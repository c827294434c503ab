"""The command line: one file per command, registered here."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from psyco._src.cli import (
    check,
    compare,
    domains,
    exact,
    export,
    plan,
    render,
    report,
    reproduce,
    resume,
    runs,
    synthesize,
    verify,
)
from psyco._src.cli.common import status
from psyco._src.errors import PsycoError

app = typer.Typer(
    help="Synthesize and verify policies under probabilistic constraints.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# In the order in which `psyco --help` lists them.
app.command("synthesize")(synthesize.synthesize)
app.command("resume")(resume.resume)
app.command("verify")(verify.verify)
app.command("plan")(plan.plan)
app.command("exact")(exact.exact)
app.command("runs")(runs.runs)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("render")(render.render)
app.command("domains")(domains.domains)
app.command("check")(check.check)
app.command("export")(export.export)
app.command("reproduce")(reproduce.reproduce)


@app.callback()
def root(
    compile_cache: Annotated[
        bool, typer.Option(help="Keep compiled simulators on disk, so that the next run starts sooner.")
    ] = True,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Say more; twice: say everything.")
    ] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only results and errors.")] = False,
) -> None:
    """Synthesize and verify policies under probabilistic constraints."""
    _set_up_logging(logging.ERROR if quiet else max(logging.DEBUG, logging.WARNING - 10 * verbose))
    status.quiet = quiet
    if compile_cache:
        _use_compile_cache()


def main() -> None:
    """Run the program; expected errors are one message and exit status 2, an interruption is 130."""
    try:
        app()
    except PsycoError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


class _StatusHandler(logging.Handler):
    """Log lines through the status console, so that they stand above a live display and never break it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line, unwrapped."""
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        status.print(
            f"{level}{record.getMessage()}", markup=False, highlight=False, soft_wrap=True, style="dim"
        )


def _set_up_logging(level: int) -> None:
    """What PSyCo logs, from `level` on, goes to standard error; the log of a run has its own handler."""
    logger = logging.getLogger("psyco")
    for handler in [h for h in logger.handlers if isinstance(h, _StatusHandler)]:
        logger.removeHandler(handler)
    handler = _StatusHandler(level)
    logger.addHandler(handler)
    logger.setLevel(min(level, logging.INFO))
    logger.propagate = False


def _use_compile_cache() -> None:
    """JAX's persistent cache in the user's cache folder, unless the user has set one up."""
    import jax

    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(base) / "psyco" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
