"""The command line: one file per command, registered here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from psyco.cli import domains, render, reproduce, synthesize, verify
from psyco.errors import PsycoError

app = typer.Typer(
    help="Synthesize and verify policies under probabilistic constraints.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("domains")(domains.domains)
app.command("synthesize")(synthesize.synthesize)
app.command("verify")(verify.verify)
app.command("render")(render.render)
app.command("reproduce")(reproduce.reproduce)


@app.callback()
def root(
    compile_cache: Annotated[
        bool, typer.Option(help="Keep compiled simulators on disk, so that the next run starts sooner.")
    ] = True,
) -> None:
    """Synthesize and verify policies under probabilistic constraints."""
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


def _use_compile_cache() -> None:
    """JAX's persistent cache in the user's cache folder, unless the user has set one up."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(base) / "psyco" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
