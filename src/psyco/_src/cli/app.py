"""Register all commands, one file each. Importing them imports nothing heavy: help and TAB completion are fast."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Annotated, Any, get_type_hints

import typer

from psyco._src.cli import (
    check,
    compare,
    counterexamples,
    crossplay,
    domains,
    exact,
    explain,
    exploit,
    export,
    pareto,
    plan,
    render,
    report,
    reproduce,
    resume,
    runs,
    status_of,
    stress,
    studio,
    study,
    synthesize,
    tune,
    verify,
    watch,
)
from psyco._src.cli.common import OUTPUT, remark, status
from psyco.version import __version__

PACKAGE = Path(__file__).parents[2]

app = typer.Typer(
    help="Synthesize and verify policies under probabilistic constraints.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


Verbose = Annotated[
    int,
    typer.Option(
        "--verbose", "-v", count=True, show_default=False, help="Log more; twice: debug.", rich_help_panel=OUTPUT
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.", rich_help_panel=OUTPUT)]


def with_verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """Add `-v` and `-q` to a command, so that they may stand before and after its name."""

    @functools.wraps(command)
    def run(*arguments: Any, verbose: int = 0, quiet: bool = False, **keywords: Any) -> None:
        _set_verbosity(verbose, quiet)
        try:
            command(*arguments, **keywords)
        except KeyboardInterrupt as interruption:
            remark("interrupted")
            raise typer.Exit(status_of(interruption)) from None

    kinds = get_type_hints(command, include_extras=True) | {"verbose": Verbose, "quiet": Quiet}
    own = inspect.signature(command).parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in {"verbose": 0, "quiet": False}.items()
    ]
    every = [each.replace(annotation=kinds[each.name]) for each in (*own, *added)]
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]  # typer reads it
    return run


# Commands by purpose, in the order of `psyco --help`.
GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "Before you start": {
        "check": check.check,
        "domains": domains.domains,
        "explain": explain.explain,
        "plan": plan.plan,
    },
    "Learn": {
        "studio": studio.studio,
        "synthesize": synthesize.synthesize,
        "resume": resume.resume,
        "study": study.study,
        "pareto": pareto.pareto,
        "tune": tune.tune,
    },
    "Verify": {
        "verify": verify.verify,
        "stress": stress.stress,
        "exploit": exploit.exploit,
        "crossplay": crossplay.crossplay,
        "exact": exact.exact,
    },
    "Inspect": {
        "runs": runs.runs,
        "report": report.report,
        "render": render.render,
        "counterexamples": counterexamples.counterexamples,
        "compare": compare.compare,
    },
    "After deployment": {"export": export.export, "watch": watch.watch},
    "The paper": {"reproduce": reproduce.reproduce},
}
COMMANDS = {name: function for group in GROUPS.values() for name, function in group.items()}
for title, group in GROUPS.items():
    for name, function in group.items():
        app.command(name, rich_help_panel=title)(with_verbosity(function))


def show_version(wanted: bool) -> None:
    """Print the versions that a bug report needs, and exit."""
    if wanted:
        typer.echo(f"psyco {__version__} (Python {python_version()}, jax {_installed('jax')})")
        raise typer.Exit


@app.callback()
def root(
    compile_cache: Annotated[
        bool, typer.Option(help="Cache compiled simulators on disk, so that the next run starts faster.")
    ] = True,
    verbose: Verbose = 0,
    quiet: Quiet = False,
    show: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Synthesize and verify policies under probabilistic constraints."""
    _set_up_logging(logging.WARNING)
    warnings.showwarning = _show_warning
    status.quiet = False
    _set_verbosity(verbose, quiet)
    if compile_cache:
        _use_compile_cache()


class _StatusHandler(logging.Handler):
    """Print log lines through the status console, above a live display."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line, unwrapped."""
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        remark(f"{level}{record.getMessage()}", style="dim")


def _show_warning(message: Warning | str, category: type[Warning], filename: str, *where: Any, **other: Any) -> None:
    """Print a Python warning: one of our own as a sentence, any other with its place in the code."""
    place = "" if Path(filename).is_relative_to(PACKAGE) else f"{filename}: {category.__name__}: "
    remark(f"warning: {place}{message}")


def _set_verbosity(verbose: int, quiet: bool) -> None:
    if verbose or quiet:
        _set_up_logging(logging.ERROR if quiet else max(logging.DEBUG, logging.WARNING - 10 * verbose))
        status.quiet = quiet


def _set_up_logging(level: int) -> None:
    """Send log messages from `level` on to standard error; the log of a run has its own handler."""
    logger = logging.getLogger("psyco")
    for handler in [h for h in logger.handlers if isinstance(h, _StatusHandler)]:
        logger.removeHandler(handler)
    logger.addHandler(_StatusHandler(level))
    logger.setLevel(min(level, logging.INFO))
    logger.propagate = False


def _use_compile_cache() -> None:
    """Enable JAX's persistent cache in the user's cache folder, unless one is set. JAX reads this when imported."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(base) / "psyco" / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
