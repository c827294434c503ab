"""The page of a reproduction: claims, figures, parameters; one self-contained file."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup, escape

from psyco._src.core.templates import template_environment
from psyco._src.paper.claim_outcome import LEVEL, Claim, summary
from psyco._src.paper.experiments import POPULATION, Experiment
from psyco._src.paper.figures import Drawing


class ExperimentSection(NamedTuple):
    """The claims and figures of one experiment."""

    title: str
    claims: list[Claim]
    drawings: list[Drawing]


def make_page(
    parts: list[ExperimentSection],
    experiments: list[Experiment],
    *,
    figures: Path,
    banner: str | None,
    made: Mapping[str, str],
) -> str:
    """Return the page as HTML.

    Args:
        parts: the experiments.
        experiments: those that involve learning, whose parameters are listed.
        figures: folder of the SVG files of all drawings.
        banner: remark above the claims.
        made: origin of the page: versions, machine, time.
    """
    environment = template_environment("psyco._src.paper")
    environment.filters["symbols"] = with_symbols

    def encoded_svg(drawing: Drawing) -> str:
        return base64.b64encode((figures / f"{drawing.name}.svg").read_bytes()).decode()

    return environment.get_template("reproduction.html").render(
        title="PSyCo: the paper's evaluation, reproduced",
        banner=banner,
        tally=summary([claim for part in parts for claim in part.claims]),
        level=f"{LEVEL:.0%}",
        parts=parts,
        folder=figures.name,
        encoded_svg=encoded_svg,
        parameters=[(experiment.title, _parameters(experiment)) for experiment in experiments],
        origin=made,
    )


def _parameters(e: Experiment) -> dict[str, str]:
    return {
        "requirements": "\n".join(
            f"{label}: {e.requirement(variant)}" + (" (watched only)" if variant.calibration == "none" else "")
            for label, variant in e.variants.items()
        ),
        "calibration of λ": "\n".join(f"{label}: {v.calibration}" for label, v in e.variants.items()),
        "learning": f"SNES, {e.episodes:,} episodes of at most 50 steps, population {POPULATION}, α = 0.01, σ = 0.1",
        "policy": "one hidden layer of 32 ReLU units, tanh, biases fixed at 1",
        "verification": f"bayes (Alg. BV), every {e.verify_every:,} episodes, at most {e.verify_episodes:,} episodes",
        "repetitions": f"{e.repetitions}, seeds {e.seeds.start} to {e.seeds[-1]}",
        "end of learning": f"the last {e.final:,} episodes",
    }


def with_symbols(text: str) -> Markup:
    """Return escaped text with the paper's symbols as the paper sets them: n_max, p_req, c_sat, c_req."""
    return Markup(re.sub(r"\b([ncp])_(max|req|sat)\b( = )?", _symbol, escape(text)))


def _symbol(found: re.Match[str]) -> str:
    name, index, equals = found.groups()
    return f"<i>{name}</i><sub>{index}</sub>{'&nbsp;=&nbsp;' if equals else ''}"
