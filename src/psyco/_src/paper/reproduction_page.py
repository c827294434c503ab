"""The page: claims first, then every figure, then how it came about; one file that needs nothing else."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

from psyco._src.paper.claim_outcome import LEVEL, Claim, ClaimOutcome, Comparison, summary
from psyco._src.paper.experiments import POPULATION, Experiment
from psyco._src.paper.figures import Drawing

CLASSES = {ClaimOutcome.HOLDS: "holds", ClaimOutcome.FAILS: "fails", ClaimOutcome.OPEN: "open"}
READING = (
    f"Every interval is at the level {LEVEL:.0%}, for the mean over repetitions (Student's t, which is the credible "
    "interval under a flat prior; for counted episodes, the Beta posterior). A claim holds where all of its intervals "
    "lie wholly in the claimed range, does not hold where one lies wholly outside, and cannot be decided otherwise. "
    "The intervals are not corrected for the number of claims."
)


class ExperimentSection(NamedTuple):
    """What is shown of one experiment."""

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
    """The HTML text; the SVG files of all drawings lie in the folder `figures`."""
    template = Template((files("psyco._src.paper") / "page.html").read_text(encoding="utf-8"))
    counts = summary([claim for part in parts for claim in part.claims])
    return template.substitute(
        title="PSyCo: the paper's evaluation, reproduced",
        lead="All experiments of L. Belzner and M. Wirsing, <i>Synthesizing Safe Policies under Probabilistic "
        "Constraints with Reinforcement Learning and Bayesian Model Checking</i> (sections 2.4 and 4), run again with "
        "an independent implementation: the paper's claims first, then every figure, then all parameters.",
        banner=f'<p class="banner" role="note">{escape(banner)}</p>' if banner else "",
        tally="".join(
            f'<li class="{CLASSES[outcome]}"><b>{count}</b>{outcome.value}</li>'
            for outcome, count in counts.items()
        ),
        reading=escape(READING),
        rows="\n".join(map(_rows, parts)),
        figures="\n".join(_section(part, figures) for part in parts),
        parameters="\n".join(map(_parameters, experiments)) or "<p>No learning was involved.</p>",
        made="\n".join(_fact(name, value) for name, value in made.items()),
    )


def _rows(part: ExperimentSection) -> str:
    head = f'<tr class="part"><th scope="rowgroup" colspan="4">{escape(part.title)}</th></tr>'
    return "\n".join([f"<tbody>{head}", *map(_row, part.claims), "</tbody>"])


def _row(claim: Claim) -> str:
    return (
        f'<tr class="claim" id="{escape(claim.name)}">'
        f'<td><span class="outcome {CLASSES[claim.outcome]}">{claim.outcome.value}</span></td>'
        f'<td><p>{_text(claim.text)}</p><p class="soft">Section {escape(claim.where)}</p></td>'
        f'<td><p class="soft">{_text(claim.statistic)}</p><ul class="measured">'
        f"{''.join(map(_comparison, claim.comparisons))}</ul></td>"
        f"<td>{_text(claim.seen)}</td></tr>"
    )


def _comparison(c: Comparison) -> str:
    return (
        f'<li>{_text(c.what)}: <span class="{CLASSES[c.outcome]}"><b>{c.measured}</b></span> '
        f'<span class="soft">({escape(c.wanted)})</span></li>'
    )


def _section(part: ExperimentSection, folder: Path) -> str:
    shown = "\n".join(_figure(drawing, folder) for drawing in part.drawings)
    return f"<section>\n<h2>{escape(part.title)}</h2>\n{shown}\n</section>"


def _figure(drawing: Drawing, folder: Path) -> str:
    # As an image, an SVG keeps its identifiers to itself; inline, those of two figures would clash.
    image = base64.b64encode((folder / f"{drawing.name}.svg").read_bytes()).decode()
    narrow = ' class="narrow"' if drawing.figure.get_figwidth() < 7 else ""
    beside = f"{folder.name}/{drawing.name}.csv"
    return (
        f'<figure id="{drawing.name}"{narrow}>'
        f'<div class="frame"><img src="data:image/svg+xml;base64,{image}" alt="{escape(drawing.title)}"></div>'
        f"<figcaption><b>{escape(drawing.title)}</b>{_text(drawing.caption)} (Figure {drawing.number} of the paper; "
        f'data: <a href="{beside}">{beside}</a>)</figcaption></figure>'
    )


def _parameters(e: Experiment) -> str:
    facts = {
        "requirements": "\n".join(
            f"{label}: {e.requirement(variant)}"
            + (" (watched only)" if variant.calibration == "none" else "")
            for label, variant in e.variants.items()
        ),
        "calibration of λ": "\n".join(f"{label}: {v.calibration}" for label, v in e.variants.items()),
        "learning": f"SNES, {e.episodes:,} episodes of at most 50 steps, population {POPULATION}, α = 0.01, σ = 0.1",
        "policy": "one hidden layer of 32 ReLU units, tanh, biases fixed at 1",
        "verification": f"bayes (Alg. BV), every {e.verify_every:,} episodes, at most {e.verify_episodes:,} episodes",
        "repetitions": f"{e.repetitions}, seeds {e.seeds.start} to {e.seeds[-1]}",
        "end of learning": f"the last {e.final:,} episodes",
    }
    rows = "\n".join(_fact(name, value) for name, value in facts.items())
    return f'<h3>{escape(e.title)}</h3>\n<table class="facts"><tbody>\n{rows}\n</tbody></table>'


def _fact(name: str, value: str) -> str:
    return (
        f'<tr><th scope="row">{escape(name)}</th><td>{"<br>".join(map(_text, value.splitlines()))}</td></tr>'
    )


def _text(text: str) -> str:
    """Escaped, with the paper's symbols as the paper writes them: n_max, p_req, c_sat, c_req."""
    return re.sub(r"\b([ncp])_(max|req|sat)\b( = )?", _symbol, escape(text))


def _symbol(found: re.Match[str]) -> str:
    name, index, equals = found.groups()
    return f"<i>{name}</i><sub>{index}</sub>{'&nbsp;=&nbsp;' if equals else ''}"
