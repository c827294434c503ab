"""`psyco counterexamples`: the episodes in which a policy fails, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import psyco
from psyco._src.cli.common import FilmFormat, Json, OtherDomain, Trust, code_of, say, trusted
from psyco._src.cli.declared_options import declared_options
from psyco._src.cli.display import show_activity

if TYPE_CHECKING:
    from psyco._src.rollout.execution import Execution


@declared_options(trains=False)
def counterexamples(
    execution: Execution,
    policy: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CERTIFICATE|POLICY",
            help="Run folder, or certificate of a run or of traces; or a policy, with its --certificate.",
        ),
    ],
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate of the policy, if it is not in a run folder.")
    ] = None,
    traces: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The traces that the certificate is about, if it has no policy.")
    ] = None,
    worst: Annotated[int, typer.Option(min=1, max=100, help="Number of episodes per constraint.")] = 5,
    film: Annotated[bool, typer.Option(help="Make a film of each episode.")] = True,
    film_format: FilmFormat = "auto",
    out: Annotated[
        Path | None, typer.Option(help="File name of the page; default: counterexamples.html beside the certificate.")
    ] = None,
    domain: OtherDomain = None,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Show the episodes in which a policy violates its requirement, and why; without any, the closest calls.

    The worst episodes of a certificate are played again. Each gets a timeline of the subformulas with the steps that
    decide its verdict, the signals in them, and a film, on one HTML page.

    Examples:

        psyco counterexamples runs/dance --worst 3

        psyco counterexamples model.onnx --certificate certificate.json

        psyco counterexamples field.json --traces field.csv
    """
    code_of(policy)
    with show_activity("playing episodes again"):
        page = (out or _beside(certificate or Path(policy))) if out is not None or not as_json else None
        found = psyco.counterexamples(
            policy,
            certificate=certificate,
            traces=traces,
            domain=domain,
            worst=worst,
            film=film and page is not None,
            film_format=film_format,
            out=page,
            trust=trusted(trust, domain),
            execution=execution,
        )
    if as_json:
        print(found.to_json(), end="")
    else:
        say(str(found))
    if page is not None and not as_json:
        say(f"page: {page}{_note(found, film_format)}")


def _note(found: psyco.Counterexamples, film_format: str) -> str:
    """Return why films are GIFs, if that is the automatic choice."""
    from psyco._src.reports.film import AUTO, MISSING  # loads Pillow

    gifs = film_format == AUTO and any(each.film_type == "image/gif" for each in found)
    return f"\n{MISSING}" if gifs else ""


def _beside(path: Path) -> Path:
    folder = path if path.is_dir() else path.parent
    return folder / "counterexamples.html"
