"""The page of counterexamples: timelines, signals, and a film of each episode."""

from __future__ import annotations

import dataclasses
from typing import Any

from markupsafe import Markup

from psyco._src.core.errors import DomainError
from psyco._src.envs.base import Domain, scene_of
from psyco._src.envs.gym_env import GymDomain
from psyco._src.policies.external import AnyPolicy
from psyco._src.reports.film import AUTO, Film, resolve_format
from psyco._src.reports.page import render_page, render_sections
from psyco._src.reports.trajectory import record_video, trajectory_film, video_film
from psyco._src.rollout.episodes import Stream
from psyco._src.verification.certificate_html import certificate_html
from psyco._src.verification.counterexamples import Counterexample, Counterexamples
from psyco._src.verification.counterexamples_html import counterexamples_html

MAX_FRAMES = 150  # of a film in a page; of a longer episode every k-th state is shown


def with_films(found: Counterexamples, domain: Domain, policy: AnyPolicy, format: str = AUTO) -> Counterexamples:
    """Add films: of the scene of a compiled domain, or of the frames that a Gymnasium environment renders."""
    format = resolve_format(format)
    try:
        filmed = tuple(_with_film(each, found, domain, policy, format) for each in found)
    except DomainError as error:
        return dataclasses.replace(found, remarks=(*found.remarks, f"There is no film: {error}."))
    return dataclasses.replace(found, episodes=filmed)


def _with_film(
    each: Counterexample, found: Counterexamples, domain: Domain, policy: AnyPolicy, format: str
) -> Counterexample:
    every = -(-(each.steps + 1) // MAX_FRAMES)
    film: Film | None = None
    if isinstance(domain, GymDomain):
        certificate = found.certificate
        origin: dict[str, Any] = {
            "seed": certificate.seed,
            "stream": Stream[str(certificate.stream).upper()],
            "block": certificate.seed_block or 0,
        }
        film = video_film(record_video(domain, policy, first=each.episode, **origin), every, format)
    elif scene_of(domain) is not None:
        film = trajectory_film(domain, each.signals, every=every, format=format)
    content, media = (None, "") if film is None else (film.content, film.media_type)
    return dataclasses.replace(each, film=content, film_type=media)


def counterexamples_page(found: Counterexamples, title: str) -> str:
    """Return the page as one file that loads nothing."""
    certificate = found.certificate
    sections = render_sections(
        "counterexamples.html",
        title=title,
        verdict=certificate.verdict.name,
        summary=f"{certificate.verdict_summary[:1].upper()}{certificate.verdict_summary[1:]}.",
        of_policy=certificate.policy is not None,
        facts={
            "domain": certificate.domain or "recorded traces",
            "episodes of the certificate": f"{certificate.episodes:,}",
            "episodes shown": f"{len(found):,}",
        },
        content=Markup(counterexamples_html(found)),
        certificate=Markup(certificate_html(certificate)),
    )
    return render_page(f"Counterexamples: {title}", sections)
